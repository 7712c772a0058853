"""Compare widened models with their sources: `make widening` writes results/widening.md.

Every output is decoded greedily twice, by a model and by the same model at a cost. On the kernels all logits are compared
bit by bit. Then forwards of one token are timed at several costs, in alternation.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

import specbench.tasks  # noqa: F401  (registers the tasks)
from scripts.block_costs import timed
from scripts.sections import environment, processor, write_section
from specbench.analysis.intervals import Estimate, interval_of_ratio
from specbench.analysis.number_format import HUNDREDTHS, NONE
from specbench.config.construct import construct
from specbench.config.cost import Cost
from specbench.config.options import Options
from specbench.config.pair import ModelSpec, Pair
from specbench.config.presets import preset
from specbench.config.quantization_kind import NOT_QUANTIZED, QuantizationKind
from specbench.data.prompting import encode
from specbench.decoding.session import Session
from specbench.machine.memory import read_bandwidth
from specbench.models.loaded_pair import LoadedPair
from specbench.models.loader import load
from specbench.models.resolve_models import Execution, resolve_models
from specbench.models.resolved_model import ResolvedModel
from specbench.reporting.formats.writers import markdown_table
from specbench.reporting.tables import Table
from specbench.resolution.selection import read_task

OUT, CPU = Path("results/widening.md"), torch.device("cpu")
WIDE = Cost(parameters="30M")
COSTS = ("15M", "30M", "60M", "80M", "100M", "120M")
COMPARED = "120M"  # the time per byte of each cost is compared with that of this one
CONTEXT = 128
FEWEST_PASSES = 6  # the first is the warm-up
TASKS = {"tiny": "gsm8k", "tiny-t5": "wmt"}
KINDS = ("", "int8", "int4", "int8-a8", "int4-a8")
INTRODUCTION = [
    "# Widened models against their sources",
    "",
    "A model with a [`cost`](../docs/pairs.md#the-cost-of-a-larger-model) has extra neurons that add zeros to its outputs."
    " *Outputs* counts greedy outputs of the bundled targets, and of the same targets with"
    f" {WIDE.parameters} parameters. *Other tokens* counts the outputs that differ, and *other logits* those with a logit"
    " that is not bit-identical. *Largest gap* is the difference between the two largest logits where outputs first differ.",
    "",
    f"Forwards of one token after {CONTEXT} tokens, in float32, all costs in alternation: *per byte* is T(1) over the bytes"
    f" of weights and cache, relative to the one at {COMPARED} parameters, with a 95 % interval. Made by `make widening`,"
    " with one section per processor.",
]  # fmt: skip


class Form(NamedTuple):
    """A bundled pair whose target is compared, its precision, quantization and engine."""

    pair: str
    dtype: str
    quantization: str = ""
    engine: str = "lean"


class Comparison(NamedTuple):
    """Outputs of a form: all, those with other tokens, those with other logits, and the largest gap at a difference."""

    form: Form
    outputs: int
    other_tokens: int
    other_logits: int
    gap: float


FORMS = (
    *(Form("tiny", "float32", kind) for kind in KINDS),
    Form("tiny", "bfloat16"),
    Form("tiny-t5", "float32"),
    Form("tiny-t5", "bfloat16"),
    *(Form(pair, dtype, engine="eager") for pair in TASKS for dtype in ("float32", "bfloat16")),
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare widened models with their sources.")
    parser.add_argument("--prompts", type=int, default=50, help="of each form")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--seconds", type=float, default=20.0, help="of the timed forwards, for each number of threads")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    with torch.inference_mode():
        compared = [compare(form, args.prompts, args.tokens) for form in FORMS]
        forwards = [row for threads in args.threads for row in times(threads, args.seconds)]
    lines = [table_of_outputs(compared), "", table_of_times(forwards), "", environment()]
    write_section(args.out, processor(), lines, INTRODUCTION)
    print("\n".join(lines))


def resolved(form: Form, cost: Cost | None) -> dict[str, ResolvedModel]:
    """Return the target of a form, at a cost."""
    path = construct(Pair, preset("pair", form.pair).table, form.pair).models["target"].path
    kind = QuantizationKind.parse(form.quantization) if form.quantization else NOT_QUANTIZED
    spec = ModelSpec(path=path, cost=cost, quantization=kind)
    return resolve_models(Pair(models={"target": spec}), ("target",), Path(), Execution(CPU, form.dtype, form.engine))


def loaded(form: Form, cost: Cost | None) -> LoadedPair:
    """Return the target of a form, at a cost, with its weights."""
    return load(resolved(form, cost), Path(), CPU)


def compare(form: Form, prompts: int, tokens: int) -> Comparison:
    """Decode the prompts with and without a cost."""
    narrow, wide = loaded(form, None), loaded(form, WIDE)
    pair = construct(Pair, preset("pair", form.pair).table, form.pair)
    _, task = read_task(TASKS[form.pair], pair, Options())
    other_tokens = other_logits = 0
    gap = 0.0
    for sample in task.data("synthetic").first(prompts).samples:
        prompt, _ = encode(narrow.tokenizer, task, sample, [], narrow.window)
        (ids, logits), (others, other) = (greedy(model, prompt, tokens) for model in (narrow, wide))
        other_logits += not (ids == others and torch.equal(logits, other))
        if ids != others:
            other_tokens += 1
            first = next(at for at, (a, b) in enumerate(zip(ids, others, strict=True)) if a != b)
            largest = logits[first].topk(2).values
            gap = max(gap, float(largest[0] - largest[1]))
    print(f"{form}: {other_tokens} of {prompts} outputs with other tokens", flush=True)
    return Comparison(form, prompts, other_tokens, other_logits, gap)


def greedy(pair: LoadedPair, prompt: list[int], count: int) -> tuple[list[int], torch.Tensor]:
    """Return `count` greedy tokens after a prompt and the logits (count, vocabulary) that chose them."""
    models = pair.open(prompt)
    ids, rows = list(models.ids), list[torch.Tensor]()
    for _ in range(count):
        rows.append(torch.as_tensor(models["target"].score(ids, len(ids) - 1))[-1].float())
        ids.append(int(rows[-1].argmax()))
    return ids[-count:], torch.stack(rows)


class Timed(NamedTuple):
    """Forwards of one token at a cost. `per_byte` is relative to COMPARED."""

    threads: int
    cost: str
    milliseconds: float
    read: int  # bytes of weights and cache
    per_byte: Estimate
    share: float  # of the read bandwidth


def times(threads: int, seconds: float) -> Iterator[Timed]:
    """Yield the times of one-token forwards of the bundled target at each cost."""
    torch.set_num_threads(threads)
    targets = [resolved(Form("tiny", "float32"), Cost(parameters=cost)) for cost in COSTS]
    prompt = [5 + i % 900 for i in range(CONTEXT)]
    sessions = [load(target, Path(), CPU).open(prompt)["target"] for target in targets]
    passes: list[list[float]] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(passes) < FEWEST_PASSES:
        passes.append([second(session, prompt, len(passes)) for session in sessions])
    spent_by_cost, bandwidth = np.array(passes[1:]), read_bandwidth("cpu")
    sizes = [target["target"].size for target in targets]
    read = [size.forward_bytes + size.cache_bytes(CONTEXT) for size in sizes]
    at = COSTS.index(COMPARED)
    for index, cost in enumerate(COSTS):
        spent = spent_by_cost[:, (index, at)] * [read[at] / read[index], 1.0]
        ratio = interval_of_ratio(spent, lambda sums: sums[..., 0] / sums[..., 1])
        one = float(np.median(spent_by_cost[:, index]))
        yield Timed(threads, cost, 1e3 * one, int(read[index]), ratio, read[index] / one / bandwidth)


def second(session: Session, prompt: list[int], at: int) -> float:
    """Return the seconds of a forward of one token that follows another one of the same model, as in decoding."""
    timed(session, prompt, 1, 2 * at)
    return timed(session, prompt, 1, 2 * at + 1)


def table_of_outputs(rows: list[Comparison]) -> str:
    """Return the table of compared outputs."""
    heads = ["model", "engine", "weights", "outputs", "other tokens", "other logits", "largest gap"]
    cells = [
        [row.form.pair, row.form.engine, " ".join(filter(None, (row.form.dtype, row.form.quantization))),
         *map(str, (row.outputs, row.other_tokens, row.other_logits)), f"{row.gap:.1e}" if row.other_tokens else NONE]
        for row in rows
    ]  # fmt: skip
    return markdown_table(Table("", heads, cells))


def table_of_times(rows: list[Timed]) -> str:
    """Return the table of times."""
    heads = ["threads", "parameters", "MB per token", "T(1), ms", "per byte", "share of the read bandwidth"]
    cells = [
        [str(row.threads), row.cost, f"{row.read / 1e6:.0f}", f"{row.milliseconds:.2f}", HUNDREDTHS.text(row.per_byte),
         f"{row.share:.0%}"]
        for row in rows
    ]  # fmt: skip
    return markdown_table(Table("", heads, cells))


if __name__ == "__main__":
    main()
