"""`specbench curve`: quality against relative latency over a method's parameter, and what the curve comes to."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.choices import (
    ByEngine,
    Device,
    Dtype,
    Engine,
    InDtype,
    Json,
    OnDevice,
    Plugins,
    SandboxKind,
    known,
    with_plugins,
)
from specbench.errors import ConfigError

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
    pair: Annotated[
        str, typer.Option("--pair", "-p", help="A pair of models, or a TOML file.", autocompletion=known("pair"))
    ] = "tiny",
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
    seeds: Annotated[int, typer.Option(help="How often each prompt is decoded, each time with another seed.")] = 3,
    data: Annotated[str, typer.Option(help="hub, synthetic, or a JSONL file. [the pair's, else hub]")] = "",
    limit: Annotated[int | None, typer.Option("--limit", "-n", help="Only the first N samples; 0 is all.")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="0 is greedy. [1 for cascades and ensembles, else 0]")
    ] = None,
    gamma: Annotated[str, typer.Option(help="Draft length N, or one a model, N,N.... [by the models' sizes]")] = "",
    max_new_tokens: Annotated[int | None, typer.Option(help="Most tokens to generate. [the task's]")] = None,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    allow_code_execution: Annotated[
        bool, typer.Option("--allow-code-execution", help="Run what models wrote, in a sandbox, to score it.")
    ] = False,
    device: OnDevice = Device.auto,
    dtype: InDtype = Dtype.auto,
    engine: ByEngine = Engine.auto,
    set_: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="Override a key: method.bonus=paper, task.shots=0.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where run folders go.")] = Path("results"),
    plots: Annotated[
        Path | None, typer.Option("--plots", help="Draw the curves, PNG and SVG, into this folder.")
    ] = None,
    plugin: Plugins = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure anew what is already measured.")] = False,
    as_json: Json = False,
) -> None:
    """Sweep a method's parameter, and say how fast it is at the large model's quality and how good within its latency.

    All points of a task are one run, interleaved prompt by prompt; the same command resumes it.
    """
    from specbench.cli.measuring import INTERRUPTED, SOME_FAILED, measured
    from specbench.cli.run import lengths, words
    from specbench.options import Options, parse_override

    plugins = with_plugins(plugin)
    names = words(method)
    options = Options(
        gamma=lengths(gamma), data=data, limit=limit, temperature=temperature, max_new_tokens=max_new_tokens, seed=seed,
        repeats=seeds, device=device, dtype=dtype, engine=engine, over=swept(names, over or [AUTO]),
        overrides=tuple(map(parse_override, set_ or [])), plugins=plugins,
    )  # fmt: skip
    kind = SandboxKind.auto if allow_code_execution else None
    try:
        summaries, refused = measured(names, pair, words(task), options, out, fresh, kind)
    except KeyboardInterrupt:
        print("interrupted; the same command resumes", file=sys.stderr)
        sys.exit(INTERRUPTED)
    _tell([out / summary["run"] for summary in summaries], plots, as_json)
    if refused:
        raise refused
    sys.exit(SOME_FAILED if any(row["failed"] for summary in summaries for row in summary["methods"]) else 0)


def swept(names: list[str], over: list[str]) -> tuple[tuple[str, list[object]], ...]:
    """What is swept of which method: its own grid for `auto`, else the user's key of every method."""
    from specbench.options import parse_override
    from specbench.presets import sweep_of

    found: list[tuple[str, list[object]]] = []
    for text in over:
        if text == AUTO:
            grids = {name: sweep_of(name) for name in names}
            found += [(f"{Path(name).stem}.{key}", values) for name, (key, values) in grids.items()]
            continue
        if "=" not in text:
            raise ConfigError(f"--over {text}: write auto, or KEY=[VALUES], for example target.alpha=[0.1, 0.3]")
        key, values = parse_override(text if text.startswith("method.") else f"method.{text}")
        found.append((key, values))
    return tuple(found)


def _tell(folders: list[Path], plots: Path | None, as_json: bool) -> None:
    from specbench.cli.report import print_table, say, terminal
    from specbench.report import plots as drawing
    from specbench.report.curves import curve_tables, points_of, remarks
    from specbench.report.points import as_json as told

    found = [points_of(folder) for folder in folders]
    if as_json:
        print(told([point for points in found for point in points]), end="")
        return
    console = terminal()
    for folder, points in zip(folders, found, strict=True):
        for table in curve_tables(points):
            print_table(table, console)
        for line in remarks(folder, points):
            say(line, console)
        console.print(str(folder), style="dim", highlight=False)
        for path in drawing.of_curve(folder.name, points, plots) if plots else []:
            console.print(str(path), style="dim", highlight=False)
