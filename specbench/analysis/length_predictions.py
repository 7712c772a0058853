"""Predicted speed of every draft length, from a run at one draft length.

A run at one length records which draft tokens were accepted, and where. Each generation is replayed at other lengths
(`replay`). At positions that were not tested, such as bonus tokens, acceptance is drawn at random, at the rate with which
late draft tokens of that prompt are accepted. Costs are means over all forwards (`costs.fitted`). The first forward of
each model is prefill and not part of decoding time; so the first round of an output costs a draft token and a verifying
block less.

Costs and replay are sums over prompts, so one jackknife over prompts gives intervals that include the noise of both.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from specbench.analysis.costs import (
    RoundCosts,
    fitted,
    host_seconds,
    largest_stated,
    measured_sizes,
    run_sizes,
    sizes_of,
    sums_of,
)
from specbench.analysis.intervals import FEWEST, Estimate, jackknifed_ratio
from specbench.analysis.method_records import Records, rounds_of, seconds
from specbench.analysis.recorded_output import OutputLimits
from specbench.analysis.replay import replay
from specbench.analysis.replayed_drafts import DraftsByToken
from specbench.decoding.traits import Theory
from specbench.runs.record import Record

LONGEST = 8  # the longest predicted draft length; at least the measured one
GAIN = 1.02  # a predicted length is called faster from this ratio of speeds on
# The work of a draft token outside forwards, as a share of the baseline's per token. Fitted on the bundled models.
DRAFT_HOST = 0.6
TOLERANCE = 0.01  # relative error of the cost model, added to each side of an interval
FORMULA = "speculation"  # theory of the methods that are covered
SHRINKAGE = 20.0  # weight of the late rate of all prompts in the rate of one prompt, in tested tokens


@dataclass(frozen=True)
class LengthPrediction:
    """The predicted decoding speedup of one draft length, and `gain`, its speed / the speed at the measured length."""

    gamma: int
    speedup: Estimate
    gain: Estimate

    @property
    def is_faster(self) -> bool:
        """Whether it is predicted to be faster than the measured length, by more than GAIN and beyond the interval."""
        return self.gain.value > GAIN and (self.gain.low is None or self.gain.low > 1.0)


@dataclass(frozen=True)
class _Parts:
    """The inputs of costs and replays: sums over prompts, or one entry per prompt in the first axis.

    `blocks` are forwards and seconds of each verifying model by size (..., models, sizes, 2), and `times` the columns of
    TIMES (...,). `rounds` (..., lengths, 2, k) are the numbers of rounds that draft k tokens at each length, with the rounds
    after a fully accepted draft in a separate row. `firsts` (..., lengths, k) are the numbers of rounds that begin an output.
    """

    blocks: np.ndarray
    times: np.ndarray
    rounds: np.ndarray
    firsts: np.ndarray

    def total(self) -> "_Parts":
        """Return the sums over prompts."""
        return _Parts(*(part.sum(axis=0) for part in vars(self).values()))

    def left_out(self) -> "_Parts":
        """Return the sums over all prompts but one, for each prompt."""
        return _Parts(*(part.sum(axis=0) - part for part in vars(self).values()))


def is_covered(method: Theory | None, rows: Records, base: Records) -> bool:
    """Return whether these costs of rounds describe a method.

    They do not describe methods without a fixed draft length, chains, or deferred bonus tokens, nor methods that ran a model
    which their theory does not name, such as a drafter under another role: its cost would be left out.
    """
    if method is None or method.formula != FORMULA or (method.drafter_scores and method.bonus != "none"):
        return False
    if any(set(record.models) - set(method.models) for record in rows):
        return False
    return bool(base) and any(x.tested for x in rounds_of(rows))


class _Speeds(NamedTuple):
    """Speeds by draft length: of all prompts (n,), without each prompt (prompts, n), at other assumed costs (variants, n)."""

    whole: np.ndarray
    left_out: np.ndarray
    variants: np.ndarray


def predict(method: Theory | None, rows: Records, base: Records) -> list[LengthPrediction]:
    """Predict the decoding speedup of draft lengths over the baseline.

    Returns:
        A prediction for each length from 1 on whose blocks have a stated cost (`costs.largest_stated`), up to 8
        or the measured length. Empty for methods that are not covered, and if the costs do not reach the measured length.
    """
    if method is None or not is_covered(method, rows, base):
        return []
    used, bonus = method.gamma[0], method.bonus != "none"
    sizes = [run_sizes(rows, base, role) for role in method.models[1:]]
    stated = min(map(largest_stated, sizes)) - bonus
    lengths = range(1, min(stated, max(LONGEST, used)) + 1)
    if stated < used or len(lengths) < 2:
        return []
    parts = _parts(method, rows, base, lengths)
    model = _CostModel(method, [measured_sizes(forwards) for forwards in sizes])
    whole = _speedups(parts.total(), model)  # (lengths,)
    jackknife = _speedups(parts.left_out(), model) if len(parts.times) >= FEWEST else np.empty((0, len(lengths)))
    variants = np.array(
        [
            _speedups(parts.total(), replace(model, bound=bound, cold=cold))
            for bound in ("least", "most")
            for cold in (0.0, 1.0)
        ]
    )  # (variants, lengths)
    weights = parts.times[:, TIMES.index("seconds")]

    def estimate(speeds: _Speeds, gamma: int) -> Estimate:
        """Return a speed with its interval, widened by the possible range of costs that were not measured."""
        value, without, others = (part[..., gamma - 1] for part in speeds)
        return _widened(jackknifed_ratio(float(value), without, weights), others, 0.0 if gamma == used else TOLERANCE)

    speeds = _Speeds(whole, jackknife, variants)
    over_used = _Speeds(*(part / part[..., used - 1 : used] for part in speeds))
    return [LengthPrediction(gamma, estimate(speeds, gamma), estimate(over_used, gamma)) for gamma in lengths]


def _widened(speed: Estimate, others: np.ndarray, tolerance: float) -> Estimate:
    """Return a speed whose interval contains these other values as well, and a relative tolerance."""
    if speed.low is None or speed.high is None:
        return speed
    slow = float(min(*others / speed.value, 1.0)) - tolerance
    fast = float(max(*others / speed.value, 1.0)) + tolerance
    return Estimate(speed.value, speed.low * slow, speed.high * fast)


def costs_of(method: Theory, rows: Records, base: Records) -> RoundCosts:
    """Return the mean costs of a method's rounds."""
    model = _CostModel(method, [measured_sizes(run_sizes(rows, base, role)) for role in method.models[1:]])
    return _costs(_parts(method, rows, base, range(0)).total(), model)


