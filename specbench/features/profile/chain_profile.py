"""The profile of a chain, Polybasic's Table 1, and the choice of its middle model by theory.

A profile is computed from a run of every model alone and of every pair of levels as plain speculation. Candidates are
compared by exact theory, and by Theorem 3.2 as printed and as corrected.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from specbench.analysis import polybasic, theory
from specbench.analysis.acceptance import acceptance_by_position, acceptance_rate, accepted_length
from specbench.analysis.costs import (
    ForwardCosts,
    Origin,
    Sizes,
    cost_of,
    forward_costs,
    sizes_of,
)
from specbench.analysis.intervals import Estimate, jackknifed_ratio
from specbench.analysis.method_records import Records, complete, rounds_of
from specbench.analysis.polybasic import ChainPlan
from specbench.analysis.run_summary import RunSummary
from specbench.machine.hardware import bandwidth_of
from specbench.runs.record import Record
from specbench.runs.run_folder import read, timed_forwards
from specbench.runs.run_spec import RunSpec

GAMMA = 5  # draft length at which pairs of models are measured
DRAFTED, THRESHOLDS = range(1, 9), range(1, 17)  # tried draft lengths and thresholds


def alone(level: str) -> str:
    """Return the name of plain decoding by one level. Plain decoding by the target is the baseline."""
    return f"{level}-alone"


def under(low: str, high: str) -> str:
    """Return the name of speculation with one level's drafts, verified by another level."""
    return f"{low}-under-{high}"


def weights_seconds(summary: RunSummary) -> dict[str, float]:
    """Return the seconds of reading each model's weights once, at the memory bandwidth of the run's machine."""
    bandwidth = bandwidth_of(summary.environment).bytes_per_second
    return {role: model.forward_bytes / bandwidth for role, model in summary.models.items()}


class Drafting(NamedTuple):
    """What a method of a profile measures: a level alone, or drafts that it verifies, of another level or proposer."""

    high: str
    low: str = ""  # empty for a level alone


def draftings_of(spec: RunSpec) -> dict[str, Drafting]:
    """Return what the methods with one scorer of a run measure, by label."""
    draftings = {}
    for label, method in spec.methods.items():
        proposer, scorers = method.options.get("proposer"), method.options.get("scorers")
        high = str(scorers[0]) if isinstance(scorers, list) and len(scorers) == 1 else ""
        if high and isinstance(proposer, dict):
            draftings[label] = Drafting(high, str(proposer.get("model", proposer["name"])))
        elif high and method.options.get("name") == "autoregressive":
            draftings[label] = Drafting(high)
    return draftings


@dataclass(frozen=True)
class Pairing:
    """One level that drafts for another: tokens per round, acceptance, and acceptance of a round's first token.

    `most` is the greatest possible number of tokens per round, the draft length plus one; None for trees.
    """

    length: float
    acceptance: float
    first: float
    most: int | None


class Basis(NamedTuple):
    """What a cost is estimated from: its origin, and the number of forwards of its own size, 0 if there are none."""

    origin: Origin
    forwards: int


