"""Jobs as tasks of a Ray cluster."""

import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specbench.config.construct import Table, at_least, construct, within
from specbench.errors import MissingAsset
from specbench.features.launch.job import UNLIMITED, Job, perform
from specbench.files import write
from specbench.runs.run_state import RunState

HELP = "the launcher ray needs ray, which is not installed\n  help: pip install 'specbench[ray]'"
NICENESS = "RAY_worker_niceness"  # of a node's workers, 15 by default: other processes would delay the jobs


@dataclass(frozen=True, kw_only=True)
class RaySettings:
    """What a job requests of the cluster at `address`; `accelerator` is a label such as A100."""

    address: str | None = None
    gpus: int | float | None = None
    cpus: int | float = 1
    accelerator: str = ""
    resources: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        at_least(self, gpus=0, cpus=0)
        for name, number in self.resources.items():
            within(f"resources.{name}", number, 0, math.inf)


@dataclass
class RayLauncher:
    """Tasks that end with their driver. Another attempt runs on the node of the earlier one, if that still exists."""

    task: Any
    options: dict[str, Any]
    name: str = "ray"
    outlives: bool = False
    warning: str = ""
    shared: bool = False
    _tasks: dict[str, Any] = field(default_factory=dict)  # references by id

    def free(self, active: int) -> int:
        return UNLIMITED

    def submit(self, jobs: Sequence[Job]) -> list[str]:
        tasks = {(task := self._start(job)).hex(): task for job in jobs}
        self._tasks |= tasks
        return list(tasks)

    def poll(self, jobs: Mapping[str, Job]) -> dict[str, RunState]:
        import ray

        references = [self._tasks[job] for job in jobs if job in self._tasks]
        done = (
            {reference.hex() for reference in ray.wait(references, num_returns=len(references), timeout=0)[0]}
            if references
            else set()
        )
        for identifier in done:
            self._keep_error(identifier, jobs[identifier])
        states = {}
        for identifier, job in jobs.items():
            if identifier not in done and identifier in self._tasks:
                states[identifier] = RunState.queued if job.outcome() is None else RunState.running
        return states

    def cancel(self, jobs: Mapping[str, Job]) -> None:
        import ray

        for identifier in jobs:
            if identifier in self._tasks:
                ray.cancel(self._tasks[identifier], force=True)

    def _keep_error(self, identifier: str, job: Job) -> None:
        """Write the reason of a task that failed before its command ran."""
        import ray

        try:
            ray.get(self._tasks[identifier])
        except ray.exceptions.RayError as error:
            job.error_file.parent.mkdir(parents=True, exist_ok=True)
            write(job.error_file, f"Ray: {str(error).strip().splitlines()[-1]}\n")

    def _start(self, job: Job) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options = dict(self.options)
        if job.node:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node_id=job.node, soft=True)
        return self.task.options(name=job.name, **options).remote(
            job.outcome_file.absolute(), job.log.absolute(), job.command, Path.cwd()
        )


def ray_launcher(settings: Table, may_use_gpu: bool) -> RayLauncher:
    """Connect to a cluster, or start one on this machine. A job takes one GPU, if the suite may use one and there is one.

    Raises MissingAsset without Ray or a reachable cluster, ConfigError for a setting.
    """
    try:
        import ray
    except ImportError:
        raise MissingAsset(HELP) from None
    task_settings = construct(RaySettings, settings, "launcher ray")
    address = task_settings.address or os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {"num_cpus": task_settings.cpus, "max_retries": 0}
    if task_settings.accelerator:
        options["accelerator_type"] = task_settings.accelerator
    if task_settings.resources:
        options["resources"] = task_settings.resources
    if not address:
        os.environ.setdefault(NICENESS, "0")
    try:
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise MissingAsset(f"launcher ray: no cluster at {address or 'this machine'}: {error}") from None
    has_gpus = may_use_gpu and ray.cluster_resources().get("GPU", 0) > 0
    options["num_gpus"] = int(has_gpus) if task_settings.gpus is None else task_settings.gpus
    return RayLauncher(
        ray.remote(_on_node), options, shared=options["num_gpus"] < 1, warning=_unmet(options, ray.nodes())
    )


def _unmet(options: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> str:
    """Return a warning if none of the nodes has what a task needs; empty otherwise."""
    needs = {"CPU": options["num_cpus"], "GPU": options["num_gpus"], **options.get("resources", {})}
    if accelerator := options.get("accelerator_type"):
        needs[f"accelerator_type:{accelerator}"] = 0.001  # as Ray requests it
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    if any(all(has.get(key, 0) >= number for key, number in needs.items()) for has in alive):
        return ""
    resources = ", ".join(f"{key} {number:g}" for key, number in needs.items() if number)
    return f"no node of the cluster has {resources}; jobs wait until one is added"


def _on_node(outcome_file: Path, log: Path, command: Sequence[str], cwd: Path) -> int:
    """Perform a job in a Ray worker, whose working directory is not the driver's."""
    import ray

    return perform(outcome_file, log, command, ray.get_runtime_context().get_node_id(), cwd)