@dataclass(frozen=True)
class _CostModel:
    """A method, and the assumptions about costs that were not measured.

    `sizes` are the sizes of blocks whose cost is known, by verifying model. `bound` is the field of `ForwardCosts` that
    gives the other costs. The first forward of a draft costs more if it reads two tokens than a later forward of one
    token. `cold` attributes this to being the first forward (1) or to reading two tokens (0).
    """

    method: Theory
    sizes: list[list[int]]
    bound: str = "seconds"
    cold: float = 0.5


TIMES = (
    "tokens", "seconds", "base_tokens", "base_seconds", "base_host", "host", "generations", "rounds", "drafted",
    "draft_seconds", "singles", "single_seconds", "doubles", "double_seconds",
)  # fmt: skip


def _parts(method: Theory, rows: Records, base: Records, lengths: Sequence[int]) -> _Parts:
    """Return the parts of each prompt that both sides completed."""
    ours, theirs = _of_prompts(rows), _of_prompts(base)
    prompts = [prompt for prompt in ours if prompt in theirs]
    drafter, *verifiers = method.models
    most, bonus, late = max([*lengths, *method.gamma]), method.bonus != "none", _late_rate(rows)
    rng = np.random.default_rng(0)
    blocks, times, rounds, firsts = [], [], [], []
    for prompt in prompts:
        mine, other = ours[prompt], theirs[prompt]
        blocks.append([sums_of(run_sizes(mine, other, role), most + bonus) for role in verifiers])
        times.append(_times(mine, other, drafter))
        agreeing = [_agreement(record, _prompt_rate(mine, late), rng) for record in mine]
        limits = [_limits(record) for record in mine]
        replays = [
            [
                replay(DraftsByToken([agrees], gamma), at, gamma, bonus)
                for agrees, at in zip(agreeing, limits, strict=True)
            ]
            for gamma in lengths
        ]
        rounds.append([_summed([output.drafted for output in outputs], most) for outputs in replays])
        firsts.append([_summed([output.first for output in outputs], most) for outputs in replays])
    shape = (len(prompts), len(lengths), most + 1)
    shapes = ((*shape[:2], 2, shape[2]), shape)
    return _Parts(np.array(blocks), np.array(times), np.reshape(rounds, shapes[0]), np.reshape(firsts, shapes[1]))


def _summed(counts: Sequence[np.ndarray], most: int) -> np.ndarray:
    """Return the sums of counts of rounds by drafted tokens, (..., most + 1)."""
    total: np.ndarray = sum(counts[1:], counts[0])
    return np.pad(total, [(0, 0)] * (total.ndim - 1) + [(0, most + 1 - total.shape[-1])])


def _of_prompts(rows: Records) -> dict[str, list[Record]]:
    by_prompt: dict[str, list[Record]] = {}
    for row in rows:
        by_prompt.setdefault(row.prompt, []).append(row)
    return by_prompt


