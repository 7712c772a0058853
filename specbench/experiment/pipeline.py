"""From a request to scored and summarized runs: resolve, lock, decode, score, summarize."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specbench.analysis.run_summary import RunSummary
from specbench.analysis.summary import save_summary, summarize
from specbench.config.request import Access, Request
from specbench.errors import MissingAsset
from specbench.experiment import runner, scorer
from specbench.experiment.loaded_models import LoadedModels
from specbench.experiment.timed_forwards import has_timed_blocks, time_blocks
from specbench.kernels import Missing, find_kernels, newly_compiled
from specbench.machine.threads import ThreadChoice, Threads, measured_once, using
from specbench.models.loaded_pair import LoadedPair
from specbench.observer import Observer
from specbench.resolution.resolve import resolve
from specbench.resolution.run_plan import PairPlan, PlannedRun
from specbench.resolution.run_store import progress_of
from specbench.resolution.spec import unused_rates
from specbench.runs.locking import FolderLock, locked
from specbench.sandbox import Sandbox

LONG_PACKING = 1.0  # seconds at which the time of packing is shown


@dataclass(frozen=True)
class Results:
    """The summaries of a request's runs, and what was missing to score some of them; None if all are scored."""

    summaries: list[RunSummary]
    unscored: MissingAsset | None

    @property
    def some_failed(self) -> bool:
        """Whether a generation failed."""
        return any(row.failed for summary in self.summaries for row in summary.methods)


@dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """How runs are measured.

    `threads` chooses the number of threads of runs on a CPU. Without a sandbox, generated code is not executed. With
    `profile`, blocks of tokens are timed too, for about `profile_seconds` per run. `then` is called with each run between its
    scoring and its summary.
    """

    access: Access
    threads: ThreadChoice = field(default_factory=ThreadChoice)
    sandbox: Sandbox | None = None
    profile: bool = False
    profile_seconds: float = math.inf
    then: Callable[[PlannedRun], object] | None = None


def run(request: Request, observer: Observer | None = None, profile: bool = False) -> Results:
    """Measure and score the missing parts of a request's runs, and summarize all runs.

    With `profile`, forwards of blocks of tokens are timed too.
    """
    observer = observer or Observer()
    resolved = resolve(request)
    specs = [run.spec for run in resolved.runs]
    for note in dict.fromkeys(unused_rates(plan.pair.pair, plan.specs) for plan in resolved.plans):
        if note:
            observer.message(note)
    if len(specs) > 1:
        methods = len({(spec.baseline, label) for spec in specs for label in spec.methods})
        count = sum(spec.generations for spec in specs)
        observer.message(
            f"{len(specs)} runs with {methods} methods, {count} generations; -m, -t, -n and --repeats make it fewer"
        )
    threads = ThreadChoice(request.options.threads, measured_once(with_load=not request.options.shard))
    steps = MeasureOptions(access=request.access, threads=threads, sandbox=resolved.sandbox, profile=profile)
    models = LoadedModels()
    results = [measure(plan, plan.runs, models, steps, observer) for plan in resolved.plans]
    unscored = [result.unscored for result in results if result.unscored]
    return Results(
        [summary for result in results for summary in result.summaries], unscored[-1] if unscored else resolved.unscored
    )


def measure(
    plan: PairPlan, runs: Sequence[PlannedRun], models: LoadedModels, steps: MeasureOptions, observer: Observer
) -> Results:
    """Lock runs of a plan, decode and score what is missing of each, and summarize them.

    Models are loaded only if a run lacks generations or timed blocks. The prompts of all runs are checked before any is
    decoded, so that a prompt that is too long for the second run fails at once, and not after hours in the first run.
    """
    summaries, unscored, fresh = list[RunSummary](), None, steps.access.fresh
    with locked((run.folder for run in runs), steps.access) as locks:
        lacking = [run.folder for run in runs if fresh or not progress_of(run).is_complete]
        chosen = {run.folder: threads_of(plan, run, steps, run.folder in lacking) for run in runs}
        with using(next((threads.count for threads in chosen.values() if threads.count), 0)):
            if lacking:
                load(plan, models, observer)
            for run in runs:
                if run.folder in lacking:
                    runner.check_prompts(run, models.of(plan))
        for run in runs:
            with using(chosen[run.folder].count):
                if run.folder in lacking:
                    how = _Recording(locks[run.folder], steps.access, chosen[run.folder].reason)
                    decode(models.of(plan), run, how, observer)
                if steps.profile and not has_timed_blocks(run):
                    time_blocks(models.of(plan), run, steps.profile_seconds)
            try:
                score(run, steps.sandbox, observer)
                if steps.then:
                    steps.then(run)
            except MissingAsset as error:  # other runs are still measured
                unscored = error
            summaries.append(summarize_run(run.folder))
    return Results(summaries, unscored)


