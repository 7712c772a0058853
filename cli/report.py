"""`specbench report`: run folders, or a suite, as tables, plots and pages."""

import contextlib
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer
from rich import box
from rich.console import Console
from rich.table import Table as Drawing
from rich.text import Text

from specbench.analysis.summary import summaries_of
from specbench.cli.params import known
from specbench.config.suite import Suite, read_suite
from specbench.errors import ConfigError
from specbench.report import escaping, export, html, latex, markdown_page, plots, tables
from specbench.report.notes import common_notes, notes
from specbench.report.suite_report import Collected, collect

WIDTH = 160  # of tables that no terminal bounds


class Format(StrEnum):
    table = "table"
    md = "md"
    latex = "latex"
    csv = "csv"
    json = "json"
    html = "html"


def report(
    runs: Annotated[list[Path] | None, typer.Argument(help="Run folders; default: the newest in --from.")] = None,
    suite: Annotated[
        str | None,
        typer.Option(
            "--suite",
            help="A suite instead: the paper's table, its numbers beside ours.",
            autocompletion=known("suite"),
        ),
    ] = None,
    form: Annotated[Format, typer.Option("--format", "-f", help="How to write it.")] = Format.table,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write to this file instead of the terminal.")] = None,
    draw: Annotated[Path | None, typer.Option("--plots", help="Draw plots, PNG and SVG, into this folder.")] = None,
    results: Annotated[Path, typer.Option("--from", help="Where run folders lie.")] = Path("results"),
) -> None:
    """Show runs or a suite as tables, plots or one HTML file."""
    if suite and runs:
        raise ConfigError("name run folders or a --suite, not both")
    told: _Told = _Suite(_collected(suite, results)) if suite else _Runs(_summaries(runs, results))
    drawn = told.plots(draw) if draw else []
    if form is Format.table:
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(out.open("w", encoding="utf-8")) if out else None
            console = _into(file) if file else terminal()
            told.show(console)
        for path in drawn:
            print(printable(path))
        return
    text = told.text(form, drawn, out.parent if out else Path())
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
        print(f"wrote {printable(out)}", file=sys.stderr)
    else:
        print(text, end="")


class _Told(Protocol):
    """What is reported: runs, or a suite."""

    def show(self, console: Console) -> None: ...

    def text(self, form: Format, drawn: list[Path], beside: Path) -> str: ...

    def plots(self, folder: Path) -> list[Path]: ...


@dataclass
class _Suite:
    collected: Collected

    def show(self, console: Console) -> None:
        show_collected(self.collected, console)

    def text(self, form: Format, drawn: list[Path], beside: Path) -> str:
        if form is Format.md:
            return markdown_page.page(self.collected, [path for path in drawn if path.suffix == ".svg"], beside)
        if form is Format.latex:
            return latex.latex(self.collected.tables)
        if form is Format.html:
            return html.of_suite(self.collected)
        return (export.as_csv if form is Format.csv else export.as_json)(self.collected.points)

    def plots(self, folder: Path) -> list[Path]:
        return plots.of_suite(self.collected, folder)


@dataclass
class _Runs:
    summaries: list[dict[str, Any]]

    def show(self, console: Console) -> None:
        if len(self.summaries) > 1:
            overview(self.summaries, console)
        show(self.summaries, console)
        for summary in self.summaries:
            place(summary["folder"], console)

    def text(self, form: Format, drawn: list[Path], beside: Path) -> str:
        if form is Format.latex:
            return latex.latex(tables.all_tables(self.summaries))
        told = {
            Format.md: tables.markdown,
            Format.csv: tables.flat,
            Format.json: tables.as_json,
            Format.html: html.of_runs,
        }
        return told[form](self.summaries)

    def plots(self, folder: Path) -> list[Path]:
        return plots.of_runs(self.summaries, folder)


def _collected(suite: str, results: Path) -> Collected:
    return collect(read_suite(suite), results)


def _summaries(runs: list[Path] | None, results: Path) -> list[dict[str, Any]]:
    folders = runs or newest(results)
    if not folders:
        raise ConfigError(f"no run folder in {results}; help: specbench run")
    return summaries_of(folders)


def newest(results: Path) -> list[Path]:
    """The run folder that was written to last."""
    folders = [path.parent for path in results.glob("*/samples.jsonl")]
    return [max(folders, key=lambda folder: (folder / "samples.jsonl").stat().st_mtime)] if folders else []


def terminal() -> Console:
    """A console as wide as the terminal; wide enough for every column where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


def _into(file: Any) -> Console:
    return Console(file=file, width=WIDTH)


def show_suite(suite: Suite, results: Path, console: Console, changed: bool) -> None:
    """A suite's tables and verdicts, where anything of it was measured."""
    try:
        show_collected(collect(suite, results, changed), console)
    except ConfigError as error:  # nothing to show is no failure of what was asked for
        say(str(error), console)


def show_collected(collected: Collected, console: Console) -> None:
    """Tables, what was expected of them, conditions, and what is not there."""
    suite = collected.suite
    say(f"{suite.paper}, {suite.shows}: {suite.description}", console, "bold")
    for table in collected.tables:
        print_table(table, console)
    for line in markdown_page.said(collected):
        say(line, console)


def overview(summaries: list[dict[str, Any]], console: Console) -> None:
    """One table of several runs, with their conditions and warnings."""
    print_table(tables.across(summaries), console)
    for note in common_notes(summaries):
        say(note, console)


def show(summaries: list[dict[str, Any]], console: Console) -> None:
    """The tables of each summary, with its notes."""
    for summary, shown in tables.of_runs(summaries):
        for table in shown:
            print_table(table, console)
        for note in notes(summary):
            say(note, console)
        console.print()


def say(note: str, console: Console, style: str = "") -> None:
    """A note, whatever is in it; warnings in another colour unless there is a `style`."""
    shown = style or ("yellow" if note.startswith("!") else "dim")
    for line in note.splitlines():
        console.print(Text(printable(line), style=shown))


def place(path: Path | str, console: Console) -> None:
    """A path, on one line however long it is, so that it can be copied."""
    console.print(Text(printable(path), style="dim"), soft_wrap=True)


def printable(text: Path | str) -> str:
    """A name or path as a terminal can show it."""
    return escaping.terminal(str(text))


def print_table(table: tables.Table, console: Console, left: bool = False) -> None:
    """One table under its title; numbers to the right, unless all is `left`."""
    title = Text(printable(table.title), style="bold") if table.title else None
    drawn = Drawing(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for i, head in enumerate(table.heads):
        drawn.add_column(Text(printable(head)), justify="right" if i and not left else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(printable(cell)) for cell in row))
    console.print(drawn)
