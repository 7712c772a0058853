"""The grid of a suite: every line on each of its pairs and tasks, resolved, or with the reason why it cannot be run.

`outline` describes a part from architectures alone, for plans on another machine. `plan_rows` returns the state of every
run, what is missing, and the least time and memory.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

from specbench.config.options import GivenOption, Options
from specbench.config.pair import Pair, drafts, kind_and_base
from specbench.config.presets import Override, in_scope, names, override
from specbench.config.presets import preset as preset_of
from specbench.config.request import Request
from specbench.data.task import Task
from specbench.errors import ConfigError, MissingAsset
from specbench.features.profile.chain_profile import GAMMA
from specbench.features.profile.pairings import levels_and_trees, pairings
from specbench.features.suites import prepared_models
from specbench.features.suites.prepared_heads import untrained, with_prepared
from specbench.features.suites.suite import GridLine, Suite
from specbench.machine.accelerator import GIB
from specbench.machine.hardware import free_bytes
from specbench.machine.memory import read_bandwidth
from specbench.models.heads.head_size import HeadSize, size_of_head
from specbench.models.resolve_models import Execution, device_of, require_shared_tokenizer, resolve_models
from specbench.models.resolved_model import ResolvedModel
from specbench.resolution import selection
from specbench.resolution.memory_estimate import Memory, memory_by_device
from specbench.resolution.methods import Methods, ResolvedMethod
from specbench.resolution.partial_method import PartialMethod
from specbench.resolution.resolve import Choice, plans_of, sizes_of
from specbench.resolution.run_plan import CACHED, PairPlan, least_bytes
from specbench.resolution.run_store import progress_of
from specbench.resolution.selection import prompt_count, read_task
from specbench.runs.run_state import RunState
from specbench.sandbox import Sandbox
from specbench.vocabulary import SandboxKind


@dataclass(frozen=True)
class Outline:
    """What a request would measure on one task, from architectures alone: for estimates without weights and data.

    `prompts` is None if their number is not known. `missing` names missing models or local data; empty if there are none.
    """

    name: str  # of the pair
    pair: Pair
    models: Mapping[str, ResolvedModel]
    groups: Sequence[tuple[ResolvedMethod, ...]]
    task_name: str
    task: Task
    prompts: int | None
    options: Options
    missing: str = ""

    @cached_property
    def heads(self) -> dict[str, HeadSize]:
        """The sizes of the heads that draft in the methods, by name."""
        names = dict.fromkeys(name for group in self.groups for method in group for name in method.method.heads)
        heads = {}
        for name in names:
            head = self.pair.heads.get(name)
            kind, base = (head.kind, head.base) if head else kind_and_base(name)  # one that will be trained
            if drafts(kind):
                heads[name] = size_of_head(kind, base, self.models[base])
        return heads


def outline(choice: Choice, on: Execution) -> Outline:
    """Return the outline of a request with one task, on a machine. Raises ConfigError for a mistake in the request."""
    (word,), options = choice.request.tasks, choice.request.options
    name, task = read_task(word, choice.pair, options)
    models, prompts, missing = dict[str, ResolvedModel](), None, ""
    try:
        models = choice.resolved_models(choice.pair.on(word), on)
    except MissingAsset as error:
        missing = str(error)
    try:
        prompts = prompt_count(word, task, choice.pair, options)
    except MissingAsset as error:  # a local file that is not here
        missing = missing or str(error)
    groups = choice.methods.groups(sizes_of(models))
    return Outline(choice.preset.name, choice.pair, models, groups, name, task, prompts, options, missing)


@dataclass(frozen=True)
class GridPart:
    """A line of the grid on one pair and task, with its plan, its outline for another machine, or why it has neither.

    A part with a plan has missing assets too if its outputs cannot be scored.
    """

    line: GridLine
    pair: str
    task: str
    number: int
    methods: tuple[str, ...] = ()  # of the line; of a profile, those that measure every pair of models
    plan: PairPlan | None = None
    outline: Outline | None = None
    sandbox: Sandbox | None = None
    assets: Sequence[MissingAsset] = ()  # models, heads and data that are missing
    invalid: str = ""  # a mistake in the suite
    awaits_training: bool = False  # nothing but heads and models that the suite trains is missing

    @property
    def missing(self) -> str:
        """What is missing, a line each; empty if nothing is."""
        return "\n".join(dict.fromkeys(map(str, self.assets)))

    @property
    def key(self) -> str:
        """The key of a part without runs in the suite's index."""
        return f"{self.pair} {self.task} {'+'.join(self.line.methods)}, part {self.number}"

    def request(self, out: Path, sandbox: SandboxKind | None = None) -> Request:
        """Return the request that measures the part."""
        options = self.line.options
        return Request(
            methods=self.methods, pair=self.pair, tasks=(self.task,), options=options, out=out, sandbox=sandbox
        )


@dataclass(frozen=True)
class Grid:
    """A suite's parts, and messages about options that have no effect."""

    parts: list[GridPart]
    unused: dict[GivenOption, str]


