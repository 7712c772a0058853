"""Measures of blocks of load, each in one definition, and speedups with intervals.

Times of a request, by the names that load generators use:

- TTFT: from sending to the first tokens;
- TPOT (`inter-token latency` of AIPerf): from the first chunk to the last, divided by the tokens after the first
  chunk;
- inter-chunk latency: from the first chunk to the last, divided by the chunks after the first;
- end to end: from sending to the end of the answer.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from specbench.analysis.intervals import FEWEST, Estimate, interval_of_ratio
from specbench.analysis.significance import student_quantile
from specbench.features.servers.load.blocks import Block
from specbench.features.servers.request_log import LoggedRequest
from specbench.features.servers.served import SpeculationCounts, total

PERCENTILES = (50, 90, 99)
FEWEST_VALUES = 3  # of which an interval is drawn


def first_token(request: LoggedRequest) -> float | None:
    """Return the time to the first token, in seconds; None without tokens."""
    return request.chunks[0][0] if request.chunks else None


def time_per_token(request: LoggedRequest) -> float | None:
    """Return the seconds per token after the first chunk; None for a request with one chunk."""
    if not request.chunks or len(request.chunks) < 2:
        return None
    tokens = sum(count for _, count in request.chunks[1:])
    if not tokens:
        return None
    return (request.chunks[-1][0] - request.chunks[0][0]) / tokens


def time_between_chunks(request: LoggedRequest) -> float | None:
    """Return the seconds per chunk after the first; None for a request with one chunk."""
    if not request.chunks or len(request.chunks) < 2:
        return None
    return (request.chunks[-1][0] - request.chunks[0][0]) / (len(request.chunks) - 1)


def end_to_end(request: LoggedRequest) -> float | None:
    """Return the seconds from sending to the end of the answer."""
    return request.seconds


TIMES: dict[str, Callable[[LoggedRequest], float | None]] = {
    "TTFT": first_token,
    "TPOT": time_per_token,
    "inter-chunk latency": time_between_chunks,
    "end to end": end_to_end,
}


@dataclass(frozen=True)
class Percentiles:
    """Mean and percentiles of a time, in seconds, over `count` requests."""

    mean: float
    values: tuple[float, ...]  # of PERCENTILES
    count: int


def percentiles(requests: Sequence[LoggedRequest], time: Callable[[LoggedRequest], float | None]) -> Percentiles | None:
    """Return the mean and the percentiles of a time; None if no request has it."""
    found = [value for request in requests if (value := time(request)) is not None]
    if not found:
        return None
    return Percentiles(float(np.mean(found)), tuple(float(np.percentile(found, q)) for q in PERCENTILES), len(found))


def paired(blocks: Sequence[Block]) -> list[tuple[Block, Block]]:
    """Return the complete pairs of blocks (off, on), in order."""
    by: dict[int, dict[str, Block]] = {}
    for block in blocks:
        by.setdefault(block.pair, {})[block.side] = block
    return [(both["off"], both["on"]) for _, both in sorted(by.items()) if both.keys() >= {"off", "on"}]


def throughput_ratios(pairs: Sequence[tuple[Block, Block]]) -> list[float]:
    """Return the ratio of throughput of each pair whose blocks both have tokens."""
    return [on.throughput / off.throughput for off, on in pairs if on.tokens and off.tokens]


def throughput_speedup(pairs: Sequence[tuple[Block, Block]]) -> Estimate | None:
    """Return the geometric mean of the ratios of throughput over pairs, with its interval; None without tokens."""
    ratios = throughput_ratios(pairs)
    return mean_of_logs(np.log(ratios).tolist()) if ratios else None


def mean_of_logs(logs: Sequence[float]) -> Estimate:
    """Return the exponential of a mean, with Student's interval; without an interval for fewer than three values."""
    mean, n = float(np.mean(logs)), len(logs)
    if n < FEWEST_VALUES:
        return Estimate(math.exp(mean), None, None)
    half = student_quantile(n - 1.0) * float(np.std(logs, ddof=1)) / math.sqrt(n)
    return Estimate(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def pairs_needed(pairs: Sequence[tuple[Block, Block]], relative: float) -> int:
    """Return how many pairs give an interval of the throughput's speedup of +- `relative`, from these pairs (Stein 1945)."""
    logs = np.log(throughput_ratios(pairs)).tolist()
    if len(logs) < FEWEST_VALUES:
        return len(pairs)
    deviation, quantile = float(np.std(logs, ddof=1)), student_quantile(len(logs) - 1.0)
    return max(len(pairs), math.ceil((quantile * deviation / math.log1p(relative)) ** 2))


def time_speedup(
    pairs: Sequence[tuple[Block, Block]], time: Callable[[LoggedRequest], float | None], by_token: bool
) -> Estimate | None:
    """Return how many times shorter a time is with speculation, with its interval over prompts and pairs.

    The means are over tokens if `by_token`, else over requests. Prompts that only one side finished in a pair are left out.
    """
    cells: dict[tuple[int, int], list[float]] = {}
    for number, (off, on) in enumerate(pairs):
        for at, block in ((0, off), (2, on)):
            for request in block.done:
                value = time(request)
                if value is None:
                    continue
                weight = max(request.count - 1, 1) if by_token else 1
                cell = cells.setdefault((request.key.prompt, number), [0.0] * 4)
                cell[at] += value * weight
                cell[at + 1] += weight
    both = {key: cell for key, cell in cells.items() if cell[0] and cell[2]}  # chunks that arrive together take no time
    if not both:
        return None
    prompts = {key: i for i, key in enumerate(dict.fromkeys(prompt for prompt, _ in both))}
    table = np.zeros((len(prompts), len(pairs), 5))
    for (prompt, number), cell in both.items():
        table[prompts[prompt], number] = [*cell, cell[0]]

    def ratio(sums: np.ndarray) -> np.ndarray:
        return np.asarray((sums[..., 0] / sums[..., 1]) / (sums[..., 2] / sums[..., 3]))

    if len(prompts) < FEWEST:
        return Estimate(float(ratio(table.sum(axis=(0, 1)))), None, None)
    return interval_of_ratio(table, ratio)


# Speculation, in one definition: tokens per round are accepted drafted tokens and the target's own token


@dataclass(frozen=True)
class Acceptance:
    """Speculation of the requests of a level by source, and the values of the most reliable source.

    Args:
        by_stream: Tokens per round by the stream's chunks.
        by_answers: Counts that the answers report.
        by_counters: Counts of the server's counters.
        tokens_per_round: By the counters, else by the answers, else by the stream.
        by_position: The share of rounds in which the drafted token at each position was accepted; empty if unknown.
    """

    by_stream: float | None = None
    by_answers: SpeculationCounts | None = None
    by_counters: SpeculationCounts | None = None
    tokens_per_round: float | None = None
    by_position: tuple[float, ...] = ()

    @property
    def counts(self) -> SpeculationCounts | None:
        """The counts of the counters or the answers, preferably of a source with positions; None without either."""
        known = [counts for counts in (self.by_counters, self.by_answers) if counts is not None]
        return next((counts for counts in known if counts.shares_by_position), next(iter(known), None))


def acceptance_of(blocks: Sequence[Block], streams_steps: bool) -> Acceptance:
    """Return the speculation of blocks with speculation on."""
    requests = [request for block in blocks for request in block.done]
    by_stream = _by_stream(requests) if streams_steps else None
    by_answers = total([request.speculation for request in requests if request.speculation is not None])
    by_counters = total([counts.speculation for block in blocks if (counts := block.counted) and counts.speculation])
    known = [counts for counts in (by_counters, by_answers) if counts is not None]
    rates = [counts.tokens_per_round for counts in known if counts.tokens_per_round is not None]
    shares = [counts.shares_by_position for counts in known if counts.shares_by_position]
    return Acceptance(by_stream, by_answers, by_counters, next(iter(rates), by_stream), next(iter(shares), ()))


def acceptance_by_prompt(requests: Sequence[LoggedRequest], streams_steps: bool) -> tuple[str, dict[int, float]]:
    """Return a unit, and the acceptance of each prompt: equal prompts of two runs are comparable, whatever their numbers.

    Tokens per round by the answers, else by the stream, else the share of drafted tokens that were accepted.
    """
    sums: dict[int, list[float]] = {}
    counts = [request.speculation for request in requests if request.speculation is not None]
    if len(counts) == len(requests) and all(each.rounds is not None for each in counts):
        unit = "tokens per round"
        pairs = [(each.accepted + (each.rounds or 0), each.rounds or 0) for each in counts]
    elif streams_steps:
        unit = "tokens per chunk"
        later = [(request.chunks or [])[1:] for request in requests]
        pairs = [(sum(count for _, count in chunks), len(chunks)) for chunks in later]
    else:
        unit = "accepted share"
        pairs = [
            (each.accepted, each.drafted or 0) if (each := request.speculation) else (0, 0) for request in requests
        ]
    for request, (value, weight) in zip(requests, pairs, strict=True):
        cell = sums.setdefault(request.key.prompt, [0.0, 0.0])
        cell[0] += value
        cell[1] += weight
    return unit, {at: value / weight for at, (value, weight) in sorted(sums.items()) if weight}


def _by_stream(requests: Sequence[LoggedRequest]) -> float | None:
    """Return tokens per chunk after the first one, which the prompt's forward gives."""
    later = [chunk for request in requests for chunk in (request.chunks or [])[1:]]
    return sum(count for _, count in later) / len(later) if later else None
