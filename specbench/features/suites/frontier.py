"""Quality over relative latency across a method's settings, and SpecCascade's two summaries of such a curve (its Table 2).

Both summaries are extrema over noisy points, so a choice looks better on the prompts that it was made on: of 20 settings
with equal quality, the best on 50 prompts seems better than the others, and is not on the next 50.

The intervals come from resamples of prompts. Each resample recomputes the quality and latency of every point and of the
large model, and then the choice. A resample that does not reach the condition counts as 0. `holdout_value` is the mean value
of the chosen points on the prompts that a resample left out, and `holdout_rate` the share of resamples whose choice met the
condition there. These two values have no selection bias. They belong to measured points, while the speedup at the large
model's quality is interpolated between points.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from specbench import scoring
from specbench.analysis.curve_choice import CurveChoice
from specbench.analysis.intervals import FEWEST
from specbench.analysis.method_records import seconds
from specbench.analysis.metric import Clock, Direction, Metric, declare
from specbench.analysis.number_format import SCORE, TIMES
from specbench.analysis.points import Point
from specbench.analysis.quality import scores_of
from specbench.config.construct import Table
from specbench.note import Note
from specbench.runs.run_folder import Scores, read, spec_of
from specbench.runs.run_spec import MethodSpec
from specbench.runs.settings import label_of, setting_text, swept_number

RESAMPLES = 500
LIKELY = 0.05  # share of resamples that choose a setting, at which it may be the best
FEWEST_POINTS = 3  # of a curve
WITHIN_DROP = "within_drop"


@dataclass(frozen=True)
class CurveKey:
    """A curve of a run: its method, and the settings that all of its points have."""

    method: str
    settings: Table = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The curve in words."""
        return label_of(self.method, self.settings)


@dataclass(frozen=True)
class Curve:
    """The points of one method, in the order of the swept parameter: seconds and quality statistics by prompt.

    `is_lossless` says that it has one point, of a lossless method.
    """

    key: CurveKey
    settings: list[Table]
    seconds: np.ndarray  # (points, prompts)
    statistics: list[np.ndarray]  # of each point, (prompts, d)
    is_lossless: bool = False


@dataclass(frozen=True)
class Frontier:
    """The curves of one run, with the large model's point. `combine` names how the metric combines prompts.

    `drop` is the loss of score that `within_drop` allows, as a share: 0.02 are two points of 100.
    """

    prompts: int
    seconds: np.ndarray  # (prompts,), the baseline's
    statistics: np.ndarray  # (prompts, d)
    combine: str
    curves: list[Curve]
    drop: float = 0.0


class Summaries(NamedTuple):
    """The summaries of a curve.

    `matching` is the speedup over the large model at its quality, `best` the quality within its latency. `within_drop` is the
    speedup at its quality minus the allowed drop.
    """

    matching: CurveChoice
    best: CurveChoice
    within_drop: CurveChoice


@dataclass(frozen=True)
class _Measurements:
    """Values, seconds and counts of generations, by method and sample."""

    values: Mapping[str, Mapping[str, list[float | list[float]]]]
    seconds: Mapping[str, Mapping[str, float]]
    counts: Mapping[str, Mapping[str, int]]

    def prompts(self, samples: Sequence[str], methods: Sequence[str], repeats: int) -> list[str]:
        """Return the samples that every method completed and has a score for, in every repeat."""

        def is_complete(name: str, sample: str) -> bool:
            return self.counts[name][sample] == repeats == len(self.values[name][sample])

        return [sample for sample in samples if all(is_complete(name, sample) for name in methods)]


