"""Measure the price of a block: the time of a forward of n tokens over that of one, T(n) / T(1), part of `make bench`.

A draft of k tokens costs its target a forward of k + 1 tokens, so these prices bound the speedup of every method that drafts.
Sizes and engines alternate in one process per number of threads. The models have random weights: only their shapes matter.
"""

import argparse
import json
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import AutoConfig, PreTrainedConfig

from specbench.analysis.intervals import Estimate, interval_of_ratio
from specbench.machine.hardware import fingerprint
from specbench.machine.memory import copy_bandwidth
from specbench.models.cached_session import CachedSession
from specbench.models.engine import LeanFeeder, network_of
from specbench.models.loader import use_huge_pages_for
from specbench.models.simulated import random_model
from specbench.models.sizes import size_of
from specbench.models.transformers_session import EagerFeeder

OUT = Path("results/block-prices.md")
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 16)
CONTEXT = 128  # tokens before the block
CONTEXTS = (64, 512, 2048, 4096)  # for the lean engine on one model
IN_CONTEXT = "100M"
SOURCE = 128  # tokens that an encoder reads
PRODUCT = 1024  # rows of the square matrices whose product states the processor's flops


def llama(layers: int, width: int, wide: int, heads: int, vocabulary: int) -> PreTrainedConfig:
    """Return a Llama's config, with an LM head of its own."""
    return AutoConfig.for_model(
        "llama", num_hidden_layers=layers, hidden_size=width, intermediate_size=wide, num_attention_heads=heads,
        num_key_value_heads=heads, vocab_size=vocabulary, max_position_embeddings=8192, tie_word_embeddings=False,
    )  # fmt: skip


SHAPES = {
    "tiny": llama(7, 192, 512, 4, 1024),  # the shape of the bundled target
    "25M": llama(8, 448, 1216, 7, 4000),
    "100M": llama(12, 768, 2048, 12, 8000),
    "450M": llama(12, 1536, 5120, 16, 16000),
    "T5 60M": AutoConfig.for_model("t5", d_model=512, d_ff=2048, num_layers=6, num_heads=8, vocab_size=32128),
}


class Row(NamedTuple):
    """The prices of one model on one engine."""

    model: str
    engine: str
    dtype: str
    threads: int
    milliseconds: float  # of one token
    prices: list[Estimate]  # by SIZES
    bytes_bound: float  # milliseconds of reading the weights and the cache once
    flops_bound: float  # milliseconds of the products of one token
    context: int


ENGINES = ("lean", "transformers")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the time of blocks of tokens over that of one token.")
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"])
    parser.add_argument("--seconds", type=float, default=8.0, help="time for each model, dtype and number of threads")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    rows: list[Row] = []
    for threads in args.threads:  # a process each: the number of threads is fixed before the first product
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            rows += pool.apply(measured, (args.models, args.dtypes, threads, args.seconds))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(page(rows), encoding="utf-8")
    print(page(rows))


def measured(models: list[str], dtypes: list[str], threads: int, seconds: float) -> list[Row]:
    """Return the prices of all models and engines with this number of threads."""
    torch.set_num_threads(threads)
    bandwidth, rows = copy_bandwidth("cpu"), list[Row]()
    for name in models:
        for dtype in dtypes:
            rows += prices(name, dtype, threads, seconds, bandwidth)
    if IN_CONTEXT in models:
        for context in CONTEXTS:
            rows += prices(IN_CONTEXT, dtypes[0], threads, seconds, bandwidth, context, ENGINES[:1])
    return rows


