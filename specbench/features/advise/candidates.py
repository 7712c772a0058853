"""Advice on a pair: the candidates, their predicted speed at measured costs, and which one is selected.

A run of the baseline and of some speculative methods gives the seconds of the forwards that it made, and the seconds of a
round outside forwards. Forwards of other sizes were timed next to the run, in a loop. In the run, forwards of other models
come in between and change the times, so the timed seconds are scaled to the run's. A replay's rounds at these costs give a
candidate's predicted speed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from specbench.analysis.costs import (
    ForwardCosts,
    RoundCosts,
    Sizes,
    forward_costs,
    host_per_forward,
    run_sizes,
    sizes_of,
)
from specbench.analysis.intervals import Estimate, jackknifed_ratio
from specbench.analysis.length_predictions import costs_of
from specbench.analysis.method_records import Records
from specbench.analysis.predictions import BreakEven
from specbench.analysis.replay import ExpectedRounds
from specbench.analysis.run_summary import MethodSummary, RunSummary
from specbench.analysis.significance import student_quantile
from specbench.analysis.theory import drafting_sizes
from specbench.config.construct import Table
from specbench.decoding.method import Proposer
from specbench.decoding.traits import Theory

# Kinds of drafts with forwards: the values of `Proposer.draft_kind` that have a meaning, and drafts that a stop rule ends
MODEL, STOPPED, TREE, HEAD, CHAIN = WITH_FORWARDS = "model", "stopped", "tree", "head", "chain"
# Prior standard deviation of the logarithm of a speedup between processes, which is weighted like so many runs. From
# the differences between advice and later runs in eight trials at revision aaff4f68: 0.07, and 0.04 from
# prompts alone.
BETWEEN_RUNS, PRIOR_RUNS = 0.04, 4


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The costs of a round's parts.

    `round` has the costs of a round of the method that was run. `verifier` and `drafter` have the costs of the forwards of
    the two models; a head has no costs by size. `host` is the time outside forwards per forward of the models, in rounds
    of other kinds of drafts.
    """

    round: RoundCosts
    verifier: ForwardCosts
    drafter: ForwardCosts | None
    host: Mapping[str, float]

    @property
    def largest_of_drafter(self) -> int:
        """The largest forward of the drafter that has a cost; -1 for a head."""
        return self.drafter.largest if self.drafter else -1

    def seconds(self, rounds: ExpectedRounds, drafter: str, shape: Sequence[int] = (), bonus: bool = True) -> float:
        """Return the decoding seconds of replayed rounds, without the first forward of each model, which is prefill.

        `shape` gives the parents of the tokens of a tree; `bonus` says whether a token follows a whole draft.
        """
        costs = replace(self.costs(drafter, shape), bonus=bonus)
        (spent,) = costs.of_rounds(rounds.drafted[None], rounds.first[None])
        return float(spent) + rounds.without_token * float(self.round.later)

    def seconds_of_chain(self, rounds: ExpectedRounds, middle: "Costs", is_lookup: bool) -> float:
        """Return the decoding seconds of replayed rounds of a chain whose middle model drafts at the costs `middle`.

        `self` has the costs of the innermost drafter. A round of the middle model takes as long outside forwards as a round
        of that drafter. A round of the target takes as long outside forwards as a round of prompt lookup. A block of the
        middle model that also reads the target's last token costs as much as without that token.
        """
        assert rounds.inner is not None and middle.drafter is not None
        verifying = self.costs("lookup")
        (outer,) = replace(verifying, bonus=True).of_rounds(rounds.drafted[None], rounds.first[None])
        drafting = replace(verifying if is_lookup else self.round, blocks=[middle.drafter.seconds], bonus=True)
        (inner,) = drafting.of_rounds(rounds.inner.drafted[None], rounds.inner.first[None])
        return float(outer + inner)

    def costs(self, drafter: str, shape: Sequence[int] = ()) -> RoundCosts:
        """Return the costs of a round with drafts of a kind."""
        costs, zero = self.round, np.asarray(0.0)
        per_forward = np.asarray(self.host.get(drafter, float(costs.host)))
        if drafter not in WITH_FORWARDS:
            return replace(costs, first=zero, doubled=zero, later=zero, host=per_forward, host_per_token=zero)
        if drafter == STOPPED:
            return replace(costs, host=per_forward, host_per_token=per_forward)
        if drafter == TREE:
            assert self.drafter is not None
            levels = [self.drafter.of(n) + float(per_forward) for n in drafting_sizes(shape)[1:]]
            return replace(costs, later=zero, host=2.0 * per_forward, host_per_token=zero, levels=sum(levels))
        return costs


