"""What `run`, and every command that measures, does behind its options: cells measured, scored, summarised and told."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.cli.asked import require_known
from specbench.cli.choices import SandboxKind
from specbench.cli.progress import Interrupts, progress, status
from specbench.errors import MissingAsset
from specbench.options import Access

if TYPE_CHECKING:
    from specbench.bench import Asked, Bench, Job
    from specbench.locking import FolderLock
    from specbench.options import Options
    from specbench.sandbox import Sandbox
    from specbench.task import Task

SOME_FAILED = 3


def measure(
    names: list[str],
    pair_name: str,
    task_names: list[str],
    options: "Options",
    out: Path,
    access: Access,
    kind: SandboxKind | None,
) -> int:
    """Everything that `run` does behind its options: measured, scored and told. Returns the exit code."""
    from specbench.cli.report import overview, place, show, terminal

    summaries, refused = measured(names, pair_name, task_names, options, out, access, kind)
    console = terminal()
    if len(summaries) > 1:
        overview(summaries, console)
        console.print("more of each: specbench report FOLDER", style="dim", highlight=False)
    else:
        show(summaries, console)
    for summary in summaries:
        place(out / summary["run"], console)
    if refused:
        raise refused
    return SOME_FAILED if any(row["failed"] for summary in summaries for row in summary["methods"]) else 0


def measured(
    names: list[str],
    pair_name: str,
    task_names: list[str],
    options: "Options",
    out: Path,
    access: Access,
    kind: SandboxKind | None,
) -> tuple[list[dict[str, Any]], MissingAsset | None]:
    """The cells measured and scored, as far as they were not: their summaries, and what could not be scored for want of
    something."""
    from specbench.locking import locked

    bench, box, refused = prepared(names, pair_name, task_names, options, out, kind)
    if not task_names and len({job.cell.task for job in bench.jobs}) > 1:
        wanted = sum(job.cell.generations for job in bench.jobs)
        print(f"{len(bench.jobs)} cells, {wanted} generations; -t, -n and --repeats make it fewer", file=sys.stderr)
    summaries = []
    with locked((job.folder for job in bench.jobs), access) as locks:
        for job in bench.jobs:
            decode(bench, job, locks[job.folder], access.fresh)
            try:
                score(job, box)
            except MissingAsset as error:  # the other tasks are still to be measured
                refused = error
            summaries.append(summarised(job.folder))
    return summaries, refused


def prepared(
    names: list[str], pair_name: str, task_names: list[str], options: "Options", out: Path, kind: SandboxKind | None
) -> tuple["Bench", "Sandbox | None", MissingAsset | None]:
    """Everything before the first model is loaded: the jobs, what generated code is run in, and why there is nothing."""
    require_known(names, pair_name, task_names)
    import specbench.tasks  # noqa: F401  (registers the tasks)
    from specbench import arms, bench, cells

    found, pair = cells.read_pair(pair_name, options)
    arms.roles_of(names, pair, options)  # a mistake in what was asked for shows before anything is missing

    def ask() -> "Asked":
        return bench.tasks_of(task_names, pair, options)

    settled = bench.settle(names, found.name, ask, pair, found.path.parent, options, out)
    box, refused = _sandbox(kind, list({job.cell.task: job.task for job in settled.jobs}.values()))
    return settled, box, refused


def decode(bench: "Bench", job: "Job", lock: "FolderLock", fresh: bool = False) -> None:
    """Measure what is missing of a job, whose folder is locked."""
    from specbench import runner

    interrupts, cell = Interrupts(), job.cell
    if fresh or not job.complete:
        if not bench.is_loaded:
            with status(f"loading {', '.join(bench.roles)}"):
                bench.load()
        recorder = runner.prepare(cell, job.data, lock, fresh)
        with progress(cell.folder, cell.generations, len(recorder.done)) as advance:
            for _ in bench.measure(job, recorder):
                advance()
                interrupts.check()


def score(job: "Job", box: "Sandbox | None") -> None:
    """Score a job, as far as it is not. Raises MissingAsset where it cannot be for want of something."""
    from specbench import scorer

    if not job.scored(box):
        with progress(f"scoring {job.cell.folder}", job.cell.generations) as advance:
            scorer.score(job.folder, job.task, job.data, box, advance)


def summarised(folder: Path) -> dict[str, Any]:
    """A run folder's summary, written into it."""
    from specbench.report.summary import save_summary, summarise

    summary = summarise(folder)
    save_summary(folder, summary)
    return summary


def _sandbox(kind: SandboxKind | None, tasks: list["Task"]) -> tuple["Sandbox | None", MissingAsset | None]:
    """What generated code is run in, where a task needs it and the user allows it.

    Where none works, a run of that task alone is refused at once; among others it is measured, and refused at the end.
    """
    from specbench.sandbox import Sandbox

    if kind is None or not any(task.executes_code for task in tasks):
        return None, None
    try:
        return Sandbox.find(kind.value), None
    except MissingAsset as error:
        if len(tasks) == 1:
            raise
        return None, error
