"""`specbench plan`: what a run would measure, what is there already, what is missing, and what it takes at least."""

import json
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specbench.cli import params as choices
from specbench.cli.arguments import options_of, words
from specbench.cli.progress import status
from specbench.config.presets import require_known
from specbench.errors import ConfigError, ExitCode, MissingAsset

if TYPE_CHECKING:
    from specbench.config.options import Options
    from specbench.experiment.suite_runner import Part

GIB = 1 << 30


def plan(
    suite: choices.Suite = None,
    method: choices.Methods = None,
    pair: choices.PairOrTiny = None,
    task: choices.Tasks = None,
    data: choices.Data = "",
    limit: choices.Limit = None,
    repeats: choices.Repeats = None,
    sample: choices.Drawn = 0,
    gamma: choices.Gamma = "",
    max_new_tokens: choices.MaxNewTokens = None,
    ignore_eos: choices.IgnoreEos = False,
    temperature: choices.Temperature = None,
    seed: choices.Seed = 0,
    device: choices.OnDevice = choices.Device.auto,
    dtype: choices.InDtype = choices.Dtype.auto,
    engine: choices.ByEngine = choices.Engine.auto,
    out: choices.Out = Path("results"),
    set_: choices.Sets = None,
    over: Annotated[
        list[str] | None, typer.Option("--over", help="Sweep a key: method.target.alpha=[0.1, 0.3].")
    ] = None,
    head: choices.Heads = None,
    plugin: choices.Plugins = None,
    as_json: choices.Json = False,
) -> None:
    """Show what a run or a suite would measure, lacks, and takes.

    Its cells, done and pending; missing weights or data; the least time and memory.

    Exit code 4 where something that is missing keeps a cell from running.
    """
    from specbench.cli.run import OVERRULING
    from specbench.config.suite import Line, Suite, read_suite
    from specbench.experiment.suite_runner import parts

    options = options_of(
        gamma=gamma, set_=set_, over=over, head=head, plugin=plugin, data=data, limit=limit, sample=sample,
        max_new_tokens=max_new_tokens, ignore_eos=ignore_eos, temperature=temperature, seed=seed,
        device=device, dtype=dtype, engine=engine, **({} if repeats is None else {"repeats": repeats}),
    )  # fmt: skip
    changes = options.changes() | ({} if repeats is None else {"repeats": repeats})
    if suite:
        refused = sorted(changes.keys() - {*OVERRULING, "repeats"})
        if method or pair or task or refused:
            leave = ", ".join(["-m, -p, -t", *(f"--{key.replace('_', '-')}" for key in refused)])
            raise ConfigError(f"--suite brings its methods, pairs, tasks and sampling: leave out {leave}")
        wanted = read_suite(suite, **changes)
    else:
        require_known(words(method), pair or "tiny", words(task))
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
    sys.exit(ExitCode.MISSING if any(row["state"] in ("missing", "refused") for row in rows) else ExitCode.OK)


def _tasks(pair: str, options: "Options") -> tuple[str, ...]:
    """The tasks that `run` would take; where their data is missing, those that it would have tried."""
    import specbench.tasks  # noqa: F401  (registers the tasks)
    from specbench.config import presets
    from specbench.experiment import plan as bench
    from specbench.experiment import run_spec as cells

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
    from specbench.machine.hardware import copy_bandwidth

    return copy_bandwidth(device)


def _bytes_without_weights(part: "Part") -> int | None:
    """What the models would take, by their architectures alone; None where those are not known here either."""
    from specbench.experiment import method_resolution as arms
    from specbench.experiment import run_spec as cells
    from specbench.experiment.plan import Bench
    from specbench.models.resolve import device_of, find

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
    from specbench.cli.report import print_table, say, terminal
    from specbench.report.tables import Table

    def shown(row: dict[str, Any]) -> list[str]:
        total = "–" if row["generations"] is None else f"{row['done']}/{row['generations']}"
        least = "–" if row["least_seconds"] is None else _time(row["least_seconds"])
        size = "–" if row["bytes"] is None else f"{row['bytes'] / GIB:.2f}"
        warm = "–" if row["T"] is None else f"{row['T']:g}"
        return [row["pair"], row["task"], warm, row["methods"], row["state"], total, least, size]

    heads = ["pair", "task", "T", "methods", "", "generations", "bound", "GiB"]
    console = terminal()
    print_table(Table("", heads, [shown(row) for row in rows]), console)
    states = [row["state"] for row in rows]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    least = sum(row["least_seconds"] or 0.0 for row in rows)
    console.print(f"{len(rows)} cells: {counts}; a bound of {_time(least)} for what is pending here")
    console.print(
        "bound: one forward of the baseline's models for each token that a task allows, at the speed of copying memory. On a"
        " CPU and with small models expect several times that, less of faster methods and answers that stop early. GiB:"
        " weights, and a cache of 2,048 positions.", style="dim"
    )  # fmt: skip
    reasons = (line for row in rows for line in row["why"].split("\n"))
    for why in dict.fromkeys(line for line in reasons if line):
        say(why, console, "yellow")


def _time(seconds: float) -> str:
    minutes = seconds / 60
    return f"{seconds:.0f} s" if minutes < 1 else f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
