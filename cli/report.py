"""`specbench report`: run folders or a suite as tables, plots and pages; reports of runs and suites on the terminal."""

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TextIO

import typer
from rich.console import Console

from specbench.analysis.metric import metric_of
from specbench.analysis.run_summary import RunSummary
from specbench.analysis.summary import summaries_of
from specbench.cli import params
from specbench.cli.console import output_console, print_path, print_table, printable, say
from specbench.cli.params import plot_formats, words
from specbench.errors import ConfigError
from specbench.features.archive.run_archive import unpacked_results
from specbench.features.suites.suite import Suite, read_suite
from specbench.features.suites.suite_pages import suite_text
from specbench.features.suites.suite_plots import of_curve as plots_of_curve
from specbench.features.suites.suite_plots import of_suite as plots_of_suite
from specbench.features.suites.suite_report import Collected, chosen_suite, collect, suite_notes
from specbench.features.suites.suite_tables import choice_tables, curve_tables, points_of
from specbench.note import Note
from specbench.reporting.conclusion import conclusion
from specbench.reporting.formats.writers import CHOOSING, markdown_table, runs_text
from specbench.reporting.notes import common_notes, notes, short_notes
from specbench.reporting.plots.run_plots import of_runs as plots_of_runs
from specbench.reporting.tables import Table, across, chosen_table, overview, pooled_table, tables_by_run, valueless
from specbench.runs.run_folder import SAMPLES, runs_in


class ReportFormat(StrEnum):
    table = "table"
    md = "md"
    latex = "latex"
    csv = "csv"
    json = "json"
    html = "html"
    acceptance = "acceptance"
    speculation_profile = "speculation-profile"


@dataclass(frozen=True)
class _ReportRequest:
    """The form and the extent of a report."""

    form: ReportFormat
    columns: list[str]
    out: Path | None
    plots: Path | None
    plot_formats: Sequence[str]
    full: bool
    explain: bool


def report(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Run folders, or folders of them; default: the newest in --from.")
    ] = None,
    suite: Annotated[
        str | None,
        params.preset_option(
            "suite", "Report a suite: the paper's tables, with its numbers next to the measured ones.", None
        ),
    ] = None,
    form: Annotated[ReportFormat, typer.Option("--format", "-f", help="Output format.")] = ReportFormat.table,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write to this file instead of the terminal.")] = None,
    plots: Annotated[Path | None, typer.Option("--plots", help="Write plots to this folder.")] = None,
    plot_format: params.PlotFormats = None,
    results: Annotated[
        Path,
        typer.Option("--from", help="Folder that contains the run folders, or an archive of `archive export --suite`."),
    ] = Path("results"),
    columns: Annotated[
        list[str] | None,
        typer.Option(
            help="Show one table with these columns, by key or heading (speedup,strict). For table, md and latex."
        ),
    ] = None,
    pooled: Annotated[
        bool, typer.Option("--pooled", help="Show the speedup over the prompts of all runs of a pair together.")
    ] = False,
    full: params.Full = False,
    explain: params.Explain = False,
) -> None:
    """Show runs or a suite as tables, plots or one HTML file."""
    if suite and runs:
        raise ConfigError("give either run folders or --suite NAME, not both")
    keys = words(columns)
    if keys and form not in (ReportFormat.table, *CHOOSING):
        raise ConfigError(
            f"--columns applies to {', '.join([ReportFormat.table, *CHOOSING])}; {form} contains every value"
        )
    if full and (keys or (suite and form is not ReportFormat.latex)):
        raise ConfigError(
            "--full shows the other tables of run folders; a suite has no others, and --columns selects one table"
        )
    if suite and form in (ReportFormat.acceptance, ReportFormat.speculation_profile):
        raise ConfigError(f"--format {form} applies to run folders; help: specbench report RUN... -f {form}")
    if explain and (suite or keys or form is not ReportFormat.table):
        raise ConfigError(
            "--explain applies to run folders as a table, without --columns; help: docs/reading-a-table.md"
        )
    if form is ReportFormat.speculation_profile:
        _write_profiles(runs or newest(results), out)
        return
    if form is ReportFormat.acceptance and runs and (served := _served_acceptances(runs)):
        _write(served, out)
        return
    _require_runs(runs or [])
    runs = [folder for path in runs or [] for folder in runs_in(path) or [path]]
    if pooled:
        with unpacked_results(results) as folder:
            _report_pooled(runs, suite, folder, form, out)
        return
    if results.is_file() and not suite:
        raise ConfigError(f"{results} is a file; help: --suite NAME, or specbench archive import {results}")
    choice = _ReportRequest(form, keys, out, plots, plot_formats(plot_format, plots), full, explain)
    if suite:
        with unpacked_results(results) as folder:
            _report_suite(suite, folder, choice)
    else:
        _report_runs(runs or newest(results), results, choice)


def _require_runs(folders: Sequence[Path]) -> None:
    """Raise ConfigError for a folder with results of servers, which other reports do not show."""
    from specbench.features.servers.served_results import results_in  # imports aiohttp

    for folder in folders:
        if not runs_in(folder) and results_in(folder):
            raise ConfigError(
                f"{folder} contains results of servers; help: repeat the `specbench server` command, which shows them, or add"
                f" -f {ReportFormat.acceptance}"
            )


