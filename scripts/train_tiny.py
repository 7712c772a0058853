"""Train the bundled tiny family from nothing but the synthetic twins: `make tiny`, or `python -m scripts.train_tiny`.

Training is float32 on the CPU with AdamW. Every finished stage is kept under build/tiny/ by its name, so that an interrupted
training goes on with the next stage; remove that folder after a change of recipe. What is published is in bfloat16.
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

from scripts.tiny_family import PUBLISHED, SEQ2SEQ_PROMPTS, SOURCES, STAGES, Mix, Stage, dressed, make_tokenizer

HOME = Path(__file__).parents[1] / "specbench/tiny/models"
STAGED = Path("build/tiny")
ROW = 256  # tokens a Llama's training row holds; rows start at the start of an example
BATCH = 12  # rows
SEQ2SEQ_BATCH = 24  # examples
QUESTION_WEIGHT = 0.1  # of a question token's loss: its names and numbers are noise that nobody can predict
REPORT_STEPS = 100
IGNORED = -100  # a label without a loss

Example = tuple[list[int], list[int]]  # prompt ids, answer ids with EOS


def examples(tokenizer: Tokenizer, mix: Mix, seed: int, seq2seq: bool = False) -> Iterator[Example]:
    """Endless examples of the training split, their sources drawn by share."""
    rng = random.Random(seed)
    streams = {source: SOURCES[source].rows("train", seed) for source in mix}
    while True:
        source = rng.choices(list(mix), list(mix.values()))[0]
        synthetic, row = SOURCES[source], next(streams[source])
        asked = SEQ2SEQ_PROMPTS[source](row) if seq2seq else synthetic.prompt(row)
        prompt = tokenizer.encode(asked).ids
        yield prompt + [0] * seq2seq, [*tokenizer.encode(synthetic.answer(row)).ids, 0]


def row(stream: Iterator[Example]) -> tuple[list[int], list[float]]:
    """(ids, weights), ROW + 1 each: whole examples one after the other, the last one cut."""
    ids: list[int] = []
    weights: list[float] = []
    while len(ids) <= ROW:
        asked, answered = next(stream)
        ids += asked + answered
        weights += [QUESTION_WEIGHT] * len(asked) + [1.0] * len(answered)
    return ids[: ROW + 1], weights[: ROW + 1]


def llama_loss(model: PreTrainedModel, stream: Iterator[Example]) -> tuple[torch.Tensor, torch.Tensor, int]:
    """The weighted loss of one batch, the answers' own, and the tokens seen."""
    batch = [row(stream) for _ in range(BATCH)]
    ids = torch.tensor([each for each, _ in batch])  # (BATCH, ROW + 1)
    weights = torch.tensor([each for _, each in batch])[:, 1:]  # (BATCH, ROW)
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits  # (BATCH, ROW, V)
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    return (losses * weights).sum() / weights.sum(), losses[weights == 1.0].mean(), BATCH * ROW


def t5_loss(model: PreTrainedModel, stream: Iterator[Example]) -> tuple[torch.Tensor, torch.Tensor, int]:
    """The answers' loss of one batch, twice, and the tokens seen on both sides."""
    batch = list(itertools.islice(stream, SEQ2SEQ_BATCH))
    asked = _padded([prompt for prompt, _ in batch], 1)  # (SEQ2SEQ_BATCH, n)
    labels = _padded([answer for _, answer in batch], IGNORED)  # (SEQ2SEQ_BATCH, m)
    loss = model(input_ids=asked, attention_mask=(asked != 1).long(), labels=labels).loss
    return loss, loss.detach(), int((asked != 1).sum() + (labels != IGNORED).sum())


def _padded(rows: list[list[int]], filler: int) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([each + [filler] * (width - len(each)) for each in rows])


def train(model: PreTrainedModel, stage: Stage, tokenizer: Tokenizer, label: str) -> dict[str, object]:
    """Train a float32 model through one stage, in place, with a line every hundred steps; returns its story."""
    seq2seq = model.config.is_encoder_decoder
    stream = examples(tokenizer, stage.mix, stage.seed, seq2seq)
    loss_of = t5_loss if seq2seq else llama_loss
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=stage.rate, betas=(0.9, 0.98), weight_decay=0.01)
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


def kept_tokenizer() -> Tokenizer:
    """The family's tokenizer: from build/tiny/ where it lies there, else trained and put there."""
    path = STAGED / "tokenizer.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        make_tokenizer().save(str(path))
    return Tokenizer.from_file(str(path))


def trained(name: str, tokenizer: Tokenizer) -> PreTrainedModel:
    """The model at the end of a stage: from build/tiny/ where it lies there, else trained and put there."""
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
    """What is told of the stages that led to a model, the first one first."""
    before = history(STAGES[name].start) if STAGES[name].start else []
    return [*before, json.loads((STAGED / f"{name}.json").read_text())]


def save(model: PreTrainedModel, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the Hugging Face folder: bfloat16 safetensors, config, tokenizer, and the story of its training."""
    shutil.rmtree(folder, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    dressed(tokenizer, model.config.is_encoder_decoder).save_pretrained(folder)
    (folder / "training.json").write_text(json.dumps(history(folder.name), indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the tiny family on the synthetic twins.")
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
