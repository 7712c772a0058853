"""Win rates: how often a judge preferred one method's continuation to another's."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from specbench.analysis.bootstrap import bootstrap, by_prompt
from specbench.analysis.points import Point, PointValue
from specbench.files import read_sealed
from specbench.runs.run_folder import JUDGED
from specbench.runs.scores import Judged

JUDGE = "judge"  # the value of a point that names the judge


def judged_points(folder: Path, points: Sequence[Point]) -> list[Point]:
    """Return the win rates of a judged run, in the place of the judged method's point. Empty for other runs.

    `win_rate` counts a tie as half a win, `wins` as none. `win_rate_spread` is the standard deviation over repeats, as in
    SPRINTER's table.
    """
    path = folder / JUDGED
    if not path.exists():
        return []
    judged = read_sealed(path, Judged, "restore or delete it; the suite's command judges again")
    rows = judged["rows"]
    method, _, setting = judged["of"].partition("(")
    place = next(
        (p for p in points if (p.run, p.method, p.setting) == (folder.name, method, setting.rstrip(")"))), None
    )
    if place is None or not rows:
        return []
    table = by_prompt((row["verdict"], 1.0, row["sample"]) for row in rows)
    repeats = defaultdict(list)
    for row in rows:
        repeats[row["repeat"]].append(row["verdict"])
    values: dict[str, PointValue] = {
        "win_rate": bootstrap(table, lambda t: float(t[:, 0].sum() / t[:, 1].sum())),
        "wins": sum(row["verdict"] == 1.0 for row in rows) / len(rows),
        "ties": sum(row["verdict"] == 0.5 for row in rows) / len(rows),
        "win_rate_spread": float(np.std([np.mean(each) for each in repeats.values()])),
        JUDGE: f"{judged['judge'].get('name')}, {judged['judge'].get('path')}",
    }
    return [replace(place, values=values)]
