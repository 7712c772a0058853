"""Train the bundled tiny family from nothing but `problems.py`: `make tiny`, or `python -m specbench.tiny.train`.

Three Hugging Face folders come out, with one byte-level BPE tokenizer: `draft`, `target`, and, for ensembles, `co-target`. It
and the target are one base model, trained further on other problems each, as public instruct and coder models are. Each is a
Llama with tied embeddings and single-digit number tokens, saved in bfloat16. Training is float32 on the CPU with AdamW.
"""

import argparse
import copy
import itertools
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from specbench.tiny.problems import problems, prompt

HOME = Path(__file__).parent / "models"
EOS = "<|endoftext|>"
VOCABULARY = 640
ROW = 256  # tokens a training row holds; rows start at the start of a problem
QUESTION_WEIGHT = 0.2  # of a question token's loss: its names and numbers are noise that nobody can predict


class Cycle(NamedTuple):
    """A warm-up to the peak learning rate, and a linear decay to zero; `seed` of the problems that are seen."""

    tokens: int
    rate: float
    seed: int


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One model's shape and training. The first cycle's seed is that of the weights too."""

    layers: int
    hidden: int
    heads: int
    intermediate: int
    cycles: tuple[Cycle, ...]
    rows: int = 12  # a step

    def config(self) -> LlamaConfig:
        """8,192 positions, although rows are shorter: real articles must fit."""
        return LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.heads,
            intermediate_size=self.intermediate,
            max_position_embeddings=8192,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=0,
            pad_token_id=0,
        )


BASE = Cycle(5_500_000, 2e-3, seed=3)
FAMILY = {
    "draft": Recipe(layers=1, hidden=160, heads=4, intermediate=512, cycles=(Cycle(6_000_000, 2e-3, seed=1),)),
    "target": Recipe(layers=7, hidden=192, heads=4, intermediate=512, cycles=(BASE, Cycle(2_600_000, 1e-3, seed=103))),
    "co-target": Recipe(
        layers=7, hidden=192, heads=4, intermediate=512, cycles=(BASE, Cycle(2_600_000, 1e-3, seed=104))
    ),
}


def make_tokenizer(texts: int = 20_000) -> PreTrainedTokenizerFast:
    """Byte-level BPE over generated problems; every digit is a token of its own."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[EOS], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    sample = itertools.islice(problems("train", seed=0), texts)
    tokenizer.train_from_iterator((f"{prompt(p)} {p['answer']}" for p in sample), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=EOS,
        pad_token=EOS,
        model_max_length=8192,
        clean_up_tokenization_spaces=False,
    )


def rows(tokenizer: PreTrainedTokenizerFast, seed: int) -> Iterator[tuple[list[int], list[float]]]:
    """Endless (ids, weights), ROW + 1 each: whole problems one after the other, the last one cut."""
    stream = problems("train", seed)
    while True:
        ids: list[int] = []
        weights: list[float] = []
        while len(ids) <= ROW:
            problem = next(stream)
            asked = tokenizer.encode(prompt(problem))
            worked = [*tokenizer.encode(" " + problem["answer"]), 0]
            ids += asked + worked
            weights += [QUESTION_WEIGHT] * len(asked) + [1.0] * len(worked)
        yield ids[: ROW + 1], weights[: ROW + 1]


def train(
    model: LlamaForCausalLM, recipe: Recipe, cycle: int, tokenizer: PreTrainedTokenizerFast, label: str
) -> LlamaForCausalLM:
    """Train a float32 model through one cycle of its recipe; prints a line every hundred steps."""
    model.train()
    tokens, rate, seed = recipe.cycles[cycle]
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    steps, warm = tokens // (recipe.rows * ROW), 100
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, (steps - step) / (steps - warm))
    )
    data, start = rows(tokenizer, seed), time.perf_counter()
    for step in range(1, steps + 1):
        batch = list(itertools.islice(data, recipe.rows))
        ids = torch.tensor([row for row, _ in batch])  # (rows, ROW + 1)
        weights = torch.tensor([weight for _, weight in batch])[:, 1:]  # (rows, ROW)
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits  # (rows, ROW, V)
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        loss = (losses * weights).sum() / weights.sum()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 100 == 0 or step == steps:
            answers = losses[weights == 1.0].mean().item()
            seconds = time.perf_counter() - start
            print(f"{label} cycle {cycle} {step}/{steps} answer loss {answers:.4f} {seconds:.0f} s", flush=True)
    return model.eval()


@torch.inference_mode()
def accuracy(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, count: int = 200) -> float:
    """Share of `count` held-out problems whose last `####` is right under greedy decoding; a check on training."""
    right, sample = 0, list(itertools.islice(problems("test", seed=1), count))
    tokenizer.padding_side = "left"
    for first in range(0, count, 50):
        part = sample[first : first + 50]
        asked = tokenizer([prompt(p) for p in part], return_tensors="pt", padding=True, return_token_type_ids=False)
        out = model.generate(**asked, max_new_tokens=160, do_sample=False, pad_token_id=0)
        texts = tokenizer.batch_decode(out[:, asked["input_ids"].shape[1] :], skip_special_tokens=True)
        right += sum(
            t.rsplit("#### ", 1)[-1].strip() == p["answer"].rsplit("#### ", 1)[-1]
            for t, p in zip(texts, part, strict=True)
        )
    return right / count


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the Hugging Face folder: bfloat16 safetensors, config, tokenizer."""
    shutil.rmtree(folder, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the tiny family on generated problems.")
    parser.add_argument("models", nargs="*", default=list(FAMILY), choices=list(FAMILY), metavar="MODEL")
    parser.add_argument("--out", type=Path, default=HOME)
    args = parser.parse_args()
    tokenizer, bases = make_tokenizer(), dict[Cycle, LlamaForCausalLM]()
    for name in args.models:
        recipe = FAMILY[name]
        first = recipe.cycles[0]
        if first not in bases:
            torch.manual_seed(first.seed)
            bases[first] = train(LlamaForCausalLM(recipe.config()), recipe, 0, tokenizer, name)
        model = copy.deepcopy(bases[first])
        for cycle in range(1, len(recipe.cycles)):
            model = train(model, recipe, cycle, tokenizer, name)
        save(model, tokenizer, args.out / name)
        reloaded = LlamaForCausalLM.from_pretrained(args.out / name, dtype=torch.float32)
        print(json.dumps({"model": name, "held_out_accuracy": accuracy(reloaded, tokenizer)}), flush=True)


if __name__ == "__main__":
    main()
