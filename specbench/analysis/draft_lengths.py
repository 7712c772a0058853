"""Predicted speed of every draft length, from a run at one draft length.

A run at one length records which draft tokens were accepted, and where. Each generation is replayed at other lengths: a round
drafts tokens, the leading ones that the recorded run accepted are accepted, and a replacement or bonus token follows.
Positions that were not tested, such as those of bonus tokens, are filled in at random, with the acceptance rate late in a
draft. Costs are the measured ones of a draft token, of a verifying block, and of work outside forwards.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specbench.analysis.bootstrap import FEWEST, Estimate, resample_counts
from specbench.analysis.rows import Rows, round_count, rounds_of, seconds, token_count
from specbench.decoding.traits import Theory
from specbench.runs.record import Record

LONGEST = 8  # the longest predicted draft length; at least the measured one
FORMULA = "speculation"  # theory of the methods that are covered


@dataclass(frozen=True)
class LengthPrediction:
    """The predicted decoding speedup of one draft length, and the share of resamples in which it is the fastest."""

    gamma: int
    speedup: Estimate
    best: float


@dataclass(frozen=True, kw_only=True)
class RoundCosts:
    """Seconds of the parts of a round that drafts k tokens: per draft token, of the verifying blocks, and outside forwards.

    `blocks` has the cost of a token, and a line (start, slope) for blocks of two and more, of each verifying model.
    """

    draft: float
    blocks: Sequence[tuple[float, float, float]]
    host: float
    host_per_token: float
    bonus: bool

    def of_round(self, k: np.ndarray) -> np.ndarray:
        """Return the seconds of rounds that draft `k` tokens, of any shape."""
        read = k + (1 if self.bonus else 0)
        verifying = sum(np.where(read == 1, one, start + slope * read) for one, start, slope in self.blocks)
        return np.asarray(self.draft * k + verifying + self.host + self.host_per_token * k)


def predict(method: Theory | None, rows: Rows, base: Rows) -> list[LengthPrediction]:
    """Predict the decoding speedup of the draft lengths 1 to 8 over the baseline.

    Intervals and shares are from resamples of prompts, at the measured costs.

    Returns:
        A prediction for each length. Empty for methods to which this model of a round does not apply: those without a fixed
        draft length, chains, and deferred bonus tokens.
    """
    if method is None or method.formula != FORMULA or (method.drafter_scores and method.bonus != "none"):
        return []
    costs = costs_of(method, rows, base)
    if costs is None or not any(x["tested"] for x in rounds_of(rows)):
        return []
    lengths = range(1, max(LONGEST, method.gamma[0]) + 1)
    totals = _replayed(rows, lengths, costs)  # (prompts, lengths, 2)
    per_token = sum(map(seconds, base)) / token_count(base)

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

    Work outside forwards grows linearly from the baseline's per token to the method's per round.
    """
    drafted = sum(x["drafted"] for x in rounds_of(rows))
    drafter, *verifiers = method.models
    used = [r.models[drafter] for r in rows if drafter in r.models]
    blocks = []
    for role in verifiers:
        points = _by_size(rows, role) | {k: each for k, each in _by_size(base, role).items() if k == 1}
        if not points:
            return None
        blocks.append(_block_costs(points))
    host, start = _host_seconds(rows) / round_count(rows), _host_seconds(base) / token_count(base)
    return RoundCosts(
        draft=sum(usage["seconds"] - usage["beside"] for usage in used) / drafted if drafted else 0.0,
        blocks=blocks,
        host=start,
        host_per_token=max(host - start, 0.0) * round_count(rows) / drafted if drafted else 0.0,
        bonus=method.bonus != "none",
    )


def _by_size(rows: Rows, role: str) -> dict[int, tuple[float, float]]:
    """Return the number and the seconds of a model's decoding forwards, by tokens read."""
    sums: dict[int, tuple[float, float]] = {}
    for r in rows:
        for fed, (count, spent) in r.models[role]["by_fed"].items() if role in r.models else ():
            known = sums.get(int(fed), (0.0, 0.0))
            sums[int(fed)] = (known[0] + count, known[1] + spent)
    return sums


def _host_seconds(rows: Rows) -> float:
    inside: float = sum(usage["seconds"] - usage["beside"] for r in rows for usage in r.models.values())
    return sum(map(seconds, rows)) - inside


def _block_costs(points: Mapping[int, tuple[float, float]]) -> tuple[float, float, float]:
    """Return the seconds of a forward that reads one token, and a line (start, slope) for those that read more.

    `points` are (forwards, seconds of all of them) by tokens read. One token is often much cheaper than two, after which the
    cost grows slowly, so that one line through all sizes would mislead.
    """
    single = points[1][1] / points[1][0] if 1 in points else 0.0
    sizes = [k for k in points if k > 1]
    if not sizes:
        return single, single, 0.0
    counts = np.array([points[k][0] for k in sizes])
    means = np.array([points[k][1] / points[k][0] for k in sizes])
    if len(sizes) == 1:
        return single, float(means[0]), 0.0
    slope = max(float(np.polyfit(sizes, means, 1, w=np.sqrt(counts))[0]), 0.0)
    return single, float(np.average(means - slope * np.array(sizes), weights=counts)), slope


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
