"""`specbench report`: run folders as tables."""

import contextlib
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from specbench.report.tables import Table


class Format(StrEnum):
    table = "table"
    md = "md"
    csv = "csv"
    json = "json"


def report(
    runs: Annotated[list[Path] | None, typer.Argument(help="Run folders; the newest in --from, if none.")] = None,
    form: Annotated[Format, typer.Option("--format", "-f", help="How to write it.")] = Format.table,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write to this file instead of the terminal.")] = None,
    results: Annotated[Path, typer.Option("--from", help="Where run folders lie.")] = Path("results"),
) -> None:
    """Render finished or unfinished runs as tables."""
    from specbench.errors import ConfigError
    from specbench.report import tables
    from specbench.report.summary import summarise

    folders = runs or newest(results)
    if not folders:
        raise ConfigError(f"no run folder in {results}; help: specbench run")
    summaries = [summarise(folder) for folder in folders]
    if form is Format.table:
        from rich.console import Console

        with contextlib.ExitStack() as stack:
            file = stack.enter_context(out.open("w", encoding="utf-8")) if out else None
            console = Console(file=file, width=160) if file else terminal()
            if len(summaries) > 1:
                overview(summaries, console)
            show(summaries, console)
        return
    text = {Format.md: tables.markdown, Format.csv: tables.flat, Format.json: tables.as_json}[form](summaries)
    if out:
        out.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


def newest(results: Path) -> list[Path]:
    """The run folder that was written to last."""
    folders = [path.parent for path in results.glob("*/samples.jsonl")]
    return [max(folders, key=lambda folder: (folder / "samples.jsonl").stat().st_mtime)] if folders else []


def terminal() -> "Console":
    """A console as wide as the terminal; wide enough for every column where there is none."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=160)


def overview(summaries: list[dict[str, Any]], console: "Console") -> None:
    """One table of several runs, with their conditions and warnings."""
    from specbench.report.notes import common_notes
    from specbench.report.tables import across

    print_table(across(summaries), console)
    for note in common_notes(summaries):
        _say(note, console)


def show(summaries: list[dict[str, Any]], console: "Console") -> None:
    """The tables of each summary, with its notes."""
    from specbench.report.notes import notes
    from specbench.report.tables import tables

    for summary in summaries:
        for table in tables(summary):
            print_table(table, console)
        for note in notes(summary):
            _say(note, console)
        console.print()


def _say(note: str, console: "Console") -> None:
    console.print(note, style="yellow" if note.startswith("!") else "dim", markup=False, highlight=False)


def print_table(table: "Table", console: "Console") -> None:
    """One table under its title."""
    from rich import box
    from rich.table import Table as Drawing

    drawn = Drawing(title=table.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for i, head in enumerate(table.heads):
        drawn.add_column(head, justify="right" if i else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*row)
    console.print(drawn)
