"""`specbench plan`: what a run would measure, what is there already, what is missing, and what it takes at least."""

import json
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specbench.cli.choices import ByEngine, Device, Dtype, Engine, InDtype, Json, OnDevice, Plugins, known, with_plugins
from specbench.cli.progress import status
from specbench.errors import ConfigError, MissingAsset

if TYPE_CHECKING:
    from specbench.cli.suites import Part
    from specbench.options import Options

CANNOT_RUN = 4
GIB = 1 << 30


def plan(
    suite: Annotated[
        str | None,
        typer.Option("--suite", help="The grid of a paper's table or figure.", autocompletion=known("suite")),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method", "-m", help="A method, or a TOML file; repeat for several. [se]", autocompletion=known("method")
        ),
    ] = None,
    pair: Annotated[
        str | None,
        typer.Option("--pair", "-p", help="A pair of models, or a TOML file. [tiny]", autocompletion=known("pair")),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            "--task", "-t", help="A task, or a TOML file; repeat for several. [all]", autocompletion=known("task")
        ),
    ] = None,
    data: Annotated[str, typer.Option(help="hub, synthetic, or a JSONL file. [the pair's, else hub]")] = "",
    limit: Annotated[int | None, typer.Option("--limit", "-n", help="Only the first N samples; 0 is all.")] = None,
    repeats: Annotated[int | None, typer.Option(help="How often each prompt is decoded by each method. [3]")] = None,
    sample: Annotated[int, typer.Option(help="Only N samples, drawn at random; overrules --limit.")] = 0,
    gamma: Annotated[str, typer.Option(help="Draft length N, or one a model, N,N.... [by the models' sizes]")] = "",
    max_new_tokens: Annotated[int | None, typer.Option(help="Most tokens to generate. [the task's]")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Fixed length: no EOS, no stop strings.")] = False,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy. [1 for ensembles, else 0]")] = None,
    seed: Annotated[int, typer.Option(help="Repeat r uses seed + r.")] = 0,
    device: OnDevice = Device.auto,
    dtype: InDtype = Dtype.auto,
    engine: ByEngine = Engine.auto,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where run folders go.")] = Path("results"),
    set_: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="Override a key: pair.weights=dummy, task.shots=0.")
    ] = None,
    over: Annotated[
        list[str] | None, typer.Option("--over", help="Sweep a key: method.target.alpha=[0.1, 0.3].")
    ] = None,
    head: Annotated[
        list[str] | None, typer.Option("--head", help="Another head than the pair's: sprinter=FOLDER.")
    ] = None,
    plugin: Plugins = None,
    as_json: Json = False,
) -> None:
    """Show the cells of a run or a suite, done and pending, missing weights or data, and the least time and memory.

    Exit code 4 where something that is missing keeps a cell from running.
    """
    from specbench.cli.run import OVERRULING, lengths, words
    from specbench.cli.suites import parts
    from specbench.options import Options, parse_head, parse_override
    from specbench.suite import Line, Suite, read_suite

    told: dict[str, Any] = {
        "data": data, "limit": limit, "max_new_tokens": max_new_tokens, "sample": sample,
        "gamma": lengths(gamma), "ignore_eos": ignore_eos, "temperature": temperature, "seed": seed,
        "device": None if device == Device.auto else device, "dtype": None if dtype == Dtype.auto else dtype,
        "engine": None if engine == Engine.auto else engine, "overrides": tuple(map(parse_override, set_ or [])),
        "over": tuple(map(parse_override, over or [])), "heads": tuple(map(parse_head, head or [])),
        "plugins": with_plugins(plugin),
    }  # fmt: skip
    changes = {key: value for key, value in told.items() if value not in (None, getattr(Options(), key))}
    changes |= {"repeats": repeats} if repeats else {}
    if suite:
        refused = sorted(changes.keys() - {*OVERRULING, "repeats"})
        if method or pair or task or refused:
            leave = ", ".join(["-m, -p, -t", *(f"--{key.replace('_', '-')}" for key in refused)])
            raise ConfigError(f"--suite brings its methods, pairs, tasks and sampling: leave out {leave}")
        wanted = read_suite(suite, **changes)
    else:
        options = Options(**changes)
        names, tasks = tuple(words(method) or ["se"]), tuple(words(task)) or _tasks(pair or "tiny", options)
        line = Line(methods=names, pairs=(pair or "tiny",), tasks=tasks, options=options)
        wanted = Suite(name="", paper="", shows="", description="", grid=(line,))
    with status("reading pairs and tasks"):
        rows = [row for part in parts(wanted, out, None) for row in _rows(part)]
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        _print(rows)
        if suite and any(row["state"] == "missing" for row in rows):
            print(f"what is missing can be fetched where there is a network: specbench fetch --suite {suite}")
    sys.exit(CANNOT_RUN if any(row["state"] in ("missing", "refused") for row in rows) else 0)


