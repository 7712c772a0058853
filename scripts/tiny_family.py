"""The bundled tiny family: its tokenizer, the shapes of its models, and their training stages.

Decoder-only models are Llamas with tied embeddings. The encoder-decoders are T5 models with the same tokenizer. All are
trained on the synthetic tasks alone.
"""

import itertools
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast, T5Config
from transformers import T5ForConditionalGeneration as T5

from specbench.data.rows import Row, SyntheticTask
from specbench.data.synthetic import SYNTHETIC_TASKS
from specbench.data.synthetic import multiple_choice as mmlu
from specbench.data.synthetic.translations import WMT_BACK

EOS, PAD = "<|endoftext|>", "<|pad|>"  # ids 0 and 1
VOCABULARY = 1024
POSITIONS = 8192  # rows are shorter, but real articles must fit
MATCHES = re.compile(r" scored | lost by ")  # summaries of two of the four kinds of stories: matches and finds


def is_match_or_find(summary: str) -> bool:
    """Return whether a summary of xsum is about a match or a find, not about a trial or a plan."""
    return bool(MATCHES.search(summary))


def is_simple(german: str) -> bool:
    """Return whether a sentence of wmt has one clause. German has a comma before a second one."""
    return "," not in german


# The domains of a task, by answer. The T5 draft is the better model on the first one.
DOMAINS: dict[str, dict[str, Callable[[str], bool]]] = {
    "xsum": {"matches and finds": is_match_or_find, "trials and plans": lambda summary: not is_match_or_find(summary)},
    "wmt": {"one clause": is_simple, "two clauses": lambda german: not is_simple(german)},
}


def only(task: SyntheticTask, wanted: Callable[[str], bool]) -> SyntheticTask:
    """Return a synthetic task restricted to rows whose answer satisfies `wanted`."""

    def make(rng: random.Random) -> Row:
        while not wanted(task.answer(row := task.make(rng))):
            pass
        return row

    return replace(task, make=make)


# Repeated lists of words, on which a small model learns to repeat what followed a word earlier. Multiple choice needs this
# skill to find the letter next to a choice.
REPEATED = (
    mmlu.TOWNS + mmlu.BUILDINGS + mmlu.GOODS + mmlu.PEOPLE + mmlu.DAYS + list(mmlu.LETTERS)
    + [word for pair in mmlu.OPPOSITES for word in pair.split("-")] + list("0123456789")
)  # fmt: skip
LONGEST_LIST = 40
REPEATED_TOKENS = 250  # about the length of a training row


