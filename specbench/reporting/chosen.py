"""Tables with the columns that the user names by the keys of the registry."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches

from specbench.analysis.run_summary import RunSummary
from specbench.errors import ConfigError, hint
from specbench.reporting.column import Column
from specbench.reporting.columns import BY_KEY
from specbench.reporting.run_tables import QUALITY, SPEED, SUITES
from specbench.reporting.suite_report import Collected
from specbench.reporting.suite_tables import suite_tables
from specbench.reporting.tables import Table, across, table_of

ALWAYS = "method"  # the first column of every table
SURELY_MEANT = 0.8  # similarity of a word to a column from which on it is not the name of a missing metric


def chosen_table(summaries: Sequence[RunSummary], words: Sequence[str]) -> Table:
    """Return one table of runs with these columns, in this order: keys, or headings of these runs' tables.

    A heading that contains commas may be several words. Raises ConfigError for an unknown column.
    """
    known = {key: _parts(column, summaries) for key, column in BY_KEY.items() if column.tables != (SUITES,)}
    headed = {head: [part] for parts in known.values() for part in parts for head in _headings(part, summaries)}
    unscored = not any(summary.metrics for summary in summaries)
    columns = [part for part in _found(words, {**headed, **known}, unscored) if part.key != ALWAYS]
    columns = list(dict.fromkeys(columns))
    if len(summaries) == 1:
        return table_of(summaries[0], [BY_KEY[ALWAYS], *columns], f"{summaries[0].pair}, {summaries[0].task}")
    return across(summaries, columns)


def _headings(column: Column, summaries: Sequence[RunSummary]) -> list[str]:
    """Return the headings of a column in tables of one run and of several."""
    return [column.heading, column.title, *(column.title_in(summary) for summary in summaries)]


def _found(words: Sequence[str], known: Mapping[str, list[Column]], unscored: bool) -> Iterator[Column]:
    """Yield the columns that words name. A heading's words are joined by commas again, as many as possible.

    `unscored` means that no run has a score, so that no column has the name of a metric.
    """
    at = 0
    while at < len(words):
        ends = [end for end in range(len(words), at, -1) if ", ".join(words[at:end]) in known]
        if not ends:
            _require_known([words[at]], {*known}, unscored)
        yield from known[", ".join(words[at : ends[0]])]
        at = ends[0]


def valueless(table: Table) -> list[str]:
    """Return a warning that names the columns of a table that are not shown since no row has a value."""
    shown = table.compact().heads
    missing = [head for head in table.heads if head not in shown]
    return [f"! no method has a value of: {', '.join(missing)}"] if missing else []


def chosen_suite(collected: Collected, keys: Sequence[str]) -> Collected:
    """Return the results of a suite with these values in its tables, each layout once.

    Raises ConfigError for a value that no point has.
    """
    known = {name for point in collected.points for name in point.values}
    _require_known(keys, known)
    layouts = {(spec.rows, spec.columns, str(spec.only)): spec for spec in reversed(collected.suite.tables)}
    values = tuple(dict.fromkeys(keys))
    specs = tuple(replace(spec, title="", values=values) for spec in reversed(layouts.values()))
    suite = replace(collected.suite, tables=specs)
    return replace(collected, tables=suite_tables(suite, collected.points))


def _parts(column: Column, summaries: Sequence[RunSummary]) -> list[Column]:
    """Return a column, or the parts that it has in any of the runs."""
    if column.split is None:
        return [column]
    place = QUALITY if QUALITY in column.tables else SPEED
    parts = {part.heading: part for summary in summaries for part in column.split(summary, place)}
    return list(parts.values())


def _require_known(keys: Iterable[str], known: set[str], unscored: bool = False) -> None:
    for key in keys:
        if key not in known:
            meant, _, _ = hint(key, known).partition(";")
            if unscored and not get_close_matches(key, known, cutoff=SURELY_MEANT):
                meant = "; no run here has a score, so there is no column for a metric"
            raise ConfigError(
                f"--columns: no column '{key}'{meant}; help: a heading of the table, or docs/reading-a-table.md"
            )