def _write_profiles(folders: Sequence[Path], out: Path | None) -> None:
    """Write NVIDIA's speculation_profile.json of the method of a run or server; of several, a file each in folder `out`."""
    from specbench.analysis import speculation_profile
    from specbench.features.exchange import profile_sources  # imports aiohttp

    profiles = [profile for folder in folders for profile in profile_sources.profiles_of(folder)]
    if len(profiles) == 1:
        _write(speculation_profile.written(profiles[0]), out)
        return
    if out is None or out.suffix:
        names = ", ".join(profile.source for profile in profiles)
        raise ConfigError(
            f"{len(profiles)} profiles, and a file holds one ({names}); help: -o FOLDER writes a file each"
        )
    out.mkdir(parents=True, exist_ok=True)
    for number, profile in enumerate(profiles, 1):
        _write(speculation_profile.written(profile), out / f"{number}-{profile.method or 'profile'}.json")


def _served_acceptances(folders: Sequence[Path]) -> str:
    """Return the profiles of runs of `specbench server run` in folders; empty if there are none."""
    from specbench.features.servers.load.served_acceptance import acceptance_reports_of  # imports aiohttp
    from specbench.features.servers.load.server_run import ServerRun
    from specbench.features.servers.served_results import results_in

    found = [result for folder in folders for result in results_in(folder) if isinstance(result, ServerRun)]
    return acceptance_reports_of(found) if found else ""


def _report_suite(name: str, results: Path, choice: _ReportRequest) -> None:
    form, out, plots = choice.form, choice.out, choice.plots
    collected = collect(read_suite(name), results)
    if choice.columns:
        collected = chosen_suite(collected, choice.columns)
    drawn = plots_of_suite(collected, plots, choice.plot_formats) if plots else []
    if form is not ReportFormat.table:
        _write(suite_text(collected, form, drawn, out.parent if out else Path(), choice.full), out)
        return
    with _opened(out) as file:
        show_collected(collected, output_console(file))
    _print_paths(drawn)


def _report_pooled(runs: list[Path], suite: str | None, results: Path, form: ReportFormat, out: Path | None) -> None:
    """Show one table of the speedups over all runs together."""
    if form not in (ReportFormat.table, ReportFormat.md):
        raise ConfigError(f"--pooled applies to {ReportFormat.table} and {ReportFormat.md}, not to {form}")
    summaries = collect(read_suite(suite), results).summaries if suite else summaries_of(runs)
    if len(summaries) < 2:
        raise ConfigError("--pooled needs at least two run folders, or a --suite")
    table = pooled_table(summaries)
    if form is ReportFormat.md:
        _write(markdown_table(table) + "\n", out)
        return
    with _opened(out) as file:
        print_table(table, output_console(file))


def _report_runs(folders: list[Path], results: Path, choice: _ReportRequest) -> None:
    if not folders:
        raise ConfigError(f"no run folder in {results}; help: specbench run")
    summaries = summaries_of(folders)
    drawn = plots_of_runs(summaries, choice.plots, choice.plot_formats) if choice.plots else []
    for summary in _swept(summaries) if choice.plots else ():
        points = points_of(Path(summary.folder))
        drawn += plots_of_curve(summary.run, points, choice.plots, choice.plot_formats) if choice.plots else []
    if choice.form is not ReportFormat.table:
        _write(runs_text(summaries, choice.form, choice.columns, choice.full), choice.out)
        return
    with _opened(choice.out) as file:
        console = output_console(file)
        if choice.columns:
            show_chosen(summaries, choice.columns, console)
        else:
            show(summaries, console, choice.full, choice.explain)
            show_curves(summaries, console)
        for summary in summaries:
            print_path(summary.folder, console)
    _print_paths(drawn)


def _opened(out: Path | None) -> contextlib.AbstractContextManager[TextIO | None]:
    if not out:
        return contextlib.nullcontext()
    out.parent.mkdir(parents=True, exist_ok=True)
    return out.open("w", encoding="utf-8")


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


def show_curves(summaries: Sequence[RunSummary], console: Console) -> None:
    """Print the quality-latency curves of runs that sweep a method which is not lossless, with SpecCascade's summaries."""
    for summary in _swept(summaries):
        points = points_of(Path(summary.folder))
        for table in curve_tables(points) if choice_tables(points) else ():
            print_table(table, console)


def _swept(summaries: Sequence[RunSummary]) -> list[RunSummary]:
    """Return the runs with several settings of a method that is not lossless."""
    return [
        summary
        for summary in summaries
        if any(method.settings and method.lossless is not True for method in summary.spec.methods.values())
    ]


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
        unit = f" ({unit})" if (unit := metric_of(key).documented_unit) else ""
        say(f"{head}{unit}: {metric_of(key).definition}", console, "none")
    console.print()


def conclude(sentences: Sequence[Note | str], console: Console) -> None:
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
