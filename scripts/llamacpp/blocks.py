"""Forwards of blocks of tokens by specbench and by llama.cpp's server on the same weights, in turn.

A server that keeps the cache of a prompt reads only the tokens after the common prefix, and states the time of that.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypedDict

import msgspec
import numpy as np
import torch

from scripts.llamacpp.peer import LlamaCppError, Timings, post, request_of
from specbench.analysis.intervals import Estimate, interval_of_ratio
from specbench.config.options import Options
from specbench.models.cached_session import CachedSession
from specbench.models.loader import load
from specbench.models.resolve_models import Execution, resolve_models
from specbench.resolution.selection import read_pair

SIZES = (1, 2, 3, 4, 5, 6, 8, 16)
CONTEXT = 128  # tokens before the block
PASSES = 30


class _Answer(TypedDict):
    timings: Timings


class BlockRow(NamedTuple):
    """Blocks of a model: milliseconds of both, and the other's time over specbench's, by SIZES."""

    model: str
    weights: str
    ours: list[float]
    theirs: list[float]
    ratios: list[Estimate]


def block_row(model: str, weights: str, pair: str, url: str, passes: int = PASSES) -> BlockRow:
    """Time blocks after CONTEXT tokens. The logits of the last token alone are computed, as llama.cpp does for a prompt."""
    read, cpu = read_pair(pair, Options())[1], torch.device("cpu")
    models = resolve_models(read, ("target",), Path(), Execution(cpu, "float32", "lean"))
    target = load(models, Path(), cpu).models["target"]
    session, first = CachedSession(target.model_runner(target.vocabulary, None)), [5 + i % 900 for i in range(CONTEXT)]
    times: list[list[tuple[float, float]]] = []
    with torch.inference_mode():
        for at in range(passes + 1):
            blocks = [[5 + (13 * at + 7 * n + i) % 900 for i in range(n)] for n in SIZES]
            times.append([(_ours(session, first, block), _theirs(url, first, block)) for block in blocks])
    table = np.array(times[1:])  # (passes, sizes, 2); the first is the warm-up
    middle = 1e3 * np.median(table, 0)
    ratios = [interval_of_ratio(table[:, i, ::-1], lambda sums: sums[..., 0] / sums[..., 1]) for i in range(len(SIZES))]
    return BlockRow(model, weights, middle[:, 0].tolist(), middle[:, 1].tolist(), ratios)


def _ours(session: CachedSession, first: Sequence[int], block: Sequence[int]) -> float:
    """Return the seconds of a forward of the block, whose first token differs from that of the block before."""
    ids = [*first, *block]
    begin = time.perf_counter()
    session.score(ids, len(ids) - 1)
    return time.perf_counter() - begin


def _theirs(url: str, first: Sequence[int], block: Sequence[int]) -> float:
    """Return the seconds of the same by a server. Raises LlamaCppError if it read another number of tokens."""
    request = {**request_of([*first, *block], 1), "cache_prompt": True}
    answer = msgspec.json.decode(post(url, request), type=_Answer)
    read = answer["timings"]["prompt_n"]
    if read not in (len(block), len(first) + len(block)):  # the first request reads everything
        raise LlamaCppError(f"llama.cpp read {read} tokens of a prompt with {len(block)} new ones")
    return answer["timings"]["prompt_ms"] / 1e3