class Profile:
    """The measurements of a chain. `levels` are from the target down to the drafter."""

    def __init__(
        self,
        rows: Mapping[Drafting, Records],
        levels: Sequence[str],
        blocks: Mapping[str, Sizes],
        bounds: Mapping[str, float] | None = None,
    ) -> None:
        """Take the records by what they measure, and by level the forwards that were timed next to the run.

        `bounds` are the seconds of reading each level's weights once, at the memory bandwidth. A size of forwards that
        occurs only at the ends of answers has no cost of its own (`costs.forward_costs`).
        """
        self.levels, self._rows, self._timed, self.bounds = list(levels), rows, blocks, bounds or {}
        self._sizes = {level: sizes_of(chain.from_iterable(rows.values()), level) for level in levels}
        fitted = {level: forward_costs(sizes, blocks.get(level)) for level, sizes in self._sizes.items()}
        self._costs: dict[str, ForwardCosts] = {level: costs for level, costs in fitted.items() if costs}

    @classmethod
    def of(cls, summary: RunSummary, levels: Sequence[str]) -> "Profile":
        """Read the measurements of a run."""
        return cls.read(Path(summary.folder), levels, summary.spec, weights_seconds(summary))

    @classmethod
    def read(
        cls, folder: Path, levels: Sequence[str], spec: RunSpec, bounds: Mapping[str, float] | None = None
    ) -> "Profile":
        """Read a run folder."""
        kinds = {
            name: head.kind for name, head in spec.pair.heads.items()
        }  # records name heads, and levels their kinds
        records = [_by_level(record, kinds) for record in read(folder)]
        wanted = {each: label for label, each in draftings_of(spec).items() if each.high in levels}
        rows = {each: found for each, label in wanted.items() if (found := complete(records, label))}
        return cls(rows, levels, timed_forwards(folder), bounds)

    def left_out(self) -> "Iterator[Profile]":
        """Yield the profile without each prompt in turn."""
        for prompt in dict.fromkeys(row.prompt for rows in self._rows.values() for row in rows):
            rest = {each: [row for row in rows if row.prompt != prompt] for each, rows in self._rows.items()}
            yield Profile({each: rows for each, rows in rest.items() if rows}, self.levels, self._timed)

    def seconds(self, level: str, fed: int = 1) -> float | None:
        """Return the seconds of a forward that reads `fed` tokens; None for a level without forwards, such as a lookup."""
        costs = self._costs.get(level)
        return costs.of(fed) if costs else None

    def basis(self, level: str, fed: int) -> Basis:
        """Return what the cost of a size is estimated from."""
        costs = self._costs[level]
        origin = costs.origins[fed] if fed <= costs.largest else Origin.BETWEEN
        counts = {Origin.RUN: self._sizes, Origin.TIMED: self._timed}.get(origin)
        return Basis(origin, round(counts[level][fed][0]) if counts else 0)

    @property
    def trees(self) -> list[str]:
        """The proposers besides the levels whose drafts were measured."""
        return list(dict.fromkeys(each.low for each in self._rows if each.low not in ("", *self.levels)))

    @property
    def longest(self) -> int:
        """The longest block that a plan may use: its cost is known for every level that verifies."""
        return min(self._costs[level].stated if level in self._costs else 0 for level in self.levels[:-1])

    def pairing(self, low: str, high: str) -> Pairing | None:
        """Return the results of one level's drafts under verification by another. None if the pair was not measured."""
        rows = self._rows.get(Drafting(high, low))
        rate = acceptance_rate(rows) if rows else None
        if rows is None or rate is None:
            return None
        rounds = list(rounds_of(rows))
        most = None if any(x.siblings for x in rounds) else max(x.drafted for x in rounds) + 1
        return Pairing(accepted_length(rows), rate, acceptance_by_position(rows)[0], most)

    def cost(self, levels: Sequence[str], blocks: bool) -> theory.Cost:
        """Return the cost of forwards, the drafter first. Without `blocks`, a block costs as much as one token."""
        return cost_of(levels, self._costs, as_in_papers=not blocks)

    def predicted(self, levels: Sequence[str], plan: ChainPlan) -> Estimate:
        """Return the predicted speedup of a plan on these levels, from the target down, with its interval over prompts."""
        jackknife = [speed for profile in self.left_out() if (speed := profile._speedup(levels, plan)) is not None]
        return jackknifed_ratio(plan.speedup, np.array(jackknife), np.ones(len(jackknife)))

    def ratio(self, one: tuple[Sequence[str], ChainPlan], other: tuple[Sequence[str], ChainPlan]) -> Estimate:
        """Return the ratio of the predicted speeds of two plans, each on its levels, with its interval over prompts."""
        speeds = [(profile._speedup(*one), profile._speedup(*other)) for profile in self.left_out()]
        jackknife = [first / second for first, second in speeds if first and second]
        return jackknifed_ratio(one[1].speedup / other[1].speedup, np.array(jackknife), np.ones(len(jackknife)))

    def _speedup(self, levels: Sequence[str], plan: ChainPlan) -> float | None:
        """Return the predicted speedup of a plan; None if a pair of its levels was not measured."""
        pairings = [self.pairing(low, high) for high, low in pairwise(levels)]
        rates = [pairing.acceptance for pairing in reversed(pairings) if pairing]
        if len(rates) < len(pairings):
            return None
        return polybasic.chain(rates, plan.drafted, plan.thresholds, self.cost(levels[::-1], blocks=True))

    def keeps(self, middle: int, blocks: bool) -> polybasic.Middle | None:
        """Return the theory for level number `middle` between its neighbors; None if a pair of them was not measured.

        If no pair skips the level, the alternative is the level itself as the drafter.
        """
        high, here, low = self.levels[middle - 1 : middle + 2]
        outer, inner, direct = self.pairing(here, high), self.pairing(low, here), self.pairing(low, high)
        if outer is None or inner is None:
            return None
        return polybasic.keeps_middle(
            inner.acceptance,
            outer.acceptance,
            direct.acceptance if direct else 0.0,
            self.cost([low, here, high], blocks),
            DRAFTED[: max(self.longest - 1, 1)],
            THRESHOLDS[: max(self.longest - 1, 1)],
        )


