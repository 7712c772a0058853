"""A plan as rows: the state of every run, what is missing, and the least time and memory that it takes."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from specbench.config.presets import preset as preset_of
from specbench.errors import ConfigError, MissingAsset
from specbench.machine.accelerator import GIB
from specbench.machine.hardware import copy_bandwidth, free_bytes
from specbench.models.resolve import Execution, device_of
from specbench.resolution.grid import GridPart, outline
from specbench.resolution.plan import CACHED, Memory, least_bytes, memory_by_device
from specbench.resolution.resolve import Choice


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """One run, or one part of a suite that cannot be resolved.

    `state` is done, begun, pending, missing, too large or invalid. `generations` are those of the whole run, and `tokens` the
    most that they can have; None if the number of prompts is not known. `devices` is the memory on each device of this
    machine, empty for a run that is not resolved. `least_seconds` is a lower bound for the generations of the
    baseline that are not done, `bytes` one for the memory of weights and caches; both are None where they are unknown.
    """

    pair: str
    task: str
    methods: str
    T: float | None
    state: str
    done: int = 0
    generations: int | None = None
    tokens: int | None = None
    least_seconds: float | None = None
    bytes: int | None = None
    devices: tuple[Memory, ...] = ()
    why: str = ""


def plan_rows(part: GridPart) -> list[PlanRow]:
    """Return a row per run of a part, or one row for a part with a mistake."""
    if part.plan is None:
        return _unresolved(part)
    bandwidth = _bandwidth(str(part.plan.device))
    devices = tuple(memory_by_device(part.plan.models, [], CACHED, str(part.plan.device)))
    crowded = "" if part.plan.is_loaded else _crowded(devices)
    rows = []
    for run in part.plan.runs:
        state = (
            "too large"
            if crowded and not run.complete
            else "done"
            if run.complete
            else "begun"
            if run.done
            else "pending"
        )
        rows.append(
            PlanRow(
                pair=_name(part.pair),
                task=part.task,
                methods=_in_short(run.spec.methods),
                T=run.spec.decoding.temperature,
                state="missing" if part.missing else state,
                done=run.done,
                generations=run.spec.generations,
                tokens=run.spec.generations * run.task.max_new_tokens,
                least_seconds=part.plan.least_seconds(run, bandwidth),
                bytes=part.plan.bytes,
                devices=devices,
                why=part.missing or ("" if run.complete else crowded),
            )
        )
    return rows


def _crowded(devices: Iterable[Memory]) -> str:
    """Return which device has too little free memory, and what would help; empty if all have enough."""
    for device in devices:
        free = free_bytes(device.device)
        if free is not None and device.total > free:
            return (
                f"{device.device}: {', '.join(device.models)}: {device.total / GIB:.1f} GiB needed,"
                f" {free / GIB:.1f} GiB free; help: --place ROLE=layers:0,1 with several GPUs,"
                " or --set pair.models.ROLE.quantization=int8"
            )
    return ""


def _in_short(labels: Collection[str]) -> str:
    """Return the methods of a run, several settings of one method as a count: `sd x2`."""
    counts = Counter(label.partition("(")[0] for label in labels)
    one = {label.partition("(")[0]: label for label in labels}
    return ", ".join(one[name] if count == 1 else f"{name} x{count}" for name, count in counts.items())


def _name(pair: str) -> str:
    """Return the name of a pair under which its runs are reported; of a pair that cannot be read, what the user wrote."""
    try:
        return preset_of("pair", pair).name
    except ConfigError:
        return pair


@cache
def _bandwidth(device: str) -> float:
    """Return the bytes per second of a plain copy, measured once per process."""
    return copy_bandwidth(device)


def _unresolved(part: GridPart) -> list[PlanRow]:
    """Return the rows of a part whose models, heads or data are missing: its generations need none of them.

    The bounds of time and memory come from the models' architectures.
    """
    state = "pending" if part.awaits_heads else "missing"
    row = PlanRow(
        pair=_name(part.pair), task=part.task, methods=", ".join(part.line.methods), T=part.line.options.temperature,
        state="invalid" if part.invalid else state, why=part.invalid or ("" if part.awaits_heads else part.missing),
    )  # fmt: skip
    if part.invalid or not part.methods:
        return [row]
    device = device_of(part.line.options.device)
    try:
        choice = Choice.of(part.request(Path()), assumes_heads=True)
        estimate = outline(choice, Execution(device, part.line.options.dtype, "eager", elsewhere=True))
    except (ConfigError, MissingAsset):
        return [row]
    size = least_bytes(estimate.models.values())
    rows = []
    for group in estimate.groups:
        generations = None if estimate.prompts is None else len(group) * estimate.prompts * estimate.options.repeats
        tokens = None if generations is None else generations * estimate.task.max_new_tokens
        read = (
            sum(estimate.models[role].size.forward_bytes for role in group[0].method.roles()) if estimate.models else 0
        )
        rows.append(
            replace(
                row,
                methods=_in_short([method.label for method in group]),
                T=group[0].temperature,
                generations=generations,
                tokens=tokens,
                least_seconds=tokens * read / _bandwidth(str(device)) if tokens and read else None,
                bytes=size or None,
            )
        )
    return rows
