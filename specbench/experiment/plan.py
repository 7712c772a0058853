"""What a request measures: its runs, where their records are, and the models that they share, loaded on first use."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

import torch

from specbench.config.model_folders import errors_about_folders
from specbench.config.options import Options
from specbench.config.pair import Pair
from specbench.data.task import Data, Task
from specbench.decoding.method import Method
from specbench.errors import ConfigError
from specbench.experiment import method_resolution, scorer
from specbench.experiment.run_resolution import ResolvedPair, run_spec
from specbench.experiment.selection import Selected
from specbench.models import loader
from specbench.models.heads.resolve import ResolvedHead, resolve_heads
from specbench.models.loader import LoadedPair
from specbench.models.placed import tensor_placement
from specbench.models.resolve import Execution, ResolvedModel, device_of, resolve_models
from specbench.runs.record import Key, Record
from specbench.runs.run_folder import SAMPLES, Expected, Recorded, imported_of, load
from specbench.runs.run_spec import RunSpec
from specbench.sandbox import Sandbox

CACHED = 2048  # positions whose cache an estimate of memory includes


@dataclass(frozen=True)
class PlannedRun:
    """One run of a plan: its spec, its folder, and the task with its samples."""

    spec: RunSpec
    folder: Path
    task: Task
    data: Data

    def __repr__(self) -> str:
        return f"<PlannedRun {self.spec.words}: {self.folder}>"

    @cached_property
    def methods(self) -> dict[str, Method]:
        """The methods by label, built from the spec, the baseline first."""
        return {
            label: Method.build(each.options, f"run.toml: methods.{label}") for label, each in self.spec.methods.items()
        }

    def pair_of(self, loaded: LoadedPair) -> LoadedPair:
        """Return the pair as the run uses it: only its models, of which those of the baseline decide.

        Raises ConfigError for a model that cannot take part in a method.
        """
        spec = self.spec.pair
        pair = loaded.only(
            self.spec.roles, spec.synthetic.spreads if spec.synthetic else None, self.methods[self.spec.baseline]
        )
        for label, method in self.methods.items():
            pair.require_defined(label, method)
        return pair

    @property
    def expected(self) -> Expected:
        """The generations that the run consists of."""
        ids = [sample.id for sample in self.data.samples]
        return Expected(tuple(self.spec.methods), self.spec.decoding.repeats, len(ids), frozenset(ids), self.spec.key)

    @cached_property
    def recorded(self) -> Recorded:
        """The generations that the folder holds. Raises ConfigError if it was imported."""
        if origin := imported_of(self.folder):
            raise ConfigError(
                f"{self.folder} was imported from {origin.archive}; help: measure with --out in another folder"
            )
        wanted = self.expected
        return load(self.folder, wanted) if (self.folder / SAMPLES).exists() else Recorded([], [], wanted)

    @property
    def done(self) -> int:
        """How many of the run's generations are recorded."""
        return len(self.recorded.records)

    @property
    def complete(self) -> bool:
        """Whether every generation is recorded once, failed ones included."""
        return self.recorded.complete

    def scored(self, sandbox: Sandbox | None) -> bool:
        """Return whether the current task has scored every record; with a sandbox, by executing generated code."""
        return scorer.is_scored(self.folder, self.task, sandbox)


class Ranks(Protocol):
    """The processes that decode together if tensors of models are split (`specbench.experiment.tensor_parallel`)."""

    pair: LoadedPair

    def follow(self, run: PlannedRun, done: set[Key]) -> Callable[[Record], None]:
        """Have the other processes decode what a run lacks. Returns the check of each generation."""

    def close(self) -> None:
        """End the other processes."""