def frontier_of(folder: Path, drop: float = 0.0) -> Frontier | None:
    """Return the curves of a run folder, over the prompts that every method completed. None if nothing is scored or swept."""
    spec, scores = spec_of(folder), scores_of(folder)
    names = list(spec.methods)
    combine = {entry["name"]: entry["combine"] for entry in scores["metrics"]}.get(scores["headline"], "")
    groups = {row["sample"]: row["group"] for row in scores["rows"] if scores["headline"] in row["values"]}
    measured = _measured(folder, scores)
    prompts, families = measured.prompts(list(groups), names, spec.decoding.repeats), _families(spec.methods, drop)
    if not prompts or not families:
        return None
    rows, numbers = scoring.combiner(combine).rows, {g: i for i, g in enumerate(dict.fromkeys(groups.values()))}

    def statistics(name: str) -> np.ndarray:
        return np.array([[*rows(measured.values[name][s]), numbers[groups[s]]] for s in prompts], dtype=float)

    def seconds_of(name: str) -> np.ndarray:
        return np.array([measured.seconds[name][s] for s in prompts])

    curves = [
        Curve(
            key,
            [spec.methods[name].settings for name in ordered],
            np.stack(list(map(seconds_of, ordered))),
            list(map(statistics, ordered)),
            is_lossless=bool(spec.methods[ordered[0]].lossless and not spec.methods[ordered[0]].settings),
        )
        for key, ordered in families
    ]
    base = spec.baseline
    return Frontier(len(prompts), seconds_of(base), statistics(base), combine, curves, drop)


def _measured(folder: Path, scores: Scores) -> _Measurements:
    values: dict[str, dict[str, list[float | list[float]]]] = defaultdict(lambda: defaultdict(list))
    for row in scores["rows"]:
        if scores["headline"] in row["values"]:
            values[row["method"]][row["sample"]].append(row["values"][scores["headline"]])
    spent: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for record in read(folder):
        if record.error is None:
            spent[record.method][record.sample] += seconds(record, end_to_end=True)
            counts[record.method][record.sample] += 1
    return _Measurements(values, spent, counts)


def _families(methods: Mapping[str, MethodSpec], drop: float) -> list[tuple[CurveKey, list[str]]]:
    """Return the labels of each swept method, ordered by the swept number, for methods with enough settings.

    If a drop is allowed, lossless methods are compared too, with one setting.
    """
    lossless = [
        (CurveKey(method.preset), [label])
        for label, method in methods.items()
        if drop and method.lossless and not method.settings
    ]
    families: dict[str, tuple[CurveKey, list[str]]] = {}
    for label, method in methods.items():
        if method.settings:
            key = CurveKey(method.preset, swept_number(method.settings).others)
            families.setdefault(key.label, (key, []))[1].append(label)
    swept = [
        (key, sorted(labels, key=lambda label: swept_number(methods[label].settings).x or 0.0))
        for key, labels in families.values()
        if len(labels) >= FEWEST_POINTS
    ]
    return [*lossless, *swept]


class _Resampled:
    """Values of one summary over resamples: on the drawn prompts, on the others, and whether its condition is met there."""

    def __init__(self) -> None:
        self.inside: list[float] = []
        self.reached: list[bool] = []
        self.unseen: list[float] = []
        self.met: list[bool] = []

    def add(self, summary: float | None) -> None:
        """Add a resample. A summary that is not reached counts as 0."""
        self.inside.append(0.0 if summary is None else summary)
        self.reached.append(summary is not None)

    def choice(self, value: float | None, setting: str | None) -> CurveChoice:
        """Return the summary with its interval; without one if there was no resample."""
        if not self.inside:
            return CurveChoice(value, None, None, setting)
        low, high = np.percentile(self.inside, [2.5, 97.5])
        return CurveChoice(
            value,
            float(low),
            float(high),
            setting,
            holdout_value=float(np.mean(self.unseen)) if self.unseen else None,
            holdout_rate=float(np.mean(self.met)) if self.met else None,
            reach_rate=float(np.mean(self.reached)),
            resamples=tuple(self.inside),
        )


def summaries_of(frontier: Frontier) -> list[tuple[CurveKey, Summaries]]:
    """Return the two summaries of each curve."""
    picks = _picks(frontier)
    return [(curve.key, _summaries(frontier, curve, picks)) for curve in frontier.curves]


