"""Measurement of a suite run by run, with the runs' states in an index that plan, report and reproduce read.

Heads and models that the suite needs are trained first.
"""

import time
import traceback
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from specbench.analysis.run_summary import RunSummary
from specbench.analysis.summary import summary_of
from specbench.config.pair import default_base, drafts
from specbench.config.presets import architecture_of
from specbench.config.request import Access
from specbench.errors import ConfigError, ExitCode, MissingAsset
from specbench.experiment.loaded_models import LoadedModels
from specbench.experiment.pipeline import MeasureOptions, measure
from specbench.features.judge.judging import JudgeRequest, judge_run
from specbench.features.profile.pairings import levels_and_trees
from specbench.features.suites import prepared_models
from specbench.features.suites.grid import Grid, GridPart, resolve_grid
from specbench.features.suites.preparation import PreparedHead
from specbench.features.suites.prepared_heads import (
    TrainingStep,
    has_rows,
    is_trained,
    pending,
    steps_of,
    write_identity,
)
from specbench.features.suites.suite import NO_RESULT, Suite, SuiteRequest
from specbench.features.suites.suite_index import Change, Index, IndexEntry
from specbench.features.train.train_head import TrainRequest, train_head
from specbench.features.train.whole_models import FinetuneRequest, finetune_model
from specbench.machine.threads import Cores, ThreadChoice, measured_once
from specbench.note import Note, warning
from specbench.observer import Observer
from specbench.resolution import selection
from specbench.resolution.run_plan import PairPlan, PlannedRun
from specbench.resolution.run_store import progress_of
from specbench.runs.locking import locked
from specbench.runs.run_state import RunState
from specbench.training.shards import free_disk_bytes, gb, token_bytes


def run_suite(request: SuiteRequest, observer: Observer | None = None) -> ExitCode:
    """Measure the missing runs of a suite, continuing after failed ones. Returns the exit code."""
    name, changed = request.suite.name, request.is_changed
    folder = Index.of(name, request.out, changed).path.parent
    with locked([folder], request.access):
        index = Index.of(name, request.out, changed)  # read under the lock: another process may have written it
        index.changes = changes_of(request)
        return _run_locked(request, index, observer or Observer())


def _run_locked(request: SuiteRequest, index: Index, observer: Observer) -> ExitCode:
    """Run a suite whose folder is locked. Returns the exit code."""
    for reason in train_missing(request.suite, request.out, request.access, observer):
        observer.message(reason)
    with observer.status(f"reading the pairs and tasks of {request.suite.name}"):
        grid = resolve_grid(request.suite, request.out, request.sandbox)  # raises errors before the first measurement
    for note in grid.unused.values():
        observer.message(note)
    cores = measured_once(with_load=not any(part.line.options.shard for part in grid.parts))
    keep, models = list[str](), LoadedModels()
    for part in grid.parts:
        if part.plan is None:
            keep.append(part.key)
            index.record(unresolved := _unresolved(part))
            observer.message(f"{part.key}: {unresolved.why}")
            continue
        for run in part.plan.runs:
            keep.append(run.folder.name)
            _measure_and_record(_SuiteRun(request, part, part.plan, run, index, models, cores), keep, observer)
    index.definition = request.suite.definition  # the entries of an interrupted suite may be of an earlier one
    index.keep(keep)
    return _code(index)


def changes_of(request: SuiteRequest) -> list[Change]:
    """Return the options that the user replaced, in words."""
    return [Change(key, str(value)) for key, value in request.replaced.items() if key not in NO_RESULT]


def _code(index: Index) -> ExitCode:
    states = {run.state for run in index.runs.values()}
    if states == {RunState.missing}:
        return ExitCode.MISSING
    return ExitCode.OK if states == {RunState.done} and not index.failures else ExitCode.SOME_FAILED


def _unresolved(part: GridPart) -> IndexEntry:
    state, why = (RunState.invalid, part.invalid) if part.invalid else (RunState.missing, part.missing)
    return IndexEntry(key=part.key, pair=part.pair, task=part.task, state=state, why=why)


