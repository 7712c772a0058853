"""The tables of runs: of one run, of several merged or pooled, and with the columns that the user names."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from specbench.analysis.method_records import Records, complete
from specbench.analysis.metric import METRICS, metric_of
from specbench.analysis.number_format import COUNT, HUNDREDTHS, NONE, NumberCell
from specbench.analysis.points import PointValue
from specbench.analysis.quality import judged_of, win_rate_values, win_rates
from specbench.analysis.run_summary import MethodSummary, RunSummary
from specbench.analysis.speed import end_to_end_speedup, per_question_speedup, speedup
from specbench.errors import ConfigError, NotComparable, hint
from specbench.machine import hardware
from specbench.note import Note, warning
from specbench.reporting.column import (
    ACCEPTANCE,
    CASCADES,
    CHAINS,
    CONVENTIONS,
    MOST_GROUPS,
    QUALITY,
    SCORE_GROUPS,
    SPEED,
    SPEED_GROUPS,
    SPRINTER,
    STEPS,
    THEORY,
    TIME,
    Column,
    Priority,
)
from specbench.reporting.columns import BY_KEY, columns_of, merged_columns
from specbench.reporting.differences import MergedRow, differences, distinct_titles
from specbench.runs.run_folder import Judged, read

ALWAYS = "method"  # the first column of every table
SURELY_MEANT = 0.8  # similarity of a word to a column at which it counts as that column misspelled
POOLED: dict[str, Callable[[Records, Records], PointValue]] = {
    "speedup": speedup, "end_to_end_speedup": end_to_end_speedup, "papers_speedup": per_question_speedup
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """A title, column headings, and rows of text. Cells with a number are of the class `NumberCell`.

    `keys` are the columns' keys in the registry, in order, empty for columns that are not in it. `keys` is empty if no column
    is in the registry.
    """

    title: str
    heads: list[str]
    rows: list[list[str]]
    keys: tuple[str, ...] = ()
    measured: bool = True  # False for numbers that a paper prints
    label_columns: int = 1  # columns at the left that say what a row is about
    comparable: bool = (
        True  # False if rows of several pairs, tasks or temperatures have no column that distinguishes them
    )
    essential: tuple[str, ...] = ()  # keys of columns that stay if the table is too wide, at any priority

    def is_text(self, column: int) -> bool:
        """Return whether a column is aligned to the left: the first, and those in which most cells are not numbers."""
        filled = [row[column] for row in self.rows if row[column] not in ("", NONE)]
        return column == 0 or 2 * sum(isinstance(cell, NumberCell) for cell in filled) < len(filled)

    def compact(self) -> "Table":
        """Return the table without the columns, and the rows, in which no cell has a value."""
        rows = [row for row in self.rows if any(cell != NONE for cell in row[self.label_columns :])] or self.rows
        unused = {i for i in range(1, len(self.heads)) if rows and all(row[i] == NONE for row in rows)}
        return replace(self, rows=rows).without(unused)

    @property
    def droppable(self) -> list[int]:
        """The columns that may be hidden where a table is too wide, the least important first."""
        ranks = {i: _priority(key) for i, key in enumerate(self.keys) if i and key and key not in self.essential}
        return sorted((i for i in ranks if ranks[i] < Priority.high), key=lambda i: (ranks[i], -i))

    def dropped(self, order: Sequence[int], fits: Callable[["Table"], bool]) -> set[int]:
        """Return the columns to hide so that the table fits, the first of `order` first.

        Of these, the columns for which there is room after all stay, the last of `order` first.
        """
        hidden: list[int] = []
        for i in order:
            if fits(self.without({*hidden})):
                break
            hidden.append(i)
        for i in reversed(hidden):
            if fits(self.without({*hidden} - {i})):
                hidden.remove(i)
        return {*hidden}

    def without(self, dropped: Set[int]) -> "Table":
        """Return the table without the columns at some positions."""

        def rest(values: Sequence[str]) -> list[str]:
            return [value for i, value in enumerate(values) if i not in dropped]

        return replace(
            self, heads=rest(self.heads), rows=list(map(rest, self.rows)), keys=tuple(rest(self.keys)),
            label_columns=self.label_columns - sum(i < self.label_columns for i in dropped),
        )  # fmt: skip


@dataclass(frozen=True)
class RunTable:
    """A table of a run's report: its key in `Column.tables`, its title, and the condition under which a run has it.

    `essential` are columns that stay if the table is too wide, at any priority: those that the title names.
    """

    key: str
    title: str
    is_visible: Callable[[RunSummary], bool] = lambda run: True
    essential: tuple[str, ...] = ()


TABLES = (
    RunTable(SPEED, "Speed and quality"),
    RunTable(
        THEORY,
        "Theory",
        lambda run: any(row.value("predicted") is not None for row in run.measured_methods),
        essential=("predicted", "corrected"),
    ),
    RunTable(
        STEPS,
        "From theory to the measured speedup, each column with one more part as measured",
        lambda run: any(row.steps for row in run.measured_methods),
    ),
    RunTable(ACCEPTANCE, "Acceptance and forwards", essential=("acceptance_rate", "forwards_per_token")),
    RunTable(CASCADES, "Cascades", lambda run: any(row.value("rule_rate") is not None for row in run.measured_methods)),
    RunTable(
        SPRINTER,
        "SPRINTER",
        lambda run: any(row.value("verifier_rate") is not None for row in run.measured_methods),
    ),
    RunTable(CHAINS, "Chains", lambda run: any(row.levels for row in run.measured_methods)),
    RunTable(TIME, "Time"),
    RunTable(CONVENTIONS, "Other conventions"),
    RunTable(QUALITY, "Quality"),
    RunTable(SCORE_GROUPS, "{headline} by group", lambda run: _is_shown(run.score_groups)),
    RunTable(SPEED_GROUPS, "speedup over {baseline}, decoding, by group", lambda run: _is_shown(run.speed_groups)),
)


def _is_shown(groups: list[str]) -> bool:
    return 1 < len(groups) <= MOST_GROUPS


def tables(summary: RunSummary, title: str = "") -> list[Table]:
    """Return the tables of a run, without empty columns and tables, the fastest method first.

    `title` starts every title if the report has several runs.
    """
    out: list[Table] = []
    for table in TABLES:
        if not table.is_visible(summary):
            continue
        subtitle = table.title.format(baseline=summary.baseline, headline=summary.headline)
        first = title or (summary.title if not out else "")
        made = table_of(summary, columns_of(table.key, summary), ": ".join(filter(None, (first, subtitle))))
        made = (made if not out else replace(made, rows=made.rows[: len(summary.measured_methods)])).compact()
        made = replace(made, essential=table.essential)
        if len(made.heads) > 1 or not out:
            out.append(made)
    return out


def table_of(summary: RunSummary, columns: Sequence[Column], title: str) -> Table:
    """Return a table of a run with these columns, the fastest method first, those without a completed generation last."""
    rows = [[column.text(summary, row) for column in columns] for row in ranked(summary)]
    rows += [[row.label, *_failed(row, len(columns) - 1)] for row in _unmeasured(summary)]
    keys = tuple(column.key for column in columns)
    return Table(title, [column.title_in(summary) for column in columns], rows, keys)


def ranked(summary: RunSummary) -> list[MethodSummary]:
    """Return the methods of which a generation completed, the fastest first."""

    def speed(row: MethodSummary) -> float:
        return row.number("end_to_end_tokens_per_second" if summary.end_to_end else "tokens_per_second") or 0.0

    return sorted(summary.measured_methods, key=speed, reverse=True)


def across(summaries: Sequence[RunSummary], chosen: Sequence[Column] | None = None) -> Table:
    """Return the merged table of several runs: a row per run and method, and a column per property in which rows differ.

    If all runs have one task, the title names it. `chosen` replaces the measured columns, and keeps the column of the task.
    """
    lines = [MergedRow(s, row) for s in summaries for row in [*ranked(s), *_unmeasured(s)]]
    columns = list(merged_columns(list(summaries)) if chosen is None else chosen)
    differing = differences(lines)
    pairs = differing.pop("pair", None)
    leading = [*(["pair"] if pairs else []), "task", "method", *differing]
    headings = [*leading, *(column.title for column in columns)]
    keys = (*[""] * len(leading), *(column.key for column in columns))
    rows = []
    for i, (summary, row) in enumerate(lines):
        labels = [summary.task, row.label, *(texts[i] for texts in differing.values())]
        measured = [column.text(summary, row) for column in columns] if row.is_measured else _failed(row, len(columns))
        rows.append([*([pairs[i]] if pairs else []), *labels, *measured])
    names = list(dict.fromkeys(summary.pair for summary in summaries))
    title = names[0] if len(names) == 1 else f"{len(summaries)} runs"
    table = Table(title, headings, rows, keys, label_columns=len(headings) - len(columns))
    if chosen is not None:
        return table
    table, (task, *others) = table.compact(), dict.fromkeys(summary.task for summary in summaries)
    return table if others else replace(table.without({table.heads.index("task")}), title=f"{title}, {task}")


def tables_by_run(summaries: Sequence[RunSummary]) -> list[tuple[RunSummary, list[Table]]]:
    """Return the tables of each run. If there are several runs, no two titles are equal."""
    titles = distinct_titles(summaries) if len(summaries) > 1 else [""]
    return [
        (summary, [*tables(summary, title), *_judged(summary, title)])
        for summary, title in zip(summaries, titles, strict=True)
    ]


def _judged(summary: RunSummary, title: str) -> list[Table]:
    judged = judged_of(Path(summary.folder))
    return [judged_table(judged, title)] if judged and judged["rows"] else []


def judged_table(judged: Judged, title: str = "") -> Table:
    """Return the wins, ties and losses of a judged method as a table of one row."""
    values = win_rate_values(win_rates(judged["rows"]))
    columns = [each for name, each in METRICS.items() if name in values]
    return Table(
        ": ".join(filter(None, (title, f"Judged by {judged['label']} against {judged['against']}"))),
        ["method", *(each.title for each in columns)],
        [[judged["of"], *(each.format.text(values[each.name]) for each in columns)]],
        ("", *(each.name for each in columns)),
    )


def overview(summaries: Sequence[RunSummary]) -> Table:
    """Return the first table of a report: of one run its speeds and scores, of several runs the merged table."""
    return across(summaries) if len(summaries) > 1 else tables(summaries[0])[0]


def _unmeasured(summary: RunSummary) -> list[MethodSummary]:
    """Return the methods of which every generation failed."""
    return [row for row in summary.methods if row.failed and not row.is_measured]


def _failed(row: MethodSummary, columns: int) -> list[str]:
    """Return the texts of a method without a completed generation."""
    return [f"all {row.failed} failed", *[NONE] * (columns - 1)][:columns]


def chosen_table(summaries: Sequence[RunSummary], words: Sequence[str]) -> Table:
    """Return one table of runs with these columns, in this order: keys, or headings of these runs' tables.

    A heading that contains commas may be several words. Raises ConfigError for an unknown column.
    """
    keyed = {key: _columns_in(column, summaries) for key, column in BY_KEY.items()}
    headed = {head: [part] for parts in keyed.values() for part in parts for head in _headings(part, summaries)}
    unscored = not any(summary.metrics for summary in summaries)
    columns = [part for part in _named(words, {**headed, **keyed}, unscored) if part.key != ALWAYS]
    columns = list(dict.fromkeys(columns))
    if len(summaries) == 1:
        return table_of(summaries[0], [BY_KEY[ALWAYS], *columns], f"{summaries[0].pair}, {summaries[0].task}")
    return across(summaries, columns)


def _headings(column: Column, summaries: Sequence[RunSummary]) -> list[str]:
    """Return the headings of a column in tables of one run and of several."""
    return [column.metric.label, column.title, *(column.title_in(summary) for summary in summaries)]


def _named(words: Sequence[str], columns: Mapping[str, list[Column]], unscored: bool) -> Iterator[Column]:
    """Yield the columns that words name. A heading's words are joined by commas again, as many as possible.

    `unscored` means that no run has a score, so that no column has the name of a metric.
    """
    at = 0
    while at < len(words):
        ends = [end for end in range(len(words), at, -1) if ", ".join(words[at:end]) in columns]
        if not ends:
            require_columns([words[at]], {*columns}, unscored)
        yield from columns[", ".join(words[at : ends[0]])]
        at = ends[0]


def valueless(table: Table) -> list[Note]:
    """Return a warning that names the columns of a table that are not shown since no row has a value."""
    shown = table.compact().heads
    missing = [head for head in table.heads if head not in shown]
    return [warning("no values", f"no method has a value of: {', '.join(missing)}")] if missing else []


def _columns_in(column: Column, summaries: Sequence[RunSummary]) -> list[Column]:
    """Return a column, or the parts that it has in any of the runs."""
    if column.split is None:
        return [column]
    table = QUALITY if QUALITY in column.tables else SPEED
    parts = {part.metric.label: part for summary in summaries for part in column.split(summary, table)}
    return list(parts.values())


def require_columns(keys: Iterable[str], names: set[str], unscored: bool = False) -> None:
    """Raise ConfigError for a key that is none of these names. `unscored` means that no run has a score."""
    for key in keys:
        if key not in names:
            suggestion, _, _ = hint(key, names).partition(";")
            if unscored and not get_close_matches(key, names, cutoff=SURELY_MEANT):
                suggestion = "; no run here has a score, so there is no column for a metric"
            raise ConfigError(
                f"--columns: no column '{key}'{suggestion}; help: a heading of the table, or docs/reading-a-table.md"
            )


def pooled_table(summaries: Sequence[RunSummary]) -> Table:
    """Return the speedup of each method over the prompts of all its runs with one pair, baseline and temperature.

    Every token and second counts once, so long answers weigh more than short ones. Raises NotComparable if the runs differ in
    their models, their methods or their machine, are untimed, or contain a prompt twice.
    """
    groups: dict[tuple[str, str, float], list[RunSummary]] = defaultdict(list)
    for summary in summaries:
        groups[summary.pair, summary.baseline, summary.decoding.temperature].append(summary)
    heads = ["method", "pair", "T", "tasks", "prompts", *(metric_of(key).title for key in POOLED)]
    rows = [row for group in groups.values() for row in _pooled_rows(group)]
    return Table("All runs together", heads, rows, ("method", *[""] * 4, *POOLED), label_columns=5)


def _pooled_rows(group: Sequence[RunSummary]) -> Iterable[list[str]]:
    """Return a row for each method that all runs of a group have."""
    _require_poolable(group)
    first = group[0]
    records = {summary.folder: list(read(Path(summary.folder))) for summary in group}
    names = [name for name in first.spec.methods if all(name in summary.spec.methods for summary in group)]
    baseline = _pooled_records(records, first.baseline)
    for name in names:
        rows = _pooled_records(records, name)
        tasks, prompts = len({summary.task for summary in group}), len({row.prompt for row in rows})
        T = first.decoding.temperature
        labels = [name, first.pair, NumberCell(T, f"{T:g}"), COUNT.text(tasks), COUNT.text(prompts)]
        if name == first.baseline:
            yield [*labels, *(metric_of(key).format.text(1.0) for key in POOLED)]
        elif rows:
            values: list[PointValue] = [compute(rows, baseline) for compute in POOLED.values()]
            yield [*labels, *(metric_of(key).format.text(value) for key, value in zip(POOLED, values, strict=True))]
        else:
            yield [*labels, *(HUNDREDTHS.text(None) for _ in POOLED)]


def _pooled_records(records: Mapping[str, Records], method: str) -> Records:
    """Return the completed generations of a method in all runs. Ids of samples are unique within a run only."""
    return [
        replace(row, sample=f"{folder}/{row.sample}", same_as=f"{folder}/{row.prompt}")
        for folder, rows in records.items()
        for row in complete(rows, method)
    ]


def _settings(summary: RunSummary) -> tuple[object, ...]:
    """Return what has to be equal, besides the machine: models with engine and placement, methods, sampling."""
    spec, decoding = summary.spec, replace(summary.decoding, max_new_tokens=0, repeats=0)  # these differ by task
    methods = {label: method.options for label, method in spec.methods.items()}
    return spec.pair.models, spec.pair.heads, methods, decoding, spec.device


def _require_poolable(group: Sequence[RunSummary]) -> None:
    """Raise NotComparable unless the times of all runs can be added up."""
    first = group[0]
    seen: dict[tuple[str, str], str] = {}
    for summary in group:
        if not summary.is_timed:
            raise NotComparable(f"{summary.run} is untimed; help: measure it again without other jobs on the device")
        if different := hardware.incomparable(
            hardware.conditions(first.environment), hardware.conditions(summary.environment)
        ):
            raise NotComparable(
                f"{summary.run} and {first.run} were measured under different conditions, and their times are not pooled"
                f" ({'; '.join(different)}); help: report them without --pooled"
            )
        if _settings(summary) != _settings(first):
            raise NotComparable(
                f"{summary.run} and {first.run} have different models, methods or sampling; help: report them without"
                " --pooled"
            )
        for sample in {row.sample for row in read(Path(summary.folder))}:
            other = seen.setdefault((summary.data.sha256, sample), summary.folder)
            if other != summary.folder:
                raise NotComparable(
                    f"{summary.folder} and {other} contain the same prompt, {sample}; help: pass only one of them"
                )


def _priority(key: str) -> Priority:
    """Return the priority of a column; that of a value without a column is normal."""
    return BY_KEY[key].priority if key in BY_KEY else Priority.normal
