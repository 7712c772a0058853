"""Training texts: prompts and their continuations as token ids, split by text, and the outputs of models for them."""

import hashlib
import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from specbench.config.construct import Table
from specbench.data.prompting import dialogue_ids, encode
from specbench.data.task import Message, Sample, Task
from specbench.decoding.loop import GenerationLimits
from specbench.decoding.sampling import Sampler
from specbench.errors import ConfigError
from specbench.models.loaded_pair import LoadedPair
from specbench.training.recipes import SPLITS, Split


@dataclass(frozen=True)
class Text:
    """The ids of a prompt and of its reference answer, its continuation in the data. `number` is its index among all texts.

    `sample` is the prompt as the task has it, and `task` the task's name. A generated answer has at most `max_new_tokens`
    tokens and ends at the first of the task's `stop` strings.
    """

    number: int
    prompt: list[int]
    rest: list[int]
    sample: Sample
    task: str
    max_new_tokens: int = 128
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Texts:
    """Texts, and a description that identifies them."""

    texts: list[Text]
    about: Table  # tasks, sources, SHA-256 of all rows, number of skipped rows

    @property
    def sha256(self) -> str:
        """The SHA-256 of the token ids, and of what ends generated answers."""
        parts = [[t.prompt, t.rest, t.max_new_tokens, t.stop] for t in self.texts]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def first(self, count: int) -> "Texts":
        """Return the first `count` texts."""
        return Texts(self.texts[:count], {**self.about, "texts": count})

    def held_out(self, seed: int) -> "list[Text]":
        """Return the texts of the test split, which no head was trained or chosen on, one of each task in turn."""
        by_task: dict[str, list[Text]] = {}
        for text in self.texts:
            if split_of(text.number, seed) == "test":
                by_task.setdefault(text.task, []).append(text)
        return [text for turn in itertools.zip_longest(*by_task.values()) for text in turn if text]


@dataclass(frozen=True)
class TaskSource:
    """A task whose texts a head is trained on, and the source of its rows. `word` is how the user named the task."""

    name: str
    task: Task
    source: str
    word: str

    @property
    def is_file(self) -> bool:
        """Whether the user names a file or a split, so that there is no training split."""
        return self.source not in ("hub", "synthetic")


