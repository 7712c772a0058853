"""Train the bundled tiny family on the synthetic tasks: `make tiny`.

Training is in float32 on the CPU, with AdamW or Adafactor. Each finished stage is stored under build/tiny/, so that an
interrupted training resumes with the next stage. Delete that folder after changing a recipe. The published weights are in
bfloat16.
"""

import argparse
import itertools
import json
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel
from transformers.optimization import Adafactor

from scripts.tiny_family import (
    PARTS,
    PUBLISHED,
    SEQ2SEQ_PROMPTS,
    SOURCES,
    STAGES,
    Mix,
    Stage,
    for_transformers,
    make_tokenizer,
)

HOME = Path(__file__).parents[1] / "specbench/tiny/models"
STAGED = Path("build/tiny")
ROW = 256  # tokens in a Llama's training row, which begins with the start of an example
BATCH = 12  # rows
SEQ2SEQ_BATCH = 24  # examples
QUESTION_WEIGHT = 0.1  # of the loss of a question's tokens, since its names and numbers cannot be predicted
REPORT_STEPS = 100
IGNORED = -100  # a label that is excluded from the loss

Example = tuple[list[int], list[int]]  # prompt ids, answer ids with EOS


def examples(tokenizer: Tokenizer, mix: Mix, seed: int, seq2seq: bool = False) -> Iterator[Example]:
    """Yield examples of the training split without end, with sources sampled by their shares."""
    rng, sources = random.Random(seed), {**SOURCES, **PARTS}
    streams = {source: sources[source].rows("train", seed) for source in mix}
    while True:
        source = rng.choices(list(mix), list(mix.values()))[0]
        synthetic, row = sources[source], next(streams[source])
        text = SEQ2SEQ_PROMPTS[source](row) if seq2seq else synthetic.prompt(row)
        prompt = tokenizer.encode(text).ids
        yield prompt + [0] * seq2seq, [*tokenizer.encode(synthetic.answer(row)).ids, 0]


def row(stream: Iterator[Example]) -> tuple[list[int], list[float]]:
    """Return (ids, weights) of length ROW + 1: concatenated examples, the last one truncated."""
    ids: list[int] = []
    weights: list[float] = []
    while len(ids) <= ROW:
        prompt, answer = next(stream)
        ids += prompt + answer
        weights += [QUESTION_WEIGHT] * len(prompt) + [1.0] * len(answer)
    return ids[: ROW + 1], weights[: ROW + 1]


def llama_loss(model: PreTrainedModel, stream: Iterator[Example]) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return the weighted loss of one batch, the loss of the answers alone, and the number of tokens."""
    batch = [row(stream) for _ in range(BATCH)]
    ids = torch.tensor([each for each, _ in batch])  # (BATCH, ROW + 1)
    weights = torch.tensor([each for _, each in batch])[:, 1:]  # (BATCH, ROW)
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits  # (BATCH, ROW, V)
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    return (losses * weights).sum() / weights.sum(), losses[weights == 1.0].mean(), BATCH * ROW


def t5_loss(model: PreTrainedModel, stream: Iterator[Example]) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return the loss of one batch's answers, with and without gradient, and the number of tokens on both sides."""
    batch = list(itertools.islice(stream, SEQ2SEQ_BATCH))
    prompts = _padded([prompt for prompt, _ in batch], 1)  # (SEQ2SEQ_BATCH, n)
    labels = _padded([answer for _, answer in batch], IGNORED)  # (SEQ2SEQ_BATCH, m)
    loss = model(input_ids=prompts, attention_mask=(prompts != 1).long(), labels=labels).loss
    return loss, loss.detach(), int((prompts != 1).sum() + (labels != IGNORED).sum())


def _padded(rows: list[list[int]], filler: int) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([each + [filler] * (width - len(each)) for each in rows])  # (rows, width)


def train(model: PreTrainedModel, stage: Stage, tokenizer: Tokenizer, label: str) -> dict[str, object]:
    """Train a float32 model in place for one stage, printing progress. Returns what training.json records of the stage."""
    seq2seq = model.config.is_encoder_decoder
    stream = examples(tokenizer, stage.mix, stage.seed, seq2seq)
    loss_of = t5_loss if seq2seq else llama_loss
    model.train()
    optimizer = _optimizer(model, stage)
    seen, step, start, warm = 0, 0, time.perf_counter(), 100
    while seen < stage.tokens:
        step += 1
        rate = stage.rate * min(step / warm, 1.0 - seen / stage.tokens)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss, answers, tokens = loss_of(model, stream)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seen += tokens
        if step % REPORT_STEPS == 0 or seen >= stage.tokens:
            seconds = time.perf_counter() - start
            print(f"{label}: {seen / stage.tokens:.0%}, answer loss {answers:.4f}, {seconds:.0f} s", flush=True)
    model.eval()
    return {
        "stage": label,
        "tokens": seen,
        "steps": step,
        "answer_loss": round(answers.item(), 4),
        "seconds": round(seconds),
    }


def _optimizer(model: PreTrainedModel, stage: Stage) -> torch.optim.Optimizer:
    if stage.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=stage.rate, betas=(0.9, 0.98), weight_decay=0.01)
    optimizer: torch.optim.Optimizer = Adafactor(model.parameters(), lr=stage.rate, relative_step=False)
    return optimizer


def kept_tokenizer() -> Tokenizer:
    """Return the family's tokenizer from build/tiny/, after training it if it is missing."""
    path = STAGED / "tokenizer.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        make_tokenizer().save(str(path))
    return Tokenizer.from_file(str(path))


def trained(name: str, tokenizer: Tokenizer) -> PreTrainedModel:
    """Return the model at the end of a stage from build/tiny/, after training it if it is missing."""
    stage, path = STAGES[name], STAGED / f"{name}.pt"
    torch.manual_seed(stage.seed)
    if path.exists():
        model = stage.shape.model()
        model.load_state_dict(torch.load(path))
        return model.eval()
    model = trained(stage.start, tokenizer) if stage.start else stage.shape.model()
    path.with_suffix(".json").write_text(json.dumps(train(model, stage, tokenizer, name)))
    torch.save(model.state_dict(), path)
    return model


def history(name: str) -> list[dict[str, object]]:
    """Return the records of the stages that led to a model, in order."""
    before = history(STAGES[name].start) if STAGES[name].start else []
    return [*before, json.loads((STAGED / f"{name}.json").read_text())]


def save(model: PreTrainedModel, tokenizer: Tokenizer, folder: Path) -> None:
    """Write a Hugging Face folder: bfloat16 safetensors, config, tokenizer, and training.json."""
    shutil.rmtree(folder, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    for_transformers(tokenizer, model.config.is_encoder_decoder).save_pretrained(folder)
    (folder / "training.json").write_text(json.dumps(history(folder.name), indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the tiny family on the synthetic tasks.")
    parser.add_argument("models", nargs="*", default=list(PUBLISHED), choices=list(STAGES), metavar="MODEL")
    parser.add_argument("--out", type=Path, default=HOME)
    args = parser.parse_args()
    tokenizer = kept_tokenizer()
    for name in args.models:
        model = trained(name, tokenizer)
        if name in PUBLISHED:
            save(model, tokenizer, args.out / name)


if __name__ == "__main__":
    main()
