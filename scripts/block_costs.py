"""Measure the cost of a block, T(n) / T(1): the time of a forward of n tokens over the time of one. Part of `make bench`.

Also the blocks of a mixture of experts, forwards of one token by every family of the lean engine, and trees against chains.

A draft of k tokens costs its target a forward of k + 1 tokens, so these costs bound the speedup of every method that drafts.
Sizes and engines alternate in one process per number of threads. The models have random weights: only their shapes matter.
"""

import argparse
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import AutoConfig, PreTrainedConfig

from scripts.sections import environment, processor, write_section
from specbench.analysis.intervals import Estimate, interval_of_ratio
from specbench.decoding.sampling import Tree
from specbench.decoding.trees import shape_of_paths
from specbench.machine.memory import read_bandwidth
from specbench.methods.tree_drafts import EAGLE_TREE
from specbench.models.cached_session import CachedSession
from specbench.models.lean import LeanModelRunner, network_of, small_config
from specbench.models.loader import use_huge_pages_for
from specbench.models.resolved_model import size_of
from specbench.models.simulated import random_model
from specbench.models.transformers_session import EagerModelRunner

OUT = Path("results/block-costs.md")
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
MIXTURE = AutoConfig.for_model(  # 8 experts of 1.6M parameters in each layer; each token selects 2
    "mixtral", num_hidden_layers=8, hidden_size=512, intermediate_size=1024, num_attention_heads=8, num_key_value_heads=8,
    num_local_experts=8, num_experts_per_tok=2, vocab_size=8000, sliding_window=None, tie_word_embeddings=False,
)  # fmt: skip
FAMILIES = (
    "llama", "qwen3", "gemma3", "phi3", "gpt-neox", "olmo2", "granite", "smollm3", "mixtral", "qwen3-moe",
)  # fmt: skip
FAMILY_TOKENS = 80  # timed forwards of one token
TREE_SHAPES, TREE_FORWARDS = ("tiny", "25M", "100M"), 60


class MixtureRow(NamedTuple):
    """A block of a mixture of experts: its time, and the bytes that it reads of the experts that its tokens select."""

    n: int
    milliseconds: float
    selected: float  # experts of a layer, mean
    megabytes: float  # all weights that are read
    bytes_bound: float  # milliseconds


class FamilyRow(NamedTuple):
    """The time of a forward of one token by a small model of a family, and transformers' over ours."""

    family: str
    lean: float  # milliseconds
    transformers: float
    ratio: Estimate


class TreeRow(NamedTuple):
    """The time of a forward of a chain of tokens, of a tree of as many, and the tree's over the chain's."""

    model: str
    chain: float  # milliseconds
    tree: float
    ratio: Estimate


class Row(NamedTuple):
    """The costs of one model on one engine."""

    model: str
    engine: str
    dtype: str
    threads: int
    milliseconds: float  # of one token
    costs: list[Estimate]  # by SIZES
    bytes_bound: float  # milliseconds of reading the weights and the cache once
    flops_bound: float  # milliseconds of the products of one token
    context: int


ENGINES = ("lean", "transformers")
INTRODUCTION = [
    "# The cost of a block on a CPU",
    "",
    "T(n) / T(1): the time of a forward of n tokens over that of one token, with 95 % intervals. Random weights of "
    "the stated shapes; of T5, the decoder after an encoder. Sizes and engines alternate in one process. *bytes* is "
    "the time of reading weights and cache once at the measured read bandwidth, *flops* that of the "
    "products of one token at the rate of a large product. Made by `make bench`, with one section per processor.",
]


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
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        mixture, families, trees = pool.apply(measured_at_one_thread)
    write_section(args.out, processor(), section(rows, mixture, families, trees), INTRODUCTION)
    print(args.out.read_text(encoding="utf-8"))


def measured(models: list[str], dtypes: list[str], threads: int, seconds: float) -> list[Row]:
    """Return the costs of all models and engines with this number of threads."""
    torch.set_num_threads(threads)
    bandwidth, rows = read_bandwidth("cpu"), list[Row]()
    for name in models:
        for dtype in dtypes:
            rows += costs(name, dtype, threads, seconds, bandwidth)
    if IN_CONTEXT in models:
        for context in CONTEXTS:
            rows += costs(IN_CONTEXT, dtypes[0], threads, seconds, bandwidth, context, ENGINES[:1])
    return rows


