"""A suite's cells, one by one: measured, and what became of each kept in an index that plan, report and reproduce read."""

import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.config.options import Access, SandboxKind
from specbench.errors import ConfigError, ExitCode, MissingAsset
from specbench.experiment.chain_profile import GAMMA, levels_of, pairings
from specbench.experiment.pipeline import decode, resolve, score, summarised
from specbench.experiment.request import Request
from specbench.observer import Observer

if TYPE_CHECKING:
    from specbench.config.suite import Line, Suite
    from specbench.experiment.plan import Bench, Job
    from specbench.runs.suite_index import Index
    from specbench.sandbox import Sandbox


@dataclass
class Part:
    """A line of the grid on one pair and task: its bench, or why there is none."""

    line: "Line"
    pair: str
    task: str
    number: int
    bench: "Bench | None" = None
    box: "Sandbox | None" = None
    missing: str = ""
    refused: str = ""  # what is wrong with it, where that is the suite's own fault

    @property
    def key(self) -> str:
        """What a part without cells is noted under."""
        return f"{self.pair} {self.task} {'+'.join(self.line.methods)}, part {self.number}"


def parts(suite: "Suite", out: Path, kind: SandboxKind | None) -> list[Part]:
    """The suite's grid, resolved part by part; models, data and settings that are not there are told, not raised.

    Raises ConfigError where no part can be resolved for what is wrong with the suite.
    """
    grid: list[Part] = []
    refused: list[ConfigError] = []
    for number, (line, pair, task) in enumerate(suite.parts(), 1):
        part = Part(line, pair, task, number)
        try:
            names = _methods(suite, line, pair)
            part.bench, part.box, without = resolve(
                Request(methods=tuple(names), pair=pair, tasks=(task,), options=line.options, out=out, sandbox=kind)
            )
            part.missing = str(without) if without else ""
        except MissingAsset as error:
            part.missing = "\n".join(dict.fromkeys([str(error), *_missing(line, pair, task)]))
        except ConfigError as error:
            refused.append(error)
            part.refused = str(error)
        grid.append(part)
    if len(refused) == len(grid):
        raise refused[0]
    return grid


def _missing(line: "Line", pair: str, task: str) -> list[str]:
    """Whatever is missing of a pair's models and a task's data, where one's absence would hide another's."""
    from specbench.experiment import method_resolution as arms
    from specbench.experiment import plan as bench
    from specbench.experiment import run_spec as cells
    from specbench.models.resolve import device_of, find

    preset, found = cells.read_pair(pair, line.options)
    told = []
    for role in arms.roles_of(list(line.methods), found, line.options):
        try:
            find(found, (role,), preset.path.parent, device_of(line.options.device), line.options.dtype)
        except MissingAsset as error:
            told.append(str(error))
    try:
        bench.tasks_of([task], found, line.options)
    except MissingAsset as error:
        told.append(str(error))
    return told


def _methods(suite: "Suite", line: "Line", pair: str) -> list[str]:
    """The methods of a line; of a profile, those that measure every pair of its chain's levels."""
    if suite.kind != "profile":
        return list(line.methods)
    from specbench.experiment.run_spec import read_pair

    gamma, *more = line.options.gamma or (GAMMA,)
    if more:
        raise ConfigError(
            f"gamma = {list(line.options.gamma)}: a profile measures every pair of models at one draft length"
        )
    return pairings(levels_of(line.methods[0]), read_pair(pair, line.options)[1], gamma)


def run_suite(
    suite: "Suite",
    out: Path,
    access: Access,
    kind: SandboxKind | None,
    changes: list[str] | None = None,
    observer: Observer | None = None,
) -> ExitCode:
    """Measure every cell that is not there yet. A cell that fails never stops the rest. Returns the exit code.

    `changes` are the options of the suite that were overruled.
    """
    from specbench.runs.locking import locked
    from specbench.runs.suite_index import Index

    index = Index.of(suite.name, out, changed=bool(changes))
    with locked([index.path.parent], access):
        index = Index.of(suite.name, out, changed=bool(changes))  # again: another process may have written it meanwhile
        index.changes = changes or []
        return _run_locked(suite, out, access, kind, index, observer or Observer())


