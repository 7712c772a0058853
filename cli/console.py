"""Messages, tables, paths and progress on the terminal.

Progress is shown on stderr: bars and spinners on a terminal, plain lines elsewhere.
"""

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table as Drawing
from rich.text import Text

from specbench.cli.interrupts import Interrupts
from specbench.note import Note
from specbench.observer import Observer
from specbench.reporting import escaping

if TYPE_CHECKING:
    from specbench.reporting.tables import Table


WIDTH = 160  # columns, if the output is not a terminal
PADDING = 3  # characters of padding for each column of a table
LINES, AFTER_COMMAS = re.compile("\n"), re.compile("(?<=,) ")
SEPARATORS = re.compile(r"[^|]*\||[^|]+")  # parts of a signature
UNLIMITED = 10_000  # columns, to measure a table
PLAIN_SECONDS = 10.0  # between progress lines without a terminal


def output_console(file: TextIO | None = None) -> Console:
    """Return a console of the width that the terminal or COLUMNS sets; for a file or a pipe, wide enough for all columns."""
    console = Console(file=file)
    return console if _has_width(console) else Console(file=file, width=WIDTH)


def _has_width(console: Console) -> bool:
    """Return whether the terminal or COLUMNS sets a width of the output."""
    return console.is_terminal or "COLUMNS" in os.environ


def say(note: Note | str, console: Console, style: str = "") -> None:
    """Print a note. Without a `style`, warnings are yellow and other notes dim."""
    is_warning = isinstance(note, Note) and note.is_warning
    line_style = style or ("yellow" if is_warning else "dim")
    for line in (note.line if isinstance(note, Note) else note).splitlines():
        console.print(Text("\n".join(_breakable(printable(line), console.width)), style=line_style))


def _breakable(line: str, width: int) -> list[str]:
    """Return a line in parts of at most this width, if a word is too long for one line, such as a metric's signature."""
    words, lines = line.split(" "), [""]
    if max(map(cell_len, words)) <= width:
        return [line]
    for word in words:
        for number, part in enumerate(SEPARATORS.findall(word) if cell_len(word) > width else [word]):
            space = " " if lines[-1] and number == 0 else ""
            fits = cell_len(word) <= width or cell_len(lines[-1] + space + part) <= width
            lines = [*lines[:-1], lines[-1] + space + part] if fits else [*lines, part]
    return lines


def print_path(path: Path | str, console: Console) -> None:
    """Print a path on one line, however long, so that it can be copied."""
    console.print(Text(printable(path), style="dim"), soft_wrap=True)


def printable(text: Path | str) -> str:
    """Return a name or path with hidden characters escaped."""
    return escaping.terminal(str(text))


def print_table(table: "Table", console: Console, optional: Sequence[str] = (), listing: str = "") -> None:
    """Print a table.

    If the terminal is too narrow, headings are wrapped, and the column with the heading `listing` is wrapped after commas.
    Then columns are hidden: first the columns with an `optional` heading, then the least important ones. In a file or a pipe,
    nothing is wrapped or hidden.
    """
    table = table.compact()
    if table.title:
        console.print(Text(printable(table.title), style="bold"), soft_wrap=not _has_width(console))
    whole = _rich_table(table)
    width = _width(whole, console)
    if width <= console.width:
        console.print(whole)
        return
    if not _has_width(console):
        usual, console.width = console.width, width
        console.print(whole)
        console.width = usual
        return
    shown, hidden = fitted(table, console.width, optional, listing)
    console.print(_rich_table(_wrapped(shown, console.width, listing), wrapped=True))
    if hidden:
        say(f"hidden columns (the terminal is too narrow): {'; '.join(hidden)}", console)
        console.print()


def fitted(table: "Table", width: int, optional: Sequence[str] = (), listing: str = "") -> tuple["Table", list[str]]:
    """Return a table that fits a width if columns can be hidden, and the headings of the hidden ones.

    Columns with an `optional` heading are hidden first, then columns of low priority. The column `listing` may be wrapped.
    """
    order = [*(table.heads.index(head) for head in optional if head in table.heads), *table.droppable]
    hidden = table.dropped(
        order, lambda shown: sum(column + PADDING for column in _least_widths(shown, listing)) < width
    )
    return table.without(hidden), [table.heads[i] for i in sorted(hidden)]


