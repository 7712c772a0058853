"""Reports of runs and suites on the terminal."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from specbench.analysis.run_summary import RunSummary
from specbench.cli.console import print_table, say
from specbench.config.suite import Suite
from specbench.errors import ConfigError
from specbench.report.chosen import chosen_table
from specbench.report.markdown_page import suite_notes
from specbench.report.notes import common_notes, notes
from specbench.report.suite_report import Collected, collect
from specbench.report.tables import across, of_runs
from specbench.runs.run_folder import SAMPLES


def show_suite(suite: Suite, results: Path, console: Console, changed: bool) -> None:
    """Print the tables and notes of a suite, or a message if nothing of it was measured."""
    try:
        show_collected(collect(suite, results, changed), console)
    except ConfigError as error:
        say(str(error), console)


def show_collected(collected: Collected, console: Console) -> None:
    """Print the tables and notes of a suite."""
    suite = collected.suite
    say(f"{suite.paper}, {suite.shows}: {suite.description}", console, "bold")
    for table in collected.tables:
        print_table(table, console)
    for line in suite_notes(collected):
        say(line, console)


def overview(summaries: Sequence[RunSummary], console: Console) -> None:
    """Print the merged table of several runs, with their conditions and warnings."""
    print_table(across(summaries), console)
    for note in common_notes(summaries):
        say(note, console)


def show(summaries: Sequence[RunSummary], console: Console) -> None:
    """Print the tables and notes of each run."""
    for summary, tables in of_runs(summaries):
        for table in tables:
            print_table(table, console)
        for note in notes(summary):
            say(note, console)
        console.print()


def show_chosen(summaries: Sequence[RunSummary], columns: Sequence[str], console: Console) -> None:
    """Print one table of runs with the named columns, and their common notes. Raises ConfigError for an unknown column."""
    print_table(chosen_table(summaries, columns), console)
    for note in common_notes(summaries):
        say(note, console)


def newest(results: Path) -> list[Path]:
    """Return the run folder that was written to last, in a list; empty if there is none."""
    folders = [path.parent for path in results.glob(f"*/{SAMPLES}")]
    return [max(folders, key=lambda folder: (folder / SAMPLES).stat().st_mtime)] if folders else []
