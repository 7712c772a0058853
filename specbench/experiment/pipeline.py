"""From a request to scored and summarized runs."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import specbench.tasks  # noqa: F401  (registers the tasks)
from specbench.analysis.run_summary import RunSummary
from specbench.analysis.summary import save_summary, summarise
from specbench.config.options import Access, SandboxKind
from specbench.config.pair import Pair
from specbench.config.presets import require_known
from specbench.data.task import Task
from specbench.errors import ConfigError, MissingAsset
from specbench.experiment import method_options, method_resolution, runner, scorer, selection
from specbench.experiment.method_choice import chosen
from specbench.experiment.plan import Plan, PlannedRun, make_plan
from specbench.experiment.request import Request
from specbench.experiment.run_resolution import unused_rates
from specbench.experiment.selection import TaskChoice
from specbench.experiment.tensor_parallel import TensorParallel
from specbench.models.placed import tensor_placement
from specbench.observer import Observer
from specbench.runs.locking import FolderLock, locked
from specbench.sandbox import Sandbox

LONG_PACKING = 1.0  # seconds from which on the time of packing is shown


@dataclass(frozen=True)
class Resolved:
    """A request's plan, the sandbox for generated code, and why there is none although a task needs it."""

    plan: Plan
    sandbox: Sandbox | None
    unscored: MissingAsset | None


@dataclass(frozen=True)
class Results:
    """The summaries of a request's runs, and what kept some of them from being scored."""

    summaries: list[RunSummary]
    unscored: MissingAsset | None

    @property
    def some_failed(self) -> bool:
        """Whether a generation failed."""
        return any(row.failed for summary in self.summaries for row in summary.methods)


def with_methods(request: Request) -> Request:
    """Return a request that names its methods: the pair's default, and methods in place of `all` and `lossless`."""
    return replace(request, methods=chosen(request.methods, request.pair, request.options))


def unused_options(request: Request) -> dict[str, ConfigError]:
    """Return the options that no method, pair or task of a request reads, by their text on the command line."""
    _, pair = selection.read_pair(request.pair, request.options)
    return _unused(request, pair, TaskChoice(request.tasks, pair, request.options))


def _unused(request: Request, pair: Pair, tasks: TaskChoice) -> dict[str, ConfigError]:
    """Return what `unused_options` returns, of tasks that may have been read."""
    return {
        **selection.unused_options(request.pair, tasks.names, request.options),
        **method_options.unused_options(request.methods, pair, request.pair, request.options),
    }


def resolve(request: Request, partial: bool = False) -> Resolved:
    """Resolve a request without loading a model.

    `partial` means that the options are shared with other requests, so an unused option is not an error. Raises ConfigError
    for a mistake in the request, including an unused option. Raises MissingAsset if a model, data, or the sandbox of the only
    task is missing.
    """
    request = with_methods(request)
    require_known(request.methods, request.pair, request.tasks)
    options = request.options
    preset, pair = selection.read_pair(request.pair, options)
    method_resolution.roles_of(request.methods, pair, options)  # raises mistakes before missing assets
    tasks = TaskChoice(request.tasks, pair, options)
    if not partial:
        for error in _unused(request, pair, tasks).values():
            raise error
    if pair.differs_by_task:
        pair = _on_one_task(request.pair, pair, tasks)
    plan = make_plan(
        request.methods,
        (preset.name, preset.path.parent, pair),
        list(tasks.by_name.values()),  # before the models, since large ones take long to check
        options,
        request.out,
    )
    planned = list({run.spec.task.name: run.task for run in plan.runs}.values())
    return Resolved(plan, *_sandbox(request.sandbox, planned))


def _on_one_task(name: str, pair: Pair, tasks: TaskChoice) -> Pair:
    """Return the pair with the checkpoints of a request's only task. Raises ConfigError if it has several."""
    first, *others = tasks.names
    if others:
        raise ConfigError(f"{name} has a checkpoint for each task; help: one task, such as -t {first}")
    return pair.on(first)