def pilot_costs(
    method: Theory,
    rows: Records,
    base: Records,
    timed: Mapping[str, Sizes],
    more: Records = (),
    others: Mapping[str, Records] | None = None,
) -> Costs:
    """Return the costs of a run.

    Args:
        method: The traits of the speculative method that was run, with a draft model or head and one target.
        rows: The method's records.
        base: The baseline's records.
        timed: Forwards that were timed next to the run, with their seconds, by model and by tokens read. A head has none.
        more: Records of the same drafter at other lengths, whose blocks have costs too.
        others: Records of methods with other kinds of drafts.
    """
    drafter, verifier = method.models[0], method.models[-1]
    of_verifier = forward_costs(run_sizes([*rows, *more], base, verifier), timed[verifier])
    assert of_verifier is not None
    costs = replace(costs_of(method, rows, base), blocks=[of_verifier.seconds])
    is_head = drafter not in timed
    return Costs(
        round=_of_head(costs, drafter, rows) if is_head else costs,
        verifier=of_verifier,
        drafter=None if is_head else forward_costs(sizes_of(rows, drafter), timed[drafter]),
        host={kind: host_per_forward(records) for kind, records in (others or {}).items() if records},
    )


def _of_head(costs: RoundCosts, head: str, rows: Records) -> RoundCosts:
    """Return the costs of a round in which a head drafts.

    The head's first forward of a round reads all tokens that the round before committed, and each later one a single token.
    """
    sizes = sizes_of(rows, head)
    if not sizes:  # prefill only
        return costs
    forwards, spent = (sum(column) for column in zip(*sizes.values(), strict=True))
    drafting = [sum(bool(entry.drafted) for entry in row.rounds) for row in rows]
    rounds = sum(max(count - 1, 0) for count in drafting)  # the first of an output is prefill
    single = sizes.get(1, (forwards, spent))
    later = np.asarray(single[1] / single[0])
    first = np.maximum((spent - later * (forwards - rounds)) / max(rounds, 1), later)
    return replace(costs, first=first, doubled=first, later=later)


def predicted_speedup(
    base: Sequence[float], predicted: Sequence[float], sizes: Mapping[int, float], costs: ForwardCosts
) -> Estimate:
    """Return the speedup over the baseline, with an interval over prompts that contains the error of the costs.

    Args:
        base: Decoding seconds of the baseline, by prompt.
        predicted: Predicted seconds, by prompt.
        sizes: The seconds in blocks of each size. Only their ratios count.
        costs: The costs of the verifier's blocks.
    """
    ours, theirs = np.array(predicted), np.array(base)
    value = float(theirs.sum() / ours.sum())
    left_out = (theirs.sum() - theirs) / (ours.sum() - ours) if len(ours) > 1 else np.empty(0)
    interval = jackknifed_ratio(value, left_out, ours)
    error = sum(share * costs.error(size) for size, share in sizes.items()) / (sum(sizes.values()) or 1.0)
    if interval.low is None or interval.high is None:
        return interval
    below, above = (abs(np.log(bound / value)) for bound in (interval.low, interval.high))
    return Estimate(
        value, value * float(np.exp(-np.hypot(below, error))), value * float(np.exp(np.hypot(above, error)))
    )


def later_speedup(measured: Sequence[Estimate]) -> Estimate:
    """Return the mean of several measurements of a speedup, with a 95 % interval for a later run on as many other prompts.

    Args:
        measured: Speedups on the same prompts, each measured in a process of its own, with their intervals over prompts.

    The variance between runs is the variance of the logarithms, pooled with BETWEEN_RUNS, which is weighted like PRIOR_RUNS
    runs. The variance over prompts counts twice: once for the prompts here, once for the prompts of the later run. The mean
    has no interval if a measurement has none.
    """
    logs = np.log([each.value for each in measured])
    value = float(np.exp(logs.mean()))
    widths = [np.log(each.high / each.low) for each in measured if each.low is not None and each.high is not None]
    if len(widths) < len(measured):
        return Estimate(value, None, None)
    freedom = PRIOR_RUNS + len(logs) - 1
    between = (PRIOR_RUNS * BETWEEN_RUNS**2 + float(((logs - logs.mean()) ** 2).sum())) / freedom
    of_runs = student_quantile(freedom) * np.sqrt(between * (1.0 + 1.0 / len(logs)))
    of_prompts = np.sqrt(2.0) * float(np.mean(widths)) / 2.0
    half = float(np.hypot(of_runs, of_prompts))
    return Estimate(value, value * float(np.exp(-half)), value * float(np.exp(half)))