def candidates(frontier: Frontier) -> list[tuple[CurveKey, list[Table]]]:
    """Return for each curve the settings that the two summaries often chose, and their neighbors.

    Often means: together, in at least a share LIKELY of the resamples. The whole set of prompts counts as one more resample.
    If no setting is chosen so often, the ends and the middle remain. If fewer than FEWEST_POINTS remain, the ends are added.
    """
    picks = [*_picks(frontier), np.arange(frontier.prompts)]
    out = []
    for curve in frontier.curves:
        chosen: Counter[int | None] = Counter()
        for pick in picks:
            values = _at(frontier, curve, pick)
            chosen.update((_fastest(*values), _finest(*values)))
        last = len(curve.settings) - 1
        likely = {i for i, count in chosen.items() if i is not None and count >= LIKELY * len(picks)}
        near = {i + step for i in likely for step in (-1, 0, 1)} if likely else {0, last // 2, last}
        if len(near) < FEWEST_POINTS:
            near |= {0, last}
        out.append((curve.key, [settings for i, settings in enumerate(curve.settings) if i in near]))
    return out


def _picks(frontier: Frontier) -> np.ndarray:
    """Return resamples of prompts, (resamples, prompts); none for too few prompts."""
    resamples = RESAMPLES if frontier.prompts >= FEWEST else 0
    return np.random.default_rng(0).integers(0, frontier.prompts, (resamples, frontier.prompts))


def _at(frontier: Frontier, curve: Curve, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Return relative latencies and qualities of a curve's points on these prompts, and the large model's quality.

    A lossless method has the large model's quality, whatever its samples scored.
    """
    whole = scoring.combiner(frontier.combine).whole
    latency = curve.seconds[:, chosen].sum(1) / frontier.seconds[chosen].sum()
    large = whole(frontier.statistics[chosen])
    quality = np.array([large if curve.is_lossless else whole(rows[chosen]) for rows in curve.statistics])
    return latency, quality, large


def _summaries(frontier: Frontier, curve: Curve, picks: np.ndarray) -> Summaries:
    everything, at = np.arange(frontier.prompts), partial(_at, frontier, curve)
    matched, finest, within = _Resampled(), _Resampled(), _Resampled()
    for pick in picks:
        inside, others = at(pick), np.setdiff1d(everything, pick)
        matched.add(matching(*inside))
        finest.add(best(*inside))
        allowed = (*inside[:2], inside[2] - frontier.drop)
        within.add(matching(*allowed))
        if not len(others):
            continue
        latency, quality, required = at(others)
        if (point := _fastest(*inside)) is not None:
            matched.unseen.append(float(1 / latency[point]))
            matched.met.append(bool(quality[point] >= required))
        if (point := _fastest(*allowed)) is not None:
            within.unseen.append(float(1 / latency[point]))
            within.met.append(bool(quality[point] >= required - frontier.drop))
        if (point := _finest(*inside)) is not None:
            finest.unseen.append(float(quality[point]))
            finest.met.append(bool(latency[point] <= 1.0))
    overall = at(everything)
    allowed = (*overall[:2], overall[2] - frontier.drop)
    settings = [
        None if point is None else setting_text(curve.settings[point])
        for point in (_fastest(*overall), _finest(*overall), _fastest(*allowed))
    ]
    return Summaries(
        matched.choice(matching(*overall), settings[0]),
        finest.choice(best(*overall), settings[1]),
        within.choice(matching(*allowed), settings[2]),
    )


def matching(latency: np.ndarray, quality: np.ndarray, required: float) -> float | None:
    """Return the large model's latency / the smallest latency at which the curve reaches its quality.

    Between neighbors on the latency axis the curve is a straight line. None if the curve never reaches the quality.
    """
    order = np.argsort(latency, kind="stable")
    latency, quality = latency[order], quality[order]
    reached = np.flatnonzero(quality >= required)
    if not len(reached):
        return None
    first = int(reached[0])
    if first == 0 or quality[first] == required:
        return float(1.0 / latency[first])
    share = (required - quality[first - 1]) / (quality[first] - quality[first - 1])
    return float(1.0 / (latency[first - 1] + share * (latency[first] - latency[first - 1])))


def best(latency: np.ndarray, quality: np.ndarray, required: float) -> float | None:
    """Return the best quality of a point that is no slower than the large model. None if all points are slower."""
    within = latency <= 1.0
    return float(quality[within].max()) if within.any() else None


def _fastest(latency: np.ndarray, quality: np.ndarray, required: float) -> int | None:
    """Return the fastest point with at least the large model's quality. None if no point has it."""
    good = np.flatnonzero(quality >= required)
    return int(good[latency[good].argmin()]) if len(good) else None


def _finest(latency: np.ndarray, quality: np.ndarray, required: float) -> int | None:
    """Return the best point that is no slower than the large model. None if all points are slower."""
    within = np.flatnonzero(latency <= 1.0)
    return int(within[quality[within].argmax()]) if len(within) else None


def frontier_points(folder: Path, points: Sequence[Point], drop: float = 0.0) -> list[Point]:
    """Return the summaries of a run's curves as points, with the pair and task of the method's other points."""
    frontier = frontier_of(folder, drop)
    out = []
    for key, summaries in summaries_of(frontier) if frontier else ():
        template = next((p for p in points if (p.run, p.method) == (folder.name, key.method)), None)
        if template:
            values = {"matching": summaries.matching, "best": summaries.best}
            values |= {WITHIN_DROP: summaries.within_drop} if drop else {}
            out.append(replace(template, settings=key.settings, label=key.label, is_curve=True, values=dict(values)))
    return out


def fastest_within(points: Sequence[Point], drop: float) -> list[Note]:
    """Return for each pair, task and temperature the fastest curve within the allowed drop, and which equal it."""
    groups: dict[tuple[str, str, float], list[tuple[str, CurveChoice]]] = defaultdict(list)
    for point in points:
        choice = point.values.get(WITHIN_DROP)
        if isinstance(choice, CurveChoice) and choice.value is not None:
            groups[point.pair, point.task, point.T].append((point.label, choice))
    return [_fastest_of(f"{pair}, {task}, T = {t:g}", found, drop) for (pair, task, t), found in groups.items()]


def _fastest_of(where: str, found: Sequence[tuple[str, CurveChoice]], drop: float) -> Note:
    name, fastest = max(found, key=lambda each: each[1].value or 0.0)
    interval = "" if fastest.low is None else f" [{fastest.low:.2f}, {fastest.high:.2f}]"
    speed = f"{fastest.value:.2f}x{interval}"
    setting = f" ({fastest.setting})" if fastest.setting else ""
    text = f"{where}: {name}{setting} is the fastest within a drop of {100 * drop:g} points, {speed}"
    differences = {other: fastest.minus(choice) for other, choice in found if other != name}
    equal = [
        other for other, change in differences.items() if change is None or change.low is None or change.low <= 0.0
    ]
    if equal:
        text += f"; it cannot be distinguished from {', '.join(equal)}"
    if slower := [other for other in differences if other not in equal]:
        text += f"; it is faster than {', '.join(slower)}"
    return Note("fastest within drop", text, subject=where)


for _about in (
    Metric(
        name="matching", heading="speed at the large model's quality", unit="x", format=TIMES, clock=Clock.end_to_end,
        better=Direction.higher, is_ranked=True,
        definition="The large model's latency / the smallest latency at which the curve reaches its quality.",
    ),
    Metric(
        name=WITHIN_DROP, heading="speed within the allowed drop", unit="x", format=TIMES, clock=Clock.end_to_end,
        better=Direction.higher, is_ranked=True,
        definition="The large model's latency / the smallest latency at which the curve reaches its quality minus the drop.",
    ),
    Metric(
        name="best", heading="best quality within its latency", format=SCORE, better=Direction.higher, is_ranked=True,
        definition="The best score of a point that is no slower than the large model.",
    ),
):  # fmt: skip
    declare(_about)
