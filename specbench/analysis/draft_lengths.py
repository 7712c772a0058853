"""Predicted speed of every draft length, from a run at one draft length.

A run at one length records which draft tokens were accepted, and where. Each generation is replayed at other lengths: a round
drafts tokens, the leading ones that the recorded run accepted are accepted, and a replacement or bonus token follows.
Positions that were not tested, such as those of bonus tokens, are filled in at random, with the acceptance rate late in a
draft. Costs are the measured ones of a draft token, of a verifying block, and of work outside forwards, as medians over
generations.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from specbench.analysis.bootstrap import FEWEST, Estimate, resample_counts
from specbench.analysis.rows import Rows, rounds_of, seconds
from specbench.decoding.traits import Theory
from specbench.runs.record import Record

LONGEST = 8  # the longest predicted draft length; at least the measured one
DRAFT_HOST = (
    2 / 3
)  # of the baseline's work outside forwards per token, that of a draft token; measured on the bundled models
FORMULA = "speculation"  # theory of the methods that are covered


@dataclass(frozen=True)
class LengthPrediction:
    """The predicted decoding speedup of one draft length, and the share of resamples in which it is the fastest."""

    gamma: int
    speedup: Estimate
    best: float


class BlockCost(NamedTuple):
    """Seconds of a forward of a verifying model: of one token, and a line (start, slope) for blocks of two and more."""

    one: float
    start: float
    slope: float

    def of(self, tokens: np.ndarray) -> np.ndarray:
        """Return the seconds of blocks of `tokens` tokens, of any shape."""
        return np.where(tokens == 1, self.one, self.start + self.slope * tokens)


@dataclass(frozen=True, kw_only=True)
class RoundCosts:
    """Seconds of the parts of a round that drafts k tokens.

    `draft` is the cost of a draft token and `draft_start` what the first one of a round costs more. `host` is work outside
    forwards per round, `host_per_token` per draft token.
    """

    draft: float
    draft_start: float
    blocks: Sequence[BlockCost]
    host: float
    host_per_token: float
    bonus: bool

    def of_round(self, k: np.ndarray) -> np.ndarray:
        """Return the seconds of rounds that draft `k` tokens, of any shape."""
        verifying = sum(block.of(k + (1 if self.bonus else 0)) for block in self.blocks)
        return np.asarray(self.draft_start + self.host + verifying + (self.draft + self.host_per_token) * k)


def predict(method: Theory | None, rows: Rows, base: Rows) -> list[LengthPrediction]:
    """Predict the decoding speedup of the draft lengths 1 to 8 over the baseline.

    Intervals and shares are from resamples of prompts, at the measured costs.

    Returns:
        A prediction for each length. Empty for methods to which this model of a round does not apply: those without a fixed
        draft length, chains, and deferred bonus tokens.
    """
    if method is None or method.formula != FORMULA or (method.drafter_scores and method.bonus != "none"):
        return []
    if not any(x["tested"] for x in rounds_of(rows)):
        return []
    costs = costs_of(method, rows, base)
    if costs is None:
        return []
    lengths = range(1, max(LONGEST, method.gamma[0]) + 1)
    totals = _replayed(rows, lengths, costs)  # (prompts, lengths, 2)
    per_token = float(np.median([seconds(r) / len(r.tokens) for r in base]))

    def speedups(sums: np.ndarray) -> np.ndarray:
        return np.asarray(per_token * sums[..., 0] / sums[..., 1])

    whole = speedups(totals.sum(axis=0))
    if len(totals) < FEWEST:
        fastest = int(whole.argmax())
        return [
            LengthPrediction(k, Estimate(float(x), None, None), float(i == fastest))
            for i, (k, x) in enumerate(zip(lengths, whole, strict=True))
        ]
    drawn = speedups(np.einsum("rp,pln->rln", resample_counts(len(totals)), totals))  # (resamples, lengths)
    low, high = np.percentile(drawn, [2.5, 97.5], axis=0)
    best = np.bincount(drawn.argmax(axis=1), minlength=len(lengths)) / len(drawn)
    return [
        LengthPrediction(k, Estimate(float(whole[i]), float(low[i]), float(high[i])), float(best[i]))
        for i, k in enumerate(lengths)
    ]


def costs_of(method: Theory, rows: Rows, base: Rows) -> RoundCosts | None:
    """Return the measured costs of a method's rounds. None if a verifying model's forwards were not timed.

    Each is the median over generations, so that a few disturbed ones do not count.
    """
    drafter, *verifiers = method.models
    blocks = []
    for role in verifiers:
        sizes = _by_size(rows, role) | {k: each for k, each in _by_size(base, role).items() if k == 1}
        if not sizes:
            return None
        blocks.append(_block_cost(sizes))
    drafted = float(np.mean([x["drafted"] for x in rounds_of(rows)]))
    spent = _median_per_round(
        rows, lambda r: r.models[drafter]["seconds"] - r.models[drafter]["beside"] if drafter in r.models else 0.0
    )
    token = _draft_token_seconds(_by_size(rows, drafter), drafted)
    marginal = spent / drafted if token is None else token
    host, per_token = _median_per_round(rows, _host_seconds), _median_per_round(base, _host_seconds)
    draft_host = min(DRAFT_HOST * per_token, host / drafted)
    return RoundCosts(
        draft=marginal,
        draft_start=max(spent - marginal * drafted, 0.0),
        blocks=blocks,
        host=host - draft_host * drafted,
        host_per_token=draft_host,
        bonus=method.bonus != "none",
    )


def _draft_token_seconds(sizes: Mapping[int, tuple[float, float]], drafted: float) -> float | None:
    """Return the seconds of a draft token after the first one of its round, which costs more. None if it is not known.

    After a draft that was accepted whole, the first forward reads two tokens. It costs one more token than a first forward
    that reads one: of `n` forwards of one token, `first` cost that much less than a forward of two.
    """
    if 1 not in sizes or 2 not in sizes:
        return None
    (n, single), (two, double) = sizes[1], sizes[2]
    first = (n + two) / drafted - two  # first forwards that read one token
    if first < 0.0 or n < 2.0 * first:
        return None
    seconds = (n * single - first * double) / (n - 2.0 * first)
    return seconds if 0.0 < seconds <= single else single


def _by_size(rows: Rows, role: str) -> dict[int, tuple[float, float]]:
    """Return the number of a model's decoding forwards, and their median seconds over generations, by tokens read."""
    counts: dict[int, float] = defaultdict(float)
    means: dict[int, list[float]] = defaultdict(list)
    for r in rows:
        for fed, (count, spent) in r.models[role]["by_fed"].items() if role in r.models else ():
            counts[int(fed)] += count
            means[int(fed)].append(spent / count)
    return {fed: (counts[fed], float(np.median(each))) for fed, each in means.items()}


