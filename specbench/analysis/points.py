"""Points of suites: one per run, method and group of prompts, with its values and the values that the paper prints."""

import csv
import io
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from importlib import resources
from statistics import fmean
from typing import Any

from specbench.analysis.curve_choice import CurveChoice
from specbench.analysis.intervals import Estimate, Spread
from specbench.analysis.metric import METRICS, Clock, Direction, Metric, Over, Value, declare, relative_to
from specbench.analysis.number_format import COUNT, TENTHS, TENTHS_OF_PERCENT, THOUSANDTHS
from specbench.analysis.run_summary import MethodSummary, RunSummary
from specbench.config.construct import Table
from specbench.runs.settings import label_of, setting_text, swept_number
from specbench.vocabulary import Simulation

POINT_COLUMNS = ("pair", "task", "group", "T", "method", "setting", "simulated", "data", "run")
ANY = ""  # in a reference: the dimension is not restricted
SUMMARIES: Mapping[str, Callable[[Sequence[float]], float]] = {"mean": fmean, "min": min, "max": max}


PointValue = Value | CurveChoice | str | list[float] | dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Point:
    """One method at one setting in one run, or on one group of its prompts.

    `settings` are the values of swept keys; of the summaries of a curve, those that its points have in common.
    `draft_length` is one number per drafting model, as in reports. Of a speculative ensemble, `proposer` is the default
    proposer, and `weight` the weight of `weighted`, the ensemble's first model by name. `is_curve` marks the summaries of a
    whole curve. `values` are by name. `machine` is the hardware of the run. `paper` are the values that the paper prints for
    this point.
    """

    pair: str
    task: str
    T: float
    method: str
    run: str
    group: str = ""
    settings: Table = field(default_factory=dict)
    draft_length: str = ""
    proposer: str = ""
    weight: float | None = None
    weighted: str = ""
    label: str = ""
    simulated: Simulation = Simulation.none
    data: str = ""
    machine: str = ""
    baseline: bool = False
    is_curve: bool = False
    values: Mapping[str, PointValue] = field(default_factory=dict)
    paper: Mapping[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The label of the method in its run."""
        return label_of(self.method, self.settings)

    @property
    def setting(self) -> str:
        """The settings as text."""
        return setting_text(self.settings)

    @property
    def x(self) -> float | None:
        """The number that the first setting varies; None for the summaries of a curve."""
        return None if self.is_curve else swept_number(self.settings).x

    @property
    def x_name(self) -> str:
        """The word of the key of `x`; empty without settings."""
        return swept_number(self.settings).word

    @property
    def variant(self) -> str:
        """The other settings as text; all of them for the summaries of a curve."""
        return self.setting if self.is_curve else setting_text(swept_number(self.settings).others)

    def dimension(self, name: str) -> str | float | None:
        """Return the value of a dimension, by the name that the expectations of suites use."""
        value: str | float | None = getattr(self, name)
        return value

    def at(self, names: Iterable[str]) -> tuple[str | float | None, ...]:
        """Return the values of several dimensions."""
        return tuple(map(self.dimension, names))

    def matches(self, dimensions: Mapping[str, object]) -> bool:
        """Return whether every dimension has the wanted value, or one of a list of values."""
        return all(
            self.dimension(name) in (value if isinstance(value, list) else [value])
            for name, value in dimensions.items()
        )

    def number(self, name: str) -> float | None:
        """Return a value without its interval, or None if the point lacks the value."""
        return number_of(self.values.get(name))

    def bounds(self, name: str) -> tuple[float, float] | None:
        """Return the interval of a value; the number twice if it has no interval."""
        return bounds_of(self.values.get(name))


@dataclass(frozen=True)
class Reference:
    """A value that a paper prints. Empty dimensions are not restricted, except for the group."""

    pair: str
    method: str
    task: str
    group: str
    T: str
    metric: str
    value: float

    def covers(self, point: Point) -> bool:
        """Return whether the paper prints this value for a point."""
        ours = {"pair": point.pair, "method": point.method, "task": point.task, "T": f"{point.T:g}"}
        return self.group == point.group and all(getattr(self, key) in (ANY, value) for key, value in ours.items())


def points(summaries: Iterable[RunSummary], reference: Sequence[Reference] = ()) -> list[Point]:
    """Return all points of some runs. Points of real models on real data include the paper's values."""
    return [
        point
        for summary in summaries
        for method in summary.measured_methods
        for point in _points_of(summary, method, reference)
    ]


def reference_of(suite: str) -> list[Reference]:
    """Return the values that the paper prints for a suite, from configs/reference/. Empty if it prints no numbers."""
    path = resources.files("specbench.configs") / "reference" / f"{suite}.csv"
    if not path.is_file():
        return []
    rows = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))
    return [
        Reference(**{key: text for key, text in row.items() if key != "value"}, value=float(row["value"]))
        for row in rows
    ]


