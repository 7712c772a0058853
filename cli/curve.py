"""`specbench curve`: sweep a parameter of a method and report quality against relative latency."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from specbench.analysis.summary import summary_of
from specbench.cli import params
from specbench.cli.console import TerminalObserver, output_console, print_path, print_table, say
from specbench.cli.interrupts import interrupted
from specbench.cli.params import plot_formats, words
from specbench.cli.report import conclude
from specbench.config.presets import parse_override, stem, sweep_of
from specbench.config.request import Access, Request
from specbench.errors import ConfigError, ExitCode
from specbench.features.suites.suite_plots import of_curve as plots_of_curve
from specbench.features.suites.suite_tables import curve_tables, points_of, remarks
from specbench.reporting.conclusion import conclusion
from specbench.reporting.formats.export import as_json as json_text
from specbench.vocabulary import SandboxKind

AUTO, AUTO_LENGTH = "auto", "gamma=auto"


@params.with_shared_options("repeats", "shard")
def curve(
    *,
    method: Annotated[list[str], params.preset_option("method", "A method, or a TOML file; repeat for several.")],
    pair: params.Pair = "tiny",
    task: Annotated[
        list[str] | None, params.preset_option("task", "A task, or a TOML file; repeat for several. [the pair's]")
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over",
            help="KEY=[VALUES], such as gamma=[1, 3, 5] or target.alpha=[0.1, 0.3]; gamma=auto: draft lengths around the"
            " predicted one; auto: the grid of the method's preset. [auto]",
            rich_help_panel=params.WHAT,
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="Number of times that each prompt is decoded, each with its own seed.")
    ] = 3,
    shared: params.SharedOptions,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    allow_code_execution: params.CodeExecution = False,
    out: params.Out = Path("results"),
    plots: Annotated[Path | None, typer.Option("--plots", help="Write plots of the curves to this folder.")] = None,
    plot_format: params.PlotFormats = None,
    fresh: params.Fresh = False,
    wait: params.Wait = False,
    break_lock: params.BreakLock = False,
    as_json: params.Json = False,
) -> None:
    """Sweep a method's parameter: its quality against its latency.

    Also reports the latency at the large model's quality, and the quality at its latency.

    All points of a task are one run, interleaved prompt by prompt. The same command resumes it.
    """
    from specbench.experiment.pipeline import run  # imports torch

    formats = plot_formats(plot_format, plots)
    plain = shared.options(seed=seed, repeats=seeds)
    names = words(method)
    access = Access(fresh=fresh, wait=wait, break_lock=break_lock)
    kind = SandboxKind.auto if allow_code_execution else None
    try:
        request = Request(
            methods=tuple(names), pair=pair, tasks=tuple(words(task)), options=plain, out=out, access=access,
            sandbox=kind,
        )  # fmt: skip
        observer = TerminalObserver()
        # After plugins are imported, since their presets have grids
        options = replace(plain, over=swept(request, over or [AUTO], observer))
        results = run(replace(request, options=options), observer)
    except KeyboardInterrupt:
        interrupted(fresh)
    _show([out / summary.run for summary in results.summaries], plots, formats, as_json)
    if results.unscored:
        raise results.unscored
    sys.exit(ExitCode.SOME_FAILED if results.some_failed else ExitCode.OK)


def swept(request: Request, over: list[str], observer: TerminalObserver) -> tuple[tuple[str, list[object]], ...]:
    """Return the swept keys with their values.

    `auto` is each method's own grid, `gamma=auto` the draft lengths around the predicted one, and KEY=[VALUES] is for every
    method, or for the one whose name the key begins with.
    """
    from specbench.features.suites.refinement import lengths_around  # imports torch

    names, sweeps = request.methods, list[tuple[str, list[object]]]()
    for text in over:
        if text == AUTO_LENGTH:
            predicted = lengths_around(request, observer)
            sweeps += [(f"{name}.gamma", list[object](lengths)) for name, lengths in predicted.items()]
            continue
        if text == AUTO:
            grids = {name: sweep_of(name) for name in names}
            sweeps += [(f"{stem(name)}.{key}", values) for name, (key, values) in grids.items()]
            continue
        if "=" not in text:
            raise ConfigError(f"--over {text}: expected auto or KEY=[VALUES]; help: --over target.alpha=[0.1, 0.3]")
        scoped = text.startswith(("method.", *(f"{stem(name)}." for name in names)))
        key, value = parse_override(text if scoped else f"method.{text}", "--over")
        sweeps.append((key, value if isinstance(value, list) else []))
    return tuple(sweeps)


def _show(folders: list[Path], plots: Path | None, formats: Sequence[str], as_json: bool) -> None:
    """Print the curves of run folders, and draw them into `plots`."""
    curves = [points_of(folder) for folder in folders]
    drawn = [
        plots_of_curve(f.name, points, plots, formats) if plots else []
        for f, points in zip(folders, curves, strict=True)
    ]
    if as_json:
        print(json_text([point for points in curves for point in points]), end="")
        return
    console = output_console()
    for folder, points, paths in zip(folders, curves, drawn, strict=True):
        for table in curve_tables(points):
            print_table(table, console)
        for line in remarks(folder, points):
            say(line, console)
        conclude(conclusion([summary_of(folder)]), console)
        print_path(folder, console)
        for path in paths:
            print_path(path, console)