def gather(pair: LoadedPair, tasks: Sequence[TaskSource], count: int, skip: int, seed: int) -> Texts:
    """Return `count` texts (0: all) of these tasks in equal shares, in random order.

    The first `skip` rows of each task are left out. Raises ConfigError if too few remain.
    """
    rng = random.Random(f"texts:{seed}")
    hashes: list[str] = []
    items: list[tuple[list[int], list[int], Sample, TaskSource]] = []
    for source in tasks:
        rows, pairs = source.task.texts(source.source)
        hashes.append(rows.sha256)
        dialogues: Sequence[list[Message] | None] = source.task.dialogues(rows.rows) or [None] * len(pairs)
        samples = [(*both, dialogue) for both, dialogue in zip(pairs, dialogues, strict=True)][skip:]
        rng.shuffle(samples)
        for sample, after, dialogue in samples[: -(-count // len(tasks)) if count else None]:
            ids = _ids_of_dialogue(pair, dialogue) if dialogue else _ids_of_text(pair, source.task, sample, after)
            if ids is not None:
                items.append((*ids, sample, source))
    if len(items) < 10:
        raise ConfigError(
            f"{len(items)} texts remain after --data, --limit and --skip; at least 10 are needed to train, validate and test"
        )
    rng.shuffle(items)
    texts = [
        Text(i, prompt, rest, sample, of.name, of.task.max_new_tokens, of.task.stop)
        for i, (prompt, rest, sample, of) in enumerate(items[: count or None])
    ]
    sources = list(dict.fromkeys(task.source for task in tasks))
    about: Table = {"tasks": [task.name for task in tasks], "source": ", ".join(sources), "skipped": skip}
    return Texts(texts, {**about, "sha256": hashes, "texts": len(texts)})


def _ids_of_dialogue(pair: LoadedPair, dialogue: list[Message]) -> tuple[list[int], list[int]] | None:
    """Return the ids of a dialogue's first question and of the rest; None if the question is too long for the models."""
    prompt, rest = dialogue_ids(pair.tokenizer, dialogue)
    window = pair.window_of(pair.models).length
    room = len(rest) if window is None else window - len(prompt)
    return (prompt, rest[:room]) if room > 0 else None


def _ids_of_text(pair: LoadedPair, task: Task, sample: Sample, after: str) -> tuple[list[int], list[int]] | None:
    """Return the ids of a prompt and of the text after it, with EOS; None if the prompt is too long for the models."""
    try:
        prompt, _ = encode(pair.tokenizer, task, sample, [], pair.window_of(pair.models).length, pair.encoder_decoder)
    except ConfigError:  # of every prompt
        raise
    except ValueError:
        return None
    rest = pair.tokenizer.encode(after, add_special_tokens=False) if after else []
    return prompt, rest if task.continues or not rest else rest + sorted(pair.eos)[:1]


def steps_within(pair: LoadedPair, text: Text, steps: int) -> int:
    """Return the number of steps, or what the smallest window of the models has room for after a prompt."""
    window = pair.window_of(pair.models).length
    return steps if window is None else min(steps, window - len(text.prompt))


def split_of(number: int, seed: int) -> Split:
    """Return the split of a text.

    Of every five texts, three are for training and one each for validation and test, at random but reproducibly.
    """
    block, position = divmod(number, len(SPLITS))
    splits = list(SPLITS)
    random.Random(f"split:{seed}:{block}").shuffle(splits)
    return splits[position]


def masks(numbers: Tensor, seed: int) -> dict[Split, Tensor]:
    """Return masks (n,) of the rows in each split, from the text number of each row (n,)."""
    distinct, positions = torch.unique(numbers, return_inverse=True)
    splits = [split_of(number, seed) for number in distinct.tolist()]
    return {split: torch.tensor([name == split for name in splits])[positions] for split in set(SPLITS)}


# Outputs of the models


def sampler_of(pair: LoadedPair, text: Text, seed: int, temperature: float) -> Sampler:
    """Return a sampler whose draws depend on the seed and the text alone."""
    number = hash((seed, text.number)) & (2**62 - 1)
    return Sampler(temperature, generator=torch.Generator(pair.device).manual_seed(number))


def limits_of(pair: LoadedPair, text: Text) -> GenerationLimits:
    """Return what ends an output after the prompt of a text."""
    return GenerationLimits(
        eos=pair.eos,
        max_new_tokens=text.max_new_tokens,
        window=pair.window,
        stop=text.stop,
        detokenize=lambda ids: str(pair.tokenizer.decode(ids, skip_special_tokens=True)),
    )


@dataclass(frozen=True)
class Writing:
    """How a model's outputs are generated: its role, the maximum number of tokens, the temperature and the seed."""

    role: str
    most: int
    temperature: float
    seed: int

    def with_generated_answers(self, pair: LoadedPair, texts: Sequence[Text]) -> list[Text]:
        """Return the texts with the model's outputs in place of the reference answers, up to the first stop token.

        They are generated in one batch, with transformers. A prompt that leaves no room has an empty output.
        """
        window = pair.window_of(pair.models).length
        longest = min(self.most, window or self.most)
        rooms = {text.number: min(text.max_new_tokens, longest - len(text.prompt)) for text in texts}
        batch = [text for text in texts if rooms[text.number] > 0]
        width = max((len(text.prompt) for text in batch), default=0)
        new = max((rooms[text.number] for text in batch), default=0)
        fits = window is None or width + new <= window
        rows: list[list[int]] = []
        for part in [batch] if fits else [[text] for text in batch]:
            rows += self._generated(pair, part, max(rooms[text.number] for text in part)) if part else []
        outputs = {text.number: row[: rooms[text.number]] for text, row in zip(batch, rows, strict=True)}
        return [replace(text, rest=_ended(outputs.get(text.number, []), limits_of(pair, text))) for text in texts]

    def _generated(self, pair: LoadedPair, texts: Sequence[Text], new: int) -> list[list[int]]:
        """Return `new` tokens after each prompt. Tokens after an end-of-sequence token are padding."""
        model: PreTrainedModel = pair.models[self.role].transformers()
        width, device, pad = max(len(text.prompt) for text in texts), model.device, min(pair.eos, default=0)
        ids = torch.tensor([[pad] * (width - len(text.prompt)) + text.prompt for text in texts])  # (b, n)
        mask = torch.tensor([[0] * (width - len(text.prompt)) + [1] * len(text.prompt) for text in texts])  # (b, n)
        extra = range(pair.vocabulary, pair.models[self.role].vocabulary)
        sampling = {"do_sample": True, "temperature": self.temperature, "top_k": 0, "top_p": 1.0}
        config = GenerationConfig(
            max_new_tokens=new,
            eos_token_id=sorted(pair.eos) or None,
            pad_token_id=pad,
            suppress_tokens=list(extra) or None,
            **(sampling if self.temperature > 0.0 else {"do_sample": False}),
        )
        config_before, model.generation_config = model.generation_config, config
        try:
            with torch.inference_mode(), torch.random.fork_rng([device] if device.type == "cuda" else []):
                torch.manual_seed(hash((self.seed, texts[0].number)) & (2**62 - 1))
                out = model.generate(ids.to(device), attention_mask=mask.to(device), generation_config=config)
        finally:
            model.generation_config = config_before
        return [row[width:] for row in out.tolist()]


def _ended(tokens: list[int], limits: GenerationLimits) -> list[int]:
    """Return tokens up to and including the first end-of-sequence token, or the token that completes a stop string."""
    for count, token in enumerate(tokens, 1):
        if token in limits.eos or limits.stopped(tokens[:count]):
            return tokens[:count]
    return tokens