def _by_level(record: Record, kinds: Mapping[str, str]) -> Record:
    """Return a record whose models are named by their level."""
    return replace(record, models={kinds.get(role, role): usage for role, usage in record.models.items()})


@dataclass(frozen=True)
class ChainCandidate:
    """A chain, from the target down to the drafter, with its predicted speed.

    For chains with a middle model, `printed` and `corrected` say whether Theorem 3.2 keeps it, as printed and as corrected.
    `exact` says whether the best chain with it is faster than the best chain without it, by exact theory.
    """

    levels: tuple[str, ...]
    plan: ChainPlan
    speedup: Estimate
    printed: bool | None = None
    corrected: bool | None = None
    exact: bool | None = None

    @property
    def middle(self) -> str:
        """The middle model; empty if there is none."""
        return self.levels[1] if len(self.levels) > 2 else ""


def candidates(profiles: Sequence[Profile], gamma: int) -> list[ChainCandidate]:
    """Return the chains of the profiles, with and without their middle models, the fastest first.

    `gamma` is the draft length at which pairs were measured.
    """
    chains: dict[tuple[str, ...], ChainCandidate] = {}
    for profile in profiles:
        high, here, low = profile.levels
        middle = profile.keeps(1, blocks=True)
        if middle is None:
            continue
        two = tuple((low, here, high)[i] for i in reversed(middle.models))
        chains.setdefault(two, ChainCandidate(two, middle.two, profile.predicted(two, middle.two)))
        chains[high, here, low] = _with_middle(profile, gamma, middle.three, middle.pays)
    return sorted(chains.values(), key=lambda candidate: -candidate.plan.speedup)


def _with_middle(profile: Profile, gamma: int, plan: ChainPlan, pays: bool) -> ChainCandidate:
    high, here, low = profile.levels
    inner, outer, direct = profile.pairing(low, here), profile.pairing(here, high), profile.pairing(low, high)
    seconds = [profile.seconds(level) or 0.0 for level in profile.levels]
    printed = corrected = None
    if inner and outer and direct and seconds[2]:
        tokens = polybasic.chain_round([inner.acceptance, outer.acceptance], plan.drafted, plan.thresholds).tokens
        lengths = [tokens, inner.length]
        first = polybasic.condition_1(direct.length, lengths, seconds)
        second = polybasic.condition_2_printed(direct.length, lengths, seconds[1], seconds[2], gamma)
        printed = first.holds and second.holds
        corrected = polybasic.condition_by_ceil(direct.length, lengths, seconds, gamma).holds
    levels = (high, here, low)
    return ChainCandidate(levels, plan, profile.predicted(levels, plan), printed, corrected, pays)
