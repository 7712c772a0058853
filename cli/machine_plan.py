"""`specbench plan --for`: the estimate of a run or a suite on another machine."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from specbench.cli.console import print_table, say, terminal
from specbench.cli.progress import status
from specbench.config.suite import Suite
from specbench.errors import ConfigError, ExitCode
from specbench.machine.accelerator import Accelerator
from specbench.reporting.tables import Table
from specbench.resolution.grid import resolve_grid
from specbench.resolution.machine_plan import (
    ELSEWHERE,
    NOTE,
    MachineRow,
    MachineTotal,
    Target,
    gib,
    machine_rows,
    sentence,
    span,
    total_of,
)
from specbench.resolution.machine_training import training_rows

HEADS = ["pair", "task", "T", "methods", "prompts", "generations", "time", "weights", "cache", "graphs", "GiB"]
OPTIONAL = ["graphs", "cache", "weights", "prompts", "generations"]  # first the parts of the column GiB


def plan_for(machine: Accelerator, gpus: int, suite: Suite, out: Path, as_json: bool) -> ExitCode:
    """Print the estimate of a suite on a machine. Returns MISSING if a run has no estimate or does not fit."""
    target = Target(machine, gpus)
    with status("reading pairs and tasks"):
        grid = resolve_grid(suite, out, on=ELSEWHERE)
        rows = training_rows(suite, target)
        rows += [row for part in grid.parts for row in machine_rows(part, target)]
    if grid.unused and not suite.name:
        raise ConfigError("; ".join(grid.unused.values()))
    total = total_of(rows)
    for note in grid.unused.values():
        print(note, file=sys.stderr)
    if as_json:
        plan = {
            "machine": asdict(machine), "gpus": gpus, "runs": [asdict(row) for row in rows], "total": asdict(total)
        }  # fmt: skip
        print(json.dumps(plan, indent=2))
    else:
        _print(rows, sentence(suite.name or "this run", total, target), total, machine)
    return ExitCode.OK if total.fits and total.complete else ExitCode.MISSING


def _print(rows: list[MachineRow], text: str, total: MachineTotal, machine: Accelerator) -> None:
    console = terminal()
    print_table(Table("", HEADS, [_shown(row) for row in rows]), console, OPTIONAL, "methods")
    fullest = max(rows, key=lambda row: row.memory.total if row.memory else 0, default=None)
    if fullest and len(fullest.devices) > 1:
        print_table(_device_table(fullest, machine), console)
    say(NOTE, console)
    for why in dict.fromkeys(row.why for row in rows if row.why):
        say(why, console, "yellow")
    console.print(f"disk: {gib(total.disk)} GiB for weights and results", highlight=False)
    console.print(text, highlight=False)


def _device_table(row: MachineRow, machine: Accelerator) -> Table:
    """Return the memory of every device of a run."""
    heads = ["device", "models", "weights", "cache", "graphs", "GiB", "of GiB"]
    lines = []
    for each in row.devices:
        room = f"{machine.memory_gib:.0f}" if each.device.startswith("cuda") else "–"
        sizes = map(gib, (each.weights, each.cache, each.graphs, each.total))
        lines.append([each.device, ", ".join(each.models), *sizes, room])
    return Table(f"Devices: {row.pair}, {row.task}", heads, lines)


def _shown(row: MachineRow) -> list[str]:
    """Return a row as text."""
    memory = row.memory
    sizes = [gib(each) for each in (memory.weights, memory.cache, memory.graphs, memory.total)] if memory else ["–"] * 4
    if not row.fits:
        sizes[-1] += " !"
    counts = ["–" if each is None else str(each) for each in (row.prompts, row.generations)]
    temperature = "–" if row.T is None else f"{row.T:g}"
    return [row.pair, row.task, temperature, row.methods, *counts, span(*row.seconds) if row.seconds else "–", *sizes]
