"""From a request to plans: the pair, the methods and the tasks, each read once."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import specbench.tasks  # noqa: F401  (registers the tasks)
from specbench.config.options import GivenOption
from specbench.config.pair import Pair
from specbench.config.presets import WORDS, Preset, require_presets
from specbench.config.request import Request
from specbench.data.task import Task
from specbench.errors import ConfigError, MissingAsset
from specbench.models.generation_rules import sampling_of
from specbench.models.heads.resolve_heads import resolve_heads
from specbench.models.resolve_models import Execution, device_of, resolve_models
from specbench.models.resolved_model import ResolvedModel
from specbench.resolution.available_methods import named_methods
from specbench.resolution.methods import Methods, ResolvedMethod
from specbench.resolution.run_plan import PairPlan, PlannedRun
from specbench.resolution.selection import SelectedTask, TaskChoice, read_pair, unused_options
from specbench.resolution.spec import ResolvedPair, run_spec
from specbench.sandbox import Sandbox
from specbench.vocabulary import Sampling, SandboxKind


@dataclass(frozen=True)
class Choice:
    """What a request selects: its pair with the user's overrides, its methods and its tasks.

    Raises ConfigError, when it is made, for an unknown name or a pair with a mistake.
    """

    request: Request
    preset: Preset
    pair: Pair
    methods: Methods

    @classmethod
    def of(cls, request: Request, assumes_heads: bool = False) -> "Choice":
        """Read the pair and name the methods. `assumes_heads` is for estimates (`Methods`)."""
        require_presets([name for name in request.methods if name not in WORDS], request.pair, request.tasks)
        preset, pair = read_pair(request.pair, request.options)
        names = named_methods(request.methods, request.pair, pair, request.options, preset.path.parent)
        return cls(request, preset, pair, Methods(names, pair, request.options, assumes_heads))

    @cached_property
    def tasks(self) -> TaskChoice:
        """The tasks of the request, whose data is read on first use."""
        return TaskChoice(self.request.tasks, self.pair, self.request.options)

    def unused_options(self) -> dict[GivenOption, ConfigError]:
        """Return errors for the options that no method, pair or task reads."""
        by_methods = self.methods.unused_options(self.request.pair)  # first: mistakes come before missing data
        return unused_options(self.preset, self.request.pair, self.tasks.names, self.request.options) | by_methods

    def require_used_options(self) -> None:
        """Raise ConfigError for an option that no method, pair or task reads."""
        for error in self.unused_options().values():
            raise error

    def resolved_models(self, pair: Pair, on: Execution) -> dict[str, ResolvedModel]:
        """Return the models that the methods need. `pair` is the choice's pair, or the one with a task's checkpoints."""
        return resolve_models(pair, self.methods.roles, self.preset.path.parent, on)


@dataclass(frozen=True)
class ResolvedRequest:
    """The plans of a request, the sandbox for generated code, and why there is none although a task needs it.

    There is one plan, or one per task for a pair with a checkpoint for each task.
    """

    plans: list[PairPlan]
    sandbox: Sandbox | None
    unscored: MissingAsset | None

    @property
    def runs(self) -> list[PlannedRun]:
        """The runs of all plans."""
        return [run for plan in self.plans for run in plan.runs]


def resolve(request: Request) -> ResolvedRequest:
    """Resolve a request without loading a model.

    Raises ConfigError for a mistake in the request, including an option that nothing reads. Raises MissingAsset if a model,
    data, or the sandbox of the only task is missing.
    """
    choice = Choice.of(request)
    choice.require_used_options()
    return plans_of(choice)


def plans_of(choice: Choice) -> ResolvedRequest:
    """Return the plans of a choice. Raises what `resolve` does, except for options that other requests may read."""
    selected = choice.tasks.by_name  # before the models, since large ones take long to check
    if choice.pair.differs_by_task:
        plans = [plan_on([task], choice, choice.pair.on(name)) for name, task in selected.items()]
    else:
        plans = [plan_on(list(selected.values()), choice)]
    return ResolvedRequest(plans, *_sandbox(choice.request.sandbox, [chosen.task for chosen in selected.values()]))


def plan_on(tasks: Sequence[SelectedTask], choice: Choice, pair: Pair | None = None) -> PairPlan:
    """Check the models and methods of a choice, and plan them on tasks whose samples are read.

    `pair` replaces the choice's pair by the one with the checkpoints of a task. Raises ConfigError for a mistake in a method,
    and MissingAsset for a model that is not here and cannot be fetched.
    """
    pair = pair or choice.pair
    request, options, base = choice.request, choice.request.options, choice.preset.path.parent
    device = device_of(options.device)
    models = choice.resolved_models(pair, Execution(device, options.dtype, options.engine))
    heads = resolve_heads(pair, choice.methods.heads, base)
    sampling = sampling_of_target(models) if options.sampling == Sampling.checkpoint else {}
    options = replace(
        options,
        top_k=options.top_k or int(sampling.get("top_k", 0)),
        top_p=sampling.get("top_p", 1.0) if options.top_p == 1.0 else options.top_p,
    )
    groups = choice.methods.groups(sizes_of(models), sampling.get("temperature"))
    if options.shard:
        _require_independent(groups)
    resolved = ResolvedPair(choice.preset.name, pair, base, device, models, heads)
    specs = [(run_spec(group, resolved, task, options), task) for task in tasks for group in groups]
    runs = [PlannedRun(spec, request.out / spec.folder, selected.task, selected.data) for spec, selected in specs]
    return PairPlan(resolved, runs)


def _require_independent(groups: Iterable[Iterable[ResolvedMethod]]) -> None:
    """Raise ConfigError if a method reads the outputs of earlier prompts, which a shard does not have."""
    for resolved in itertools.chain.from_iterable(groups):
        if resolved.method.remembers:
            raise ConfigError(
                f"--shard: {resolved.label} reads earlier outputs; help: leave out --shard, or proposer.remember"
            )


def sampling_of_target(models: Mapping[str, ResolvedModel]) -> dict[str, float]:
    """Return the sampling settings in the generation config of the target, or of the last model; empty without any."""
    model = models.get("target") or list(models.values())[-1]
    return sampling_of(model.generation) if model.generation else {}


def sizes_of(models: Mapping[str, ResolvedModel]) -> dict[str, int]:
    """Return the number of parameters of each model."""
    return {role: model.size.parameters for role, model in models.items()}


def _sandbox(kind: SandboxKind | None, tasks: Sequence[Task]) -> tuple[Sandbox | None, MissingAsset | None]:
    """Return the sandbox if a task needs one and the user allows it.

    If none works, a request of that task alone fails at once; among other tasks it is measured, and reported at the end.
    """
    if kind is None or not any(task.executes_code for task in tasks):
        return None, None
    try:
        return Sandbox.find(kind), None
    except MissingAsset as error:
        if len(tasks) == 1:
            raise
        return None, error