def prices(
    name: str,
    dtype: str,
    threads: int,
    seconds: float,
    bandwidth: float,
    context: int = CONTEXT,
    engines: Sequence[str] = ENGINES,
) -> Iterator[Row]:
    """Yield the prices of a model after `context` tokens on some engines, whose forwards alternate."""
    config, source = SHAPES[name], None
    first = [5 + i % 900 for i in range(context - 1)]
    if config.is_encoder_decoder:
        source, first = list(range(5, 5 + SOURCE)), first[: context // 2]
    sessions: dict[str, Any] = {}
    for engine in engines:
        model = random_model(config, dtype, torch.device("cpu")).eval().requires_grad_(False)
        opened = network_of(model) if engine == "lean" else model
        use_huge_pages_for(model)
        kind: Any = LeanFeeder if engine == "lean" else EagerFeeder
        sessions[engine] = CachedSession(kind(opened, config.vocab_size, source))
        sessions[engine].score(first, len(first) - 1)
    times: dict[str, list[list[float]]] = {engine: [] for engine in sessions}
    end, at = time.perf_counter() + seconds, 0
    while time.perf_counter() < end or at < 6:
        for engine, session in sessions.items():
            times[engine].append([timed(session, first, size, at) for size in SIZES])
        at += 1
    size = size_of(config, dtype)
    flops = 2 * size.parameters / rate_of_products(dtype)
    for engine, found in times.items():
        table = np.array(found[1:])  # the first is the warm-up
        ratios = [
            interval_of_ratio(table[:, [i, 0]], lambda sums: sums[..., 0] / sums[..., 1]) for i in range(len(SIZES))
        ]
        yield Row(
            name, engine, dtype, threads, 1e3 * float(np.median(table[:, 0])), ratios,
            1e3 * (size.forward_bytes + size.cache_bytes(context)) / bandwidth, 1e3 * flops,
            context,
        )  # fmt: skip


def timed(session: Any, first: list[int], size: int, at: int) -> float:
    """Return the seconds of a forward of `size` tokens that follow `first`."""
    tokens = [5 + (13 * at + 7 * size + i) % 900 for i in range(size)]
    begin = time.perf_counter()
    session.score(first + tokens, len(first))
    return time.perf_counter() - begin


def rate_of_products(dtype: str) -> float:
    """Return the floating-point operations per second of a large product; the best of a few."""
    a = torch.randn(PRODUCT, PRODUCT).to(getattr(torch, dtype))
    best = float("inf")
    for _ in range(6):
        begin = time.perf_counter()
        torch.mm(a, a)
        best = min(best, time.perf_counter() - begin)
    return 2 * PRODUCT**3 / best


def table(rows: Sequence[Row]) -> list[str]:
    """Return the lines of a Markdown table."""
    heads = " | ".join(f"n = {n}" for n in SIZES[1:])
    lines = [
        f"| model | engine | dtype | threads | context | T(1), ms | {heads} | bytes, ms | flops, ms |",
        "| :-- | :-- | :-- | --: | --: | --: |" + " --: |" * (len(SIZES) + 1),
    ]
    for row in rows:
        cells = " | ".join(
            f"{each.value:.2f}" if each.low is None else f"{each.value:.2f} [{each.low:.2f}, {each.high:.2f}]"
            for each in row.prices[1:]
        )
        lines.append(
            f"| {row.model} | {row.engine} | {row.dtype} | {row.threads} | {row.context} | {row.milliseconds:.2f} | {cells} |"
            f" {row.bytes_bound:.2f} | {row.flops_bound:.3f} |"
        )
    return lines


def page(rows: list[Row]) -> str:
    """Return the results as Markdown."""
    env = dict(fingerprint())
    lines = [
        "# The price of a block on a CPU",
        "",
        "T(n) / T(1): the time of a forward of n tokens over that of one token, with 95 % intervals. Random weights of "
        "the stated shapes; of T5, the decoder after an encoder. Sizes and engines alternate in one process. *bytes* is "
        "the time of reading weights and cache once at the bandwidth of a copy (read and written), *flops* that of the "
        "products of one token at the rate of a large product. Made by `make bench`.",
        "",
        f"After a context of {CONTEXT} tokens:",
        "",
        *table([row for row in rows if row.context == CONTEXT]),
        "",
        "By the length of the context:",
        "",
        *table([row for row in rows if row.context != CONTEXT]),
    ]
    kept = {key: env[key] for key in ("cpu", "cores", "load_1min", "python", "packages", "git")}
    return "\n".join([*lines, "", f"`{json.dumps(kept)}`", ""])


if __name__ == "__main__":
    main()
