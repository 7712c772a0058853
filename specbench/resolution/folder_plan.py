"""The plan of a run folder, from run.toml: its models, its task and its samples."""

from pathlib import Path

import torch

import specbench.tasks  # noqa: F401  (registers the tasks)
from specbench.config.construct import construct
from specbench.config.pair import HeadSpec, ModelSpec, Pair
from specbench.data.task import Data, Task
from specbench.errors import ConfigError
from specbench.models.heads.resolve import resolve_heads
from specbench.models.resolve import Execution, resolve_models
from specbench.models.resolved_model import ResolvedModel
from specbench.resolution.plan import PairPlan, PlannedRun
from specbench.resolution.spec import ResolvedPair, task_spec
from specbench.runs.run_folder import spec_of
from specbench.runs.run_spec import RunSpec


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
