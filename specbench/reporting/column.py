"""A column of report tables: the values that it shows, how they are written, and the tables that have it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum

from specbench.analysis.metric import Metric, Over, metric_of
from specbench.analysis.number_format import NONE, SCORE, TIMES, CellValue
from specbench.analysis.run_summary import MethodSummary, RunSummary
from specbench.machine.hardware import bandwidth_of
from specbench.runs.run_spec import MethodSpec

RUN_TABLES = (
    "speed", "theory", "steps", "acceptance", "cascades", "drafted runs", "chains", "time", "conventions", "quality",
    "score groups", "speed groups",
)  # fmt: skip
SPEED, THEORY, STEPS, ACCEPTANCE, CASCADES, SPRINTER, CHAINS, TIME, CONVENTIONS, QUALITY, SCORE_GROUPS, SPEED_GROUPS = (
    RUN_TABLES
)
MERGED = "merged"
MOST_GROUPS = 8  # that a table shows
CONTRADICTED = "contradicted"  # declared lossless, and the greedy tokens are not the target's
NOT_EXECUTED = "not executed"  # in place of a score that needs generated code to run
ValueOf = Callable[[RunSummary, MethodSummary], CellValue]


class Priority(IntEnum):
    """Which columns a terminal hides first if a table is too wide for it. Those of the highest priority stay."""

    low = 0
    normal = 1
    late = 2
    high = 3


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the tables of runs: the metric with the name `key`, or the one that `about` describes.

    Args:
        key: The key of the column, and of its metric.
        about: What is known of a number or text that is no registered metric.
        tables: The tables that have it.
        value: Returns what it shows, by default the value of the metric. A metric relative to a method is 1 in its row.
        heading_in_run: Replaces the heading in the tables of one run. `{baseline}` is the name of the baseline, `{bandwidth}`
            the kind of memory bandwidth that was measured: read or copy.
        is_visible: Whether it is shown, by run and table.
        split: Returns the columns of its parts, for a column that has several.
        priority: Which columns a terminal that is too narrow hides first.
    """

    key: str
    about: Metric | None = None
    tables: tuple[str, ...] = ()
    value: ValueOf | None = None
    heading_in_run: str = ""
    is_visible: Callable[[RunSummary, str], bool] = lambda run, table: True
    split: "Callable[[RunSummary, str], list[Column]] | None" = None
    priority: Priority = Priority.normal

    @property
    def metric(self) -> Metric:
        """What is known of its number."""
        return self.about or metric_of(self.key)

    @property
    def title(self) -> str:
        """The heading with its clock, for tables of several runs."""
        return self.metric.title

    def title_in(self, run: RunSummary) -> str:
        """Return the heading with its clock, for tables of one run."""
        heading = self.heading_in_run.format(baseline=run.baseline, bandwidth=bandwidth_of(run.environment).kind)
        return replace(self.metric, heading=heading or self.metric.label).title

    def value_of(self, run: RunSummary, row: MethodSummary) -> CellValue:
        """Return the value of one method."""
        if self.value:
            return self.value(run, row)
        over = {Over.nothing: None, Over.baseline: run.baseline, Over.reference: run.spec.reference}[self.metric.over]
        if row.method == over:
            return 1.0 if run.is_timed or not self.metric.is_timed else None
        return row.value(self.key)

    def text(self, run: RunSummary, row: MethodSummary) -> str:
        """Return the text in a method's row."""
        return self.metric.format.text(self.value_of(run, row))


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
        Column(key="score", about=Metric(name=name, format=SCORE), value=score(name), priority=Priority.high)
        for name in names
    ]


def score_groups(run: RunSummary, table: str) -> list[Column]:
    """Return a column with the main score for each group of prompts."""

    def value(group: str) -> ValueOf:
        return lambda run, row: row.quality_by_group.get(group)

    return [
        Column(key="score_groups", about=Metric(name=group, format=SCORE), value=value(group))
        for group in run.score_groups
    ]


def speed_groups(run: RunSummary, table: str) -> list[Column]:
    """Return a column with the speedup for each group of prompts. The baseline has none."""

    def value(group: str) -> ValueOf:
        return lambda run, row: row.groups.get(group, {}).get("speedup")

    return [
        Column(key="speed_groups", about=Metric(name=group, format=TIMES), value=value(group))
        for group in run.speed_groups
    ]


def step(name: str) -> ValueOf:
    """Return the function that reads a step of `SpeedupSteps`; its value is None for a method without steps."""
    return lambda run, row: getattr(row.steps, name) if row.steps else None
