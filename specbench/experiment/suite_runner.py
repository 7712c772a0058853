"""Measurement of a suite run by run, with the runs' states in an index that plan, report and reproduce read."""

import time
import traceback
from dataclasses import dataclass, replace
from pathlib import Path

from specbench.config.options import SandboxKind
from specbench.config.overrides import Override, in_scope, override
from specbench.config.presets import names
from specbench.config.suite import Line, Suite
from specbench.errors import ConfigError, ExitCode, MissingAsset
from specbench.experiment import method_resolution, selection
from specbench.experiment import method_table as tables
from specbench.experiment.chain_profile import GAMMA, levels_of, pairings
from specbench.experiment.judging import JudgeRequest, judge_run
from specbench.experiment.pipeline import decode, resolve, score, summarised, unused_options
from specbench.experiment.plan import Plan, PlannedRun
from specbench.experiment.preparation import prepare, with_prepared
from specbench.experiment.request import Request, SuiteRequest
from specbench.models.resolve import Placement, device_of, resolve_models
from specbench.observer import Observer
from specbench.runs.locking import locked
from specbench.runs.suite_index import BEGUN, DONE, FAILED, MISSING, Index, IndexEntry
from specbench.sandbox import Sandbox


@dataclass
class Part:
    """A line of the grid on one pair and task, with its plan, or the reason why it has none."""

    line: Line
    pair: str
    task: str
    number: int
    plan: Plan | None = None
    sandbox: Sandbox | None = None
    missing: str = ""
    invalid: str = ""  # a mistake in the suite

    @property
    def key(self) -> str:
        """The key of a part without runs in the suite's index."""
        return f"{self.pair} {self.task} {'+'.join(self.line.methods)}, part {self.number}"


@dataclass(frozen=True)
class Grid:
    """A suite's parts, and messages about options that no part reads."""

    parts: list[Part]
    unused: dict[str, str]


def resolve_grid(suite: Suite, out: Path, sandbox: SandboxKind | None) -> Grid:
    """Resolve a suite part by part. Parts whose models, data or settings are missing say so in `missing` or `invalid`.

    Raises ConfigError if every part is invalid, and for an option that no preset reads.
    """
    grid: list[Part] = []
    mistakes: list[ConfigError] = []
    unused: dict[str, ConfigError] | None = None
    for number, (line, pair, task) in enumerate(suite.parts(), 1):
        line = replace(line, options=with_prepared(suite, pair, task, line.options, out))
        part = Part(line, pair, task, number)
        try:
            methods = tuple(_methods(suite, line, pair))
            request = Request(methods=methods, pair=pair, tasks=(task,), options=line.options, out=out, sandbox=sandbox)
            found = unused_options(request)
            unused = found if unused is None else {key: error for key, error in unused.items() if key in found}
            resolved = resolve(request, partial=True)
            part.plan, part.sandbox = resolved.plan, resolved.sandbox
            part.missing = str(resolved.unscored) if resolved.unscored else ""
        except MissingAsset as error:
            part.missing = "\n".join(dict.fromkeys([str(error), *_missing(line, pair, task)]))
        except ConfigError as error:
            mistakes.append(error)
            part.invalid = str(error)
        grid.append(part)
    if len(mistakes) == len(grid):
        raise mistakes[0]
    return Grid(grid, {option: _unread(option, error) for option, error in (unused or {}).items()})


def _unread(option: str, error: ConfigError) -> str:
    """Return a message for an option that no part of a suite reads. Raises the error if no bundled preset reads it either."""
    flag, key = option.split(" ", 1)
    if flag == "--set" and not _is_read(override(key, None)):
        raise error
    head, _, _ = key.partition("=")
    if flag == "--head" and ":" in head and head.partition(":")[0] not in names("pair"):
        raise error
    return f"{option} has no effect: no part of this suite reads it"


def _is_read(each: Override) -> bool:
    """Return whether a bundled preset has the key of an override; of pairs, whether there is one of that name."""
    if each.kind == "pair":
        return bool(each.scope)
    known = [name for name in names(each.kind) if in_scope(each.scope, name)]
    return any(".".join(each.path) in _keys_of(each.kind, name) for name in known)


def _keys_of(kind: str, name: str) -> set[str]:
    return set(tables.keys_of(tables.constructor(name)) if kind == "method" else selection.keys_of(name))


def _missing(line: Line, pair: str, task: str) -> list[str]:
    """Return all missing models and data of a part, since resolution stops at the first one."""
    preset, found = selection.read_pair(pair, line.options)
    placement = Placement(device_of(line.options.device), line.options.dtype)
    reasons = []
    try:
        roles = method_resolution.roles_of(line.methods, found, line.options)
    except MissingAsset as error:  # a head that is not trained yet
        roles, reasons = tuple(found.models), [str(error)]
    for role in roles:
        try:
            resolve_models(found.on(task), (role,), preset.path.parent, placement)
        except MissingAsset as error:
            reasons.append(str(error))
    try:
        selection.select_tasks([task], found, line.options)
    except MissingAsset as error:
        reasons.append(str(error))
    return reasons