def resolve_grid(suite: Suite, out: Path, sandbox: SandboxKind | None = None, on: Execution | None = None) -> Grid:
    """Resolve a suite part by part.

    For a part that cannot run, `missing` (models or data) or `invalid` (settings) has the reason. With `on`, another machine,
    parts have outlines instead of plans. Raises ConfigError if every part is invalid, and for an option that no preset reads.

    An option is unused only if no part reads it: `--data gsm8k=FILE` has no effect on the parts of other tasks.

    The resolution of a part stops at the first missing asset, so `_missing` looks for the others. A part awaits training if
    nothing but heads or models that the suite trains is missing; if its data is missing too, training would not help.
    """
    grid: list[GridPart] = []
    mistakes: list[ConfigError] = []
    unused: dict[GivenOption, ConfigError] | None = None
    awaited = set() if on else _awaited(suite, out)
    for number, (line, pair, task) in enumerate(suite.parts(), 1):
        with_heads = replace(line, options=with_prepared(suite, pair, task, line.options, out))
        options = with_heads.options
        if on is None:  # elsewhere, a fine-tuned model has the size of the original one
            options = prepared_models.with_models(suite, pair, task, options, out)
        part = GridPart(replace(line, options=options), pair, task, number)
        try:
            part = replace(part, methods=tuple(_methods(suite, part.line, pair)))
            choice = Choice.of(part.request(out, sandbox), assumes_heads=on is not None and bool(suite.prepare))
            ignored = choice.unused_options()
            unused = ignored if unused is None else {key: error for key, error in unused.items() if key in ignored}
            if on:
                where = replace(on, dtype=line.options.dtype, engine=line.options.engine)
                part = replace(part, outline=outline(choice, where))
            else:
                part = _planned(part, choice)
        except MissingAsset as error:
            others = [] if on else _missing(with_heads, pair, task)
            is_awaited = bool({(pair, task), (pair, "")} & awaited)
            assets = [*([] if is_awaited and others else [error]), *others]
            part = replace(part, assets=assets, awaits_training=is_awaited and not others)
        except ConfigError as error:
            mistakes.append(error)
            part = replace(part, invalid=str(error))
        grid.append(part)
    if len(mistakes) == len(grid):
        raise mistakes[0]
    trained_on = {step.on for step in suite.prepare if step.on}  # tasks whose data the training of heads reads
    unread = {
        option: error
        for option, error in (unused or {}).items()
        if option.flag != "data" or option.key not in trained_on
    }
    return Grid(grid, {option: _unread(option, error) for option, error in unread.items()})


def _planned(part: GridPart, choice: Choice) -> GridPart:
    """Return a part with its plan. Raises ConfigError and MissingAsset."""
    resolved = plans_of(choice)
    (plan,) = resolved.plans
    deciding = {role for run in plan.runs for method in run.methods.values() for role in method.deciding}
    require_shared_tokenizer({role: model for role, model in plan.models.items() if role in deciding}, plan.pair.base)
    assets = [resolved.unscored] if resolved.unscored else []
    return replace(part, plan=plan, sandbox=resolved.sandbox, assets=assets)


def _awaited(suite: Suite, out: Path) -> set[tuple[str, str]]:
    """Return the pairs and tasks whose heads or models are not trained yet; an empty task stands for all tasks."""
    heads = {(head.pair, "" if head.preparation.on else head.task) for head in untrained(suite, out)}
    return heads | {(step.model.pair, step.model.task) for step in prepared_models.pending(suite, out)}


def _unread(option: GivenOption, error: ConfigError) -> str:
    """Return a message for an option that no part of a suite reads. Raises the error if no bundled preset reads it either."""
    if option.flag == "set" and not _is_read(override(option.key, None)):
        raise error
    scope, colon, _ = option.key.partition(":")
    if option.flag == "head" and colon and scope not in names("pair"):
        raise error
    return f"{option} has no effect: no part of this suite reads it"


def _is_read(override: Override) -> bool:
    """Return whether a bundled preset has the key of an override. For a pair, return whether the override names one."""
    if override.kind == "pair":
        return bool(override.scope)
    presets = [name for name in names(override.kind) if in_scope(override.scope, name)]
    return any(".".join(override.path) in _keys_of(override.kind, name) for name in presets)


def _keys_of(kind: str, name: str) -> set[str]:
    return PartialMethod.of_preset(name).settable_keys() if kind == "method" else set(selection.keys_of(name))


def _missing(line: GridLine, pair: str, task: str) -> list[MissingAsset]:
    """Return all missing models and data of a part. Resolution itself stops at the first one."""
    preset, spec = selection.read_pair(pair, line.options)
    placement = Execution(device_of(line.options.device), line.options.dtype)
    assets = list[MissingAsset]()
    try:
        roles = Methods(line.methods, spec, line.options).roles
    except MissingAsset as error:  # a head that is not trained yet
        roles, assets = tuple(spec.models), [error]
    for role in roles:
        try:
            resolve_models(spec.on(task), (role,), preset.path.parent, placement)
        except MissingAsset as error:
            assets.append(error)
    try:
        selection.select_tasks([task], spec, line.options)
    except MissingAsset as error:
        assets.append(error)
    return assets


