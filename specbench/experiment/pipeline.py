"""From a request to scored and summarized runs."""

from pathlib import Path
from typing import NamedTuple

import specbench.tasks  # noqa: F401  (registers the tasks)
from specbench.analysis.run_summary import RunSummary
from specbench.analysis.summary import save_summary, summarise
from specbench.config.options import SandboxKind
from specbench.config.presets import require_known
from specbench.data.task import Task
from specbench.errors import MissingAsset
from specbench.experiment import method_resolution, plan, run_spec, runner, scorer
from specbench.experiment.plan import Asked, Bench, Job
from specbench.experiment.request import Request
from specbench.observer import Observer
from specbench.runs.locking import FolderLock, locked
from specbench.sandbox import Sandbox


class Resolved(NamedTuple):
    """A request's jobs, the sandbox for generated code, and why there is none although a task needs it."""

    bench: Bench
    sandbox: Sandbox | None
    unscored: MissingAsset | None


class Results(NamedTuple):
    """The summaries of a request's runs, and what kept some of them from being scored."""

    summaries: list[RunSummary]
    unscored: MissingAsset | None

    @property
    def some_failed(self) -> bool:
        """Whether a generation failed."""
        return any(row.failed for summary in self.summaries for row in summary.methods)


def resolve(request: Request) -> Resolved:
    """Everything before the first model is loaded.

    Raises ConfigError for a mistake in the request, MissingAsset where a model, data or the only task's sandbox is missing.
    """
    require_known(request.methods, request.pair, request.tasks)
    options, methods = request.options, list(request.methods)
    preset, pair = run_spec.read_pair(request.pair, options)
    method_resolution.roles_of(methods, pair, options)  # a mistake in the request shows before anything is missing

    def ask() -> Asked:
        return plan.tasks_of(list(request.tasks), pair, options)

    bench = plan.settle(methods, preset.name, ask, pair, preset.path.parent, options, request.out)
    tasks = list({job.cell.task: job.task for job in bench.jobs}.values())
    return Resolved(bench, *_sandbox(request.sandbox, tasks))


def run(request: Request, observer: Observer | None = None) -> Results:
    """Measure and score what is missing of a request's runs, and summarize all of them."""
    observer = observer or Observer()
    bench, sandbox, unscored = resolve(request)
    if not request.tasks and len({job.cell.task for job in bench.jobs}) > 1:
        count = sum(job.cell.generations for job in bench.jobs)
        observer.message(f"{len(bench.jobs)} cells, {count} generations; -t, -n and --repeats make it fewer")
    summaries = []
    with locked((job.folder for job in bench.jobs), request.access) as locks:
        for job in bench.jobs:
            decode(bench, job, locks[job.folder], request.access.fresh, observer)
            try:
                score(job, sandbox, observer)
            except MissingAsset as error:  # the other tasks are still to be measured
                unscored = error
            summaries.append(summarised(job.folder))
    return Results(summaries, unscored)


def decode(bench: Bench, job: Job, lock: FolderLock, fresh: bool, observer: Observer) -> None:
    """Measure what is missing of a job, whose folder is locked."""
    if job.complete and not fresh:
        return
    if not bench.is_loaded:
        with observer.status(f"loading {', '.join(bench.roles)}"):
            bench.load()
    recorder = runner.prepare(job.cell, job.data, lock, fresh)
    with observer.progress(job.cell.folder, job.cell.generations, len(recorder.done)) as advance:
        for _ in bench.measure(job, recorder):
            advance()


def score(job: Job, sandbox: Sandbox | None, observer: Observer) -> None:
    """Score what is not scored of a job. Raises MissingAsset where a scorer lacks something."""
    if not job.scored(sandbox):
        with observer.progress(f"scoring {job.cell.folder}", job.cell.generations) as advance:
            scorer.score(job.folder, job.task, job.data, sandbox, advance)


def summarised(folder: Path) -> RunSummary:
    """A run folder's summary, written into it."""
    summary = summarise(folder)
    save_summary(folder, summary)
    return summary


def _sandbox(kind: SandboxKind | None, tasks: list[Task]) -> tuple[Sandbox | None, MissingAsset | None]:
    """The sandbox where a task needs one and the user allows it.

    Where none works, a request of that task alone fails at once; among others it is measured, and reported at the end.
    """
    if kind is None or not any(task.executes_code for task in tasks):
        return None, None
    try:
        return Sandbox.find(kind.value), None
    except MissingAsset as error:
        if len(tasks) == 1:
            raise
        return None, error
