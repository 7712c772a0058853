"""`specbench report`: run folders or a suite as tables, plots and pages."""

import contextlib
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TextIO

import typer

from specbench.analysis.run_summary import RunSummary
from specbench.analysis.summary import summaries_of
from specbench.cli import params
from specbench.cli.arguments import words
from specbench.cli.console import place, printable, terminal
from specbench.cli.params import known
from specbench.cli.report_output import newest, show, show_chosen, show_collected
from specbench.config.suite import read_suite
from specbench.errors import ConfigError
from specbench.report.chosen import chosen_suite
from specbench.report.plots import of_runs as plots_of_runs
from specbench.report.plots import of_suite as plots_of_suite
from specbench.report.suite_report import collect
from specbench.report.tables import markdown
from specbench.report.writers import RUN_WRITERS, chosen_text, suite_text


class Format(StrEnum):
    table = "table"
    md = "md"
    latex = "latex"
    csv = "csv"
    json = "json"
    html = "html"


CHOOSING = (Format.table, Format.md, Format.latex)  # formats that --columns applies to


@dataclass(frozen=True)
class _Wanted:
    """The form and the extent of a report."""

    form: Format
    columns: list[str]
    out: Path | None
    plots: Path | None
    full: bool
    explain: bool


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
    columns: Annotated[
        list[str] | None,
        typer.Option(help="Show one table with these columns (speedup,acceptance_rate). For table, md and latex."),
    ] = None,
    full: params.Full = False,
    explain: params.Explain = False,
) -> None:
    """Show runs or a suite as tables, plots or one HTML file."""
    if suite and runs:
        raise ConfigError("name run folders or a --suite, not both")
    keys = words(columns)
    if keys and form not in CHOOSING:
        raise ConfigError(f"--columns applies to {', '.join(CHOOSING)}; {form} contains every value")
    wanted = _Wanted(form, keys, out, plots, full, explain)
    if suite:
        _report_suite(suite, results, wanted)
    else:
        _report_runs(runs or newest(results), results, wanted)


def _report_suite(name: str, results: Path, wanted: _Wanted) -> None:
    form, out, plots = wanted.form, wanted.out, wanted.plots
    collected = collect(read_suite(name), results)
    if wanted.columns:
        collected = chosen_suite(collected, wanted.columns)
    drawn = plots_of_suite(collected, plots) if plots else []
    if form is not Format.table:
        _write(suite_text(collected, form, drawn, out.parent if out else Path()), out)
        return
    with _opened(out) as file:
        show_collected(collected, terminal(file))
    _print_paths(drawn)


def _report_runs(folders: list[Path], results: Path, wanted: _Wanted) -> None:
    if not folders:
        raise ConfigError(f"no run folder in {results}; help: specbench run")
    summaries = summaries_of(folders)
    drawn = plots_of_runs(summaries, wanted.plots) if wanted.plots else []
    if wanted.form is not Format.table:
        _write(_text(summaries, wanted), wanted.out)
        return
    with _opened(wanted.out) as file:
        console = terminal(file)
        if wanted.columns:
            show_chosen(summaries, wanted.columns, console)
        else:
            show(summaries, console, wanted.full, wanted.explain)
        for summary in summaries:
            place(summary.folder, console)
    _print_paths(drawn)


def _text(summaries: list[RunSummary], wanted: _Wanted) -> str:
    if wanted.columns:
        return chosen_text(summaries, wanted.form, wanted.columns)
    return markdown(summaries, wanted.full) if wanted.form is Format.md else RUN_WRITERS[wanted.form](summaries)


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