def run_one(request: SuiteRequest, part: int, key: str, observer: Observer | None = None) -> ExitCode:
    """Measure, score and judge one run of a suite: of the part of its grid with this number, by the name of its folder.

    The suite's index is not written, since jobs of other runs may be running at the same time; `write_index` writes it once
    they have ended. Raises ConfigError if the suite has no such run, and MissingAsset for missing models or data.
    """
    lines = [
        replace(line, pairs=(pair,), tasks=(task,))
        for number, (line, pair, task) in enumerate(request.suite.parts(), 1)
        if number == part
    ]
    suite = replace(request.suite, grid=tuple(lines))
    for resolved in resolve_grid(suite, request.out, request.sandbox).parts if lines else []:
        for run in resolved.plan.runs if resolved.plan else []:
            if run.folder.name == key and resolved.plan:
                suite_run = _SuiteRun(
                    request, resolved, resolved.plan, run, Index.of(request.suite.name, request.out), LoadedModels()
                )
                summary = _complete_run(suite_run, observer or Observer())
                return ExitCode.SOME_FAILED if any(row.failed for row in summary.methods) else ExitCode.OK
        if resolved.missing:
            raise MissingAsset(resolved.missing)
    raise ConfigError(f"suite {request.suite.name} has no run {key}; help: specbench plan --suite {request.suite.name}")


def write_index(
    request: SuiteRequest, grid: Grid, seconds: Mapping[str, float], reasons: Mapping[str, str]
) -> ExitCode:
    """Write the index of a suite that jobs have measured, from the run folders. Returns the exit code.

    `seconds` is the duration of each run's jobs, and `reasons` says why they failed, both by the name of the run folder.
    """
    index = Index.of(request.suite.name, request.out, request.is_changed)
    index.changes, index.runs = changes_of(request), {}
    index.definition = request.suite.definition
    for part in grid.parts:
        if part.plan is None:
            index.record(_unresolved(part))
            continue
        for run in part.plan.runs:
            entry = _entry(request.suite, part, run)
            entry = replace(entry, seconds=seconds.get(entry.key, 0.0))
            if progress_of(run).is_complete:
                rows = summary_of(run.folder).methods
                index.record(replace(entry, failed=sum(row.failed for row in rows)))
            else:
                index.record(replace(entry, state=RunState.failed, why=reasons.get(entry.key) or "not complete"))
    index.keep(list(index.runs))
    return _code(index)


@dataclass(frozen=True)
class _SuiteRun:
    """One run of a suite, with its part of the grid, its plan, and what is shared with the other runs of the suite."""

    request: SuiteRequest
    part: GridPart
    plan: PairPlan
    run: PlannedRun
    index: Index
    models: LoadedModels
    cores: Callable[[], Cores] = field(default_factory=lambda: measured_once(with_load=False))


def _measure_and_record(suite_run: _SuiteRun, keep: list[str], observer: Observer) -> None:
    """Measure a run, and record its state and its seconds, also after an exception.

    The index is written after every run. A run that Ctrl-C ends has the state `begun`. Until the suite ends, the index keeps
    the runs of `keep`, which this call has reached, and behind them the entries of later runs from an earlier call.
    """
    key, begin = suite_run.run.folder.name, time.perf_counter()
    resumed = suite_run.run.folder.is_dir() and not suite_run.request.access.fresh
    entry = replace(
        _entry(suite_run.request.suite, suite_run.part, suite_run.run), state=RunState.begun, why="interrupted"
    )
    try:
        entry = _measure(suite_run, observer)
    finally:
        suite_run.index.record(replace(entry, seconds=time.perf_counter() - begin), resumed)
        suite_run.index.keep(keep + [key for key in suite_run.index.runs if key not in keep])
    if entry.why:
        observer.message(f"{key}: {entry.state}: {entry.why}")


