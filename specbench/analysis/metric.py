"""The registry of metrics: what is known of each number, declared once under its name.

To add a metric, write a function of a method's records in this package and decorate it with `metric`, `comparison` or
`metric_in_context`. The function's name is the metric's name, and the first line of its docstring is its definition. A metric
appears in summary.json, in the JSON and CSV reports, as a value for the tables, plots and claims of suites, and in
docs/reading-a-table.md. To show it in the tables of a run as well, name it in `specbench/reporting/columns.py`. A number that
is not computed from the records of one method, such as a summary of a curve, is declared with `declare`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from typing import TypeVar

from specbench.analysis.intervals import Estimate, Spread
from specbench.analysis.method_records import Records, paired
from specbench.analysis.number_format import HUNDREDTHS, MILLISECONDS, SCORE, Format
from specbench.machine.hardware import Bandwidth
from specbench.runs.run_spec import MethodSpec, ModelSource


class Clock(StrEnum):
    """The time that a metric measures. Metrics of other times, such as drift, do not name it in their headings."""

    none = ""
    decoding = "decoding"
    end_to_end = "end to end"
    other = "other"

    @property
    def heading(self) -> str:
        """The clock as headings of tables show it; empty if they do not."""
        return "" if self is Clock.other else str(self)


class Direction(Enum):
    """Which values of a metric are better."""

    neither = "neither"
    higher = "higher"
    lower = "lower"

    @property
    def sign(self) -> float:
        """-1 if lower values are better, else 1."""
        return -1.0 if self is Direction.lower else 1.0


class Pairing(StrEnum):
    """How the values of two methods are compared.

    A ratio is computed with the other method's records in place of the baseline's, over the generations that both
    completed. A difference is taken over the prompts that both completed. Other values are independent estimates.
    """

    independent = "independent"
    difference = "difference"
    ratio = "ratio"


class Over(StrEnum):
    """The method that a metric is relative to, for which its value is 1."""

    nothing = ""
    baseline = "baseline"
    reference = "reference"  # plain speculative decoding, if the run has it


Value = float | int | Estimate | Spread | None  # None: not defined for this method
Values = dict[str, Value]  # by the metric's name
Compute = Callable[[Records, "Context"], Value]
Applies = Callable[[Records, "Context"], bool]
F = TypeVar("F", bound=Callable[..., Value])


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a metric may use besides the records of its method.

    `baseline` and `sd` are the records of the baseline and of plain speculative decoding; `sd` is empty, and `sd_method`
    None, if the run has no such method. For a method that is not lossless, `lossless` are the records of the fastest lossless
    one besides the baseline. `target` is the model that verifies last; `models` are by role.
    """

    baseline: Records
    sd: Records = ()
    lossless: Records = ()
    sd_method: MethodSpec | None = None
    method: MethodSpec
    baseline_roles: tuple[str, ...] = ()
    models: Mapping[str, ModelSource]
    bandwidth: Bandwidth
    target: str = ""
    later_turns: bool = False
    predicted_distance: float | None = None
    timed: bool = True  # whether times mean something


def _always(rows: Records, context: Context) -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class Metric:
    """What is known of a number.

    Args:
        name: The key in files, suites and the Python API.
        heading: The heading of its column, without the clock; the name if empty.
        unit: The unit of stored values; `share` for shares, empty for plain numbers.
        definition: One or two sentences for the documentation.
        format: How tables write it.
        clock: The time that it measures; `Clock.none` if no time enters.
        better: Which values are better.
        over: The method that it is relative to.
        is_ratio: Whether it is computed from paired records of two methods, so that any two methods have such a ratio.
        is_exact: Whether it follows from the settings, without samples.
        papers: The metric that follows the papers' averaging; empty if this one does.
        needs_rejections: Whether it says nothing without rejected tokens, as variances of mean acceptance lengths.
        is_ranked: Whether methods are ranked by it: the best value is bold in LaTeX.
        by_group: Whether it is also computed for each group of prompts.
        compute: Returns the value of a method's records; None for a number that is computed elsewhere.
        applies: Whether it is defined for a method's records. Otherwise it is left out.
    """

    name: str = ""
    heading: str = ""
    unit: str = ""
    definition: str = ""
    format: Format = HUNDREDTHS
    clock: Clock = Clock.none
    better: Direction = Direction.neither
    over: Over = Over.nothing
    is_ratio: bool = False
    is_exact: bool = False
    papers: str = ""
    needs_rejections: bool = False
    is_ranked: bool = False
    by_group: bool = False
    compute: Compute | None = None
    applies: Applies = _always

    @property
    def is_timed(self) -> bool:
        """Whether it depends on measured times."""
        return self.clock is not Clock.none

    @property
    def pairing(self) -> Pairing:
        """How two methods' values are compared."""
        if self.is_ratio:
            return Pairing.ratio
        return Pairing.difference if self.compute and not self.is_timed and not self.is_exact else Pairing.independent

    @property
    def label(self) -> str:
        """The heading of its column, without the clock."""
        return self.heading or self.name

    @property
    def title(self) -> str:
        """The heading with its clock."""
        return ", ".join(filter(None, (self.label, self.clock.heading)))

    @property
    def documented_unit(self) -> str:
        """The unit for the documentation: the one that tables show; empty for texts and plain ratios."""
        if self.format.scale == SCORE.scale and not self.unit:
            return "x 100"
        if self.format.scale == MILLISECONDS.scale and self.unit == "s":
            return "ms"
        return self.format.unit or ("" if self.unit == "share" else self.unit)