def _points_of(summary: RunSummary, row: MethodSummary, reference: Sequence[Reference]) -> list[Point]:
    """Return the point of a method, and one for each group of prompts."""
    spec = summary.spec.methods[row.method]
    mixture = _mixture(spec.options)
    is_baseline = row.method == summary.baseline
    of_baseline: dict[str, PointValue] = {**relative_to(Over.baseline, summary.is_timed)} if is_baseline else {}

    def point(group: str, values: dict[str, PointValue]) -> Point:
        bare = Point(
            pair=summary.pair, task=summary.spec.task.name, group=group, T=summary.decoding.temperature,
            method=spec.preset, settings=spec.settings, draft_length=summary.traits(row).draft_length, **mixture.dimensions,
            label=row.label, simulated=summary.simulated, data=summary.data.source, machine=summary.machine,
            run=summary.run, baseline=is_baseline, values=values,
        )  # fmt: skip
        is_real = summary.is_of_real_models_and_data
        return replace(
            bare, paper={printed.metric: printed.value for printed in reference if is_real and printed.covers(bare)}
        )

    ratios = {key: value for key, value in of_baseline.items() if METRICS[key].by_group}
    groups = [point(group, {**values, **ratios}) for group, values in row.groups.items()]
    values = _values(summary, row) | mixture.values(row)
    return [point("", {**values, **of_baseline}), *groups]


@dataclass(frozen=True)
class _Mixture:
    """The models of a speculative ensemble in their order, the default proposer first, and their weights in the mixture."""

    weights: Mapping[str, float] = field(default_factory=dict)

    @property
    def dimensions(self) -> dict[str, Any]:
        """The dimensions of a point."""
        if not self.weights:
            return {}
        first = min(self.weights)
        return {"proposer": next(iter(self.weights)), "weight": self.weights[first], "weighted": first}

    def values(self, row: MethodSummary) -> dict[str, PointValue]:
        """Return the weight of the default proposer, and the acceptance rate of its drafts."""
        if not self.weights:
            return {}
        proposer = next(iter(self.weights))
        return {
            "proposer_weight": self.weights[proposer],
            "proposer_acceptance": row.acceptance_by_model.get(proposer),
        }


def _mixture(options: Mapping[str, Any]) -> _Mixture:
    models, target = options.get("models"), options.get("target", {})
    if not isinstance(models, list | tuple) or target.get("name") != "mixture":
        return _Mixture()
    weights = target.get("weights") or [1.0 / len(models)] * len(models)
    return _Mixture(dict(zip(models, map(float, weights), strict=True)))