def costs(
    name: str,
    dtype: str,
    threads: int,
    seconds: float,
    bandwidth: float,
    context: int = CONTEXT,
    engines: Sequence[str] = ENGINES,
) -> Iterator[Row]:
    """Yield the costs of a model after `context` tokens on some engines, whose forwards alternate."""
    config, source = SHAPES[name], None
    first = [5 + i % 900 for i in range(context - 1)]
    if config.is_encoder_decoder:
        source, first = list(range(5, 5 + SOURCE)), first[: context // 2]
    sessions: dict[str, Any] = {}
    for engine in engines:
        model = random_model(config, dtype, torch.device("cpu")).eval().requires_grad_(False)
        opened = network_of(model) if engine == "lean" else model
        use_huge_pages_for(model)
        kind: Any = LeanModelRunner if engine == "lean" else EagerModelRunner
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


def measured_at_one_thread() -> tuple[list[MixtureRow], list[FamilyRow], list[TreeRow]]:
    """Return the blocks of the mixture, forwards of the families, and trees, on one thread in float32."""
    torch.set_num_threads(1)
    mixture, families = list(mixture_rows(read_bandwidth("cpu"))), [family_row(name) for name in FAMILIES]
    return mixture, families, [tree_row(name) for name in TREE_SHAPES]


def tree_row(name: str) -> TreeRow:
    """Time forwards of the last token and EAGLE's tree after it, and of as many tokens in a row, alternating."""
    model, shape = random_model(SHAPES[name], "float32", torch.device("cpu")), shape_of_paths(EAGLE_TREE)
    session = CachedSession(LeanModelRunner(network_of(model.eval().requires_grad_(False)), SHAPES[name].vocab_size))
    use_huge_pages_for(model)
    first = [5 + i % 900 for i in range(CONTEXT - 1)]
    session.score(first, len(first) - 1)
    rows: list[tuple[float, float]] = []
    for at in range(TREE_FORWARDS):
        chain = timed(session, first, 1 + len(shape), at)
        tokens = [5 + (13 * at + i) % 900 for i in range(len(shape))]
        begin = time.perf_counter()
        session.score([*first, 3], len(first), Tree(tokens, shape))
        rows.append((time.perf_counter() - begin, chain))
    table = np.array(rows[10:])
    tree, chain = (1e3 * float(each) for each in np.median(table, 0))
    return TreeRow(name, chain, tree, interval_of_ratio(table, lambda sums: sums[..., 0] / sums[..., 1]))


def mixture_rows(bandwidth: float) -> Iterator[MixtureRow]:
    """Yield the mixture's blocks, timed in turn, with the experts that their tokens select."""
    model = random_model(MIXTURE, "float32", torch.device("cpu")).eval().requires_grad_(False)
    network: Any = network_of(model)
    use_huge_pages_for(model)
    session, first = (
        CachedSession(LeanModelRunner(network, MIXTURE.vocab_size)),
        [5 + i % 900 for i in range(CONTEXT - 1)],
    )
    session.score(first, len(first) - 1)
    table = np.array([[timed(session, first, size, at) for size in SIZES] for at in range(40)])[1:]
    experts = [layer.experts for layer in network.layers.layers]
    one = 3 * MIXTURE.hidden_size * MIXTURE.intermediate_size  # numbers of one expert
    counts: list[int] = []

    def counting(block: Any) -> Any:
        def call(x: torch.Tensor) -> torch.Tensor:
            counts.append(
                len(set(torch.nn.functional.linear(x, block.router).topk(block.count, -1)[1].flatten().tolist()))
            )
            out: torch.Tensor = block(x)
            return out

        return call

    for layer, block in zip(network.layers.layers, experts, strict=True):
        layer.experts = counting(block)
    size = size_of(MIXTURE, "float32")
    rest = size.forward_bytes - 4 * one * MIXTURE.num_experts_per_tok * len(experts)
    for i, n in enumerate(SIZES):
        counts.clear()
        for at in range(1, 40):
            timed(session, first, n, at)
        selected = float(np.mean(counts))
        read = rest + 4 * one * selected * len(experts)
        bound = 1e3 * (read + size.cache_bytes(CONTEXT)) / bandwidth
        yield MixtureRow(n, 1e3 * float(np.median(table[:, i])), selected, read / 1e6, bound)


def family_row(name: str) -> FamilyRow:
    """Time forwards of one token by 12 layers of width 384, with a vocabulary of 8,000, after CONTEXT tokens."""
    config = family_config(name)
    models = [random_model(config, "float32", torch.device("cpu")).eval().requires_grad_(False) for _ in range(2)]
    for model in models:
        use_huge_pages_for(model)
    sessions = [
        CachedSession(LeanModelRunner(network_of(models[0]), 8000)),
        CachedSession(EagerModelRunner(models[1], 8000)),
    ]
    first = [5 + i % 900 for i in range(CONTEXT - 1)]
    for session in sessions:
        session.score(first, len(first) - 1)
    table = np.array([[timed(session, first, 1, at) for session in sessions] for at in range(FAMILY_TOKENS)])[10:]
    ratio = interval_of_ratio(table[:, ::-1], lambda sums: sums[..., 0] / sums[..., 1])
    lean, transformers = (1e3 * float(each) for each in np.median(table, 0))
    return FamilyRow(name, lean, transformers, ratio)


def family_config(name: str) -> PreTrainedConfig:
    """Return the config of a family at 12 layers of width 384."""
    config = small_config(name, 8000, 512)
    widths = {
        "hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6, "num_key_value_heads": 6,
        "intermediate_size": 1024, "head_dim": 64,
    }  # fmt: skip
    for key in widths.keys() & config.to_dict().keys():
        setattr(config, key, widths[key])
    if getattr(config, "layer_types", None):
        period = ["sliding_attention"] * 5 + ["full_attention"]
        config.layer_types = 2 * period if name == "gemma3" else ["full_attention"] * 12
    if name == "smollm3":
        config.no_rope_layers = [1, 1, 1, 0] * 3
    if getattr(config, "sliding_window", None):
        config.sliding_window = CONTEXT
    return config


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
            for each in row.costs[1:]
        )
        lines.append(
            f"| {row.model} | {row.engine} | {row.dtype} | {row.threads} | {row.context} | {row.milliseconds:.2f} | {cells} |"
            f" {row.bytes_bound:.2f} | {row.flops_bound:.3f} |"
        )
    return lines