def _median_per_round(rows: Rows, spent: Callable[[Record], float]) -> float:
    """Return the median over generations of some seconds per round; without rounds, per token."""
    return float(np.median([spent(r) / (len(r.rounds) or len(r.tokens)) for r in rows]))


def _host_seconds(record: Record) -> float:
    """Return the seconds of a generation outside forwards."""
    return seconds(record) - sum(usage["seconds"] - usage["beside"] for usage in record.models.values())


def _block_cost(sizes: Mapping[int, tuple[float, float]]) -> BlockCost:
    """Return the cost of blocks from (forwards, seconds) by tokens read.

    One token is often much cheaper than two, after which the cost grows slowly, so that one line through all sizes would
    mislead.
    """
    single = sizes[1][1] if 1 in sizes else 0.0
    known = sorted(k for k in sizes if k > 1)
    if not known:
        return BlockCost(single, single, 0.0)
    counts, means = (np.array([sizes[k][i] for k in known]) for i in (0, 1))
    slope = max(float(np.polyfit(known, means, 1, w=np.sqrt(counts))[0]), 0.0) if len(known) > 1 else 0.0
    return BlockCost(single, float(np.average(means - slope * np.array(known), weights=counts)), slope)


def _replayed(rows: Rows, lengths: Sequence[int], costs: RoundCosts) -> np.ndarray:
    """Return tokens and seconds of each prompt at each draft length, (prompts, lengths, 2)."""
    rng, rate = np.random.default_rng(0), _later_rate(rows)
    numbers = {sample: i for i, sample in enumerate(dict.fromkeys(r.sample for r in rows))}
    totals = np.zeros((len(numbers), len(lengths), 2))
    for record in rows:
        agrees = _agreement(record, rate, rng)
        for i, gamma in enumerate(lengths):
            drafted = np.array(_rounds(agrees, gamma, costs.bonus))
            totals[numbers[record.sample], i] += len(agrees), costs.of_round(drafted).sum()
    return totals


def _later_rate(rows: Rows) -> float:
    """Return the acceptance rate in the second half of the drafts that were accepted up to there.

    An untested position mostly follows a draft that was accepted whole, where the models agree more often than elsewhere.
    """
    rounds = [(x["tested"], x["accepted"]) for x in rounds_of(rows)]
    longest = max(tested for tested, _ in rounds)
    later = [(tested, accepted) for tested, accepted in rounds if tested > longest // 2]
    reached = sum(tested - longest // 2 for tested, _ in later)
    return sum(max(accepted - longest // 2, 0) for _, accepted in later) / reached


def _agreement(record: Record, rate: float, rng: np.random.Generator) -> list[bool]:
    """Return for each token of an output whether the drafter would have proposed it and had it accepted."""
    agrees = list(rng.random(len(record.tokens)) < rate)
    position = 0
    for x in record.rounds:
        for i in range(min(x["tested"], x["tokens"])):
            if position + i < len(agrees):
                agrees[position + i] = i < x["accepted"]
        position += x["tokens"]
    return agrees


def _rounds(agrees: Sequence[bool], gamma: int, bonus: bool) -> list[int]:
    """Return the number of draft tokens of each round at a draft length.

    A draft ends with the output if it agrees up to there, since the drafter proposes the last token too.
    """
    drafted, position = [], 0
    while position < len(agrees):
        window = agrees[position : position + gamma]
        accepted = next((i for i, agreed in enumerate(window) if not agreed), len(window))
        drafted.append(len(window) if accepted == len(window) else gamma)
        position += accepted + (1 if bonus or accepted < gamma else 0)
    return drafted
