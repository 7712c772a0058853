"""What `gate` does behind its options: baselines recorded, measured again, and judged."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.errors import ConfigError
from specbench.experiment.fresh_process import Commands, Launch, measure_apart, measure_here, sessions

if TYPE_CHECKING:
    from specbench.config.options import Options
    from specbench.regression.measurement import Measured
    from specbench.regression.snapshot import Command
    from specbench.regression.verdict import Limits, Verdict

SESSIONS, ROUNDS = 2, 5  # of a baseline with timing
AGREEING, MOST = 3, 4  # sessions that a slow-down needs, and that a gate measures before it decides
CLOCKED = ("speed", "engine")  # aspects in which a machine's luck can look like a finding


def command_of(methods: list[str], pair: str, tasks: list[str], options: "Options") -> "Command":
    """A command as a baseline keeps it: of the options, those that are not the default; plugins are the user's own."""
    told = options.changes()
    told.pop("plugins", None)
    return {"methods": methods, "pair": pair, "tasks": tasks, "options": told | {"repeats": options.repeats}}


def record(
    path: Path, command: "Command", out: Path, told: Commands, counters_only: bool, count: int, add: bool = False
) -> None:
    """Measure a command and write the baseline file; with `add` behind what it holds. Raises ConfigError where that is of
    the other kind."""
    from specbench.regression.snapshot import Baseline, load

    if not counters_only:
        command = with_anchor(command)
    held = load(path) if add and path.exists() else Baseline([], [], counters_only)
    if held.counters_only != counters_only:
        raise ConfigError(
            f"{path} holds {'counters only' if held.counters_only else 'timing'}: record the other kind into its own file"
        )
    request = replace(told, commands=[command], threads=held.cells[0].environment["threads"] if held.cells else 0)
    cells = _measured(request, out, counters_only, count)
    Baseline([*held.commands, command], [*held.cells, *cells], counters_only).save(path)


def update(path: Path, out: Path, told: Commands, count: int | None) -> None:
    """Measure a baseline file's commands, on this machine's threads as found, and write it anew."""
    from specbench.regression.snapshot import Baseline, load

    known = load(path, outdated=True)
    request = replace(told, commands=known.commands)
    cells = _measured(
        request, out, known.counters_only, count or max(len(cell.sessions) for cell in known.cells) or SESSIONS
    )
    Baseline(known.commands, cells, known.counters_only).save(path)


def judged(path: Path, out: Path, told: Commands, limits: "Limits", launch: Launch = measure_apart) -> "list[Verdict]":
    """Measure what a baseline file holds and compare.

    While a time lies beyond the limit in every session it is measured again, each time in a process of its own, until
    AGREEING sessions or at most MOST make it significant, or one does not agree.
    """
    from specbench.regression.compare import compare
    from specbench.regression.measurement import pooled
    from specbench.regression.snapshot import load
    from specbench.regression.verdict import Status

    known = load(path)
    limits = replace(limits, counters_only=limits.counters_only or known.counters_only)
    commands = known.commands
    if limits.counters_only and not known.counters_only:
        commands = [_counting(command) for command in commands]
    request = replace(told, commands=commands, threads=known.cells[0].environment["threads"])
    new = sessions(request, out, measure_here if limits.counters_only else launch, 1)

    def slower(limits: "Limits") -> bool:
        found = compare(known.cells, new, limits)
        return any(each.status is Status.regression and each.aspect in CLOCKED for each in found)

    for number in range(2, MOST + 1):
        settled = number > AGREEING and slower(limits)
        if settled or not slower(replace(limits, alpha=1.0)):
            break
        new = pooled([*new, *sessions(request, out, launch, 1, first=number)])
    return compare(known.cells, new, limits)


def with_anchor(command: "Command") -> "Command":
    """The command with the outside anchor beside `ar`, where a method is measured against that."""
    from specbench.config.presets import preset
    from specbench.regression.compare import ANCHOR

    methods = command["methods"]
    beside = any(preset("method", name).table.get("baseline") == "ar" for name in methods) or "ar" in methods
    return {**command, "methods": [*methods, ANCHOR]} if beside and ANCHOR not in methods else command


def _counting(command: "Command") -> "Command":
    """What counters need of a command with timing: no anchor, and one repeat."""
    from specbench.regression.compare import ANCHOR

    methods = [name for name in command["methods"] if name != ANCHOR]
    return {**command, "methods": methods, "options": {**command["options"], "repeats": 1}}


def _measured(request: Commands, out: Path, counters_only: bool, count: int) -> "list[Measured]":
    """The cells for a baseline file. Raises ConfigError where a generation failed: a baseline has to be whole."""
    if counters_only:
        cells = [replace(each, sessions=[]) for each in sessions(request, out, measure_here, 1)]
    else:
        cells = sessions(request, out, measure_apart, count)
    failed = [f"{name} on {cell.name}" for cell in cells for name, count in cell.failed.items() if count]
    if failed:
        raise ConfigError(f"generations failed, so there is no baseline: {', '.join(failed)}; help: specbench run")
    return cells