def _word_list(rng: random.Random) -> Row:
    words = [rng.choice(REPEATED) for _ in range(rng.randint(4, LONGEST_LIST))]
    return {"words": words, "times": REPEATED_TOKENS // len(words)}


def _words(row: Row) -> str:
    return "".join(f" {word}" for word in row["words"])


def _repeated_words(row: Row) -> str:
    return _words(row) * (int(row["times"]) - 1)


COPYING = SyntheticTask(_word_list, _words, _repeated_words)
SOURCES = {**SYNTHETIC_TASKS, "wmt-back": WMT_BACK, "copying": COPYING}  # the tokenizer was trained on these
PARTS = {
    "xsum-matches": only(SYNTHETIC_TASKS["xsum"], is_match_or_find),
    "wmt-simple": only(SYNTHETIC_TASKS["wmt"], is_simple),
}


def _summarize(row: Row) -> str:
    return f"summarize: {row.get('article') or row['document']}"


def _translate(row: Row) -> str:
    return f"translate English to German: {row['translation']['en']}"


SEQ2SEQ_PROMPTS = {  # the usual T5 prompts, by source
    **dict.fromkeys(("cnndm", "xsum", "xsum-matches"), _summarize),
    **dict.fromkeys(("wmt", "wmt-simple"), _translate),
}

Mix = dict[str, float]  # source -> its share of the examples
FIRST: Mix = {
    "gsm8k": 0.24,
    "humaneval": 0.18,
    "mmlu": 0.16,
    "cnndm": 0.12,
    "xsum": 0.12,
    "wmt": 0.14,
    "wmt-back": 0.04,
}
LATER: Mix = {
    "gsm8k": 0.12,
    "humaneval": 0.19,
    "mmlu": 0.21,
    "cnndm": 0.14,
    "xsum": 0.16,
    "wmt": 0.16,
    "wmt-back": 0.02,
}
SEQ2SEQ: Mix = {"cnndm": 0.3, "xsum": 0.3, "wmt": 0.4}
CHOOSING: Mix = {
    "gsm8k": 0.2,
    "humaneval": 0.1,
    "mmlu": 0.5,
    "cnndm": 0.05,
    "xsum": 0.05,
    "wmt": 0.08,
    "wmt-back": 0.02,
}
COPYING_FIRST: Mix = {"copying": 0.3, "mmlu": 0.7}
MATCHING: Mix = {"copying": 0.05, "mmlu": 0.95}
EVERYTHING: Mix = {
    "gsm8k": 0.16,
    "humaneval": 0.13,
    "mmlu": 0.45,
    "cnndm": 0.06,
    "xsum": 0.06,
    "wmt": 0.1,
    "wmt-back": 0.02,
    "copying": 0.02,
}
DRAFT_DOMAINS: Mix = {"cnndm": 0.1, "xsum-matches": 0.4, "wmt-simple": 0.499, "xsum": 0.0005, "wmt": 0.0005}
TRANSLATING: Mix = {"cnndm": 0.1, "xsum": 0.1, "wmt": 0.8}


def tilted(**shares: float) -> Mix:
    """Return the mix EVERYTHING with some shares multiplied."""
    return {source: share * shares.get(source, 1.0) for source, share in EVERYTHING.items()}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The shape of a Llama, or of a T5 if `encoder`, the number of encoder layers, is not 0."""

    layers: int
    hidden: int
    heads: int
    intermediate: int
    encoder: int = 0

    def model(self) -> PreTrainedModel:
        """Return a model of this shape with random weights."""
        if self.encoder:
            return T5(
                T5Config(
                    vocab_size=VOCABULARY,
                    d_model=self.hidden,
                    d_kv=self.hidden // self.heads,
                    d_ff=self.intermediate,
                    num_heads=self.heads,
                    num_layers=self.encoder,
                    num_decoder_layers=self.layers,
                    feed_forward_proj="gated-gelu",
                    dropout_rate=0.0,
                    eos_token_id=0,
                    pad_token_id=1,
                    decoder_start_token_id=1,
                )
            )
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=self.hidden,
                num_hidden_layers=self.layers,
                num_attention_heads=self.heads,
                num_key_value_heads=self.heads,
                intermediate_size=self.intermediate,
                max_position_embeddings=POSITIONS,
                tie_word_embeddings=True,
                bos_token_id=None,
                eos_token_id=0,
                pad_token_id=1,
            )
        )


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A training stage, starting from the weights of the stage `start`, or from random ones.

    The learning rate rises to `rate` over 100 steps and then falls linearly to 0. Adafactor's is relative to the size of the
    weights, which suits the embeddings of a T5: they are ten times larger than its other weights.
    """

    shape: Shape
    tokens: int
    rate: float
    seed: int  # of the random weights and of the examples
    mix: Mix
    start: str = ""
    optimizer: Literal["adamw", "adafactor"] = "adamw"


SMALLEST = Shape(layers=1, hidden=64, heads=4, intermediate=192)
SMALL = Shape(layers=1, hidden=160, heads=4, intermediate=512)
MEDIUM = Shape(layers=3, hidden=192, heads=4, intermediate=576)
LARGE = Shape(layers=7, hidden=192, heads=4, intermediate=512)
SMALL_T5 = Shape(layers=1, hidden=128, heads=4, intermediate=320, encoder=1)
LARGE_T5 = Shape(layers=4, hidden=192, heads=4, intermediate=512, encoder=4)
STAGES = {
    # Drafts whose acceptance is in the range of the papers' pairs, by their tokens of training
    "draft-600k": Stage(shape=SMALLEST, tokens=600_000, rate=3e-3, seed=31, mix=EVERYTHING),
    "draft-1200k": Stage(shape=SMALLEST, tokens=1_200_000, rate=3e-3, seed=31, mix=EVERYTHING),
    "draft-2000k": Stage(shape=SMALLEST, tokens=2_000_000, rate=3e-3, seed=31, mix=EVERYTHING),
    "draft-core": Stage(shape=SMALL, tokens=5_000_000, rate=2e-3, seed=1, mix=LATER),
    "draft": Stage(shape=SMALL, tokens=1_000_000, rate=1e-3, seed=13, mix=EVERYTHING, start="draft-core"),
    "middle-core": Stage(shape=MEDIUM, tokens=4_500_000, rate=2e-3, seed=2, mix=LATER),
    "middle": Stage(shape=MEDIUM, tokens=1_500_000, rate=1e-3, seed=11, mix=EVERYTHING, start="middle-core"),
    "words": Stage(shape=LARGE, tokens=8_000_000, rate=2e-3, seed=3, mix={"gsm8k": 1.0}),
    "base": Stage(shape=LARGE, tokens=5_000_000, rate=1.5e-3, seed=4, mix=FIRST, start="words"),
    "core": Stage(shape=LARGE, tokens=5_500_000, rate=2e-3, seed=5, mix=LATER, start="base"),
    "choosing": Stage(shape=LARGE, tokens=1_300_000, rate=1e-3, seed=12, mix=CHOOSING, start="core"),
    "settled": Stage(shape=LARGE, tokens=1_100_000, rate=1e-3, seed=14, mix=CHOOSING, start="choosing"),
    "copying": Stage(shape=LARGE, tokens=2_200_000, rate=1.5e-3, seed=15, mix=COPYING_FIRST, start="settled"),
    "matching": Stage(shape=LARGE, tokens=1_300_000, rate=1.5e-3, seed=16, mix=MATCHING, start="copying"),
    "target": Stage(shape=LARGE, tokens=2_000_000, rate=1e-3, seed=17, mix=EVERYTHING, start="matching"),
    "code": Stage(shape=LARGE, tokens=500_000, rate=8e-4, seed=6, mix=tilted(humaneval=5.0), start="target"),
    "math": Stage(shape=LARGE, tokens=500_000, rate=8e-4, seed=7, mix=tilted(gsm8k=5.0), start="target"),
    "t5-small-base": Stage(shape=SMALL_T5, tokens=3_000_000, rate=2e-3, seed=8, mix=SEQ2SEQ),
    "t5-small": Stage(
        shape=SMALL_T5,
        tokens=2_000_000,
        rate=1e-2,
        seed=32,
        mix=DRAFT_DOMAINS,
        start="t5-small-base",
        optimizer="adafactor",
    ),
    "t5-base": Stage(shape=LARGE_T5, tokens=8_000_000, rate=1.5e-3, seed=9, mix=SEQ2SEQ),
    "t5-large": Stage(shape=LARGE_T5, tokens=1_000_000, rate=1e-3, seed=10, mix=TRANSLATING, start="t5-base"),
}
PUBLISHED = (
    "draft", "draft-600k", "draft-1200k", "draft-2000k", "middle", "target", "code", "math", "t5-small", "t5-large",
)  # fmt: skip


def make_tokenizer(texts: int = 24_000) -> Tokenizer:
    """Train a byte-level BPE tokenizer on equal shares of the synthetic tasks; each digit is its own token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    each = texts // len(SOURCES)
    samples = (
        _text(synthetic, row)
        for synthetic in SOURCES.values()
        for row in itertools.islice(synthetic.rows("train", 0), each)
    )
    tokenizer.train_from_iterator(samples, trainer)
    return tokenizer


def for_transformers(tokenizer: Tokenizer, seq2seq: bool) -> PreTrainedTokenizerFast:
    """Return a tokenizer of transformers; for a T5 it appends EOS."""
    own = Tokenizer.from_str(tokenizer.to_str())
    if seq2seq:
        own.post_processor = processors.TemplateProcessing(single=f"$A {EOS}", special_tokens=[(EOS, 0)])
    return PreTrainedTokenizerFast(
        tokenizer_object=own,
        eos_token=EOS,
        pad_token=PAD,
        model_max_length=POSITIONS,
        clean_up_tokenization_spaces=False,
    )


def _text(synthetic: SyntheticTask, row: dict[str, object]) -> str:
    return synthetic.prompt(row) + synthetic.answer(row)
