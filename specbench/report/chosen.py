"""Tables with the columns that the user names by the keys of the registry."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from specbench.analysis.run_summary import RunSummary
from specbench.errors import ConfigError, hint
from specbench.report.column import Column
from specbench.report.columns import BY_KEY
from specbench.report.run_tables import QUALITY, SPEED, SUITES
from specbench.report.suite_report import Collected
from specbench.report.suite_tables import suite_tables
from specbench.report.tables import Table, across, table_of

ALWAYS = "method"  # the first column of every table


def chosen_table(summaries: Sequence[RunSummary], keys: Sequence[str]) -> Table:
    """Return one table of runs with these columns, in this order. Raises ConfigError for an unknown key."""
    _require_known(keys, {key for key, column in BY_KEY.items() if column.tables != (SUITES,)})
    named = [BY_KEY[key] for key in dict.fromkeys(keys) if key != ALWAYS]
    if len(summaries) == 1:
        columns = [part for column in named for part in _parts(column, summaries[:1])]
        return table_of(summaries[0], [BY_KEY[ALWAYS], *columns], f"{summaries[0].pair}, {summaries[0].task}")
    return across(summaries, [part for column in named for part in _parts(column, summaries)])


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


def _require_known(keys: Iterable[str], known: set[str]) -> None:
    for key in keys:
        if key not in known:
            raise ConfigError(f"--columns: no column '{key}'{hint(key, known)}")
