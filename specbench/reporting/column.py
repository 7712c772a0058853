"""A column of report tables: the values that it shows, how they are written, and the tables that have it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from specbench.analysis.intervals import Estimate
from specbench.analysis.points import CurveChoice, PointValue
from specbench.analysis.run_metrics import METRICS, Spread
from specbench.analysis.run_summary import MethodSummary, RunSummary
from specbench.machine.hardware import bandwidth_of
from specbench.runs.run_spec import MethodSpec

RUN_TABLES = (
    "speed", "theory", "steps", "acceptance", "cascades", "sprinter", "chains", "time", "conventions", "quality",
    "score groups", "speed groups",
)  # fmt: skip
SPEED, THEORY, STEPS, ACCEPTANCE, CASCADES, SPRINTER, CHAINS, TIME, CONVENTIONS, QUALITY, SCORE_GROUPS, SPEED_GROUPS = (
    RUN_TABLES
)
MERGED, SUITES = "merged", "suites"
DECODING, END_TO_END = "decoding", "end to end"  # clocks
NONE = "–"  # in place of a missing value
MOST_GROUPS = 8  # that a table shows
NOT_REACHED = "not reached"  # for the summary of a curve that never meets its condition
CONTRADICTED = "contradicted"  # declared lossless, and the greedy tokens are not the target's
NOT_EXECUTED = "not executed"  # in place of a score that needs generated code to run
CellValue = PointValue | Mapping[str, float]
ValueOf = Callable[[RunSummary, MethodSummary], CellValue]


class NumberCell(str):
    """The text of a table's cell that shows a number, in parts: `1.52x [1.49, 1.55]` is `1.52`, `x` and `[1.49, 1.55]`.

    `value` is the number itself, and `rest` an interval, a deviation or the paper's value. Cells without a number are plain
    strings.
    """

    __slots__ = ("number", "rest", "unit", "value")
    value: float
    number: str
    unit: str
    rest: str

    def __new__(cls, value: float, number: str, unit: str = "", rest: str = "") -> "NumberCell":
        """Return the cell of a number, written as `number`."""
        cell = super().__new__(cls, f"{number}{unit}{' ' if rest else ''}{rest}")
        cell.value, cell.number, cell.unit, cell.rest = value, number, unit, rest
        return cell

    def __getnewargs__(self) -> tuple[float, str, str, str]:  # type: ignore[override]  # of str: its text alone
        """Return the arguments of `__new__`, for copies."""
        return self.value, self.number, self.unit, self.rest

    def followed_by(self, text: str) -> "NumberCell":
        """Return the cell with more text after the number."""
        return NumberCell(self.value, self.number, self.unit, f"{self.rest} {text}".strip())


@dataclass(frozen=True)
class Format:
    """A pattern for numbers, applied after scaling. The suffix follows the value, but not the bounds of its interval."""

    pattern: str = "{:.2f}"
    scale: float = 1.0
    suffix: str = ""

    @property
    def unit(self) -> str:
        """The unit that the text itself shows."""
        return "%" if self.pattern.endswith("%}") else self.suffix

    def number(self, value: float, signed: bool = False) -> str:
        """Return a number without suffix, on request with its sign."""
        pattern = self.pattern.replace("{:", "{:+") if signed and "+" not in self.pattern else self.pattern
        return pattern.format(self.scale * value)

    def cell(self, value: float, rest: str = "") -> NumberCell:
        """Return the cell of a number, with its unit."""
        text = self.number(value)
        if text.endswith("%"):
            return NumberCell(value, text[:-1], "%", rest)
        return NumberCell(value, text, self.suffix, rest)

    def text(self, value: CellValue) -> str:
        """Return a value with its interval or deviation, as a `NumberCell` if it is one number.

        Several values are separated by spaces and follow their names.
        """
        if value is None:
            return NONE
        if isinstance(value, str):
            return value
        if isinstance(value, Estimate | CurveChoice):
            return self._interval(value)
        if isinstance(value, Spread):
            return NumberCell(value.mean, self.number(value.mean), "", f"± {self.number(value.deviation)}")
        if isinstance(value, Mapping):
            return " ".join(f"{name} {self.number(number)}" for name, number in value.items()) or NONE
        if isinstance(value, list):
            return " ".join(map(self.number, value)) or NONE
        return self.cell(value)

    def _interval(self, value: Estimate | CurveChoice) -> str:
        if value.value is None:
            return NOT_REACHED
        if value.low is None or value.high is None:
            return self.cell(value.value)
        return self.cell(value.value, f"[{self.number(value.low)}, {self.number(value.high)}]")


COUNT = Format("{:.0f}")
TENTHS, HUNDREDTHS, THOUSANDTHS = Format("{:.1f}"), Format("{:.2f}"), Format("{:.3f}")
TIMES = Format("{:.2f}", suffix="x")
PERCENT, TENTHS_OF_PERCENT, CHANGE = Format("{:.0%}"), Format("{:.1%}"), Format("{:+.1%}")
SCORE = Format("{:.1f}", scale=100.0)  # as papers print scores
SIGNED_SCORE = Format("{:+.1f}", scale=100.0)
THREE_DIGITS = Format("{:.3g}")
MILLISECONDS = Format("{:.0f}", scale=1e3)  # of seconds
HUNDREDTHS_OF_MS, THOUSANDTHS_OF_MS = Format("{:.2f}", scale=1e3), Format("{:.3f}", scale=1e3)
TEXT = Format()


class Priority(IntEnum):
    """Which columns a terminal hides first if a table is too wide for it. Those of the highest priority stay."""

    low = 0
    normal = 1
    late = 2
    high = 3


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column: its heading, definition, values and format, and the tables in which it appears.

    By default the value is the run metric or prediction with the name `key`, and the definition and unit are the metric's. A
    column that shows `one_for` "baseline" or "sd" has 1 in the row of that method. `heading_in_run` replaces the heading in
    the tables of a single run, where `{baseline}` is the name of the baseline and `{bandwidth}` the kind of memory
    bandwidth that was measured: read or copy. `clock` is appended to both headings.
    """

    key: str
    heading: str
    format: Format
    clock: str = ""
    tables: tuple[str, ...] = ()
    unit: str = ""
    definition: str = ""
    value: ValueOf | None = None
    one_for: str = ""
    heading_in_run: str = ""
    is_visible: Callable[[RunSummary, str], bool] = lambda run, table: True  # by run and table
    split: "Callable[[RunSummary, str], list[Column]] | None" = None  # into one column for each of several parts
    lower_is_better: bool = False
    priority: Priority = Priority.normal

    @property
    def title(self) -> str:
        """The heading with its clock, for tables of several runs."""
        return ", ".join(filter(None, (self.heading, self.clock)))

    def title_in(self, run: RunSummary) -> str:
        """Return the heading with its clock, for tables of one run."""
        heading = self.heading_in_run.format(baseline=run.baseline, bandwidth=bandwidth_of(run.environment).kind)
        heading = heading or self.heading
        return ", ".join(filter(None, (heading, self.clock)))

    def value_of(self, run: RunSummary, row: MethodSummary) -> CellValue:
        """Return the value of one method."""
        if self.value:
            return self.value(run, row)
        if self.one_for and row.method == (run.baseline if self.one_for == "baseline" else self.one_for):
            return 1.0 if run.is_timed else None
        return row.value(self.key)

    def text(self, run: RunSummary, row: MethodSummary) -> str:
        """Return the text in a method's row."""
        return self.format.text(self.value_of(run, row))

    @property
    def documented_unit(self) -> str:
        """The unit for the documentation; empty for texts and plain ratios."""
        metric = METRICS.get(self.key)
        metric_unit = "" if metric is None or metric.unit == "share" else metric.unit
        return self.unit or self.format.unit or metric_unit

    @property
    def documentation(self) -> str:
        """The definition, by default the metric's."""
        return self.definition or METRICS[self.key].definition