def _methods(suite: Suite, line: Line, pair: str) -> list[str]:
    """Return the methods of a line; for a profile, those that measure every pair of its chain's levels."""
    if suite.kind != "profile":
        return list(line.methods)
    gamma, *more = line.options.gamma_for(line.methods[0]) or (GAMMA,)
    if more:
        raise ConfigError(f"gamma = {[gamma, *more]}: a profile takes one draft length for all pairs of models")
    return pairings(levels_of(line.methods[0]), selection.read_pair(pair, line.options)[1], gamma)


def run_suite(request: SuiteRequest, observer: Observer | None = None) -> ExitCode:
    """Measure the missing runs of a suite, continuing after failed ones. Returns the exit code."""
    name, changed = request.suite.name, bool(request.changes)
    folder = Index.of(name, request.out, changed).path.parent
    with locked([folder], request.access):
        index = Index.of(name, request.out, changed)  # read under the lock: another process may have written it
        index.changes = list(request.changes)
        return _run_locked(request, index, observer or Observer())


def _run_locked(request: SuiteRequest, index: Index, observer: Observer) -> ExitCode:
    """Run a suite whose folder is locked. Returns the exit code."""
    for reason in prepare(request.suite, request.out, request.access, observer):
        observer.message(reason)
    with observer.status(f"reading the pairs and tasks of {request.suite.name}"):
        grid = resolve_grid(request.suite, request.out, request.sandbox)  # raises errors before the first measurement
    for note in grid.unused.values():
        observer.message(note)
    keep: list[str] = []
    last: Plan | None = None
    for part in grid.parts:
        if part.plan is None:
            state, why = (FAILED, part.invalid) if part.invalid else (MISSING, part.missing)
            keep.append(part.key)
            index.record(IndexEntry(key=part.key, pair=part.pair, task=part.task, state=state, why=why))
            observer.message(f"{part.key}: {why}")
            continue
        if last is not None:
            part.plan.borrow(last)
            last.release()  # one pair's models at a time
        for run in part.plan.runs:
            keep.append(run.folder.name)
            _perform(_Job(request, part, part.plan, run, index), keep, observer)
        last = part.plan
    index.keep(keep)
    states = {index.runs[key].state for key in keep}
    if states == {MISSING}:
        return ExitCode.MISSING
    return ExitCode.OK if states == {DONE} and not index.failures else ExitCode.SOME_FAILED


@dataclass(frozen=True)
class _Job:
    """One run of a suite that is being performed."""

    request: SuiteRequest
    part: Part
    plan: Plan
    run: PlannedRun
    index: Index


def _perform(job: _Job, keep: list[str], observer: Observer) -> None:
    """Measure a run, and record its state and its seconds, also after an exception."""
    key, begin = job.run.folder.name, time.perf_counter()
    entry = replace(_entry(job), state=BEGUN, why="interrupted")
    try:
        entry = _measured(job, observer)
    finally:
        job.index.record(replace(entry, seconds=time.perf_counter() - begin))
        job.index.keep(keep + [each for each in job.index.runs if each not in keep])
    if entry.why:
        observer.message(f"{key}: {entry.state}: {entry.why}")


def _measured(job: _Job, observer: Observer) -> IndexEntry:
    """Measure, score and judge what is missing of a run. Returns its entry, with the reason if it is not complete."""
    run, access, suite, entry = job.run, job.request.access, job.request.suite, _entry(job)
    try:
        with locked([run.folder], access) as locks:
            decode(job.plan, run, locks[run.folder], access.fresh, observer)
            score(run, job.part.sandbox, observer)
            if suite.judge:
                judge_run(run.folder, run.data, JudgeRequest.of_table(suite.judge), job.plan.device, observer)
            summary = summarised(run.folder)
    except MissingAsset as error:
        return replace(entry, state=MISSING, why=str(error))
    except Exception as error:
        run.folder.mkdir(parents=True, exist_ok=True)
        (run.folder / "error.log").write_text(traceback.format_exc(), encoding="utf-8")
        return replace(entry, state=FAILED, why=f"{type(error).__name__}: {error}")
    failed = sum(row.failed for row in summary.methods)
    first = next((row.first_error for row in summary.methods if row.first_error), "")
    return replace(entry, failed=failed, why=f"{failed} generations failed, the first: {first}" if failed else "")


def _entry(job: _Job) -> IndexEntry:
    """Return the index entry of a run that is done without failures."""
    spec, suite = job.run.spec, job.request.suite
    return IndexEntry(
        key=job.run.folder.name,
        state=DONE,
        pair=spec.pair.name,
        task=spec.task.name,
        folder=spec.folder,
        generations=spec.generations,
        simulated=spec.pair.simulated,
        levels=tuple(levels_of(job.part.line.methods[0])) if suite.kind == "profile" else (),
    )