METRICS: dict[str, Metric] = {}  # by name


def declare(about: Metric) -> Metric:
    """Add a metric to the registry and return it."""
    assert about.name not in METRICS, f"two metrics are called {about.name}"
    assert about.definition, f"the metric {about.name} needs a definition"
    METRICS[about.name] = about
    return about


def metric_of(name: str) -> Metric:
    """Return what is known of a number. One without an entry, such as a score of a task, is plain."""
    return METRICS.get(name) or Metric(name=name)


def relative_to(over: Over, is_timed: bool) -> dict[str, float]:
    """Return the metrics that are relative to a method, with that method's own value: 1."""
    return {each.name: 1.0 for each in METRICS.values() if each.over is over and (is_timed or not each.is_timed)}


def _documented(about: Metric, function: Callable[..., Value]) -> Metric:
    """Return a metric with the name of a function, and with the first line of its docstring as the definition."""
    assert function.__doc__, f"the metric {function.__name__} needs a docstring"
    definition = about.definition or function.__doc__.strip().splitlines()[0]
    return replace(about, name=about.name or function.__name__, definition=definition)


def register(about: Metric, function: Callable[..., Value], compute: Compute, applies: Applies = _always) -> None:
    """Register a function under a metric's name, with what computes it from records and a context."""
    declare(replace(_documented(about, function), compute=compute, applies=applies))


def metric(about: Metric = Metric()) -> Callable[[F], F]:
    """Register a function of the method's records."""

    def decorate(function: F) -> F:
        register(about, function, lambda rows, context: function(rows))
        return function

    return decorate


def metric_in_context(about: Metric = Metric()) -> Callable[[F], F]:
    """Register a function of the method's records and a `Context`."""

    def decorate(function: F) -> F:
        register(about, function, function)
        return function

    return decorate


def comparison(about: Metric) -> Callable[[F], F]:
    """Register a function of the records of a method and of its baseline. It is not computed for the baseline itself."""

    def decorate(function: F) -> F:
        register(about, function, lambda rows, context: function(rows, context.baseline), is_compared)
        return function

    return decorate


def is_compared(rows: Records, context: Context) -> bool:
    """Return whether these are not the baseline's own records, and both completed some of the same generations."""
    return bool(paired(rows, context.baseline)[0]) and rows[0].method != context.baseline[0].method


def has_sd(rows: Records, context: Context) -> bool:
    """Return whether these are not the records of plain speculative decoding, and both completed some generations."""
    return bool(paired(rows, context.sd)[0]) and rows[0].method != context.sd[0].method


def compute(rows: Records, context: Context, by_group: bool = False) -> Values:
    """Return all metrics that apply to the records of one method, or those that are computed for each group of prompts."""
    return {
        each.name: each.compute(rows, context)
        for each in METRICS.values()
        if each.compute
        and (each.by_group or not by_group)
        and (context.timed or not each.is_timed)
        and each.applies(rows, context)
    }


def ratio_to(about: Metric, rows: Records, other: Records, context: Context) -> Estimate | None:
    """Return a ratio with another method in place of the baseline; None if they share no generation."""
    assert about.pairing is Pairing.ratio and about.compute
    if not paired(rows, other)[0]:
        return None
    value = about.compute(rows, replace(context, baseline=other, sd=other))
    assert isinstance(value, Estimate)
    return value