def run(request: Request, observer: Observer | None = None, then: Callable[[Plan], None] | None = None) -> Results:
    """Measure and score the missing parts of a request's runs, and summarize all runs.

    `then` is called with a plan whose runs were measured, while its models are loaded.
    """
    observer, request = observer or Observer(), with_methods(request)
    _, pair = selection.read_pair(request.pair, request.options)
    if pair.differs_by_task and len(tasks := TaskChoice(request.tasks, pair, request.options).names) > 1:
        return _merged(run(replace(request, tasks=(task,)), observer, then) for task in tasks)
    resolved = resolve(request)
    plan, unscored = resolved.plan, resolved.unscored
    if note := unused_rates(pair, plan.specs):
        observer.message(note)
    if len(plan.runs) > 1:
        methods = len({(spec.baseline, label) for spec in plan.specs for label in spec.methods})
        count = sum(spec.generations for spec in plan.specs)
        observer.message(
            f"{len(plan.runs)} runs with {methods} methods, {count} generations; -m, -t, -n and --repeats make it fewer"
        )
    summaries: list[RunSummary] = []
    with locked((each.folder for each in plan.runs), request.access) as locks, closing_ranks(plan):
        load(plan, plan.runs, request.access, observer)
        for each in plan.runs:
            decode(plan, each, locks[each.folder], request.access, observer)
            try:
                score(each, resolved.sandbox, observer)
            except MissingAsset as error:  # other tasks are still measured
                unscored = error
            summaries.append(summarised(each.folder))
        if then:
            then(plan)
    return Results(summaries, unscored)


@contextmanager
def closing_ranks(plan: Plan) -> Iterator[None]:
    """End the other processes of a plan afterwards, if tensors of its models are split."""
    try:
        yield
    finally:
        if plan.ranks:
            plan.release()


def _merged(results: Iterable[Results]) -> Results:
    """Return the results of several requests as one."""
    found = list(results)
    return Results(
        [summary for each in found for summary in each.summaries], next((e.unscored for e in found if e.unscored), None)
    )


def load(plan: Plan, runs: Sequence[PlannedRun], access: Access, observer: Observer) -> None:
    """Load a plan's models if one of these runs lacks generations, and check the prompts of those that do.

    Raises ConfigError for prompts that cannot be encoded or are too long.
    """
    lacking = [run for run in runs if access.fresh or not run.complete]
    if lacking and not plan.is_loaded:
        with observer.status(f"loading {', '.join(plan.roles)}"):
            if tensor_placement(plan.models):
                plan.join(TensorParallel(plan))
            packing = plan.load().packing_seconds
        if packing >= LONG_PACKING:
            observer.message(f"packed the weights in {packing:.1f} s")
    for run in lacking:
        runner.check_prompts(run, plan.load())


def decode(plan: Plan, run: PlannedRun, lock: FolderLock, access: Access, observer: Observer) -> None:
    """Measure the missing generations of a run whose folder is locked, with loaded models."""
    if run.complete and not access.fresh:
        return
    recorder = runner.prepare(run, lock, access)
    check = plan.ranks.follow(run, recorder.done) if plan.ranks else None
    try:
        with observer.progress(run.spec.folder, run.spec.generations, len(recorder.done)) as advance:
            for _ in runner.measure(run, plan.load(), recorder, check):
                advance()
    except BaseException:
        if plan.ranks:  # they wait for this process
            plan.release()
        raise


def score(run: PlannedRun, sandbox: Sandbox | None, observer: Observer) -> None:
    """Score a run unless it is scored. Raises MissingAsset if a scorer needs something that is missing."""
    if not run.scored(sandbox):
        with observer.progress(f"scoring {run.spec.folder}", run.spec.generations) as advance:
            scorer.score(run.folder, run.task, run.data, sandbox, advance)


def summarised(folder: Path) -> RunSummary:
    """Summarize a run folder, and keep the summary in it."""
    summary = summarise(folder)
    save_summary(folder, summary)
    return summary


def _sandbox(kind: SandboxKind | None, tasks: list[Task]) -> tuple[Sandbox | None, MissingAsset | None]:
    """Return the sandbox if a task needs one and the user allows it.

    If none works, a request of that task alone fails at once; among other tasks it is measured, and reported at the end.
    """
    if kind is None or not any(task.executes_code for task in tasks):
        return None, None
    try:
        return Sandbox.find(kind.value), None
    except MissingAsset as error:
        if len(tasks) == 1:
            raise
        return None, error
