"""Messages, tables and paths on the terminal."""

from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from rich import box
from rich.console import Console
from rich.table import Table as Drawing
from rich.text import Text

from specbench.report import escaping

if TYPE_CHECKING:
    from specbench.report.tables import Table  # imports numpy

WIDTH = 160  # columns, if the output is not a terminal


def terminal(file: TextIO | None = None) -> Console:
    """Return a console as wide as the terminal; for a file or a pipe, wide enough for all columns."""
    console = Console(file=file)
    return console if console.is_terminal else Console(file=file, width=WIDTH)


def say(note: str, console: Console, style: str = "") -> None:
    """Print a note. Without a `style`, warnings are yellow and other notes dim."""
    shown = style or ("yellow" if note.startswith("!") else "dim")
    for line in note.splitlines():
        console.print(Text(printable(line), style=shown))


def place(path: Path | str, console: Console) -> None:
    """Print a path on one line, however long, so that it can be copied."""
    console.print(Text(printable(path), style="dim"), soft_wrap=True)


def printable(text: Path | str) -> str:
    """Return a name or path with hidden characters escaped."""
    return escaping.terminal(str(text))


def print_table(table: "Table", console: Console, left: bool = False) -> None:
    """Print a table. All columns but the first are aligned to the right, with `left` to the left."""
    title = Text(printable(table.title), style="bold") if table.title else None
    drawn = Drawing(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for i, head in enumerate(table.heads):
        drawn.add_column(Text(printable(head)), justify="right" if i and not left else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(printable(cell)) for cell in row))
    console.print(drawn)
