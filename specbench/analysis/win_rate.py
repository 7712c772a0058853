"""Win rates: how often a judge preferred one method's continuation to another's."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from specbench.analysis.intervals import Estimate, by_prompt, interval_of_sums, wilson
from specbench.analysis.points import Point, PointValue
from specbench.files import read_with_checksum
from specbench.runs.run_folder import JUDGED, Judged, JudgedRow

JUDGE = "judge"  # the value of a point that names the judge


@dataclass(frozen=True)
class WinRates:
    """The outcomes of the comparisons of two methods, as shares, with intervals over prompts.

    `decided` is wins / (wins + losses), None if every comparison is a tie. `wins_spread` is the standard deviation of the
    wins over repeats, as in SPRINTER's table. `unclear` counts answers that name no letter, and `equal` the comparisons of
    equal texts, which the judge does not see.
    """

    wins: Estimate
    ties: Estimate
    losses: Estimate
    decided: Estimate | None
    wins_spread: float
    comparisons: int
    unclear: int
    equal: int


def win_rates(rows: Sequence[JudgedRow]) -> WinRates:
    """Return the shares of wins, ties and losses of one or more comparisons."""
    table = by_prompt(
        (*(row["verdict"] == each for each in (1.0, 0.5, 0.0)), row.get("prompt", row["sample"])) for row in rows
    )
    decided = table[table[:, 0] + table[:, 2] > 0]
    repeats = defaultdict(list)
    for row in rows:
        repeats[row["repeat"]].append(row["verdict"] == 1.0)
    return WinRates(
        wins=_share(table, [0]),
        ties=_share(table, [1]),
        losses=_share(table, [2]),
        decided=_share(decided[:, [0, 2]], [0]) if len(decided) else None,
        wins_spread=float(np.std([np.mean(each) for each in repeats.values()])),
        comparisons=len(rows),
        unclear=sum(row["unclear"] for row in rows),
        equal=sum(row.get("equal", False) for row in rows),
    )


def _share(table: np.ndarray, columns: Sequence[int]) -> Estimate:
    """Return the sum of these columns of a table (prompts, values) / the sum of all columns, with its interval."""
    share = interval_of_sums(table, lambda sums: sums[..., columns].sum(-1) / sums.sum(-1)).within(0.0, 1.0)
    return wilson(share.value, len(table)) if share.low is not None and share.value in (0.0, 1.0) else share


def win_rate_values(rates: WinRates) -> dict[str, PointValue]:
    """Return the win rates by the keys of their report columns."""
    values: dict[str, PointValue] = {
        "wins": rates.wins,
        "ties": rates.ties,
        "losses": rates.losses,
        "wins_spread": rates.wins_spread,
    }
    return values if rates.decided is None else {**values, "decided_wins": rates.decided}


def judged_of(folder: Path) -> Judged | None:
    """Return the comparisons of a run folder; None for a run that was not judged."""
    path = folder / JUDGED
    if not path.exists():
        return None
    return read_with_checksum(path, Judged, "restore or delete it, and judge again")


def judged_points(folder: Path, points: Sequence[Point]) -> list[Point]:
    """Return the win rates of a judged run, in the place of the judged method's point. Empty for other runs."""
    judged = judged_of(folder)
    if judged is None or not judged["rows"]:
        return []
    method, _, setting = judged["of"].partition("(")
    place = next(
        (p for p in points if (p.run, p.method, p.setting) == (folder.name, method, setting.rstrip(")"))), None
    )
    if place is None:
        return []
    return [replace(place, values={**win_rate_values(win_rates(judged["rows"])), JUDGE: judged["label"]})]