def _measure(suite_run: _SuiteRun, observer: Observer) -> IndexEntry:
    """Measure, score and judge what is missing of a run. Returns its entry, with the reason if the run is not complete.

    An exception does not end the suite. Its traceback is written to error.log in the run's folder, unless it is MissingAsset.
    """
    run, entry = suite_run.run, _entry(suite_run.request.suite, suite_run.part, suite_run.run)
    try:
        summary = _complete_run(suite_run, observer)
    except MissingAsset as error:
        return replace(entry, state=RunState.missing, why=str(error))
    except Exception as error:
        run.folder.mkdir(parents=True, exist_ok=True)
        (run.folder / "error.log").write_text(traceback.format_exc(), encoding="utf-8")
        return replace(entry, state=RunState.failed, why=f"{type(error).__name__}: {error}")
    failed = sum(row.failed for row in summary.methods)
    first = next((row.first_error for row in summary.methods if row.first_error), "")
    return replace(entry, failed=failed, why=f"{failed} generations failed, the first: {first}" if failed else "")


def _complete_run(suite_run: _SuiteRun, observer: Observer) -> RunSummary:
    """Measure, score and judge what is missing of a run, and summarize it."""
    suite = suite_run.request.suite
    threads = ThreadChoice(suite_run.part.line.options.threads, suite_run.cores)
    steps = MeasureOptions(
        access=suite_run.request.access, threads=threads, sandbox=suite_run.part.sandbox, profile=suite.kind == "profile",
        then=partial(_judge, JudgeRequest.of_table(suite.judge), suite_run.plan.device, observer) if suite.judge else None,
    )  # fmt: skip
    results = measure(suite_run.plan, [suite_run.run], suite_run.models, steps, observer)
    if results.unscored:
        raise results.unscored
    return results.summaries[0]


def _judge(request: JudgeRequest, device: torch.device, observer: Observer, run: PlannedRun) -> None:
    judge_run(run.folder, run.data, request, device, observer)


def _entry(suite: Suite, part: GridPart, run: PlannedRun) -> IndexEntry:
    """Return the index entry of a run that is done without failures."""
    spec = run.spec
    return IndexEntry(
        key=run.folder.name,
        state=RunState.done,
        pair=spec.pair.name,
        task=spec.task.name,
        folder=spec.folder,
        generations=spec.generations,
        simulated=spec.pair.simulated,
        levels=tuple(levels_and_trees(part.line.methods)[0]) if suite.kind == "profile" else (),
    )


def training_notes(suite: Suite, out: Path) -> list[Note]:
    """Return a line for each head and model that `train_missing` would train or skip.

    The lines of EAGLE heads state the disk space of their features. If there are any, the last line compares the disk space
    of all features with the free space.
    """
    notes = [
        Note("not fine-tuned", f"{step.model.words} is not fine-tuned; run --suite fine-tunes it first")
        for step in prepared_models.pending(suite, out)
    ]
    features = _features_of(pending(suite, out))
    for step in steps_of(suite):
        head = step.head
        if not has_rows(head, step.options):
            notes.append(_skip_note(head))
        elif not is_trained(step, out):
            text = f"{head.words} is not trained; run --suite trains it first"
            if feature_set := features.get(step.rows_key):
                text += (
                    f"; its features take at most {gb(feature_set.bytes)} in {head.collected(out)},"
                    f" {feature_set.texts:,} texts"
                )
            notes.append(Note("not trained", text))
    return [*notes, *([_disk_note(features, out)] if features else [])]


def _skip_note(head: PreparedHead) -> Note:
    return Note("no rows", f"{head.words} is not trained without --data {head.task}=FILE; the pair's own head is used")


class _Features(NamedTuple):
    """The features that the EAGLE heads of one collection are trained on: the number of texts, and the most bytes on disk."""

    texts: int
    bytes: int


