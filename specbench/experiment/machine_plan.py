"""A plan for another machine: hours, memory, disk and downloads of every run, from architectures alone.

Needs no weights, no data of the hub, no network and no torch. Every figure is an estimate; `NOTE` names what is assumed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import specbench.tasks  # noqa: F401  (registers the tasks)
from specbench.config.method_tables import roles_in, words_under
from specbench.config.options import Options
from specbench.config.pair import HeadKind, Pair
from specbench.config.placement import Placement
from specbench.config.suite import Line, Suite
from specbench.data.task import Task
from specbench.errors import ConfigError, MissingAsset
from specbench.experiment import selection
from specbench.experiment.chain_profile import GAMMA, levels_of, pairings
from specbench.experiment.device_memory import Memory, memory_by_device
from specbench.experiment.machine_models import PlannedModel, planned_models
from specbench.experiment.method_cost import FAST, HEAD, SLOW, seconds_per_token
from specbench.experiment.method_variants import Group, Variant, groups_of
from specbench.machine.accelerator import Accelerator
from specbench.machine.decoding_speed import forward_seconds, prefill_seconds
from specbench.models.architecture_sizes import architecture_size

PROMPT = 2048  # assumed tokens of the longest prompt, where the task sets no limit
RECORD = 16 << 10  # assumed bytes of a stored generation
NOTE = (
    "Every time is an estimate; no measurement on a GPU exists yet. Assumptions: a share of the bandwidth and a host time per"
    " layer for each engine; acceptance rates between 0.5 and 0.9; deferral rates between 0 and 1; prompts between 0 and"
    f" {PROMPT:,} tokens where the task sets no limit; answers of the maximum length. Answers that stop early take less. The"
    " column GiB is the memory of the fullest device: weights, caches at the longest prompt and answer, and a workspace. The"
    " time that GPUs take to exchange data is not included. Downloads are weights; data sets"
    " are not counted."
)


@dataclass(frozen=True, kw_only=True)
class MachineRow:
    """The estimate of one run: methods that share a baseline, on one pair and task; or of the training of heads.

    `seconds` are under the fast and the slow assumptions; None if the number of prompts is not known. `devices` is the memory
    of each device. `downloads` are bytes by source. `remedy` are options with which a run that does not fit would. `why` is
    the reason why there is no estimate.
    """

    pair: str
    task: str
    methods: str
    T: float | None = None
    prompts: int | None = None
    generations: int | None = None
    tokens: int = 0
    seconds: tuple[float, float] | None = None
    devices: tuple[Memory, ...] = ()
    downloads: dict[str, int] = field(default_factory=dict)
    fits: bool = True
    remedy: str = ""
    why: str = ""

    @property
    def memory(self) -> Memory | None:
        """The memory of the fullest device."""
        return max(self.devices, key=lambda each: each.total, default=None)


@dataclass(frozen=True)
class _Part:
    """A line of the grid on one pair and task, with the models that it loads."""

    pair: Pair
    task: Task
    models: dict[str, PlannedModel]
    prompts: int | None
    options: Options
    machine: Accelerator
    gpus: int


def machine_rows(suite: Suite, machine: Accelerator, gpus: int = 1) -> list[MachineRow]:
    """Return the estimates of a suite's runs on a machine with this number of GPUs.

    Raises ConfigError for a mistake in the suite.
    """
    return [row for line, pair, task in suite.parts() for row in _rows(suite, (line, pair, task), machine, gpus)]


def _rows(suite: Suite, cell: tuple[Line, str, str], machine: Accelerator, gpus: int) -> list[MachineRow]:
    line, pair_name, task_name = cell
    options = line.options
    preset, pair = selection.read_pair(pair_name, options)
    try:
        groups = groups_of(_methods(suite, line, pair), pair, options)
        tables = [each.table for group in groups for each in group.variants]
        needed = {role for table in tables for role in roles_in(table)}
        roles = [role for role in pair.models if role in needed]
        models = planned_models(pair.on(task_name), preset.path.parent, roles, options)
        name, task = selection.read_task(task_name, pair, options)
        part = _Part(pair, task, models, selection.prompt_count(task_name, task, pair, options), options, machine, gpus)
    except MissingAsset as error:
        methods = ", ".join(line.methods)
        return [MachineRow(pair=pair_name, task=task_name, methods=methods, why=str(error))]
    _require_gpus(models, gpus)
    heads = _head_bases(groups)
    devices = _devices(part, models, heads)
    has_room = fits(machine, devices)
    downloads = {each.source: each.download_bytes for each in models.values() if each.download_bytes}
    for head in pair.heads.values():
        if head.kind == HeadKind.eagle and head.base in heads and pair.weights == "real":
            downloads[head.path] = models[head.base].size.layer_bytes
    shared = MachineRow(
        pair=preset.name, task=name, methods="", devices=tuple(devices), downloads=downloads, fits=has_room,
        prompts=part.prompts, remedy="" if has_room else _remedy(part, heads),
    )  # fmt: skip
    return [_row(shared, group, part) for group in groups]


def _methods(suite: Suite, line: Line, pair: Pair) -> Sequence[str]:
    """Return the methods of a line; for a profile, those that measure every pair of its chain's levels."""
    if suite.kind != "profile":
        return line.methods
    gamma = (line.options.gamma_for(line.methods[0]) or (GAMMA,))[0]
    return pairings(levels_of(line.methods[0]), pair, gamma)


