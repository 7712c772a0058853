"""A plan as rows: the state of every run, what is missing, and the least time and memory that it takes."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from specbench.config.method_tables import roles_in
from specbench.config.options import Options
from specbench.config.pair import Pair
from specbench.config.presets import preset as preset_of
from specbench.errors import ConfigError, MissingAsset
from specbench.experiment import selection
from specbench.experiment.device_memory import Memory, memory_by_device
from specbench.experiment.machine_models import PlannedModel, planned_models
from specbench.experiment.method_variants import groups_of
from specbench.experiment.plan import CACHED, Plan
from specbench.experiment.suite_grid import Part
from specbench.machine.accelerator import GIB
from specbench.machine.bandwidth import copy_bandwidth
from specbench.machine.hardware import free_bytes
from specbench.models.resolve import device_of, dtype_of


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """One run, or one part of a suite that cannot be resolved.

    `state` is done, begun, pending, missing, too large or invalid. `generations` are those of the whole run, and `tokens` the
    most that they can have; None if the number of prompts is not known. `devices` is the memory on each device of this
    machine, empty if an architecture has no formula for its size. `least_seconds` is a lower bound for the generations of the
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


def plan_rows(part: Part) -> list[PlanRow]:
    """Return a row per run of a part, or one row for a part with a mistake."""
    if part.plan is None:
        return _unresolved(part)
    bandwidth = _bandwidth(str(part.plan.device))
    devices = _devices(part, part.plan)
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


def _devices(part: Part, plan: Plan) -> tuple[Memory, ...]:
    """Return the memory of weights, caches and graphs on each device; empty if an architecture has no formula."""
    options = part.line.options
    try:
        preset, pair = selection.read_pair(part.pair, options)
        sized = planned_models(pair.on(part.task), preset.path.parent, plan.roles, options)
    except (ConfigError, MissingAsset):
        return ()
    models = [replace(each, engine=plan.models[role].engine) for role, each in sized.items()]
    return tuple(memory_by_device(models, [], CACHED, 0, str(plan.device)))


def _crowded(devices: Iterable[Memory]) -> str:
    """Return which device has too little free memory, and what would help; empty if all have enough."""
    for each in devices:
        free = free_bytes(each.device)
        if free is not None and each.total > free:
            return (
                f"{each.device}: {', '.join(each.models)}: {each.total / GIB:.1f} GiB needed, {free / GIB:.1f} GiB free;"
                " help: --place ROLE=layers:0,1 with several GPUs, or --set pair.models.ROLE.quantization=int8"
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


def _unresolved(part: Part) -> list[PlanRow]:
    """Return the rows of a part whose models, heads or data are missing: its generations need none of them.

    The bounds of time and memory come from the models' architectures.
    """
    options, state = part.line.options, "pending" if part.awaits_heads else "missing"
    row = PlanRow(
        pair=_name(part.pair), task=part.task, methods=", ".join(part.line.methods), T=options.temperature,
        state="invalid" if part.invalid else state, why=part.invalid or ("" if part.awaits_heads else part.missing),
    )  # fmt: skip
    if part.invalid:
        return [row]
    try:
        preset, pair = selection.read_pair(part.pair, options)
        groups = groups_of(part.methods, pair, options)
        _, task = selection.read_task(part.task, pair, options)
    except (ConfigError, MissingAsset):
        return [row]
    try:
        prompts = selection.prompt_count(part.task, task, pair, options)
    except (ConfigError, MissingAsset):  # a local file that is not here
        prompts = None
    needed = {role for group in groups for each in group.variants for role in roles_in(each.table)}
    models = _architectures(pair.on(part.task), preset.path.parent, needed, options)
    rows = []
    for group in groups:
        generations = None if prompts is None else len(group.variants) * prompts * options.repeats
        tokens = None if generations is None else generations * task.max_new_tokens
        rows.append(
            replace(
                row,
                methods=_in_short([each.preset for each in group.variants]),
                T=group.temperature,
                generations=generations,
                tokens=tokens,
                least_seconds=_least_seconds(models, roles_in(group.variants[0].table), tokens, options),
                bytes=sum(each.size.resident_bytes + CACHED * each.size.position_bytes for each in models.values())
                or None,
            )
        )
    return rows


def _architectures(pair: Pair, base: Path, roles: Iterable[str], options: Options) -> dict[str, PlannedModel]:
    """Return the models by their architectures, on this machine; empty if one of them is unknown."""
    dtype = dtype_of(options.dtype, device_of(options.device))
    try:
        return planned_models(pair, base, roles, replace(options, dtype=dtype, engine="eager"))
    except (ConfigError, MissingAsset):
        return {}


def _least_seconds(
    models: Mapping[str, PlannedModel], roles: Iterable[str], tokens: int | None, options: Options
) -> float | None:
    """Return what `Plan.least_seconds` returns, from the models' architectures; None if these or the prompts are unknown."""
    if not models or tokens is None:
        return None
    read = sum(models[role].size.forward_bytes for role in roles)
    return tokens * read / _bandwidth(str(device_of(options.device)))