def threads_of(plan: PairPlan, run: PlannedRun, steps: MeasureOptions, is_lacking: bool) -> Threads:
    """Return the threads that a run is decoded with: the user's number, the recorded number, or a chosen one.

    A resumed run keeps the recorded number, since its times would otherwise not be comparable. With `restart`, it does not if
    other conditions have changed: its records are then set aside, and their number may be another machine's. The number of
    threads of this process is unchanged (0) on a GPU, and if nothing is decoded or timed.

    Args:
        is_lacking: Whether generations of the run are missing.
    """
    if plan.device.type != "cpu" or not (is_lacking or steps.profile):
        return Threads(0)
    recorded = None if steps.access.fresh else runner.recorded_threads(run.folder)
    if recorded and steps.access.restart:
        with using(recorded.count):
            recorded = None if runner.other_conditions(run.folder) else recorded  # another machine's number
    largest = max(plan.models[role].size.forward_bytes for role in run.spec.roles)
    return steps.threads.threads(largest, recorded)


@dataclass(frozen=True)
class _Recording:
    """The lock of a run folder, how the folder is accessed, and why the run's number of threads was chosen."""

    lock: FolderLock
    access: Access
    threads_reason: str


def load(plan: PairPlan, models: LoadedModels, observer: Observer) -> None:
    """Load a plan's models, unless they are loaded, and report missing kernels, compilation and slow packing of weights."""
    if models.has(plan):
        return
    with observer.status(f"loading {', '.join(plan.roles)}"):
        found = find_kernels() if plan.device.type == "cpu" else None
        packing = models.of(plan).packing_seconds
    if isinstance(found, Missing):
        observer.message(f"no CPU kernels: {found.reason}" + (f"; help: {found.help}" if found.help else ""))
    elif found and (seconds := newly_compiled()):
        observer.message(f"compiled the CPU kernels in {seconds:.1f} s; the next run finds them in the cache")
    if packing >= LONG_PACKING:
        observer.message(f"packed the weights in {packing:.1f} s")


def decode(loaded: LoadedPair, run: PlannedRun, recording: _Recording, observer: Observer) -> None:
    """Measure the missing generations of a run whose folder is locked."""
    checks = loaded.forward_checks
    translations = {role: mapping.words for role, mapping in loaded.translations.items()}
    recorder = runner.open_recorder(
        run, recording.lock, recording.access, checks, recording.threads_reason, translations
    )
    for role, words in translations.items() if not recorder.done else ():
        observer.message(f"the model {role} has another tokenizer than the target: {words}")
    with observer.progress(run.spec.folder, run.spec.generations, len(recorder.done)) as advance:
        for _ in runner.decode_missing(run, loaded, recorder):
            advance()


def score(run: PlannedRun, sandbox: Sandbox | None, observer: Observer) -> None:
    """Score a run unless it is scored. Raises MissingAsset if a scorer needs something that is missing."""
    if not scorer.is_scored(run.folder, run.task, sandbox):
        with observer.progress(f"scoring {run.spec.folder}", run.spec.generations) as advance:
            scorer.score(run.folder, run.task, run.data, sandbox, advance)


def summarize_run(folder: Path) -> RunSummary:
    """Summarize a run folder, and keep the summary in it."""
    summary = summarize(folder)
    save_summary(folder, summary)
    return summary