@dataclass
class Plan:
    """The runs of a request on one pair. The pair's models are loaded on first use."""

    pair_name: str
    base: Path  # what the pair's local folders are relative to
    device: torch.device
    models: dict[str, ResolvedModel]
    heads: dict[str, ResolvedHead]
    runs: list[PlannedRun]
    _loaded: LoadedPair | None = field(default=None, repr=False)
    ranks: "Ranks | None" = field(default=None, repr=False)  # the other processes, if tensors of models are split

    def __repr__(self) -> str:
        return f"<Plan of {len(self.runs)} runs of {self.pair_name} on {self.device}>"

    @property
    def specs(self) -> list[RunSpec]:
        """The specs of all runs."""
        return [run.spec for run in self.runs]

    @property
    def roles(self) -> tuple[str, ...]:
        """The models that any of the runs needs."""
        return tuple(self.models)

    @property
    def is_loaded(self) -> bool:
        return self._loaded is not None

    def load(self) -> LoadedPair:
        """Load the pair's models, once.

        Raises MissingAsset if weights were deleted after resolution, and ConfigError if tensors of models are split, which
        needs several processes.
        """
        if self._loaded is None:
            if tensor_placement(self.models):
                raise ConfigError(
                    'only `specbench run` measures models with parallel = "tensor"; help: --place ROLE=DEVICE'
                )
            self._loaded = loader.load(self.models, self.base, self.device, self.heads)
        return self._loaded

    def join(self, ranks: "Ranks") -> None:
        """Use the models that several processes have loaded together."""
        self.ranks, self._loaded = ranks, ranks.pair

    def borrow(self, other: "Plan") -> None:
        """Take the models that another plan has loaded, if they are the same."""
        if self._identity() == other._identity():
            self._loaded = other._loaded
            self.ranks, other.ranks = other.ranks, None

    def release(self) -> None:
        """Drop the models, and free their memory unless another plan has borrowed them."""
        self._loaded = None
        if self.ranks:
            self.ranks.close()
            self.ranks = None
        gc.collect()  # a model's modules, hooks and graphs refer to one another
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    @property
    def bytes(self) -> int:
        """The least memory of the models and their caches: weights, and keys and values of CACHED positions."""
        return sum(
            each.parameters * getattr(torch, each.dtype).itemsize + int(CACHED * each.source.position_bytes)
            for each in self.models.values()
        )

    def least_seconds(self, run: PlannedRun, bandwidth: float) -> float:
        """Return a lower bound for the missing generations of a run of the baseline, at a bandwidth in bytes per second.

        Each token that the task allows costs one forward of the baseline's models. Prompts, work outside forwards and slower
        methods come on top; faster methods and answers that stop early take less.
        """
        roles = run.spec.methods[run.spec.baseline].traits.roles
        token = sum(self.models[role].source.forward_bytes for role in roles) / bandwidth
        return (run.spec.generations - run.done) * run.task.max_new_tokens * token

    def _identity(self) -> list[object]:
        models = {role: each.source for role, each in self.models.items()}
        return [self.pair_name, self.device, models, {name: each.source for name, each in self.heads.items()}]


def make_plan(
    names: Sequence[str], of: tuple[str, Path, Pair], tasks: Sequence[Selected], options: Options, out: Path
) -> Plan:
    """Check the models and methods, and plan them on tasks whose samples are read.

    `of` is the pair's name, the folder that its paths are relative to, and the pair. Raises ConfigError for a mistake in a
    method, MissingAsset where a model is not here and cannot be fetched.
    """
    pair_name, base, pair = of
    device = device_of(options.device)
    roles = method_resolution.roles_of(names, pair, options)
    with errors_about_folders(pair, roles, base):
        models = resolve_models(pair, roles, base, Execution(device, options.dtype, options.engine))
    heads = resolve_heads(pair, method_resolution.heads_of(names, pair, options), base)
    sizes = {role: each.parameters for role, each in models.items()}
    groups = method_resolution.groups_of(names, pair, sizes, options)
    resolved = ResolvedPair(pair_name, pair, base, str(device), models, heads)
    runs = []
    for selected in tasks:
        for group in groups:
            spec = run_spec(group, resolved, selected, options)
            runs.append(PlannedRun(spec, out / spec.folder, selected.task, selected.data))
    return Plan(pair_name, base, device, models, heads, runs)