def score(name: str) -> ValueOf:
    """Return the score by a metric. The text `not executed` if generated code was not run to compute it."""

    def value(run: RunSummary, row: MethodSummary) -> CellValue:
        return row.quality.get(name) or (NOT_EXECUTED if run.not_executed else None)

    return value


def lossless(run: RunSummary, row: MethodSummary) -> str | None:
    """Return whether a method is lossless, and by which rule it is not, as text; None for the baseline."""
    if row.method == run.baseline:
        return None
    if run.contradicted(row):
        return CONTRADICTED
    rule = lossy_rule(run.spec.methods[row.method])
    if rule and run.lossless(row) is not True:
        return f"no: {rule}"
    return {True: "yes", False: "no", None: "undeclared"}[run.lossless(row)]


def lossy_rule(spec: MethodSpec) -> str:
    """Return the name of the rule that makes a method lossy, a rejection as published or a target; empty without one."""
    if spec.traits.published_rule:
        return f"{spec.traits.published_rule}, as published"
    target = spec.options.get("target")
    name = str(target.get("name", "")) if isinstance(target, dict) else ""
    return "" if name == "last" else name


def counter(name: str) -> ValueOf:
    """Return what the method counted under a name in its rounds; None if it did not."""
    return lambda run, row: row.counters.get(name)


def levels(run: RunSummary, row: MethodSummary) -> str:
    """Return the levels of a chain, innermost first: drafter, acceptance rate, tokens/round, rounds per target round."""
    return (
        "; ".join(
            f"{level.proposer or 'none'} {'' if level.acceptance is None else format(level.acceptance, '.2f')}:"
            f" {level.length:.2f} ± {level.lengths_sd:.2f} tokens, {level.rounds:.2f} rounds"
            for level in row.levels
        )
        or NONE
    )


def defined(key: str) -> Callable[[RunSummary, str], bool]:
    """Return a condition: a method of the run has the value."""
    return lambda run, table: any(row.value(key) is not None for row in run.methods)


def has_trees(run: RunSummary, table: str) -> bool:
    """Return whether a method of the run drafts trees."""
    return any(row.acceptance_by_rank for row in run.methods)


def headline_scores(run: RunSummary, table: str) -> list[Column]:
    """Return a column for each score in the table of quality, and for the task's main score in others."""
    names = [metric["name"] for metric in run.metrics if table == QUALITY or metric["name"] == run.headline]
    return [
        Column(key="score", heading=name, format=SCORE, value=score(name), priority=Priority.high) for name in names
    ]


def score_groups(run: RunSummary, table: str) -> list[Column]:
    """Return a column with the main score for each group of prompts."""

    def value(group: str) -> ValueOf:
        return lambda run, row: row.quality_by_group.get(group)

    return [Column(key="score_groups", heading=group, format=SCORE, value=value(group)) for group in run.score_groups]


def speed_groups(run: RunSummary, table: str) -> list[Column]:
    """Return a column with the speedup for each group of prompts. The baseline has none."""

    def value(group: str) -> ValueOf:
        return lambda run, row: row.groups.get(group, {}).get("speedup")

    return [Column(key="speed_groups", heading=group, format=TIMES, value=value(group)) for group in run.speed_groups]


def step(name: str) -> ValueOf:
    """Return the function that reads a step of `SpeedupSteps`; its value is None for a method without steps."""
    return lambda run, row: getattr(row.steps, name) if row.steps else None