def tree_table(rows: list[TreeRow]) -> list[str]:
    """Return the lines on trees and chains."""
    return [
        f"A draft tree against a chain: the last token and EAGLE's tree of {len(EAGLE_TREE)} tokens, or as many tokens in a "
        f"row, lean engine, float32, one thread, after {CONTEXT} tokens. The two alternate.",
        "",
        "| model | chain, ms | tree, ms | tree over chain |",
        "| :-- | --: | --: | --: |",
        *(
            f"| {row.model} | {row.chain:.2f} | {row.tree:.2f} | {row.ratio.value:.2f}x"
            f" [{row.ratio.low:.2f}, {row.ratio.high:.2f}] |"
            for row in rows
        ),
    ]


def section(rows: list[Row], mixture: list[MixtureRow], families: list[FamilyRow], trees: list[TreeRow]) -> list[str]:
    """Return the results on this processor as Markdown."""
    lines = [
        f"After a context of {CONTEXT} tokens:",
        "",
        *table([row for row in rows if row.context == CONTEXT]),
        "",
        "By the length of the context:",
        "",
        *table([row for row in rows if row.context != CONTEXT]),
        "",
        "A mixture of experts on the lean engine, float32, one thread: 8 layers of width 512 with 8 experts each, of which "
        "a token passes 2. A block reads the experts that any of its tokens selects, so its cost grows with its size.",
        "",
        "| n | T(n), ms | T(n) / T(1) | experts selected in a layer | weights read, MB | bytes, ms |",
        "| --: | --: | --: | --: | --: | --: |",
        *(
            f"| {row.n} | {row.milliseconds:.2f} | {row.milliseconds / mixture[0].milliseconds:.2f} | {row.selected:.2f} |"
            f" {row.megabytes:.0f} | {row.bytes_bound:.2f} |"
            for row in mixture
        ),
        "",
        "A forward of one token by family: 12 layers of width 384, a vocabulary of 8,000, float32, one thread, after "
        f"{CONTEXT} tokens. The two engines alternate.",
        "",
        "| family | lean, ms | transformers, ms | transformers over lean |",
        "| :-- | --: | --: | --: |",
        *(
            f"| {row.family} | {row.lean:.2f} | {row.transformers:.2f} | {row.ratio.value:.2f}x"
            f" [{row.ratio.low:.2f}, {row.ratio.high:.2f}] |"
            for row in families
        ),
        "",
        *tree_table(trees),
    ]
    return [*lines, "", environment()]


if __name__ == "__main__":
    main()
