"""Predicted speed of every draft length, from a run at one draft length.

A run at one length records which draft tokens were accepted, and where. Each generation is replayed at other lengths: a round
drafts tokens, the leading ones that the recorded run accepted are accepted, and a replacement or bonus token follows.
Positions that were not tested, such as those of bonus tokens, are filled in at random, with the acceptance rate late in a
draft. Costs are the measured ones of a draft token, of a verifying block, and of work outside forwards, as medians over
generations. The first forward of each model is prefill, which decoding time does not include: it saves the first round of an
output a draft token and a verifying block.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from specbench.analysis.bootstrap import FEWEST, Estimate, resample_counts
from specbench.analysis.rows import Rows, rounds_of, seconds
from specbench.decoding.traits import Theory
from specbench.runs.record import Record

LONGEST = 8  # the longest predicted draft length; at least the measured one
GAIN = 1.02  # a predicted length is called faster from this ratio of speeds on
# The work of a draft token outside forwards, as a share of the baseline's per token. Fitted on the bundled models.
DRAFT_HOST = 0.6
FORMULA = "speculation"  # theory of the methods that are covered


@dataclass(frozen=True)
class LengthPrediction:
    """The predicted decoding speedup of one draft length.

    `gain` is the ratio of its predicted speed to that of the measured length. Intervals are over prompts, at the measured
    costs, whose uncertainty they do not include.
    """

    gamma: int
    speedup: Estimate
    gain: Estimate

    @property
    def is_faster(self) -> bool:
        """Whether it is predicted to be faster than the measured length, by more than GAIN and beyond the interval."""
        return self.gain.value > GAIN and (self.gain.low is None or self.gain.low > 1.0)


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
        return np.asarray(self.draft_start + self.host + self._verifying(k) + (self.draft + self.host_per_token) * k)

    def of_prefill(self, k: np.ndarray) -> np.ndarray:
        """Return the seconds of a first round of `k` draft tokens that count as prefill."""
        return np.asarray(self.draft_start + self.draft + self._verifying(k))

    def _verifying(self, k: np.ndarray) -> np.ndarray:
        return np.asarray(sum(block.of(k + (1 if self.bonus else 0)) for block in self.blocks))


def predict(method: Theory | None, rows: Rows, base: Rows) -> list[LengthPrediction]:
    """Predict the decoding speedup of the draft lengths 1 to 8 over the baseline.

    Returns:
        A prediction for each length. Empty for methods to which this model of a round does not apply: those without a fixed
        draft length, chains, and deferred bonus tokens. Empty too without the measurements that costs need: generations of
        the baseline, and blocks of two sizes.
    """
    if method is None or method.formula != FORMULA or (method.drafter_scores and method.bonus != "none"):
        return []
    if not base or not any(x["tested"] for x in rounds_of(rows)):
        return []
    costs = costs_of(method, rows, base)
    if costs is None:
        return []
    lengths = range(1, max(LONGEST, method.gamma[0]) + 1)
    totals = _replayed(rows, lengths, costs)  # (prompts, lengths, 2)
    per_token = float(np.median([seconds(r) / len(r.tokens) for r in base]))

    def speedups(sums: np.ndarray) -> np.ndarray:
        return np.asarray(per_token * sums[..., 0] / sums[..., 1])

    whole = speedups(totals.sum(axis=0))  # (lengths,)
    used = method.gamma[0] - 1
    if len(totals) < FEWEST:
        return [
            LengthPrediction(k, Estimate(float(x), None, None), Estimate(float(x / whole[used]), None, None))
            for k, x in zip(lengths, whole, strict=True)
        ]
    drawn = speedups(np.einsum("rp,pln->rln", resample_counts(len(totals)), totals))  # (resamples, lengths)
    return [
        LengthPrediction(
            k, _estimate(whole[i], drawn[:, i]), _estimate(whole[i] / whole[used], drawn[:, i] / drawn[:, used])
        )
        for i, k in enumerate(lengths)
    ]


def _estimate(value: float, drawn: np.ndarray) -> Estimate:
    """Return a value with the 95 % percentile interval of its resamples."""
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Estimate(float(value), float(low), float(high))


def costs_of(method: Theory, rows: Rows, base: Rows) -> RoundCosts | None:
    """Return the measured costs of a method's rounds. None if a verifying model did not read blocks of two sizes.

    Each is the median over generations, so that a few disturbed ones do not count.
    """
    drafter, *verifiers = method.models
    blocks = []
    for role in verifiers:
        sizes = _by_size(rows, role) | {k: each for k, each in _by_size(base, role).items() if k == 1}
        if sum(size > 1 for size in sizes) < 2:
            return None
        blocks.append(_block_cost(sizes))
    decoding = sum(len(r.rounds) - 1 for r in rows if r.rounds)  # rounds without a prefill forward
    draft = _draft_token_seconds(_by_size(rows, drafter), decoding)
    if draft is None:
        draft = _median(_draft_seconds(r, drafter) / (_drafted(r) - 1) for r in rows if _drafted(r) > 1)
    start = _median(
        (_draft_seconds(r, drafter) - draft * (_drafted(r) - 1)) / (len(r.rounds) - 1)
        for r in rows
        if len(r.rounds) > 1
    )
    drafted = float(np.mean([x["drafted"] for x in rounds_of(rows)]))
    host, per_token = _median(map(_host_seconds_per_round, rows)), _median(map(_host_seconds_per_round, base))
    draft_host = min(DRAFT_HOST * per_token, host / drafted)
    return RoundCosts(
        draft=draft,
        draft_start=max(start, 0.0),
        blocks=blocks,
        host=host - draft_host * drafted,
        host_per_token=draft_host,
        bonus=method.bonus != "none",
    )


def _draft_token_seconds(sizes: Mapping[int, tuple[float, float]], rounds: int) -> float | None:
    """Return the seconds of a draft token after the first one of its round, which costs more. None if it is not known.

    After a draft that was accepted whole, the first forward reads two tokens. It costs one more token than a first forward
    that reads one: of `n` forwards of one token, `first` cost that much less than a forward of two. `rounds` is the number of
    rounds whose first forward is not prefill.
    """
    if 1 not in sizes or 2 not in sizes:
        return None
    (n, single), (two, double) = sizes[1], sizes[2]
    first = rounds - two  # first forwards that read one token
    if first < 0.0 or n <= 2.0 * first:
        return None
    seconds = (n * single - first * double) / (n - 2.0 * first)
    return seconds if 0.0 < seconds <= single else single


def _drafted(record: Record) -> int:
    """Return the number of draft tokens of a generation."""
    return sum(x["drafted"] for x in record.rounds)


def _draft_seconds(record: Record, drafter: str) -> float:
    """Return the decoding seconds of the drafter's forwards; 0 for a drafter without forwards."""
    usage = record.models.get(drafter)
    return usage["seconds"] - usage["beside"] if usage else 0.0


