"""`specbench curve`: quality against relative latency over a method's parameter, and what the curve comes to."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli import params as choices
from specbench.cli.arguments import options_of, words
from specbench.cli.params import known
from specbench.cli.progress import Terminal, interrupted
from specbench.config.options import Access, SandboxKind
from specbench.errors import ConfigError, ExitCode
from specbench.experiment.request import Request

AUTO = "auto"


def curve(
    method: Annotated[
        list[str],
        typer.Option(
            "--method",
            "-m",
            help="A method, or a TOML file; repeat to draw several together.",
            autocompletion=known("method"),
        ),
    ],
    pair: choices.Pair = "tiny",
    task: Annotated[
        list[str] | None,
        typer.Option(
            "--task",
            "-t",
            help="A task, or a TOML file; repeat for several. [the pair's]",
            autocompletion=known("task"),
        ),
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option("--over", help="auto: the method's own grid; else KEY=[VALUES], e.g. target.alpha=[0.1, 0.3]."),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="How often each prompt is decoded, each time with another seed.")
    ] = 3,
    data: choices.Data = None,
    limit: choices.Limit = None,
    temperature: choices.Temperature = None,
    gamma: choices.Gamma = None,
    max_new_tokens: choices.MaxNewTokens = None,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    allow_code_execution: choices.CodeExecution = False,
    device: choices.OnDevice = choices.Device.auto,
    dtype: choices.InDtype = choices.Dtype.auto,
    engine: choices.ByEngine = choices.Engine.auto,
    set_: choices.Sets = None,
    out: choices.Out = Path("results"),
    plots: Annotated[
        Path | None, typer.Option("--plots", help="Draw the curves, PNG and SVG, into this folder.")
    ] = None,
    plugin: choices.Plugins = None,
    fresh: choices.Fresh = False,
    wait: choices.Wait = False,
    break_lock: choices.BreakLock = False,
    as_json: choices.Json = False,
) -> None:
    """Sweep a method's parameter: its quality against its latency.

    And how fast it is at the large model's quality, how good within its latency.

    All points of a task are one run, interleaved prompt by prompt; the same command resumes it.
    """
    from specbench.experiment.pipeline import run

    plain = options_of(
        gamma=gamma, set_=set_, plugin=plugin, data=data, limit=limit, temperature=temperature,
        max_new_tokens=max_new_tokens, seed=seed, repeats=seeds, device=device, dtype=dtype, engine=engine,
    )  # fmt: skip
    names = words(method)
    options = replace(plain, over=swept(names, over or [AUTO]))  # a plugin's method has its grid by now
    access = Access(fresh=fresh, wait=wait, break_lock=break_lock)
    kind = SandboxKind.auto if allow_code_execution else None
    try:
        request = Request(
            methods=tuple(names), pair=pair, tasks=tuple(words(task)), options=options, out=out, access=access,
            sandbox=kind,
        )  # fmt: skip
        results = run(request, Terminal())
    except KeyboardInterrupt:
        interrupted(fresh)
    _tell([out / summary.run for summary in results.summaries], plots, as_json)
    if results.unscored:
        raise results.unscored
    sys.exit(ExitCode.SOME_FAILED if results.some_failed else ExitCode.OK)


def swept(names: list[str], over: list[str]) -> tuple[tuple[str, list[object]], ...]:
    """What is swept of which method: its own grid for `auto`, else the user's key of every method."""
    from specbench.config.overrides import parse_override
    from specbench.config.presets import sweep_of

    found: list[tuple[str, list[object]]] = []
    for text in over:
        if text == AUTO:
            grids = {name: sweep_of(name) for name in names}
            found += [(f"{Path(name).stem}.{key}", values) for name, (key, values) in grids.items()]
            continue
        if "=" not in text:
            raise ConfigError(f"--over {text}: write auto, or KEY=[VALUES], for example target.alpha=[0.1, 0.3]")
        key, value = parse_override(text if text.startswith("method.") else f"method.{text}", "--over")
        found.append((key, value if isinstance(value, list) else []))
    return tuple(found)


def _tell(folders: list[Path], plots: Path | None, as_json: bool) -> None:
    from specbench.cli.report import place, print_table, say, terminal
    from specbench.report import plots as drawing
    from specbench.report.curves import curve_tables, points_of, remarks
    from specbench.report.export import as_json as told

    found = [points_of(folder) for folder in folders]
    drawn = [
        [*drawing.of_curve(f.name, points, plots)] if plots else [] for f, points in zip(folders, found, strict=True)
    ]
    if as_json:
        print(told([point for points in found for point in points]), end="")
        return
    console = terminal()
    for folder, points, paths in zip(folders, found, drawn, strict=True):
        for table in curve_tables(points):
            print_table(table, console)
        for line in remarks(folder, points):
            say(line, console)
        place(folder, console)
        for path in paths:
            place(path, console)