def _methods(suite: Suite, line: GridLine, pair: str) -> list[str]:
    """Return the methods of a line; for a profile, the methods that measure every pair of levels of its chain.

    The first method of a profile defines the chain. The drafters of the other methods are measured under every model.
    """
    if suite.kind != "profile":
        return list(line.methods)
    gamma, *more = line.options.gamma_for(line.methods[0]) or (GAMMA,)
    if more:
        raise ConfigError(f"gamma = {[gamma, *more]}: a profile takes one draft length for all pairs of models")
    levels, trees = levels_and_trees(line.methods)
    return pairings(levels, selection.read_pair(pair, line.options)[1], gamma, trees)


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """One run, or one part of a suite that cannot be resolved.

    `generations` counts the generations of the whole run, and
    `tokens` the most tokens that they can have; both are None if the number of prompts is not known. `devices` is the memory
    on each device of this machine, empty for a run that is not resolved. `least_seconds` is the time to read the weights for
    the missing generations if the baseline decodes all of them to full length. `bytes` is a lower bound for the memory of
    weights and caches. Both are None where they are unknown. `why` is the reason why a run cannot be measured here, with a
    line for each of the missing `assets`. `has_settings` says that `methods` counts several settings of a method.
    """

    pair: str
    task: str
    methods: str
    T: float | None
    state: RunState
    done: int = 0
    generations: int | None = None
    tokens: int | None = None
    least_seconds: float | None = None
    bytes: int | None = None
    devices: tuple[Memory, ...] = ()
    why: str = ""
    assets: tuple[MissingAsset, ...] = ()
    has_settings: bool = False


def plan_rows(part: GridPart) -> list[PlanRow]:
    """Return a row per run of a part, or one row for a part with a mistake."""
    if part.plan is None:
        return _unresolved(part)
    bandwidth = _bandwidth(str(part.plan.device))
    devices = tuple(memory_by_device(part.plan.models, {}, CACHED, str(part.plan.device)))
    crowded = _crowded(devices)
    rows = []
    for run in part.plan.runs:
        done, is_complete = progress = progress_of(run)
        state = RunState.too_large if crowded and not is_complete else progress.state
        rows.append(
            PlanRow(
                pair=_name(part.pair),
                task=part.task,
                methods=methods_in_short(run.spec.presets),
                has_settings=len(set(run.spec.presets.values())) < len(run.spec.presets),
                T=run.spec.decoding.temperature,
                state=RunState.missing if part.missing else state,
                done=done,
                generations=run.spec.generations,
                tokens=run.spec.generations * run.task.max_new_tokens,
                least_seconds=part.plan.least_seconds(run, run.spec.generations - done, bandwidth),
                bytes=part.plan.bytes,
                devices=devices,
                why=part.missing or ("" if is_complete else crowded),
                assets=tuple(part.assets),
            )
        )
    return rows


def _crowded(devices: Iterable[Memory]) -> str:
    """Return which device has too little free memory, and what would help; empty if all devices have enough."""
    for device in devices:
        free = free_bytes(device.device)
        if free is not None and device.total > free:
            return (
                f"{device.device}: {', '.join(device.models)}: {device.total / GIB:.1f} GiB needed,"
                f" {free / GIB:.1f} GiB free; help: --place ROLE=layers:0,1 with several GPUs,"
                " or --set pair.models.ROLE.quantization=int8"
            )
    return ""


def methods_in_short(presets: Mapping[str, str]) -> str:
    """Return the methods of a run as text, several settings of one preset as a count: `sd x2`. `presets` are by label."""
    counts = Counter(presets.values())
    one = {preset: label for label, preset in presets.items()}
    return ", ".join(one[name] if count == 1 else f"{name} x{count}" for name, count in counts.items())


def _name(pair: str) -> str:
    """Return the name under which a pair's runs are reported. If the pair cannot be read, return the user's text."""
    try:
        return preset_of("pair", pair).name
    except ConfigError:
        return pair


@cache
def _bandwidth(device: str) -> float:
    """Return the read bandwidth in bytes per second, measured once per process."""
    return read_bandwidth(device)


def _unresolved(part: GridPart) -> list[PlanRow]:
    """Return the rows of a part without a plan: a row per run if the part has an outline, else one row.

    An outline needs neither weights nor heads nor data from the hub. Time and memory are estimated from the models'
    architectures.
    """
    state = RunState.pending if part.awaits_training else RunState.missing
    row = PlanRow(
        pair=_name(part.pair), task=part.task, methods=", ".join(part.line.methods), T=part.line.options.temperature,
        state=RunState.invalid if part.invalid else state, why=part.invalid or ("" if part.awaits_training else part.missing),
        assets=() if part.invalid or part.awaits_training else tuple(part.assets),
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
        presets = {method.label: method.preset for method in group}
        rows.append(
            replace(
                row,
                methods=methods_in_short(presets),
                has_settings=len(set(presets.values())) < len(presets),
                T=group[0].temperature,
                generations=generations,
                tokens=tokens,
                least_seconds=tokens * read / _bandwidth(str(device)) if tokens and read else None,
                bytes=size or None,
            )
        )
    return rows
