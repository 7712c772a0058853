"""Numbers that the papers print in their text, such as means and ranges over the cells of a table."""

import csv
import io
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import resources
from statistics import fmean

from specbench.analysis.points import Point

SUMMARIES: Mapping[str, Callable[[Sequence[float]], float]] = {"mean": fmean, "min": min, "max": max}


@dataclass(frozen=True)
class Stated:
    """A summary of a metric over the pairs and tasks of a suite, as a paper prints it in `where`.

    Only points of `method` count, and of the `pair`, `task` and `T`, where these are not empty. `pair` is a pattern
    such as `*-3`, which `!` negates. The summary is over the groups of the task `groups_of` if these were measured.
    """

    where: str
    says: str
    method: str
    pair: str
    task: str
    T: str
    groups_of: str
    metric: str
    summary: str
    value: float

    def covered(self, points: Sequence[Point]) -> list[Point]:
        """Return the points of the summary, of each place the setting with the highest value."""
        known = [point for point in points if self._covers(point) and point.number(self.metric) is not None]
        grouped = [point for point in known if point.group and point.task == self.groups_of]
        places: dict[tuple[object, ...], list[Point]] = defaultdict(list)
        for point in grouped or [point for point in known if not point.group]:
            places[point.at(("pair", "task", "T", "group"))].append(point)
        return [max(each, key=self._number) for each in places.values()]

    def measured(self, covered: Sequence[Point]) -> float:
        """Return the summary of the metric over `covered`, one point or more."""
        return SUMMARIES[self.summary](list(map(self._number, covered)))

    def _number(self, point: Point) -> float:
        return point.number(self.metric) or 0.0

    def _covers(self, point: Point) -> bool:
        pattern = self.pair.removeprefix("!") or "*"
        return (
            point.method == self.method
            and fnmatchcase(point.pair, pattern) != self.pair.startswith("!")
            and self.task in ("", point.task.partition(":")[0])
            and self.T in ("", f"{point.T:g}")
        )


def stated_of(suite: str) -> list[Stated]:
    """Return the numbers that the paper's text states on a suite, from configs/reference/SUITE.text.csv."""
    path = resources.files("specbench.configs") / "reference" / f"{suite}.text.csv"
    if not path.is_file():
        return []
    rows = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))
    return [Stated(**{**row, "value": float(row["value"])}) for row in rows]  # type: ignore[arg-type]
