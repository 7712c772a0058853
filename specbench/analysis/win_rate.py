"""Win rates: how often a judge preferred one method's continuation to another's."""

from collections import defaultdict
from pathlib import Path

import numpy as np

from specbench.analysis.bootstrap import bootstrap, by_prompt
from specbench.analysis.points import Point
from specbench.files import read_sealed
from specbench.runs.run_folder import JUDGED
from specbench.runs.scores import Judged


def judged_points(folder: Path, places: list[Point]) -> list[Point]:
    """The win rates of a judged run as points, at the place of the judged method's own; nothing of other runs.

    `win_rate` counts a tie as half a win, `wins` as none; `win_rate_spread` is the standard deviation over repeats, as the
    paper prints one.
    """
    path = folder / JUDGED
    if not path.exists():
        return []
    told = read_sealed(path, Judged, "restore or delete it; the suite's command judges again")
    rows = told["rows"]
    method, _, setting = told["of"].partition("(")
    place = next(
        (p for p in places if p["run"] == folder.name and (p["method"], p["setting"]) == (method, setting.rstrip(")"))),
        None,
    )
    if place is None or not rows:
        return []
    table = by_prompt((row["verdict"], 1.0, row["sample"]) for row in rows)
    repeats = defaultdict(list)
    for row in rows:
        repeats[row["repeat"]].append(row["verdict"])
    values = {
        "win_rate": bootstrap(table, lambda t: float(t[:, 0].sum() / t[:, 1].sum()))._asdict(),
        "wins": sum(row["verdict"] == 1.0 for row in rows) / len(rows),
        "ties": sum(row["verdict"] == 0.5 for row in rows) / len(rows),
        "win_rate_spread": float(np.std([np.mean(each) for each in repeats.values()])),
    }
    judge = f"{told['judge'].get('name')}, {told['judge'].get('path')}"
    return [{**place, "values": {**values, "judge": judge}}]
