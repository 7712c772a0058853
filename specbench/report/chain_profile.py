"""The profile of a chain: Polybasic's Table 1, and whether theory keeps its middle models.

It is computed from a run of every model alone and of every pair of levels as plain speculation, under the names that `alone`
and `under` give.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specbench.analysis import metrics as m
from specbench.analysis import theory
from specbench.analysis.chains import NONE, alone, under
from specbench.analysis.run_summary import RunSummary
from specbench.report.columns import column_of
from specbench.report.formats import HUNDREDTHS, TIMES, Format
from specbench.report.tables import Table
from specbench.runs.run_folder import read

DRAFTED, THRESHOLDS = range(1, 9), range(1, 17)  # tried draft lengths and thresholds; beyond them costs are guesses
BLOCK = 6  # tokens that the target reads to verify a draft of five
MILLISECONDS = Format("{:.2f}", scale=1e3)


def kinds_of(summary: RunSummary) -> dict[str, str]:
    """Return the kind of each head of a run, by the head's name."""
    return {name: head.kind for name, head in summary.heads.items()}


@dataclass(frozen=True)
class Pairing:
    """One level that drafts for another: tokens per round, acceptance, and acceptance of a round's first token."""

    length: float
    acceptance: float
    first: float


class Profile:
    """The measurements of a chain. `levels` are from the target down to the drafter."""

    def __init__(self, folder: Path, levels: Sequence[str], baseline: str, kinds: dict[str, str] | None = None) -> None:
        """Read the run folder. `kinds` maps the names of heads, under which calls are recorded, to their levels."""
        kinds = kinds or {}
        records = list(read(folder))
        self.levels = list(levels)
        names = [baseline, *map(alone, levels[1:]), *(under(a, b) for b in levels for a in levels)]
        self._rows = {name: found for name in names if (found := m.complete(records, name))}
        self._costs: dict[str, dict[int, list[float]]] = {level: {} for level in levels}
        for rows in self._rows.values():
            for role, sizes in m.forward_seconds(rows).items():
                for fed, seconds in sizes.items():
                    self._costs[kinds.get(role, role)].setdefault(fed, []).append(seconds)

    def seconds(self, level: str, fed: int = 1) -> float | None:
        """Seconds of a forward that feeds `fed` tokens: as measured, or on the line through the measured lengths.

        None for a level without cost, such as prompt lookup. If no single token was fed, the cost of the smallest measured
        block is returned for it.
        """
        costs = {k: float(np.mean(each)) for k, each in sorted(self._costs[level].items())}
        if not costs:
            return None
        if fed in costs:
            return costs[fed]
        if len(costs) == 1 or fed < min(costs):
            return costs[min(costs)]
        slope, start = np.polyfit(list(costs), list(costs.values()), 1)
        return float(max(start + slope * fed, max(p for k, p in costs.items() if k < fed)))

    @property
    def longest(self) -> int:
        """The longest block with a measured cost in every level that has a cost."""
        return min(max(costs) for costs in self._costs.values() if costs)

    def pairing(self, low: str, high: str) -> Pairing | None:
        """Return the results of one level's drafts under verification by another. None if the pair was not measured."""
        rows = self._rows.get(under(low, high))
        rate = m.acceptance_rate(rows) if rows else None
        if rows is None or rate is None:
            return None
        return Pairing(m.accepted_length(rows), rate, m.acceptance_by_position(rows)[0])

    def cost(self, levels: Sequence[str], blocks: bool) -> theory.Cost:
        """Return the cost of forwards, the drafter first. With `blocks`, a block has its own cost, else that of one token."""
        return lambda i, k: self.seconds(levels[i], k if blocks else 1) or 0.0

    def keeps(self, middle: int, blocks: bool) -> theory.Middle | None:
        """Theory for level number `middle` between its neighbors. None if a pair of them was not measured.

        If no pair skips the level, the alternative is the level itself as the drafter.
        """
        high, here, low = self.levels[middle - 1 : middle + 2]
        outer, inner, direct = self.pairing(here, high), self.pairing(low, here), self.pairing(low, high)
        if outer is None or inner is None:
            return None
        return theory.keeps_middle(
            inner.acceptance,
            outer.acceptance,
            direct.acceptance if direct else 0.0,
            self.cost([low, here, high], blocks),
            DRAFTED,
            THRESHOLDS,
        )


def forwards_table(profile: Profile) -> Table:
    """Return the time of a forward of one token, and of a block that verifies a draft of five."""
    rows = []
    for i, level in enumerate(profile.levels, 1):
        one, block = profile.seconds(level, 1), profile.seconds(level, BLOCK)
        top = profile.seconds(profile.levels[0], 1)
        share = None if one is None or not top else one / top
        rows.append([f"M{i}: {level}", *map(MILLISECONDS.text, (one, block)), HUNDREDTHS.text(share)])
    return Table("Forwards", ["model", "ms, 1 token", f"ms, {BLOCK} tokens", "relative to M1"], rows)


def pairs_table(profile: Profile) -> Table:
    """Mean accepted length, acceptance, and acceptance of a round's first token, of each pair of levels.

    The accepted length includes the token that follows. At T = 0, acceptance is agreement of the most likely tokens.
    """
    rows = []
    for i, high in enumerate(profile.levels, 1):
        for j, low in enumerate(profile.levels[i:], i + 1):
            found = profile.pairing(low, high)
            length, rate = (column_of(key).format.text for key in ("accepted_length", "acceptance_rate"))
            texts = [length(found.length), rate(found.acceptance), rate(found.first)] if found else [NONE] * 3
            rows.append([f"M{i} - M{j}: {low} under {high}", *texts])
    return Table("Pairs", ["pair", "mean accepted length", "acceptance", "of the first token"], rows)


def verdicts(profile: Profile) -> list[str]:
    """Return a line for each middle model that says whether theory keeps it."""
    lines = []
    for middle in range(1, len(profile.levels) - 1):
        high, here, low = profile.levels[middle - 1 : middle + 2]
        found, ideal = profile.keeps(middle, blocks=True), profile.keeps(middle, blocks=False)
        if found is None or ideal is None:
            lines.append(f"{here}: no prediction, since not all of its pairs were measured")
            continue
        two = " + ".join((low, here, high)[i] for i in found.models)
        without = "" if profile.pairing(low, high) else f" (no level drafts for {high} directly)"
        lines.append(
            f"{here}: {'keep it' if found.pays else 'leave it out'}. The predicted speedup is"
            f" {TIMES.text(found.three.speedup)} with it (draft {found.three.drafted}, threshold"
            f" {found.three.thresholds[0]}) and {TIMES.text(found.two.speedup)} without it ({two}, draft"
            f" {found.two.drafted}){without}. Costs of blocks were measured up to {profile.longest} tokens and are"
            f" extrapolated linearly. If a block cost as much as one token, the speedups would be"
            f" {TIMES.text(ideal.three.speedup)} and {TIMES.text(ideal.two.speedup)}."
        )
    return lines