def _times(rows: Records, base: Records, drafter: str) -> list[float]:
    """Return the sums of TIMES. `drafted` and `rounds` leave out the first of each output, which are prefill."""
    sizes = sizes_of(rows, drafter)
    return [
        sum(len(r.tokens) for r in rows),
        sum(map(seconds, rows)),
        sum(len(r.tokens) for r in base),
        sum(map(seconds, base)),
        sum(map(host_seconds, base)),
        sum(map(host_seconds, rows)),
        len(rows),
        sum(len(r.rounds) - 1 for r in rows),
        sum(x.drafted for r in rows for x in r.rounds) - len(rows),
        sum(_forward_seconds(r, drafter) for r in rows),
        *sizes.get(1, (0.0, 0.0)),
        *sizes.get(2, (0.0, 0.0)),
    ]


def _costs(parts: _Parts, model: _CostModel) -> RoundCosts:
    totals = {name: parts.times[..., i] for i, name in enumerate(TIMES)}
    rounds, outputs, drafted = totals["rounds"], totals["generations"], totals["drafted"]
    first, doubled, later = _draft_seconds(totals, model.cold)
    host = totals["host"] / (rounds + outputs)
    per_round = (drafted + outputs) / (rounds + outputs)  # draft tokens
    draft_host = np.minimum(DRAFT_HOST * totals["base_host"] / totals["base_tokens"], host / per_round)
    return RoundCosts(
        first=first,
        doubled=doubled,
        later=later,
        blocks=[getattr(fitted(parts.blocks[..., i, :, :], at), model.bound) for i, at in enumerate(model.sizes)],
        host=host - draft_host * per_round,
        host_per_token=draft_host,
        per_token=totals["base_seconds"] / totals["base_tokens"],
        bonus=model.method.bonus != "none",
    )


def _draft_seconds(totals: Mapping[str, np.ndarray], cold: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the seconds of a round's first draft token, of a first draft token that reads two tokens, and of later ones.

    Records do not distinguish first and later forwards of one token. `cold` is the share of the extra cost of a forward of
    two tokens that a first forward of one token has as well.
    """
    n, two = totals["singles"], totals["doubles"]
    first = np.maximum(totals["rounds"] - two, 0.0)  # first forwards of one token
    mean = totals["draft_seconds"] / np.maximum(totals["drafted"], 1.0)  # of a drafter without such forwards
    single = np.where(n > 0.0, totals["single_seconds"] / np.maximum(n, 1.0), mean)
    double = np.where(two > 0.0, np.maximum(totals["double_seconds"] / np.maximum(two, 1.0), single), single)
    distinct = (two > 0.0) & (n > first)
    later = np.where(distinct, (n * single - first * cold * double) / np.where(distinct, n - first * cold, 1.0), single)
    later = np.clip(later, 0.0, single)
    return later + cold * (double - later), double, later


def _speedups(parts: _Parts, model: _CostModel) -> np.ndarray:
    """Return the decoding speedup over the baseline at each length, (..., lengths)."""
    costs = _costs(parts, model)
    spent = costs.of_rounds(parts.rounds, parts.firsts)
    tokens = parts.times[..., TIMES.index("tokens")]
    return np.asarray(costs.per_token[..., None] * tokens[..., None] / spent)


def _forward_seconds(record: Record, role: str) -> float:
    """Return the decoding seconds of a model's forwards; 0 for a drafter without forwards."""
    usage = record.models.get(role)
    return usage.own_seconds if usage else 0.0


def _late_rate(rows: Records) -> float:
    """Return the acceptance rate in the second half of drafts whose first half was accepted.

    An untested position mostly follows a fully accepted draft, where the models agree more often than elsewhere.
    """
    rounds = [(x.tested, x.accepted) for x in rounds_of(rows)]
    longest = max(tested for tested, _ in rounds)
    later = [(tested, accepted) for tested, accepted in rounds if tested > longest // 2]
    reached = sum(tested - longest // 2 for tested, _ in later)
    return sum(max(accepted - longest // 2, 0) for _, accepted in later) / reached


def _prompt_rate(rows: Records, late: float) -> float:
    """Return the rate at which untested tokens of a prompt agree: its own rate, shrunk towards all prompts' late rate."""
    tested, accepted = (sum(x.tested for x in rounds_of(rows)), sum(x.accepted for x in rounds_of(rows)))
    return (accepted + SHRINKAGE * late) / (tested + SHRINKAGE)


def _agreement(record: Record, rate: float, rng: np.random.Generator) -> list[float]:
    """Return 1 for each token of an output that the drafter would have proposed and that would be accepted, else 0."""
    agrees: list[float] = (rng.random(len(record.tokens)) < rate).astype(float).tolist()
    position = 0
    for x in record.rounds:
        for i in range(min(x.tested, x.tokens)):
            if position + i < len(agrees):
                agrees[position + i] = float(i < x.accepted)
        position += x.tokens
    return agrees


def _limits(record: Record) -> OutputLimits:
    """Return where drafts of a generation end. Without a limit, unless the length limit or window ended it."""
    most = len(record.tokens) if record.finish in ("length", "window") else sys.maxsize
    return OutputLimits(tokens=len(record.tokens), most=most, eos=record.finish == "eos")
