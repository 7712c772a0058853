"""Quality against relative latency over a method's parameter, and the two summaries of the cascades paper's Table 2.

Both summaries are extrema over noisy points, so what is chosen on some prompts looks better there than it is. Intervals
are of resamples in which everything is done anew on the same prompts for every point, the large model's included: quality
and latency of each, and then the choice; a resample that does not reach what is asked for counts as 0. Beside them stands
what the chosen points were worth on those prompts that a resample left out (`unseen`), and how often they kept there what
they were chosen for (`held`): the luck of the choice is in neither. A point is chosen from the grid, without
interpolation.
"""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specbench.analysis import metrics as m
from specbench.analysis.bootstrap import FEWEST
from specbench.analysis.points import Point, swept
from specbench.analysis.quality import scores_of
from specbench.runs.record import Record
from specbench.runs.run_folder import read, spec_of
from specbench.scoring import metric

RESAMPLES = 500
FEWEST_POINTS = 3  # of a curve


@dataclass(frozen=True)
class Curve:
    """One method's points: settings in the order of what was swept, and by prompt (rows) seconds and quality statistics."""

    method: str
    settings: list[str]
    seconds: np.ndarray  # (points, prompts)
    statistics: list[np.ndarray]  # of each point, (prompts, d)


@dataclass(frozen=True)
class Frontier:
    """The curves of one run, with the large model's own point."""

    prompts: int
    seconds: np.ndarray  # (prompts,), the baseline's
    statistics: np.ndarray  # (prompts, d)
    combine: str
    curves: list[Curve]


def frontier_of(folder: Path) -> Frontier | None:
    """The curves of a run folder, over the prompts that every method completed; None where nothing is scored or swept."""
    spec = spec_of(folder)
    scores, base = scores_of(folder), spec.baseline
    headline = scores["headline"]
    combine = {each["name"]: each["combine"] for each in scores["metrics"]}.get(headline, "")
    values: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    groups: dict[str, str] = {}
    for row in scores["rows"]:
        if headline in row["values"]:
            values[row["method"]][row["sample"]].append(row["values"][headline])
            groups[row["sample"]] = row["group"]
    spent: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for record in read(folder):
        if record.error is None:
            _add(record, spent, counts)
    repeats = spec.decoding.repeats
    names = list(spec.methods)
    prompts = [
        sample for sample in groups
        if all(counts[name][sample] == repeats == len(values[name][sample]) for name in names)
    ]  # fmt: skip
    families: dict[str, list[str]] = defaultdict(list)
    for name in names:
        method, _, setting = name.partition("(")
        if setting:
            variant = swept(_setting(name))[1]
            families[f"{method}({variant})" if variant else method].append(name)
    families = {method: each for method, each in families.items() if len(each) >= FEWEST_POINTS}
    if not prompts or not families:
        return None
    rows, numbers = metric.combiner(combine).rows, {g: i for i, g in enumerate(dict.fromkeys(groups.values()))}

    def statistics(name: str) -> np.ndarray:
        return np.array([[*rows(values[name][s]), numbers[groups[s]]] for s in prompts], dtype=float)

    def seconds(name: str) -> np.ndarray:
        return np.array([spent[name][s] for s in prompts])

    curves = []
    for method, each in families.items():
        ordered = sorted(each, key=lambda name: swept(_setting(name))[0] or 0.0)
        curves.append(
            Curve(
                method, list(map(_setting, ordered)), np.stack(list(map(seconds, ordered))), [*map(statistics, ordered)]
            )
        )
    return Frontier(len(prompts), seconds(base), statistics(base), combine, curves)


