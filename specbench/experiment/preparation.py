"""Training of the heads that a suite needs, before it measures."""

import json
from dataclasses import asdict, replace
from pathlib import Path

from specbench.config.construct import Table
from specbench.config.options import Access
from specbench.config.preparation import PreparedHead
from specbench.config.suite import Suite
from specbench.errors import ConfigError, MissingAsset
from specbench.experiment import selection
from specbench.experiment.head_training import TrainRequest, train_head
from specbench.experiment.prepared_heads import Step, steps_of
from specbench.files import write
from specbench.observer import Observer

REQUEST = "prepared.json"  # in a head's folder: what it was trained from


def untrained(suite: Suite, out: Path) -> list[PreparedHead]:
    """Return the heads that `prepare` would train."""
    return [step.head for step in steps_of(suite) if not _is_trained(step, out)]


def prepare(suite: Suite, out: Path, access: Access, observer: Observer) -> list[str]:
    """Train the heads of a suite that are missing, or that were trained from something else.

    A head is never trained on rows that the suite measures: of a source without a training split, such as a file, the rows
    after the measured ones are taken. Returns the reasons for the heads that could not be trained.
    """
    missing: list[str] = []
    for step in steps_of(suite):
        head = step.head
        if _is_trained(step, out):
            continue
        folder = head.folder(out)
        observer.message(f"training {head.name} of {head.pair} on {head.task}, in {folder}")
        try:
            train_head(_request(step, out, access), observer)
        except MissingAsset as error:
            missing.append(f"{head.name} of {head.pair} on {head.task}: {error}")
            continue
        write(folder / REQUEST, json.dumps(_identity(step), indent=1) + "\n")
    return missing


def _is_trained(step: Step, out: Path) -> bool:
    """Return whether the folder has a complete head that was trained from the same models and rows."""
    file = step.head.folder(out) / REQUEST
    return file.exists() and json.loads(file.read_text(encoding="utf-8")) == _identity(step)


def _identity(step: Step) -> Table:
    """Return what determines a head: its recipe, models, rows and numeric type."""
    head, options = step.head, step.options
    _, pair = selection.read_pair(head.pair, replace(options, heads=()))
    recipe = {key: value for key, value in asdict(head.step).items() if key not in ("pairs", "tasks", "tau", "label")}
    about = {
        **recipe,
        "tau": head.tau,
        "task": head.task,
        "source": selection.source_of(head.task, pair, options),
        "skip": _skipped(step),
        "models": {role: asdict(spec) for role, spec in pair.models.items()},
        "dtype": options.dtype,
        "overrides": [[key, value] for key, value in options.overrides],
    }
    return dict(json.loads(json.dumps(about)))


def _skipped(step: Step) -> int:
    """Return the number of first rows that the suite measures, of a source without a training split; 0 for others.

    Raises ConfigError if the measured rows are not the first ones.
    """
    head, options = step.head, step.options
    _, pair = selection.read_pair(head.pair, replace(options, heads=()))
    _, task = selection.read_task(head.task, pair, options)
    if task.has_training_split(selection.source_of(head.task, pair, options)):
        return 0
    if options.sample or not options.limit:
        raise ConfigError(
            f"{head.task}: the data has no training split, so the suite trains on rows that it does not measure; help:"
            " --limit N measures the first N rows only"
        )
    return options.limit


def _request(step: Step, out: Path, access: Access) -> TrainRequest:
    head, options = step.head, step.options
    return TrainRequest(
        kind=head.step.kind, pair=head.pair, tasks=(head.task,), options=replace(options, heads=(), over=(), gamma=()),
        count=head.step.limit, skip=_skipped(step), answers=head.step.answers, features=head.step.features, tau=head.tau,
        seed=head.step.seed, recipe=head.step.recipe, out=head.folder(out), collected=head.collected(out),
        minutes=head.step.minutes, trial=0, compare=False, access=access,
    )  # fmt: skip