def _host_seconds_per_round(record: Record) -> float:
    """Return the seconds of a generation outside forwards, per round; without rounds, per token."""
    spent = seconds(record) - sum(usage["seconds"] - usage["beside"] for usage in record.models.values())
    return spent / (len(record.rounds) or len(record.tokens))


def _median(values: Iterable[float]) -> float:
    """Return the median; 0 without values."""
    found = list(values)
    return float(np.median(found)) if found else 0.0


def _by_size(rows: Rows, role: str) -> dict[int, tuple[float, float]]:
    """Return the number of a model's decoding forwards, and their median seconds over generations, by tokens read."""
    counts: dict[int, float] = defaultdict(float)
    means: dict[int, list[float]] = defaultdict(list)
    for r in rows:
        for fed, (count, spent) in r.models[role]["by_fed"].items() if role in r.models else ():
            counts[int(fed)] += count
            means[int(fed)].append(spent / count)
    return {fed: (counts[fed], float(np.median(each))) for fed, each in means.items()}


def _block_cost(sizes: Mapping[int, tuple[float, float]]) -> BlockCost:
    """Return the cost of blocks from (forwards, seconds) by tokens read.

    One token is often much cheaper than two, after which the cost grows slowly. One token therefore has a cost of its own.
    """
    single = sizes[1][1] if 1 in sizes else 0.0
    known = sorted(k for k in sizes if k > 1)
    counts, means = (np.array([sizes[k][i] for k in known]) for i in (0, 1))
    slope = max(float(np.polyfit(known, means, 1, w=np.sqrt(counts))[0]), 0.0)
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
            spent = costs.of_round(drafted).sum() - costs.of_prefill(drafted[:1]).sum()
            totals[numbers[record.sample], i] += len(agrees), spent
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
