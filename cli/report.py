"""`specbench report`: run folders or a suite as tables, plots and pages."""

import contextlib
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TextIO

import typer

from specbench.analysis.summary import summaries_of
from specbench.cli import params
from specbench.cli.console import place, printable, terminal
from specbench.cli.params import known
from specbench.cli.report_output import newest, show, show_collected
from specbench.config.suite import read_suite
from specbench.errors import ConfigError
from specbench.report.plots import of_runs as plots_of_runs
from specbench.report.plots import of_suite as plots_of_suite
from specbench.report.suite_report import collect
from specbench.report.tables import markdown
from specbench.report.writers import RUN_WRITERS, suite_text


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
            help="A suite instead: the paper's tables, with its numbers beside ours.",
            autocompletion=known("suite"),
        ),
    ] = None,
    form: Annotated[Format, typer.Option("--format", "-f", help="Output format.")] = Format.table,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write to this file instead of the terminal.")] = None,
    plots: Annotated[Path | None, typer.Option("--plots", help="Write plots to this folder, as PNG and SVG.")] = None,
    results: Annotated[Path, typer.Option("--from", help="The folder of run folders.")] = Path("results"),
    full: params.Full = False,
    explain: params.Explain = False,
) -> None:
    """Show runs or a suite as tables, plots or one HTML file."""
    if suite and runs:
        raise ConfigError("name run folders or a --suite, not both")
    if suite:
        _report_suite(suite, results, form, out, plots)
    else:
        shown = Shown(form=form, full=full, explain=explain, out=out, plots=plots)
        _report_runs(runs or newest(results), results, shown)


def _report_suite(name: str, results: Path, form: Format, out: Path | None, plots: Path | None) -> None:
    collected = collect(read_suite(name), results)
    drawn = plots_of_suite(collected, plots) if plots else []
    if form is not Format.table:
        _write(suite_text(collected, form, drawn, out.parent if out else Path()), out)
        return
    with _opened(out) as file:
        show_collected(collected, terminal(file))
    _print_paths(drawn)


@dataclass(frozen=True, kw_only=True)
class Shown:
    """How a report of runs is shown: its format, its extent, and where it is written."""

    form: Format
    full: bool
    explain: bool
    out: Path | None
    plots: Path | None


def _report_runs(folders: list[Path], results: Path, shown: Shown) -> None:
    if not folders:
        raise ConfigError(f"no run folder in {results}; help: specbench run")
    summaries = summaries_of(folders)
    drawn = plots_of_runs(summaries, shown.plots) if shown.plots else []
    if shown.form is Format.md:
        _write(markdown(summaries, shown.full), shown.out)
        return
    if shown.form is not Format.table:
        _write(RUN_WRITERS[shown.form](summaries), shown.out)
        return
    with _opened(shown.out) as file:
        console = terminal(file)
        show(summaries, console, shown.full, shown.explain)
        for summary in summaries:
            place(summary.folder, console)
    _print_paths(drawn)


def _opened(out: Path | None) -> contextlib.AbstractContextManager[TextIO | None]:
    return out.open("w", encoding="utf-8") if out else contextlib.nullcontext()


def _write(text: str, out: Path | None) -> None:
    """Write to a file, or print."""
    if not out:
        print(text, end="")
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    print(f"wrote {printable(out)}", file=sys.stderr)


def _print_paths(paths: list[Path]) -> None:
    for path in paths:
        print(printable(path))
