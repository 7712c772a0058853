"""Polybasic's Table 1 for any chain, and what theory says of keeping its middle models, from a run of all pairs.

The run measured every model alone and every pair of levels as plain speculation, under the names of `alone` and `under`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specbench.analysis import metrics as m
from specbench.analysis import theory
from specbench.analysis.chains import NONE, alone, under
from specbench.report.tables import Table
from specbench.runs.run_folder import read

DRAFTED, THRESHOLDS = range(1, 9), range(1, 17)  # what is tried: beyond them, prices would be guesses


def kinds_of(summary: dict[str, Any]) -> dict[str, str]:
    """The kinds of a run's heads, by name."""
    return {name: head["kind"] for name, head in summary["heads"].items()}


@dataclass(frozen=True)
class Pairing:
    """One level drafting for another: tokens a round, acceptance, and acceptance of a round's first token."""

    length: float
    acceptance: float
    first: float


class Profile:
    """What was measured of a chain, its levels from the target down to the drafter."""

    def __init__(self, folder: Path, levels: Sequence[str], baseline: str, kinds: dict[str, str] | None = None) -> None:
        """`kinds` are those of the heads by name: a head's calls are booked under its name, and its level is its kind."""
        kinds = kinds or {}
        records = list(read(folder))
        self.levels = list(levels)
        names = [baseline, *map(alone, levels[1:]), *(under(a, b) for b in levels for a in levels)]
        self._rows = {name: found for name in names if (found := m.complete(records, name))}
        self._prices: dict[str, dict[int, list[float]]] = {level: {} for level in levels}
        for rows in self._rows.values():
            for role, sizes in m.forward_seconds(rows).items():
                for fed, seconds in sizes.items():
                    self._prices[kinds.get(role, role)].setdefault(fed, []).append(seconds)

    def seconds(self, level: str, fed: int = 1) -> float | None:
        """Seconds of a forward that feeds so many tokens: as measured, or on the line through what was measured.

        None of a level that costs nothing, as prompt lookup. The smallest block measured stands for one token where none was
        fed alone.
        """
        prices = {k: float(np.mean(each)) for k, each in sorted(self._prices[level].items())}
        if not prices:
            return None
        if fed in prices:
            return prices[fed]
        if len(prices) == 1 or fed < min(prices):
            return prices[min(prices)]
        slope, start = np.polyfit(list(prices), list(prices.values()), 1)
        return float(max(start + slope * fed, max(p for k, p in prices.items() if k < fed)))

    @property
    def longest(self) -> int:
        """The most tokens that a price was measured of, over all levels that cost anything."""
        return min(max(prices) for prices in self._prices.values() if prices)

    def pairing(self, low: str, high: str) -> Pairing | None:
        """How a level's drafts fared under another's verdict; None where that was not measured."""
        rows = self._rows.get(under(low, high))
        rate = m.acceptance_rate(rows) if rows else None
        if rows is None or rate is None:
            return None
        return Pairing(m.accepted_length(rows), rate, m.acceptance_by_position(rows)[0])

    def cost(self, levels: Sequence[str], blocks: bool) -> theory.Cost:
        """What a forward costs, the drafter first; a block at its own price, or at that of one token."""
        return lambda i, k: self.seconds(levels[i], k if blocks else 1) or 0.0

    def keeps(self, middle: int, blocks: bool) -> theory.Middle | None:
        """What theory says of the `middle`th level between its neighbours. None where a pair of them was not measured.

        Where nothing drafts for the level above directly, the alternative is the middle itself as the drafter.
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
    """T per forward: of one token, and of as many as a draft of five and one more."""
    rows = []
    for i, level in enumerate(profile.levels, 1):
        one, six = profile.seconds(level, 1), profile.seconds(level, 6)
        top = profile.seconds(profile.levels[0], 1)
        share = NONE if one is None or not top else f"{one / top:.2f}"
        rows.append([f"M{i}: {level}", *(NONE if each is None else f"{1e3 * each:.2f}" for each in (one, six)), share])
    return Table("Forwards", ["model", "ms, 1 token", "ms, 6 tokens", "over M1's"], rows)


def pairs_table(profile: Profile) -> Table:
    """Mean accepted length (with the token that follows), acceptance, and that of a round's first token, of each pair.

    At T = 0 acceptance is agreement of the likeliest tokens.
    """
    rows = []
    for i, high in enumerate(profile.levels, 1):
        for j, low in enumerate(profile.levels[i:], i + 1):
            found = profile.pairing(low, high)
            told = [f"{found.length:.2f}", f"{found.acceptance:.3f}", f"{found.first:.3f}"] if found else [NONE] * 3
            rows.append([f"M{i} - M{j}: {low} under {high}", *told])
    return Table("Pairs", ["pair", "mean accepted length", "acceptance", "of the first token"], rows)


def verdicts(profile: Profile) -> list[str]:
    """A line for each middle model: whether theory keeps it."""
    lines = []
    for middle in range(1, len(profile.levels) - 1):
        high, here, low = profile.levels[middle - 1 : middle + 2]
        found, ideal = profile.keeps(middle, blocks=True), profile.keeps(middle, blocks=False)
        if found is None or ideal is None:
            lines.append(f"{here}: its pairs were not all measured, so theory says nothing")
            continue
        two = " + ".join((low, here, high)[i] for i in found.models)
        without = "" if profile.pairing(low, high) else f" (nothing drafts for {high} directly)"
        lines.append(
            f"{here}: {'keep it' if found.pays else 'leave it out'}. Three models {found.three.speedup:.2f}x (draft"
            f" {found.three.drafted}, threshold {found.three.thresholds[0]}), two {found.two.speedup:.2f}x ({two}, draft"
            f" {found.two.drafted}){without}, at the prices of blocks, measured up to {profile.longest} tokens and on"
            f" a line beyond; with a block for the price of one token"
            f" {ideal.three.speedup:.2f}x and {ideal.two.speedup:.2f}x"
        )
    return lines