def summaries_of(found: Frontier) -> dict[str, dict[str, Any]]:
    """By method: `matching`, how much faster than the large model at its quality, and `best`, the quality within its
    latency; each an estimate with what was chosen, what that is worth on unseen prompts, and how often it is reached, and
    held there."""
    whole = metric.combiner(found.combine).whole
    rng = np.random.default_rng(0)
    picks = rng.integers(0, found.prompts, (RESAMPLES, found.prompts))

    def at(curve: Curve, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """Relative latencies and qualities of a curve's points on these prompts, and the large model's quality."""
        latency = curve.seconds[:, chosen].sum(1) / found.seconds[chosen].sum()
        quality = np.array([whole(each[chosen]) for each in curve.statistics])
        return latency, quality, whole(found.statistics[chosen])

    everything, out = np.arange(found.prompts), {}
    for curve in found.curves:
        told = at(curve, everything)
        resampled: dict[str, list[float]] = {"matching": [], "best": []}
        unseen: dict[str, list[float]] = {"matching": [], "best": []}
        held: dict[str, list[bool]] = {"matching": [], "best": []}
        for pick in picks if found.prompts >= FEWEST else []:
            inside = at(curve, pick)
            left = np.setdiff1d(everything, pick)
            outside = at(curve, left) if len(left) else None
            for name, measure, choose in (("matching", matching, _fastest), ("best", best, _finest)):
                value, point = measure(*inside), choose(*inside)
                resampled[name].append(0.0 if value is None else value)
                if point is not None and outside is not None:
                    latency, quality, wanted = outside
                    unseen[name].append(float(1 / latency[point] if name == "matching" else quality[point]))
                    held[name].append(bool(quality[point] >= wanted if name == "matching" else latency[point] <= 1.0))
        out[curve.method] = {
            name: _estimate(measure(*told), choose(*told), curve, resampled[name], unseen[name], held[name])
            for name, measure, choose in (("matching", matching, _fastest), ("best", best, _finest))
        }
    return out


def matching(latency: np.ndarray, quality: np.ndarray, wanted: float) -> float | None:
    """Summary 1: the large model's latency over the smallest at which the curve reaches its quality, on a line between
    neighbours on the latency axis. None where it does not reach it."""
    order = np.argsort(latency, kind="stable")
    latency, quality = latency[order], quality[order]
    reached = np.flatnonzero(quality >= wanted)
    if not len(reached):
        return None
    first = int(reached[0])
    if first == 0 or quality[first] == wanted:
        return float(1.0 / latency[first])
    share = (wanted - quality[first - 1]) / (quality[first] - quality[first - 1])
    return float(1.0 / (latency[first - 1] + share * (latency[first] - latency[first - 1])))


def best(latency: np.ndarray, quality: np.ndarray, wanted: float) -> float | None:
    """Summary 2: the best quality of a point that is no slower than the large model. None where all are slower."""
    within = latency <= 1.0
    return float(quality[within].max()) if within.any() else None


def _fastest(latency: np.ndarray, quality: np.ndarray, wanted: float) -> int | None:
    """The fastest point of at least the large model's quality."""
    good = np.flatnonzero(quality >= wanted)
    return int(good[latency[good].argmin()]) if len(good) else None


def _finest(latency: np.ndarray, quality: np.ndarray, wanted: float) -> int | None:
    within = np.flatnonzero(latency <= 1.0)
    return int(within[quality[within].argmax()]) if len(within) else None


def _estimate(
    value: float | None,
    chosen: int | None,
    curve: Curve,
    resampled: list[float],
    unseen: list[float],
    held: list[bool],
) -> dict[str, Any]:
    low, high = np.percentile(resampled, [2.5, 97.5]) if resampled else (None, None)
    return {
        "value": value,
        "low": None if low is None else float(low),
        "high": None if high is None else float(high),
        "setting": None if chosen is None else curve.settings[chosen],
        "unseen": float(np.mean(unseen)) if unseen else None,
        "held": float(np.mean(held)) if held else None,
        "reached": float(np.mean([each > 0.0 for each in resampled])) if resampled else None,
    }


def frontier_points(folder: Path, places: list[Point]) -> list[Point]:
    """The summaries as points of a suite, at the place of the method's other points."""
    found = frontier_of(folder)
    if found is None:
        return []
    told = summaries_of(found)
    out = []
    for name, values in told.items():
        method, variant = name.partition("(")[0], _setting(name)
        place = next((p for p in places if p["run"] == folder.name and p["method"] == method), None)
        if place:
            where = {"setting": variant, "x": None, "variant": variant, "label": name}
            out.append({**place, **where, "values": {**values, "curve": True}})
    return out


def _add(record: Record, spent: dict[str, dict[str, float]], counts: dict[str, dict[str, int]]) -> None:
    spent[record.method][record.sample] += m.seconds(record, end_to_end=True)
    counts[record.method][record.sample] += 1


def _setting(name: str) -> str:
    return name.partition("(")[2].removesuffix(")")