def _devices(part: _Part, models: Mapping[str, PlannedModel], heads: Sequence[str]) -> list[Memory]:
    return memory_by_device(
        list(models.values()), heads, longest_prompt(part.models, part.task), part.task.max_new_tokens
    )


def fits(machine: Accelerator, devices: Sequence[Memory]) -> bool:
    """Return whether every GPU has room. The memory of the host and the disk is not checked."""
    return all(each.total <= machine.memory for each in devices if each.device.startswith("cuda"))


def _require_gpus(models: Mapping[str, PlannedModel], gpus: int) -> None:
    """Raise ConfigError if a model is placed on a GPU that the machine does not have."""
    for role, model in models.items():
        for device in model.placement.devices:
            if device.startswith("cuda") and int(device.partition(":")[2] or 0) >= gpus:
                raise ConfigError(f"model '{role}' is placed on {device}, and there are {gpus} GPUs; help: --gpus N")


def _remedy(part: _Part, heads: Sequence[str]) -> str:
    """Return the least change with which a part fits; empty if none of these helps.

    In this order: another model than the largest on a second GPU, the largest in layers over as few GPUs as possible, both,
    and the largest quantized to 8 bits, then to 4.
    """
    models = part.models
    largest = max(models.values(), key=lambda each: each.size.resident_bytes)
    for options, changed in (*_placements(part, largest), *_quantized(largest)):
        if fits(part.machine, _devices(part, {**models, **changed}, heads)):
            return options
    return ""


def _placements(part: _Part, largest: PlannedModel) -> Iterator[tuple[str, dict[str, PlannedModel]]]:
    """Yield the options that place models on other GPUs, and the models that they change."""
    free = {role: each for role, each in part.models.items() if not each.placement.devices}
    others = [role for role in free if role != largest.role]
    if part.gpus < 2:
        return

    def alone(device: str) -> tuple[str, dict[str, PlannedModel]]:
        moved = Placement(devices=(device,))
        text = " ".join(f"--place {role}={device}" for role in others)
        return text, {role: replace(free[role], placement=moved) for role in others}

    if others:
        yield alone("cuda:1")
    if largest.role not in free:
        return
    for count in range(2, part.gpus + 1):
        names = tuple(f"cuda:{i}" for i in range(count))
        split = replace(largest, placement=Placement(parallel="layers", devices=names), engine="eager")
        text = f"--place {largest.role}=layers:{','.join(map(str, range(count)))}"
        yield text, {largest.role: split}
        if others and count < part.gpus:
            more, moved = alone(f"cuda:{count}")
            yield f"{text} {more}", {largest.role: split, **moved}


def _quantized(largest: PlannedModel) -> Iterator[tuple[str, dict[str, PlannedModel]]]:
    """Yield the options that quantize the largest model, and the changed model."""
    if largest.quantization or not largest.can_be_quantized or largest.placement.parallel != "none":
        return
    for kind in ("int8", "int4"):
        size = architecture_size(largest.config, largest.dtype, kind)
        yield (
            f"--set pair.models.{largest.role}.quantization={kind}",
            {largest.role: replace(largest, size=size, quantization=kind)},
        )


def _row(shared: MachineRow, group: Group, part: _Part) -> MachineRow:
    """Return the row of one group of methods."""
    generations = None
    seconds = None
    if part.prompts is not None:
        each = part.prompts * part.options.repeats
        generations = len(group.variants) * each
        low, high = (sum(_generation(v, part, fast) for v in group.variants) * each for fast in (True, False))
        seconds = (low, high)
    return replace(
        shared,
        methods=", ".join(group.names),
        T=group.temperature,
        generations=generations,
        tokens=(generations or 0) * part.task.max_new_tokens,
        seconds=seconds,
        why=""
        if seconds
        else f"task {shared.task}: the number of prompts is not known; help: -n N, or --data FILE.jsonl",
    )


def _generation(variant: Variant, part: _Part, fast: bool) -> float:
    """Return the seconds of one generation of the maximum length."""
    output, prompt = part.task.max_new_tokens, 0 if fast else longest_prompt(part.models, part.task)
    seconds = {}
    for role, model in part.models.items():
        cache = model.cache_bytes(prompt, output // 2)
        layers = model.size.layers
        read = (model.size.forward_bytes + cache) / model.placement.processes
        seconds[role] = forward_seconds(part.machine, model.engine, read, layers, fast)
        seconds[HEAD + role] = forward_seconds(part.machine, model.engine, model.head_bytes, 1, fast)
    sizes = {role: model.size.parameters for role, model in part.models.items()}
    used = {role for role in roles_in(variant.table) if role in part.models}
    prefill = sum(prefill_seconds(part.machine, sizes[role], prompt, fast) for role in used)
    return prefill + output * seconds_per_token(variant.table, seconds, sizes, FAST if fast else SLOW)


def longest_prompt(models: Mapping[str, PlannedModel], task: Task) -> int:
    """Return the assumed tokens of the longest prompt: the task's limit, or PROMPT within the models' context."""
    contexts = [each.size.context for each in models.values() if each.size.context]
    room = max(min(contexts) - task.max_new_tokens, 1) if contexts else PROMPT
    return min(task.max_prompt_tokens or PROMPT, room)


def _head_bases(groups: Sequence[Group]) -> list[str]:
    """Return the models that an EAGLE head drafts for, each once."""
    bases: dict[str, None] = {}
    for group in groups:
        for each in group.variants:
            if HeadKind.eagle in words_under(each.table, "name"):
                bases |= dict.fromkeys(words_under(each.table, "base"))
    return list(bases)
