"""Tables, notes and paths on the terminal."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from specbench.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from specbench.analysis.run_summary import RunSummary
    from specbench.config.suite import Suite
    from specbench.report.suite_report import Collected
    from specbench.report.tables import Table

WIDTH = 160  # columns, if the output is not a terminal


def terminal(file: TextIO | None = None) -> "Console":
    """Return a console as wide as the terminal; for a file or a pipe, wide enough for all columns."""
    from rich.console import Console

    console = Console(file=file)
    return console if console.is_terminal else Console(file=file, width=WIDTH)


def show_suite(suite: "Suite", results: Path, console: "Console", changed: bool) -> None:
    """Print the tables and notes of a suite, or a message if nothing of it was measured."""
    from specbench.report.suite_report import collect

    try:
        show_collected(collect(suite, results, changed), console)
    except ConfigError as error:
        say(str(error), console)


def show_collected(collected: "Collected", console: "Console") -> None:
    """Print the tables and notes of a suite."""
    from specbench.report.markdown_page import suite_notes

    suite = collected.suite
    say(f"{suite.paper}, {suite.shows}: {suite.description}", console, "bold")
    for table in collected.tables:
        print_table(table, console)
    for line in suite_notes(collected):
        say(line, console)


def overview(summaries: "Sequence[RunSummary]", console: "Console") -> None:
    """Print the merged table of several runs, with their conditions and warnings."""
    from specbench.report.notes import common_notes
    from specbench.report.tables import across

    print_table(across(summaries), console)
    for note in common_notes(summaries):
        say(note, console)


def show(summaries: "Sequence[RunSummary]", console: "Console") -> None:
    """Print the tables and notes of each run."""
    from specbench.report.notes import notes
    from specbench.report.tables import of_runs

    for summary, tables in of_runs(summaries):
        for table in tables:
            print_table(table, console)
        for note in notes(summary):
            say(note, console)
        console.print()


def say(note: str, console: "Console", style: str = "") -> None:
    """Print a note. Without a `style`, warnings are yellow and other notes dim."""
    from rich.text import Text

    shown = style or ("yellow" if note.startswith("!") else "dim")
    for line in note.splitlines():
        console.print(Text(printable(line), style=shown))


def place(path: Path | str, console: "Console") -> None:
    """Print a path on one line, however long, so that it can be copied."""
    from rich.text import Text

    console.print(Text(printable(path), style="dim"), soft_wrap=True)


def printable(text: Path | str) -> str:
    """Return a name or path with hidden characters escaped."""
    from specbench.report import escaping

    return escaping.terminal(str(text))


def print_table(table: "Table", console: "Console", left: bool = False) -> None:
    """Print a table. All columns but the first are aligned to the right, with `left` to the left."""
    from rich import box
    from rich.table import Table as Drawing
    from rich.text import Text

    title = Text(printable(table.title), style="bold") if table.title else None
    drawn = Drawing(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for i, head in enumerate(table.heads):
        drawn.add_column(Text(printable(head)), justify="right" if i and not left else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(printable(cell)) for cell in row))
    console.print(drawn)