def _run_locked(
    suite: "Suite", out: Path, access: Access, kind: SandboxKind | None, index: "Index", observer: Observer
) -> ExitCode:
    """Run a suite whose folder is locked. Returns the exit code."""
    from specbench.runs.suite_index import DONE, FAILED, MISSING

    with observer.status(f"reading {suite.name}'s pairs and tasks"):
        grid = parts(suite, out, kind)  # whatever is wrong with the suite shows before anything is measured
    keep: list[str] = []
    last: Bench | None = None
    for part in grid:
        if part.bench is None:
            state, why = (FAILED, part.refused) if part.refused else (MISSING, part.missing)
            keep.append(part.key)
            index.note(part.key, pair=part.pair, task=part.task, state=state, why=why)
            observer.message(f"{part.key}: {why}")
            continue
        if last is not None:
            part.bench.borrow(last)
            last.release()  # one pair's models at a time
        for job in part.bench.jobs:
            keep.append(job.folder.name)
            _perform(suite, part, job, access, index, keep, observer)
        last = part.bench
    index.keep(keep)
    states = [index.cells[key]["state"] for key in keep]
    if set(states) == {MISSING}:
        return ExitCode.MISSING
    return ExitCode.OK if set(states) == {DONE} and not index.failures else ExitCode.SOME_FAILED


def _perform(
    suite: "Suite", part: Part, job: "Job", access: Access, index: "Index", keep: list[str], observer: Observer
) -> None:
    """Measure a cell, and note what became of it, and the seconds that it took however it ended."""
    from specbench.runs.suite_index import BEGUN

    begin, told = time.perf_counter(), {"state": BEGUN, "why": "interrupted"}
    try:
        told = _state(suite, part, job, access, observer)
    finally:
        index.note(job.folder.name, seconds=time.perf_counter() - begin, **_told(suite, part, job), **told)
        index.keep(keep + [each for each in index.cells if each not in keep])
    if told["why"]:
        observer.message(f"{job.folder.name}: {told['state']}: {told['why']}")


def _state(suite: "Suite", part: Part, job: "Job", access: Access, observer: Observer) -> dict[str, Any]:
    """Measure, score and judge a cell, as far as it is not; what became of it, and why it is not done or not whole."""
    from specbench.experiment.judge import judge_run
    from specbench.runs.locking import locked
    from specbench.runs.suite_index import DONE, FAILED, MISSING

    assert part.bench is not None
    try:
        with locked([job.folder], access) as locks:
            decode(part.bench, job, locks[job.folder], access.fresh, observer)
            score(job, part.box, observer)
            if suite.judge:
                judge_run(job.folder, job.data, suite.judge, part.bench.device)
            summary = summarised(job.folder)
    except MissingAsset as error:
        return {"state": MISSING, "why": str(error)}
    except Exception as error:
        job.folder.mkdir(parents=True, exist_ok=True)
        (job.folder / "error.log").write_text(traceback.format_exc(), encoding="utf-8")
        return {"state": FAILED, "why": f"{type(error).__name__}: {error}"}
    failed = sum(row.failed for row in summary.methods)
    first = next((row.first_error for row in summary.methods if row.first_error), "")
    return {
        "state": DONE,
        "failed": failed,
        "why": f"{failed} generations failed, the first: {first}" if failed else "",
    }


def _told(suite: "Suite", part: Part, job: "Job") -> dict[str, Any]:
    """What the index says of a cell besides its state."""

    cell = job.cell
    told = {"pair": cell.pair, "task": cell.task, "made_up": cell.config["pair"].get("made_up", "")}
    told |= {"folder": cell.folder, "generations": cell.generations}
    return told | ({"levels": levels_of(part.line.methods[0])} if suite.kind == "profile" else {})
