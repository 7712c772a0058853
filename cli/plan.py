"""`specbench plan`: show what a run or a suite would measure, what is missing, and the least time and memory.

With `--for`, the estimate of a run or a suite on another machine.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.analysis.number_format import COUNT, HUNDREDTHS, NumberCell
from specbench.cli import params
from specbench.cli.console import duration, output_console, print_table, say, status
from specbench.cli.params import explicit_methods, pair_of_models, words
from specbench.cli.run import suite_changes
from specbench.config.presets import names, require_presets
from specbench.config.request import Request
from specbench.errors import ConfigError, ExitCode, MissingAsset, NotCached
from specbench.features.suites.suite import GridLine, Suite, read_suite
from specbench.machine.accelerator import GIB, Accelerator, read_accelerator
from specbench.machine.hardware import free_bytes
from specbench.reporting.tables import Table
from specbench.vocabulary import Device

if TYPE_CHECKING:
    from specbench.features.plan.machine_plan import MachineRow, MachineTotal
    from specbench.features.suites.grid import PlanRow
    from specbench.resolution.memory_estimate import Memory

MACHINES = ", ".join(names("machine"))
# Columns that narrow terminals hide, in this order; the last line sums them
OPTIONAL = ["tokens", "generations", "GiB", "bound"]
ESTIMATE_HEADS = ["pair", "task", "T", "methods", "prompts", "generations", "time", "weights", "cache", "graphs", "GiB"]
# Columns of an estimate that narrow terminals hide: first the parts of the column GiB
OPTIONAL_IN_ESTIMATE = ["graphs", "cache", "weights", "prompts", "generations"]


@params.with_shared_options("shard", "threads")
def plan(
    *,
    suite: params.Suite = None,
    method: params.Methods = None,
    pair: params.PairOrTiny = None,
    target: params.Target = "",
    draft: params.Draft = "",
    task: params.Tasks = None,
    shared: params.SharedOptions,
    out: params.Out = Path("results"),
    for_: Annotated[
        str | None,
        typer.Option(
            "--for",
            help=f"Estimate for another machine, without weights and network: {MACHINES} or a TOML file.",
            autocompletion=params.preset_names("machine"),
        ),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option("--gpus", min=1, help="Number of GPUs of the machine, with --for. [1]")
    ] = None,
    as_json: params.Json = False,
) -> None:
    """Show what a run or a suite would measure, without measuring.

    Lists finished and pending runs, missing weights and data, and lower bounds of time and memory. With --for, estimates
    hours, memory, disk and downloads on another machine from the models' architectures, without network access.

    Exit code 4 if a run cannot start because something is missing, or does not fit into the machine's memory.
    """
    machine = read_accelerator(for_) if for_ else None
    if gpus and not machine:
        raise ConfigError("--gpus needs --for MACHINE; without it, the GPUs of this machine are used")
    if machine and shared["device"] != Device.auto:
        raise ConfigError("--for and --device conflict: leave one out")
    options = shared.options()
    pair = pair_of_models(pair, draft, target)
    if suite:
        if method or pair or task:
            raise ConfigError("--suite defines methods, pairs and tasks; help: leave out -m, -p and -t")
        planned = read_suite(suite, **suite_changes(options, shared["repeats"]))
    else:
        require_presets(explicit_methods(words(method)), pair or "tiny", words(task))
        from specbench.resolution.resolve import Choice  # imports torch

        request = Request(
            methods=tuple(words(method)), pair=pair or "tiny", tasks=tuple(words(task)), options=options, out=out
        )
        choice = Choice.of(request, assumes_heads=bool(machine))
        tasks = tuple(choice.tasks.likely_names(bool(machine)))
        line = GridLine(methods=choice.methods.names, pairs=(request.pair,), tasks=tasks, options=options)
        planned = Suite(name="", paper="", shows="", description="", grid=(line,))
    if machine:
        sys.exit(plan_for(machine, gpus or 1, planned, out, as_json))
    # imports torch
    from specbench.features.suites.grid import plan_rows, resolve_grid
    from specbench.features.suites.suite_runner import training_notes

    with status("reading pairs and tasks"):
        grid = resolve_grid(planned, out)
        rows = [row for part in grid.parts for row in plan_rows(part)]
    if not suite and grid.unused:
        raise ConfigError("; ".join(grid.unused.values()))
    if as_json:
        for text in grid.unused.values():
            print(text, file=sys.stderr)
        print(json.dumps([as_json_row(row) for row in rows], indent=2))
    else:
        _print(rows, list(grid.unused.values()))
        for note in training_notes(planned, out):
            say(note, output_console())
        if suite and any(row.state == "missing" for row in rows):
            print(f"download missing models and data with: specbench fetch --suite {suite}")
    sys.exit(ExitCode.MISSING if any(row.state in ("missing", "too large", "invalid") for row in rows) else ExitCode.OK)


def _print(rows: "list[PlanRow]", notes: list[str]) -> None:
    """Print the rows, their states, and what is missing."""

    def row_cells(row: "PlanRow") -> list[str]:
        total = "–" if row.generations is None else NumberCell(row.done, f"{row.done}/{row.generations}")
        tokens = "–" if row.tokens is None else NumberCell(row.tokens, f"{row.tokens:,}")
        least = "–" if row.least_seconds is None else NumberCell(row.least_seconds, duration(row.least_seconds))
        size = HUNDREDTHS.text(None if row.bytes is None else row.bytes / GIB)
        temperature = "–" if row.T is None else NumberCell(row.T, f"{row.T:g}")
        return [row.pair, row.task, temperature, row.methods, row.state, total, tokens, least, size]

    heads = ["pair", "task", "T", "methods", "state", "generations", "tokens", "bound", "GiB"]
    console = output_console()
    print_table(Table("", heads, [row_cells(row) for row in rows]), console, OPTIONAL, "methods")
    if placed := max(
        (row.devices for row in rows), key=lambda devices: sum(part.total for part in devices), default=()
    ):
        print_table(_device_table(placed), console)
    console.print(_total(rows), highlight=False)
    settings = "x2: two settings of a method. " if any(row.has_settings for row in rows) else ""
    console.print(
        f"{settings}tokens: the most that the generations can have. bound: one forward of the baseline's"
        " models per token, up to the token limit, at the speed of copying memory here. On a CPU and with small models,"
        " expect several times that. Faster methods and early stops take less. GiB: weights, and a cache of 2,048 positions.",
        style="dim"
    )  # fmt: skip
    if any(row.state == "missing" for row in rows):
        say(f"For hours on a GPU, without weights and data: --for {MACHINES} or a TOML file", console)
    reasons = [reason for row in rows for reason in row.assets or [row.why]]
    for why in grouped_reasons([*reasons, *notes]):
        say(why, console, "yellow")


def as_json_row(row: "PlanRow") -> dict[str, object]:
    """Return a row for `--json`. What is missing is in `why`."""
    table = asdict(replace(row, assets=()))
    return {key: value for key, value in table.items() if key not in ("assets", "has_settings")}


def grouped_reasons(reasons: Sequence[str | MissingAsset]) -> list[str]:
    """Return reasons, each once. Models and data that are not cached for the same reason become one sentence."""
    uncached: dict[str, dict[str, NotCached]] = {}
    for reason in reasons:
        if isinstance(reason, NotCached):
            uncached.setdefault(reason.advice("NAME"), {})[str(reason)] = reason
    out: dict[str, None] = {}
    for reason in reasons:
        text = str(reason)
        if isinstance(reason, NotCached):
            alike = uncached[reason.advice("NAME")].values()
            if len(alike) > 1:
                named = ", ".join(f"{each.asset}{each.name}" for each in alike)
                text = f"{named} are not in the local cache and {reason.advice('NAME')}"
        out[text] = None
    return list(filter(None, out))


def _total(rows: "list[PlanRow]") -> str:
    """Return the counts of runs by state, their generations and tokens, and the bound of the runs that are not done."""
    states = [row.state for row in rows]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    generations, tokens = (sum(getattr(row, key) or 0 for row in rows) for key in ("generations", "tokens"))
    unknown = sum(row.generations is None for row in rows)
    size = f"{generations:,} generations of at most {tokens:,} tokens"
    if unknown:
        size += f", without {unknown} whose number of prompts is not known"
    bounds = [row.least_seconds for row in rows if row.least_seconds is not None]
    least = (
        f"{duration(sum(bounds))} at the baseline's speed for what is not done" if bounds else "no estimate of the time"
    )
    if bounds and len(bounds) < len(rows):
        least += f", without {len(rows) - len(bounds)} whose architectures or prompts are not known"
    return f"{len(rows)} {'run' if len(rows) == 1 else 'runs'}: {counts}; {size}; {least}"


def _device_table(devices: "Sequence[Memory]") -> Table:
    """Return the memory of the largest run on each device of this machine."""

    def gib(size: int | None) -> str:
        return HUNDREDTHS.text(None if size is None else size / GIB)

    lines = [
        [
            device.device,
            ", ".join(device.models),
            *map(gib, (device.weights, device.cache, device.graphs, device.total)),
            gib(free),
        ]
        for device in devices
        for free in [free_bytes(device.device)]
    ]
    return Table("Devices", ["device", "models", "weights", "cache", "graphs", "GiB", "free"], lines)


def plan_for(machine: Accelerator, gpus: int, suite: Suite, out: Path, as_json: bool) -> ExitCode:
    """Print the estimate of a suite on a machine. Returns MISSING if a run has no estimate or does not fit."""
    # imports torch
    from specbench.features.plan.machine_plan import ELSEWHERE, PlannedMachine, machine_rows, sentence, total_of
    from specbench.features.suites.grid import resolve_grid

    target = PlannedMachine(machine, gpus)
    with status("reading pairs and tasks"):
        grid = resolve_grid(suite, out, on=ELSEWHERE)
        rows = [row for part in grid.parts for row in machine_rows(part, target)]
    if grid.unused and not suite.name:
        raise ConfigError("; ".join(grid.unused.values()))
    if not suite.name and all(row.why and not row.devices for row in rows):
        raise MissingAsset("; ".join(dict.fromkeys(row.why for row in rows)))
    total = total_of(rows)
    for note in grid.unused.values():
        print(note, file=sys.stderr)
    if as_json:
        plan = {
            "machine": asdict(machine),
            "gpus": gpus,
            "runs": [asdict(row) for row in rows],
            "total": asdict(total) | {"complete": total.complete},
        }
        print(json.dumps(plan, indent=2))
    else:
        _print_estimate(rows, sentence(suite.name or "this run", total, target), total, machine)
    return ExitCode.OK if total.fits and total.complete else ExitCode.MISSING


def _print_estimate(rows: "list[MachineRow]", text: str, total: "MachineTotal", machine: Accelerator) -> None:
    """Print the runs, the memory of the fullest one by device, what is assumed, and the totals."""
    from specbench.features.plan.machine_plan import NOTE, gib, quantized_note

    console = output_console()
    print_table(Table("", ESTIMATE_HEADS, [_estimate(row) for row in rows]), console, OPTIONAL_IN_ESTIMATE, "methods")
    fullest = max(rows, key=lambda row: row.memory.total if row.memory else 0, default=None)
    if fullest and len(fullest.devices) > 1:
        print_table(_estimated_devices(fullest, machine), console)
    say(NOTE, console)
    if about_quantized := quantized_note(rows):
        say(about_quantized, console)
    for why in dict.fromkeys(row.why for row in rows if row.why):
        say(why, console, "yellow")
    console.print(f"disk: {gib(total.disk)} GiB for weights and results", highlight=False)
    console.print(text, highlight=False)


def _estimated_devices(row: "MachineRow", machine: Accelerator) -> Table:
    """Return the memory of every device of a run."""
    from specbench.features.plan.machine_plan import gib

    heads = ["device", "models", "weights", "cache", "graphs", "GiB", "of GiB"]
    lines = []
    for device in row.devices:
        room = COUNT.text(machine.memory_gib if device.device.startswith("cuda") else None)
        sizes = (NumberCell(size, gib(size)) for size in (device.weights, device.cache, device.graphs, device.total))
        lines.append([device.device, ", ".join(device.models), *sizes, room])
    return Table(f"Devices: {row.pair}, {row.task}", heads, lines)


def _estimate(row: "MachineRow") -> list[str]:
    """Return a row of an estimate as text."""
    from specbench.features.plan.machine_plan import gib, span

    memory = row.memory
    sizes = ["–"] * 4
    if memory:
        parts = (memory.weights, memory.cache, memory.graphs, memory.total)
        sizes = [NumberCell(size, gib(size)) for size in parts[:-1]]
        sizes.append(NumberCell(memory.total, gib(memory.total), rest="" if row.fits else "!"))
    counts = map(COUNT.text, (row.prompts, row.generations))
    temperature = "–" if row.T is None else NumberCell(row.T, f"{row.T:g}")
    time = NumberCell(row.seconds[1], span(*row.seconds)) if row.seconds else "–"
    return [row.pair, row.task, temperature, row.methods, *counts, time, *sizes]