def _tasks(pair: str, options: "Options") -> tuple[str, ...]:
    """The tasks that `run` would take; where their data is missing, those that it would have tried."""
    import specbench.tasks  # noqa: F401  (registers the tasks)
    from specbench import bench, cells, presets

    found = cells.read_pair(pair, options)[1]
    try:
        return tuple(name for name, _, _ in bench.tasks_of([], found, options))
    except MissingAsset:
        return found.defaults.tasks or tuple(presets.names("task", variants=False))


def _rows(part: "Part") -> list[dict[str, Any]]:
    """A line for each cell of a part; one for a part that cannot be resolved, with its models' sizes where they are known."""
    known = {"pair": part.pair, "task": part.task}
    if part.bench is None:
        state = "refused" if part.refused else "missing"
        told = {"methods": ", ".join(part.line.methods), "T": part.line.options.temperature, "state": state}
        return [known | told | {"done": 0, "generations": None, "least_seconds": None}
                | {"why": part.refused or part.missing, "bytes": _bytes_without_weights(part)}]  # fmt: skip
    out, speed = [], _bandwidth(str(part.bench.device))
    for job in part.bench.jobs:
        state = "done" if job.complete else "begun" if job.done else "pending"
        out.append(
            known
            | {"methods": ", ".join(arm.name for arm in job.cell.arms), "T": job.cell.arms[0].temperature}
            | {"state": "missing" if part.missing else state, "done": job.done, "generations": job.cell.generations}
            | {"least_seconds": part.bench.least_seconds(job, speed), "bytes": part.bench.bytes, "why": part.missing}
        )
    return out


@cache
def _bandwidth(device: str) -> float:
    """Bytes a second of a plain copy, measured once a command."""
    from specbench.hardware import copy_bandwidth

    return copy_bandwidth(device)


def _bytes_without_weights(part: "Part") -> int | None:
    """What the models would take, by their architectures alone; None where those are not known here either."""
    from specbench import arms, cells
    from specbench.bench import Bench
    from specbench.found import device_of, find

    options = part.line.options.with_override("pair.weights", "dummy")
    try:
        found, pair = cells.read_pair(part.pair, options)
        names = list(part.line.methods)
        roles = arms.roles_of(names, pair, options)
        device = device_of(options.device)
        models = find(pair, roles, found.path.parent, device, options.dtype, options.engine)
    except (ConfigError, MissingAsset):
        return None
    return Bench(part.pair, found.path.parent, device, roles, models, {}, []).bytes


def _print(rows: list[dict[str, Any]]) -> None:
    from specbench.cli.report import print_table, terminal
    from specbench.report.tables import Table

    def shown(row: dict[str, Any]) -> list[str]:
        total = "–" if row["generations"] is None else f"{row['done']}/{row['generations']}"
        least = "–" if row["least_seconds"] is None else _time(row["least_seconds"])
        size = "–" if row["bytes"] is None else f"{row['bytes'] / GIB:.2f}"
        warm = "–" if row["T"] is None else f"{row['T']:g}"
        return [row["pair"], row["task"], warm, row["methods"], row["state"], total, least, size]

    heads = ["pair", "task", "T", "methods", "", "generations", "at least", "GiB"]
    console = terminal()
    print_table(Table("", heads, [shown(row) for row in rows]), console)
    states = [row["state"] for row in rows]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    least = sum(row["least_seconds"] or 0.0 for row in rows)
    console.print(f"{len(rows)} cells: {counts}; at least {_time(least)} for what is pending here")
    console.print(
        "at least: one forward of the baseline's models a token, at the speed of copying memory; on a CPU and with small"
        " models expect several times that. GiB: weights, and a cache of 2,048 positions.", style="dim"
    )  # fmt: skip
    reasons = (line for row in rows for line in row["why"].split("\n"))
    for why in dict.fromkeys(line for line in reasons if line):
        console.print(why, style="yellow", markup=False, highlight=False)


def _time(seconds: float) -> str:
    minutes = seconds / 60
    return f"{seconds:.0f} s" if minutes < 1 else f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
