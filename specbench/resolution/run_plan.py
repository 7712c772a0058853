"""Plans: the runs of a request, their folders, and the models that they share.

A plan is a value: `run_store.py` reads the folders, and `experiment/loaded_models.py` loads the models. The plan of a
measured run is read from its run.toml.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

import specbench.tasks  # noqa: F401  (registers the tasks)
from specbench.config.construct import construct, to_table
from specbench.config.pair import HeadSpec, ModelSpec, Pair
from specbench.data.task import Data, Task
from specbench.decoding.method import Method
from specbench.errors import ConfigError
from specbench.models.heads.resolve_heads import resolve_heads
from specbench.models.loaded_pair import LoadedPair
from specbench.models.resolve_models import Execution, resolve_models
from specbench.models.resolved_model import ResolvedModel
from specbench.resolution.spec import ResolvedPair, task_spec
from specbench.runs.run_folder import Expected, spec_of
from specbench.runs.run_spec import RunSpec

CACHED = 2048  # positions whose cache an estimate of memory includes


def least_bytes(models: Iterable[ResolvedModel]) -> int:
    """Return the least memory of models: their weights, and keys and values of CACHED positions."""
    return sum(model.size.resident_bytes + CACHED * model.size.position_bytes for model in models)


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
            label: Method.build(spec.options, f"run.toml: methods.{label}") for label, spec in self.spec.methods.items()
        }

    def pair_of(self, loaded: LoadedPair) -> LoadedPair:
        """Return the pair with the run's models only, and the vocabulary, EOS and context window of the baseline's models.

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


@dataclass(frozen=True)
class PairPlan:
    """The runs of a request on one pair."""

    pair: ResolvedPair
    runs: list[PlannedRun]

    def __repr__(self) -> str:
        return f"<PairPlan of {len(self.runs)} runs of {self.pair.name} on {self.device}>"

    @property
    def device(self) -> torch.device:
        """The default device of the models."""
        return self.pair.device

    @property
    def models(self) -> Mapping[str, ResolvedModel]:
        """The models that any of the runs needs, by role."""
        return self.pair.models

    @property
    def specs(self) -> list[RunSpec]:
        """The specs of all runs."""
        return [run.spec for run in self.runs]

    @property
    def roles(self) -> tuple[str, ...]:
        """The models that any of the runs needs."""
        return tuple(self.models)

    @property
    def bytes(self) -> int:
        """The least memory of the models and their caches (`least_bytes`)."""
        return least_bytes(self.models.values())

    def least_seconds(self, run: PlannedRun, missing: int, bandwidth: float) -> float:
        """Return a lower bound for `missing` generations of a run by the baseline, at a bandwidth in bytes per second.

        Each token that the task allows costs one forward of the baseline's models. Prompts, work outside forwards and slower
        methods come on top; faster methods and answers that stop early take less.
        """
        roles = run.spec.methods[run.spec.baseline].traits.roles
        token = sum(self.models[role].size.forward_bytes for role in roles) / bandwidth
        return missing * run.task.max_new_tokens * token


def plan_of_folder(folder: Path) -> PairPlan:
    """Return the plan of a run, which needs no pair file, task file or options. Paths are relative to the working directory.

    Raises ConfigError if the folder contains no run, or if its models or samples have changed; MissingAsset if they are not
    here.
    """
    spec = spec_of(folder)
    device, base = torch.device(spec.device), Path()
    pair = _pair(spec)
    models = dict[str, ResolvedModel]()
    for role, source in spec.pair.models.items():
        models |= resolve_models(pair, (role,), base, Execution(device, source.dtype, source.engine))
    differing = [role for role, model in models.items() if model.source != spec.pair.models[role]]
    if differing:
        raise ConfigError(f"{folder}: {', '.join(differing)} cannot be loaded as in the run, with only its run.toml")
    heads = resolve_heads(pair, tuple(spec.pair.heads), base)
    task = Task.build(spec.task.options, f"{folder}: task")
    run = PlannedRun(spec, folder, task, _data(folder, spec, task))
    return PairPlan(ResolvedPair(spec.pair.name, pair, base, device, models, heads), [run])


def _pair(spec: RunSpec) -> Pair:
    """Return the models and heads of a run as a pair."""
    models = {
        role: construct(
            ModelSpec,
            {
                "path": source.source,
                "revision": source.revision,
                "quantization": source.quantization,
                "gguf_file": source.gguf_file or "",
                **({"cost": to_table(source.cost)} if source.cost else {}),
                "allowed_keys": list(source.allowed_keys),
                "config": source.changes,
            },
            f"run.toml: pair.models.{role}",
        )
        for role, source in spec.pair.models.items()
    }
    heads = {
        name: HeadSpec(path=head.source, base=head.base, kind=head.kind, revision=head.revision)
        for name, head in spec.pair.heads.items()
    }
    weights = next(iter(spec.pair.models.values())).weights
    return Pair(models=models, heads=heads, weights=weights, logits="synthetic" if spec.pair.synthetic else "real")


def _data(folder: Path, spec: RunSpec, task: Task) -> Data:
    """Return the samples of a run."""
    stated = spec.task.data
    if stated.shard:
        raise ConfigError(f"{folder} has a part of the prompts; help: a run of all of them")
    every, count = task.data(stated.source), stated.samples - stated.later_turns
    data = every.random_sample(count) if stated.drawn else every.first(count)
    if task_spec(spec.task.name, task, data) != spec.task:
        raise ConfigError(f"{folder}: the samples of {spec.task.name} are not those of the run")
    return data