def _values(summary: RunSummary, row: MethodSummary) -> dict[str, PointValue]:
    """Return the values of a method under the names that suites use."""
    values: dict[str, PointValue] = {
        "generations": row.generations,
        "failed": row.failed,
        "prompts": row.prompts,
        "tokens": row.tokens,
        "no_answer": row.no_answer,
        **{name: value for name, value in row.values.items() if value is not None},
        "acceptance_by_position": row.acceptance_by_position,
        "survival": row.survival,
        "acceptance_by_rank": row.acceptance_by_rank,
        "acceptance_by_model": row.acceptance_by_model,
        "forwards_per_token": row.forwards_per_token,
        "round_milliseconds": row.round_milliseconds,
        "headline": summary.headline,
        "score": summary.score(row),
        **row.quality,
    }
    # A rule of an oracle runs both models at every position, so its own rate is the deferral rate:
    rule_rate = row.value("rule_rate")
    values["deferral_rate"] = row.value("target_calls") if rule_rate is None else rule_rate
    time = row.value("generation_milliseconds")
    values["generation_deviation"] = time.deviation if isinstance(time, Spread) else None
    if row.method == summary.spec.reference:
        values |= relative_to(Over.reference, summary.is_timed)
    return values


def number_of(value: PointValue) -> float | None:
    """Return the number in a value, without its interval or spread; None for texts and undefined values."""
    if isinstance(value, Estimate | CurveChoice):
        return value.value
    if isinstance(value, Spread | list):
        return value[0] if value else None
    return float(value) if isinstance(value, int | float) else None


def bounds_of(value: PointValue) -> tuple[float, float] | None:
    """Return the interval of a value. A number without an interval is returned twice; None for a value without a number."""
    number = number_of(value)
    if number is None:
        return None
    low, high = (value.low, value.high) if isinstance(value, Estimate | CurveChoice) else (None, None)
    return (number, number) if low is None or high is None else (low, high)


# Numbers in a paper's text


@dataclass(frozen=True)
class StatedValue:
    """A summary of a metric over the pairs and tasks of a suite, as a paper prints it in `where`.

    Only points of `method` count, and of the `pair`, `task`, `T` and `setting`, where these are not empty. `pair` is a
    pattern such as `*-3`, which `!` negates. The summary is over the groups of the task `groups_of` if these were measured.
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
    setting: str = ""

    def covered(self, points: Sequence[Point]) -> list[Point]:
        """Return the points of the summary, for each pair, task and temperature the one with the highest value."""
        measured = [point for point in points if self._covers(point) and point.number(self.metric) is not None]
        grouped = [point for point in measured if point.group and point.task == self.groups_of]
        candidates: dict[tuple[object, ...], list[Point]] = defaultdict(list)
        for point in grouped or [point for point in measured if not point.group]:
            candidates[point.at(("pair", "task", "T", "group"))].append(point)
        return [max(members, key=self._number) for members in candidates.values()]

    def summarize(self, covered: Sequence[Point]) -> float:
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
            and self.setting in ("", point.setting)
        )


def stated_values(suite: str) -> list[StatedValue]:
    """Return the numbers that the paper's text states on a suite, from configs/reference/SUITE.text.csv."""
    path = resources.files("specbench.configs") / "reference" / f"{suite}.text.csv"
    if not path.is_file():
        return []
    rows = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))
    return [StatedValue(**{**row, "value": float(row["value"])}) for row in rows]  # type: ignore[arg-type]  # a CSV's header names the fields


# Values that points have besides the metrics of their methods

for _about in (
    Metric(name="prompts", format=COUNT, definition="Prompts with at least one completed generation."),
    Metric(
        name="proposer_weight", heading="weight of the default proposer", is_exact=True,
        definition="The weight of the model that a speculative ensemble lists first, in a mixture.",
    ),
    Metric(
        name="proposer_acceptance", heading="acceptance of the default proposer", format=THOUSANDTHS,
        definition="Accepted / tested draft tokens of the model that a speculative ensemble lists first.",
    ),
    Metric(
        name="deferral_rate", heading="deferral rate", unit="share", format=TENTHS_OF_PERCENT, better=Direction.lower,
        definition="The rule rate; for methods without a rule, target forwards/token.",
    ),
    Metric(
        name="generation_deviation", heading="ms/generation, standard deviation", unit="ms", format=TENTHS,
        clock=Clock.end_to_end,
        definition="Standard deviation over generations of the time from the prompt to the last token.",
    ),
):  # fmt: skip
    declare(_about)
