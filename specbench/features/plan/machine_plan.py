"""A plan for another machine: hours, memory, disk and downloads of every run, from architectures alone.

Needs no weights, no data of the hub and no network. Every figure is an estimate; `NOTE` names what is assumed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from specbench.analysis.costs import assumed, cost_of
from specbench.analysis.formula import ASSUMED_DRAFTS, AssumedRates, formula_of
from specbench.config.pair import BUNDLED
from specbench.data.task import Task
from specbench.decoding.method import Method
from specbench.errors import ConfigError
from specbench.features.suites.grid import GridPart, Outline
from specbench.machine.accelerator import GIB, Accelerator, forward_seconds, prefill_seconds, smallest_with
from specbench.models.resolve_models import Execution
from specbench.models.resolved_model import ResolvedModel
from specbench.resolution.memory_estimate import Memory, memory_by_device
from specbench.resolution.methods import ResolvedMethod

PROMPT = 2048  # assumed tokens of the longest prompt, where the task sets no limit
RECORD = 16 << 10  # assumed bytes of a stored generation
LESS_MEMORY = "--place ROLE=layers:0,1 on several GPUs (--gpus N), or --set pair.models.ROLE.quantization=int8"
HOUR = 3600.0
LONG = 72 * HOUR  # longer times are given in days
ELSEWHERE = Execution(torch.device("cuda"), elsewhere=True)
FAST = AssumedRates(acceptance=0.9, deferred=0.0)
SLOW = AssumedRates(acceptance=0.5, deferred=1.0)
NOTE = (
    "Every time is an estimate; no measurement on a GPU exists yet. Assumptions: a share of the bandwidth and a host time per"
    " layer for each engine; acceptance rates between 0.5 and 0.9; deferral rates between 0 and 1; prompts between 0 and"
    f" {PROMPT:,} tokens where the task sets no limit; answers of the maximum length. Answers that stop early take less. The"
    " column GiB is the memory of the fullest device: weights, caches and the states that heads read at the longest prompt"
    " and answer, and a workspace. A head has the size of a new head of its kind. The time that GPUs take to exchange data,"
    " and the training of heads, are not included. Downloads are weights; data sets are not counted."
)


@dataclass(frozen=True, kw_only=True)
class MachineRow:
    """The estimate of one run: methods that share a baseline, on one pair and task.

    `seconds` are under the fast and the slow assumptions; None if the number of prompts is not known. `devices` is the memory
    of each device. `downloads` are bytes by source. `quantized` are the models that are quantized when they are loaded, with
    their kinds. `why` is the reason why there is no estimate.
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
    quantized: dict[str, str] = field(default_factory=dict)
    fits: bool = True
    why: str = ""

    @property
    def memory(self) -> Memory | None:
        """The memory of the fullest device."""
        return max(self.devices, key=lambda device: device.total, default=None)


@dataclass(frozen=True)
class PlannedMachine:
    """The machine that runs are planned for, with a number of its GPUs."""

    machine: Accelerator
    gpus: int = 1

    def fits(self, devices: Sequence[Memory]) -> bool:
        """Return whether every GPU has room. The memory of the host and the disk is not checked."""
        return all(device.total <= self.machine.memory for device in devices if device.device.startswith("cuda"))


def machine_rows(part: GridPart, target: PlannedMachine) -> list[MachineRow]:
    """Return the estimates of the runs of a part of a suite that is resolved for another machine.

    Raises ConfigError for a model that is placed on a GPU which the machine does not have.
    """
    outline = part.outline
    if outline is None or outline.missing:
        why = outline.missing if outline else part.invalid or part.missing
        return [MachineRow(pair=part.pair, task=part.task, methods=", ".join(part.line.methods), why=why)]
    _require_gpus(outline.models, target.gpus)
    positions = _longest_prompt(outline.models, outline.task) + outline.task.max_new_tokens
    devices = memory_by_device(outline.models, outline.heads, positions)
    shared = MachineRow(
        pair=outline.name, task=outline.task_name, methods="", devices=tuple(devices), fits=target.fits(devices),
        downloads=_downloads(outline), prompts=outline.prompts, quantized=_quantized(outline.models),
    )  # fmt: skip
    return [_row(shared, group, outline, target.machine) for group in outline.groups]


def _quantized(models: Mapping[str, ResolvedModel]) -> dict[str, str]:
    """Return the kinds of quantization of models by role, also of GGUF files, whose products are ours."""
    kinds = {
        role: str(model.spec.quantization) or ("GGUF" if model.spec.gguf_file else "") for role, model in models.items()
    }
    return {role: kind for role, kind in kinds.items() if kind}