@dataclass(frozen=True, eq=False)
class Candidate:
    """A method that may be advised: the name that it is registered with, its TOML, and its drafting model or head, if any.

    A candidate that is not lossless changes the distribution of the output.
    """

    name: str
    table: Table
    drafter: str = ""
    lossless: bool = True

    @property
    def proposer(self) -> dict[str, Any]:
        """The table of its proposer; empty for a method without one."""
        table: Any = self.table.get("proposer", {})
        return dict(table)

    @property
    def kind(self) -> str | None:
        """How it drafts, for costs (`Proposer.draft_kind`); None for methods that are measured only."""
        member = Proposer.members.get(str(self.proposer.get("name")))
        if not self.lossless or member is None:
            return None
        return STOPPED if "stop" in self.proposer else member.draft_kind or None

    @property
    def gamma(self) -> int:
        """The longest draft, in tokens; 0 for a tree."""
        return int(self.proposer.get("gamma", 0))


@dataclass(frozen=True, kw_only=True, eq=False)
class CandidateResult:
    """A candidate, its predicted and its measured decoding speedup. `why` says why there is no prediction.

    `parts` is the number of parts after the first that it was measured on. `measured` is its speedup on the last of them, and
    `score_change` is its main score minus the target's there. `on_first` is its speedup on the first of them, which is the
    same part for all candidates.
    """

    candidate: Candidate
    predicted: Estimate | None = None
    why: str = ""
    measured: Estimate | None = None
    score_change: Estimate | None = None
    parts: int = 0
    on_first: Estimate | None = None

    @property
    def speedup(self) -> float:
        """The best estimate of the speedup: measured, else predicted, else 1."""
        estimate = self.measured or self.predicted
        return estimate.value if estimate else 1.0

    def keeps_score(self, max_drop: float) -> bool:
        """Whether the candidate is lossless, or its interval excludes that the score drops by more than `max_drop`."""
        change = self.score_change
        return self.candidate.lossless or (change is not None and change.low is not None and change.low >= -max_drop)

    def loses_score(self, max_drop: float) -> bool:
        """Whether the interval excludes that the score drops by at most `max_drop`."""
        change = self.score_change
        return (
            not self.candidate.lossless and change is not None and change.high is not None and change.high < -max_drop
        )


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The advised candidate and what the advice rests on.

    `results` are all candidates, the selected one first. `gain` is its decoding speedup on held-out prompts; None if it was
    not measured there. `repeats` are the speedups of two more runs there, each in a process of its own; `gain` is then their
    mean, with the interval of `later_speedup`. `pilot` is the run that gave the costs, `pilot_row` its first method, `final`
    the last run. `max_drop` is the largest allowed drop of the main score, in [0, 1]; None if only lossless candidates were
    compared. `heads` are those that the request names in addition to the pair's.
    """

    results: Sequence[CandidateResult]
    gain: Estimate | None
    repeats: Sequence[Estimate] = ()
    pilot: RunSummary
    pilot_row: MethodSummary
    break_even: BreakEven | None
    block_cost: float | None
    final: RunSummary
    is_out_of_time: bool = False
    max_drop: float | None = None
    heads: Sequence[str] = ()

    @property
    def best(self) -> CandidateResult:
        """The advised candidate."""
        return self.results[0]

    @property
    def pays(self) -> bool | None:
        """Whether the selected candidate is faster than the baseline; None if its interval does not tell."""
        gain = self.gain or self.best.measured
        if gain is None or gain.low is None or gain.high is None:
            return None
        return True if gain.low > 1.0 else False if gain.high < 1.0 else None

    @property
    def is_usable(self) -> bool:
        """Whether the selected candidate is faster than the baseline: as measured, else as predicted unless time ran out."""
        gain = self.gain or self.best.measured or (None if self.is_out_of_time else self.best.predicted)
        return gain is not None and gain.low is not None and gain.low > 1.0

    @property
    def front(self) -> list[CandidateResult]:
        """The Pareto front: the candidates measured last that neither another one nor the target alone dominates."""
        last = max(result.parts for result in self.results)
        scored = {
            result: (result.speedup, result.score_change.value)
            for result in self.results
            if result.parts == last and result.measured and result.score_change
        }
        others = [(1.0, 0.0), *scored.values()]
        return [result for result, point in scored.items() if not any(_dominates(other, point) for other in others)]

    @property
    def faster_but_unproven(self) -> list[CandidateResult]:
        """The candidates measured last that are faster than the selected one, and may lose more score than allowed."""
        last = max(result.parts for result in self.results)
        return [
            result
            for result in self.results
            if result.parts == last
            and result.speedup > self.best.speedup
            and self.max_drop is not None
            and not result.keeps_score(self.max_drop)
            and not result.loses_score(self.max_drop)
        ]


def _dominates(other: tuple[float, float], point: tuple[float, float]) -> bool:
    """Return whether another speed and score are at least as good in both, and better in one."""
    return other != point and other[0] >= point[0] and other[1] >= point[1]