def _features_of(steps: Sequence[TrainingStep]) -> dict[Hashable, _Features]:
    """Return the features of EAGLE heads by collection. A collection with unknown texts or width of the base is left out."""
    features: dict[Hashable, _Features] = {}
    for step in steps:
        preparation = step.head.preparation
        if not drafts(preparation.kind) or step.rows_key in features:
            continue
        preset, pair = selection.read_pair(step.head.pair, replace(step.options, heads=()))
        try:
            base = pair.on(step.head.task).models[preparation.base or default_base(preparation.kind)]
            width, texts = architecture_of(base, preset.path.parent).get("hidden_size"), step.texts()
        except (ConfigError, MissingAsset):
            continue
        if isinstance(width, int) and isinstance(most := step.recipe["most"], int):
            features[step.rows_key] = _Features(texts, texts * most * token_bytes(width))
    return features


def _disk_note(features: Mapping[Hashable, _Features], out: Path) -> Note:
    """Return a note that compares the bytes of all features with the free space; a warning if they may not fit."""
    size, free = sum(feature.bytes for feature in features.values()), free_disk_bytes(out)
    text = f"features of EAGLE heads take at most {gb(size)} together; {gb(free)} are free"
    help_ = "a smaller limit or recipe.most in [[prepare]], or --out on another disk"
    return Note("disk space", text) if size <= free else warning("disk space", text, help=help_)


def train_missing(suite: Suite, out: Path, access: Access, observer: Observer) -> list[str]:
    """Fine-tune the models and train the heads of a suite that are missing, or that were trained from something else.

    Rows that the suite measures are never used: if a source has no training split, such as a file, training uses the rows
    after the measured ones. Returns a reason for each model or head that could not be trained.
    """
    return [*_finetune_missing(suite, out, access, observer), *_train_missing_heads(suite, out, access, observer)]


def _finetune_missing(suite: Suite, out: Path, access: Access, observer: Observer) -> list[str]:
    missing: list[str] = []
    for step in prepared_models.pending(suite, out):
        model, recipe, folder = step.model, step.model.finetune, step.model.folder(out)
        observer.message(f"fine-tuning {model.words}, in {folder}")
        try:
            request = FinetuneRequest(
                pair=model.pair, role=model.role, task=model.task, options=replace(step.options, over=(), gamma=()),
                count=recipe.limit, skip=step.skipped(), seed=recipe.seed, minutes=recipe.minutes, recipe=recipe.recipe,
                out=folder, access=access,
            )  # fmt: skip
            prepared_models.begin(step, out)
            finetune_model(request, observer)
        except MissingAsset as error:
            missing.append(f"{model.words}: {error}")
            continue
        prepared_models.complete(step, out)
    return missing


def _train_missing_heads(suite: Suite, out: Path, access: Access, observer: Observer) -> list[str]:
    missing: list[str] = []
    features = _features_of(pending(suite, out))
    if features and (note := _disk_note(features, out)).is_warning:
        observer.message(note.line)
    for step in steps_of(suite):
        head = step.head
        if not has_rows(head, step.options):
            observer.message(_skip_note(head).line)
            continue
        if is_trained(step, out):
            continue
        folder = head.folder(out)
        observer.message(f"training {head.words}, in {folder}")
        try:
            train_head(_training_request(step, out, access), observer)
        except MissingAsset as error:
            missing.append(f"{head.words}: {error}")
            continue
        write_identity(step, out)
    return missing


def _training_request(step: TrainingStep, out: Path, access: Access) -> TrainRequest:
    head, options, source = step.head, step.options, step.head.preparation
    return TrainRequest(
        kind=source.kind, pair=head.pair, tasks=(head.task,), options=replace(options, heads=(), over=(), gamma=()),
        count=source.limit, skip=step.skipped(), answers=source.answers, features=source.features, tau=head.tau,
        seed=source.seed, base=source.base, recipe=source.recipe, out=head.folder(out), collected=head.collected(out),
        minutes=source.minutes, trial=0, compare=False, access=access,
    )  # fmt: skip
