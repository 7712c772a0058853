"""Measure forwards with quantized weights over those in float32, part of `make bench`: writes results/quantized-weights.md.

All forms of a model's weights alternate in one process per number of threads, on the lean engine. The models have random
weights: only their shapes matter.
"""

import argparse
import multiprocessing
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from scripts.block_costs import CONTEXT, SHAPES, llama, timed
from scripts.sections import environment, processor, write_section
from specbench.analysis.intervals import Estimate, interval_of_ratio
from specbench.config.quantization_kind import NOT_QUANTIZED, QuantizationKind
from specbench.machine.memory import read_bandwidth
from specbench.models.cached_session import CachedSession
from specbench.models.lean import LeanModelRunner, network_of
from specbench.models.loader import use_huge_pages_for
from specbench.models.quantization import quantize
from specbench.models.resolved_model import size_of
from specbench.models.simulated import random_model

OUT = Path("results/quantized-weights.md")
SIZES = (1, 5, 16, 64)
MODELS = {
    "tiny": SHAPES["tiny"],
    "25M": SHAPES["25M"],
    "82M": llama(7, 192, 20000, 4, 1024),  # the bundled target's shape with wide MLPs: few inputs, many outputs
    "100M": SHAPES["100M"],
    "450M": SHAPES["450M"],
}
FORMS = ("float32", "bfloat16", "int8", "int4", "int8-a8", "int4-a8", "int4-g32-sym-a8")
INTRODUCTION = [
    "# Quantized weights on a CPU",
    "",
    f"Forwards of n tokens after {CONTEXT} tokens, with each form of the weights over float32, and 95 % intervals."
    " A ratio below 1 means faster than float32. All forms of a model alternate in one process, and each timed forward"
    " follows one of the same size, as in decoding. LM head and embedding are"
    " not quantized. *bytes* is what T(1) would take over float32's if both were bound by the weights and the cache that"
    " they read, *GB/s* these bytes over T(1), and *share* that of the read bandwidth. The models have random weights: only"
    " their shapes matter. Made by `make bench`, with one section per processor.",
]


class Row(NamedTuple):
    """One form of a model's weights. `ratios` are T(n) over float32's T(n), by SIZES."""

    model: str
    form: str
    threads: int
    milliseconds: float  # of one token
    ratios: list[Estimate]
    read: int  # bytes of weights and cache
    share: float  # of the read bandwidth


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure forwards with quantized weights over those in float32.")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--forms", nargs="+", default=list(FORMS), help="float32, bfloat16, or kinds of quantization")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--seconds", type=float, default=10.0, help="time for each model and number of threads")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    rows: list[Row] = []
    for threads in args.threads:  # a process each: the number of threads is fixed before the first product
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            rows += pool.apply(measured, (args.models, args.forms, threads, args.seconds))
    lines = [*table(rows), "", environment()]
    write_section(args.out, processor(), lines, INTRODUCTION)
    print("\n".join(lines))


def measured(models: Sequence[str], forms: Sequence[str], threads: int, seconds: float) -> list[Row]:
    """Return the rows of all models with this number of threads."""
    torch.set_num_threads(threads)
    return [row for name in models for row in rows_of(name, forms, threads, seconds)]


def rows_of(name: str, forms: Sequence[str], threads: int, seconds: float) -> list[Row]:
    """Return the rows of one model, whose forms alternate."""
    config, first = MODELS[name], [5 + i % 900 for i in range(CONTEXT - 1)]
    forms = ["float32", *(form for form in forms if form != "float32")]
    sessions: list[CachedSession] = []
    for form in forms:
        model = random_model(config, dtype_of(form), torch.device("cpu")).eval().requires_grad_(False)
        if kind := kind_of(form):
            quantize(model, kind)
        session = CachedSession(LeanModelRunner(network_of(model), config.vocab_size))
        use_huge_pages_for(model)
        session.score(first, len(first) - 1)
        sessions.append(session)
    passes: list[list[list[float]]] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(passes) < 6:
        passes.append([[second(session, first, n, len(passes)) for n in SIZES] for session in sessions])
    times, bandwidth = np.array(passes[1:]), read_bandwidth("cpu")  # (passes, forms, sizes); the first is the warm-up
    rows = []
    for at, form in enumerate(forms):
        ratios = [
            interval_of_ratio(times[:, (at, 0), n], lambda sums: sums[..., 0] / sums[..., 1]) for n in range(len(SIZES))
        ]
        size, one = size_of(config, dtype_of(form), kind_of(form)), float(np.median(times[:, at, 0]))
        read = int(size.forward_bytes + size.cache_bytes(CONTEXT))
        rows.append(Row(name, form, threads, 1e3 * one, ratios, read, read / one / bandwidth))
    return rows


def second(session: CachedSession, first: Sequence[int], n: int, at: int) -> float:
    """Return the seconds of a forward of n tokens that follows another one, as in decoding."""
    timed(session, list(first), n, 2 * at)
    return timed(session, list(first), n, 2 * at + 1)


def dtype_of(form: str) -> str:
    """Return the precision of everything that a form does not quantize."""
    return form if form == "bfloat16" else "float32"


def kind_of(form: str) -> QuantizationKind:
    """Return the kind of quantization of a form; NOT_QUANTIZED for numbers."""
    return NOT_QUANTIZED if form in ("float32", "bfloat16") else QuantizationKind.parse(form)


def table(rows: Sequence[Row]) -> list[str]:
    """Return the lines of a Markdown table."""
    heads = " | ".join(f"T({n})" for n in SIZES)
    read = {(row.model, row.threads): row.read for row in rows if row.form == "float32"}
    return [
        f"| model | weights | threads | T(1), ms | {heads} | bytes | GB/s | share |",
        "| :-- | :-- | --: | --: |" + " --: |" * (len(SIZES) + 3),
        *(
            f"| {row.model} | {row.form} | {row.threads} | {row.milliseconds:.2f} | {' | '.join(map(_cell, row.ratios))} |"
            f" {row.read / read[row.model, row.threads]:.2f} | {row.read / row.milliseconds / 1e6:.1f} | {row.share:.0%} |"
            for row in rows
        ),
    ]


def _cell(ratio: Estimate) -> str:
    return f"{ratio.value:.2f}" if ratio.low is None else f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"


if __name__ == "__main__":
    main()