def quantized_note(rows: Sequence[MachineRow]) -> str:
    """Return what the estimates assume of quantized copies; empty if there are none."""
    names = {f"{role} ({kind})" for row in rows for role, kind in row.quantized.items()}
    if not names:
        return ""
    return (
        f"The cost of a quantized copy is assumed, not measured: {', '.join(sorted(names))}. A forward reads its codes and"
        " scales. Where a GPU has no kernel for them, it also writes and reads each matrix in the model's precision: int8,"
        " nf4, int4 in another precision than bfloat16, and int4 with one group per output."
    )


def _downloads(outline: Outline) -> dict[str, int]:
    """Return the bytes to download by source, of models and heads. Local folders and random weights are not downloaded.

    A head in the checkpoint of its base, an MTP layer, is downloaded with it.
    """
    downloads = {
        model.spec.path: model.size.download_bytes
        for model in outline.models.values()
        if model.weights == "real" and not model.is_local
    }
    local_heads = {path for _, path in outline.options.heads}  # local folders, or heads that the suite trains
    heads = {
        outline.pair.heads[name].path: size.download_bytes
        for name, size in outline.heads.items()
        if name in outline.pair.heads  # others will be trained
    }
    for path, size in heads.items():
        if path not in local_heads and not path.startswith(BUNDLED) and outline.pair.weights == "real":
            downloads[path] = downloads.get(path, 0) + size
    return downloads


def _require_gpus(models: Mapping[str, ResolvedModel], gpus: int) -> None:
    """Raise ConfigError if a model is placed on a GPU that the machine does not have."""
    for role, model in models.items():
        for device in model.spec.placement.devices:
            if device.startswith("cuda") and int(device.partition(":")[2] or 0) >= gpus:
                raise ConfigError(f"model '{role}' is placed on {device}, and there are {gpus} GPUs; help: --gpus N")


def _row(shared: MachineRow, group: Sequence[ResolvedMethod], outline: Outline, machine: Accelerator) -> MachineRow:
    """Return the row of one group of methods."""
    generations = None
    seconds = None
    if outline.prompts is not None:
        generations_per_method = outline.prompts * outline.options.repeats
        generations = len(group) * generations_per_method
        low, high = (
            generations_per_method * sum(_generation(method, outline, machine, fast) for method in group)
            for fast in (True, False)
        )
        seconds = (low, high)
    return replace(
        shared,
        methods=", ".join(dict.fromkeys(method.preset for method in group)),
        T=group[0].temperature,
        generations=generations,
        tokens=(generations or 0) * outline.task.max_new_tokens,
        seconds=seconds,
        why=""
        if seconds
        else f"task {shared.task}: the number of prompts is not known; help: -n N, or --data FILE.jsonl",
    )