def _wrapped(table: "Table", width: int, listing: str) -> "Table":
    """Return a table in which the column `listing` is wrapped after commas, to the width that the other columns leave."""
    if listing not in table.heads:
        return table
    at = table.heads.index(listing)
    least = _least_widths(table, listing)
    room = max(width - 1 - sum(column + PADDING for column in least) + least[at], least[at])
    rows = [[*row[:at], "\n".join(_lines(row[at], room)), *row[at + 1 :]] for row in table.rows]
    return replace(table, rows=rows)


def _lines(text: str, width: int) -> list[str]:
    """Return a list in lines of at most this width, if no part is longer."""
    lines = [""]
    for part in AFTER_COMMAS.split(text):
        longer = f"{lines[-1]} {part}".lstrip()
        lines = [*lines[:-1], longer] if cell_len(longer) <= width or not lines[-1] else [*lines, part]
    return lines


def _least_widths(table: "Table", listing: str = "") -> list[int]:
    """Return the least width of each column, with headings wrapped between words, and the column `listing` after commas."""
    parts = {head: AFTER_COMMAS if head == listing else LINES for head in table.heads}
    cells = [
        max([cell_len(part) for row in table.rows for part in parts[head].split(row[i])] or [0])
        for i, head in enumerate(table.heads)
    ]
    words = [max(map(cell_len, head.split()), default=0) for head in table.heads]
    return list(map(max, cells, words))


def _width(drawn: Drawing, console: Console) -> int:
    return Measurement.get(console, console.options.update(width=UNLIMITED), drawn).maximum


def _rich_table(table: "Table", wrapped: bool = False) -> Drawing:
    drawn = Drawing(box=box.SIMPLE_HEAD)
    for i, (head, width) in enumerate(zip(table.heads, _least_widths(table), strict=True)):
        shown = "\n".join(wrap(printable(head), max(width, 1))) if wrapped else printable(head)
        drawn.add_column(Text(shown), justify="left" if table.is_text(i) else "right", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text("\n".join(map(printable, cell.split("\n")))) for cell in row))
    return drawn


@contextmanager
def status(text: str) -> Iterator[None]:
    """Show a status: a spinner on a terminal, otherwise a line."""
    console = Console(stderr=True)
    if not console.is_terminal:
        print(escaping.terminal(text), file=sys.stderr, flush=True)
        yield
        return
    with console.status(Text(escaping.terminal(text))):
        yield


@contextmanager
def progress(label: str, total: int, done: int = 0) -> Iterator[Callable[[], None]]:
    """Show progress: a bar on a terminal, otherwise a line every ten seconds. Call the yielded function once per item."""
    if done:
        print(f"resuming {escaping.terminal(label)}: {done} of {total} done", file=sys.stderr)
    console = Console(stderr=True)
    if not console.is_terminal:
        start = last = time.monotonic()
        already = done

        def line() -> None:
            nonlocal done, last
            done += 1
            now = time.monotonic()
            if now - last > PLAIN_SECONDS or done == total:
                rate = (done - already) / max(now - start, 1e-9)
                remaining = (
                    f", {duration((total - done) / rate)} left" if done < total else f" in {duration(now - start)}"
                )
                print(
                    f"{escaping.terminal(label)}: {done}/{total}, {rate:.1f}/s{remaining}", file=sys.stderr, flush=True
                )
                last = now

        yield line
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        shown = bar.add_task(escaping.terminal(label), total=total, completed=done)
        yield lambda: bar.advance(shown)


class _Rate(ProgressColumn):
    """Items per second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.1f}/s")


def duration(seconds: float) -> str:
    """Format seconds as `45 s`, `12 min` or `3.4 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours = seconds / 3600
    return f"{seconds / 60:.0f} min" if hours < 1.5 else f"{hours:.{hours < 100:d}f} h"


class TerminalObserver(Observer):
    """Shows progress on stderr. SIGINT and SIGTERM raise KeyboardInterrupt; what is finished is kept."""

    def __init__(self) -> None:
        self._interrupts = Interrupts()

    @contextmanager
    def status(self, text: str) -> Iterator[None]:
        with status(text):
            yield

    @contextmanager
    def progress(self, label: str, total: int, done: int = 0) -> Iterator[Callable[[], None]]:
        with progress(label, total, done) as advance:

            def step() -> None:
                advance()
                self._interrupts.check()

            yield step

    def message(self, text: str) -> None:
        print(escaping.terminal(text), file=sys.stderr)
