"""Floor 4: what a command's words come to: a pair's cells, where their records lie, and its models, loaded when asked."""

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch

from specbench.config import presets
from specbench.config.options import Options
from specbench.config.pair import Pair
from specbench.data.task import Data, Task
from specbench.errors import ConfigError
from specbench.experiment import method_resolution as arms
from specbench.experiment import run_spec as cells
from specbench.experiment import runner, scorer
from specbench.experiment.run_spec import Cell
from specbench.models import loader as models
from specbench.models.loader import LoadedPair
from specbench.models.resolve import Found, FoundHead, device_of, find, find_heads
from specbench.runs.record import SAMPLES, Record, Recorded, Recorder, load
from specbench.sandbox import Sandbox

CACHED = 2048  # positions that a plan counts a cache for
Asked = list[tuple[str, Task, Data]]  # tasks by name, with their samples


@dataclass(frozen=True)
class Job:
    """One cell, and the folder that its records go to."""

    cell: Cell
    folder: Path
    task: Task
    data: Data

    @cached_property
    def recorded(self) -> Recorded:
        """What is there of the cell's generations."""
        wanted = runner.expected(self.cell, self.data)
        return load(self.folder, wanted) if (self.folder / SAMPLES).exists() else Recorded([], [], wanted)

    @property
    def done(self) -> int:
        """How many of the cell's generations are there."""
        return len(self.recorded.records)

    @property
    def complete(self) -> bool:
        """Whether every generation is there once, failed ones included."""
        return self.recorded.complete

    def scored(self, box: Sandbox | None) -> bool:
        """Whether what is there is scored by the task as it is now; code, where it may be run in `box`, by running it."""
        return scorer.is_scored(self.folder, self.task, box)


@dataclass
class Bench:
    """A pair with its jobs. Its models are loaded when they are first asked for."""

    pair_name: str
    base: Path  # what the pair's local folders are relative to
    device: torch.device
    roles: tuple[str, ...]
    found: dict[str, Found]
    heads: dict[str, FoundHead]
    jobs: list[Job]
    _loaded: LoadedPair | None = field(default=None, repr=False)

    @property
    def is_loaded(self) -> bool:
        return self._loaded is not None

    def load(self) -> LoadedPair:
        """The pair's models, loaded once. Raises MissingAsset where weights are gone since they were found."""
        if self._loaded is None:
            self._loaded = models.load(self.found, self.base, self.device, self.heads)
        return self._loaded

    def borrow(self, other: "Bench") -> None:
        """Take what another has loaded, where that is what would be loaded here."""
        if self._identity() == other._identity():
            self._loaded = other._loaded

    def release(self) -> None:
        """Drop the models, and free their memory unless another bench has borrowed them."""
        self._loaded = None
        gc.collect()  # a model's modules, hooks and graphs refer to one another
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def measure(self, job: Job, recorder: Recorder) -> Iterator[Record]:
        """Decode what is missing of a job."""
        return runner.measure(job.cell, self.load(), job.task, job.data, recorder)

    @property
    def bytes(self) -> int:
        """What the models and their caches take at least: weights, and keys and values of CACHED positions."""
        return sum(
            each.parameters * getattr(torch, each.dtype).itemsize + CACHED * each.traffic["position"]
            for each in self.found.values()
        )

    def least_seconds(self, job: Job, bandwidth: float) -> float:
        """The baseline's bound for the missing generations, at bytes a second: each token that a task allows is one forward
        of the baseline's models.

        Prompts, everything outside forwards and methods that lose are not in it; methods that win, and answers that stop
        early, take less.
        """
        roles = job.cell.arms[0].method.roles()
        token = sum(self.found[role].traffic["forward"] for role in roles) / bandwidth
        return (job.cell.generations - job.done) * job.task.max_new_tokens * token

    def _identity(self) -> list[object]:
        sources = {name: (each.identity(), each.engine) for name, each in self.found.items()}
        return [self.pair_name, self.device, sources, {name: each.identity() for name, each in self.heads.items()}]


def settle(
    names: list[str], pair_name: str, ask: Callable[[], Asked], pair: Pair, base: Path, options: Options, out: Path
) -> Bench:
    """The cells of these methods on the tasks that `ask` reads, once models and methods are known to be right.

    Raises ConfigError for what is wrong with a method, MissingAsset where a model or data are not here and cannot be fetched.
    """
    device = device_of(options.device)
    roles = arms.roles_of(names, pair, options)
    found = find(pair, roles, base, device, options.dtype, options.engine)
    heads = find_heads(pair, arms.heads_of(names, pair, options), base)
    groups = arms.arms(names, pair, {role: each.parameters for role, each in found.items()}, options)
    made = [
        (cells.cell(group, pair_name, pair, found, name, task, data, options, str(device), heads), task, data)
        for name, task, data in ask()
        for group in groups
    ]
    jobs = [Job(cell, out / cell.folder, task, data) for cell, task, data in made]
    return Bench(pair_name, base, device, roles, found, heads, jobs)


def tasks_of(names: list[str], pair: Pair, options: Options) -> Asked:
    """The tasks with their samples, all read before anything is measured. Unless named, those that the source does not suit
    are left out."""
    source, out, refused = cells.source_of(pair, options), [], []
    suited = pair.defaults.tasks if cells.suits(pair, options) else ()
    for name in names or suited or presets.names("task", variants=False):
        try:
            task_name, task = cells.read_task(name, pair, options)
            out.append((task_name, task, cells.limited(task.data(source), pair, options)))
        except ConfigError as error:
            if names or suited:
                raise
            refused.append(error)
    if not out:
        raise refused[0]
    return out