def _generation(resolved: ResolvedMethod, outline: Outline, machine: Accelerator, fast: bool) -> float:
    """Return the seconds of one generation of the maximum length."""
    method, models = resolved.method, outline.models
    output, prompt = outline.task.max_new_tokens, 0 if fast else _longest_prompt(models, outline.task)
    seconds = {}
    for role, model in models.items():
        read = model.size.forward_bytes + model.size.rebuilt_bytes + model.size.cache_bytes(prompt + output // 2)
        seconds[role] = forward_seconds(machine, model.engine, read, model.size.layers, fast)
    for name, head in outline.heads.items():
        if name in method.heads:
            seconds[name] = forward_seconds(machine, models[head.base].engine, head.forward_bytes, head.layers, fast)
    prefill = sum(
        prefill_seconds(machine, models[role].size.parameters, prompt, fast)
        for role in models.keys() & set(method.roles())
    )
    rates = FAST if fast else SLOW
    return prefill + output * seconds_per_token(method, seconds, rates)


def seconds_per_token(method: Method, seconds: Mapping[str, float], rates: AssumedRates) -> float:
    """Return the mean seconds per token of a method that was never measured.

    `seconds` is the time of a forward by role and head, of one token and of a draft alike; what is not in it, such as a
    lookup, takes no time. A method without a formula costs a forward of each of its models if it declares a distribution of
    all of them, and of the slowest if they run at the same time. The cost of any other method is unknown: between one forward
    of its fastest model and one of each.
    """
    formula = method.assumed_theory(ASSUMED_DRAFTS)
    counts = formula_of(formula)(formula, rates) if formula else None
    if formula and counts:
        costs = {role: assumed(spent) for role, spent in seconds.items()}
        return counts.seconds(cost_of(formula.models, costs)) / counts.tokens
    forward_costs = [seconds[role] for role in dict.fromkeys(method.roles()) if role in seconds] or list(
        seconds.values()
    )
    declared = method.declared_distribution()
    if method.blocks == (1,) and declared and declared[0] == method.roles():
        return max(forward_costs) if method.concurrent else sum(forward_costs)
    return min(forward_costs) if rates is FAST else sum(forward_costs)


def _longest_prompt(models: Mapping[str, ResolvedModel], task: Task) -> int:
    """Return the assumed tokens of the longest prompt: the task's limit, or PROMPT within the models' context."""
    contexts = [model.size.context for model in models.values() if model.size.context]
    has_encoder = any(model.architecture.encoder_decoder for model in models.values())
    after = 0 if has_encoder else task.max_new_tokens  # an encoder's window holds the prompt alone
    room = max(min(contexts) - after, 1) if contexts else PROMPT
    return min(task.max_prompt_tokens or PROMPT, room)


@dataclass(frozen=True, kw_only=True)
class MachineTotal:
    """The totals of a plan: seconds under the fast and the slow assumptions, bytes, and the number of GPUs that are used."""

    seconds: tuple[float, float]
    gpus: int
    memory: int
    download: int
    disk: int
    fits: bool
    lacking: tuple[str, ...]  # tasks of runs without an estimate

    @property
    def complete(self) -> bool:
        """Whether every run has an estimate."""
        return not self.lacking


def total_of(rows: Sequence[MachineRow]) -> MachineTotal:
    """Return the totals of a plan's rows. A source is downloaded once."""
    timed = [row.seconds for row in rows if row.seconds]
    download = sum({source: size for row in rows for source, size in row.downloads.items()}.values())
    return MachineTotal(
        seconds=(sum(low for low, _ in timed), sum(high for _, high in timed)),
        memory=max((row.memory.total for row in rows if row.memory), default=0),
        download=download,
        disk=download + RECORD * sum(row.generations or 0 for row in rows),
        fits=all(row.fits for row in rows),
        gpus=max((sum(device.device.startswith("cuda") for device in row.devices) for row in rows), default=0),
        lacking=tuple(dict.fromkeys(row.task for row in rows if not row.seconds or row.why)),
    )


def sentence(name: str, total: MachineTotal, target: PlannedMachine) -> str:
    """Return a plan in one sentence: time, memory and download, or how much memory is lacking and what would help."""
    machine, gpus = target.machine, target.gpus
    machine_label = f"one {machine.name}" if gpus == 1 else f"{gpus} {machine.name}"
    if not total.memory:
        return f"{name} on {machine_label}: no estimate."
    per_gpu_suffix = " on a GPU" if gpus > 1 else ""
    need = f"at most {gib(total.memory)} GiB of {machine.memory_gib:.0f} GiB{per_gpu_suffix}"
    parts = [
        span(*total.seconds) if total.seconds[1] else "time unknown",
        need,
        f"{gib(total.download)} GiB to download",
    ]
    text = f"{name} on {machine_label}: {', '.join(parts)}"
    if not total.fits:
        bigger = smallest_with(total.memory)
        number = "one" if gpus == 1 else str(gpus)
        larger = f"{number} {bigger.name}" if bigger else "no known machine"
        need = f"it needs {gib(total.memory)} GiB on a GPU with {machine.memory_gib:.0f} GiB"
        text = f"{name} does not fit on {machine_label}: {need}; it fits on {larger}; help: {LESS_MEMORY}"
    elif total.gpus < gpus:
        text += (
            f"; {total.gpus} of {gpus} GPUs {'is' if total.gpus == 1 else 'are'} used, --place puts a model on others"
        )
    lacking = "" if total.complete else f" There is no estimate for {', '.join(total.lacking)}."
    return f"{text}.{lacking}"


def span(low: float, high: float) -> str:
    """Return a range of seconds in the unit that suits its upper end."""
    unit, name = (60.0, "minutes") if high < 2 * HOUR else (HOUR, "hours") if high < LONG else (24 * HOUR, "days")
    first, last = (max(round(seconds / unit), 1) for seconds in (low, high))
    return f"{first} {name if first > 1 else name[:-1]}" if first == last else f"{first} to {last} {name}"


def gib(size: float) -> str:
    """Return bytes in GiB, with a digit after the point below 10."""
    number = size / GIB
    return f"{number:.1f}" if 0 < number < 9.95 else f"{number:.0f}"
