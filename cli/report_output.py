"""Reports of runs and suites on the terminal."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from specbench.analysis.run_summary import RunSummary
from specbench.cli.console import print_table, say
from specbench.config.suite import Suite
from specbench.errors import ConfigError
from specbench.reporting.columns import column_of
from specbench.reporting.conclusion import conclusion
from specbench.reporting.notes import common_notes, notes, short_notes
from specbench.reporting.suites import Collected, collect, suite_notes
from specbench.reporting.tables import Table, across, chosen_table, overview, tables_by_run, valueless
from specbench.runs.run_folder import SAMPLES


def show_suite(suite: Suite, results: Path, console: Console, changed: bool) -> None:
    """Print the tables, notes and conclusion of a suite, or a message if nothing of it was measured."""
    try:
        show_collected(collect(suite, results, changed), console)
    except ConfigError as error:
        say(str(error), console)


def show_collected(collected: Collected, console: Console) -> None:
    """Print the tables, notes and conclusion of a suite."""
    suite = collected.suite
    say(f"{suite.paper}, {suite.shows}: {suite.description}", console, "bold")
    for table in collected.tables:
        print_table(table, console)
    for line in suite_notes(collected):
        say(line, console)
    conclude(collected.conclusion, console)


def show(summaries: Sequence[RunSummary], console: Console, full: bool = False, explain: bool = False) -> None:
    """Print the first table, the conditions and warnings, and the conclusion. With `full`, all tables and notes.

    With `explain`, the definition of every column follows its table.
    """
    if full:
        _show_all(summaries, console, explain)
    else:
        table = overview(summaries)
        print_table(table, console)
        if explain:
            explain_columns([table], console)
        for note in short_notes(summaries):
            say(note, console)
    conclude(conclusion(summaries), console)


def _show_all(summaries: Sequence[RunSummary], console: Console, explain: bool) -> None:
    shown: list[Table] = []
    if len(summaries) > 1:
        shown.append(across(summaries))
        print_table(shown[-1], console)
        for note in common_notes(summaries):
            say(note, console)
        console.print()
    for summary, tables in tables_by_run(summaries):
        for table in tables:
            print_table(table, console)
        for note in notes(summary):
            say(note, console)
        console.print()
        shown += tables
    if explain:
        explain_columns(shown, console)


def explain_columns(tables: Sequence[Table], console: Console) -> None:
    """Print the definition of every column of some tables, each once."""
    heads = {key: head for table in tables for key, head in zip(table.keys, table.heads, strict=True) if key}
    for key, head in heads.items():
        unit = f" ({unit})" if (unit := column_of(key).documented_unit) else ""
        say(f"{head}{unit}: {column_of(key).documentation}", console, "none")
    console.print()


def conclude(sentences: Sequence[str], console: Console) -> None:
    """Print a conclusion, set off by an empty line."""
    if sentences:
        console.print()
    for sentence in sentences:
        say(sentence, console, "bold")


def show_chosen(summaries: Sequence[RunSummary], columns: Sequence[str], console: Console) -> None:
    """Print one table of runs with the named columns, and their common notes. Raises ConfigError for an unknown column."""
    table = chosen_table(summaries, columns)
    print_table(table, console)
    for note in [*common_notes(summaries), *valueless(table)]:
        say(note, console)


def newest(results: Path) -> list[Path]:
    """Return the run folder that was written to last, in a list; empty if there is none."""
    folders = [path.parent for path in results.glob(f"*/{SAMPLES}")]
    return [max(folders, key=lambda folder: (folder / SAMPLES).stat().st_mtime)] if folders else []
