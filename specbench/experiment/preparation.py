"""Training of the heads that a suite needs, before it measures."""

import json
from dataclasses import asdict, replace
from pathlib import Path

from specbench.config.architectures import architecture_of
from specbench.config.construct import Table
from specbench.config.options import Access
from specbench.config.pair import HeadKind, default_base
from specbench.config.preparation import PreparedHead
from specbench.config.suite import Suite
from specbench.errors import ConfigError, MissingAsset
from specbench.experiment import selection
from specbench.experiment.head_training import TrainRequest, train_head
from specbench.experiment.prepared_heads import Step, has_rows, steps_of
from specbench.files import write
from specbench.observer import Observer
from specbench.training.feature_size import free_bytes, gb, token_bytes
from specbench.training.recipes import EagleRecipe

OPTIONAL = ("base", "on")  # keys of a step that change a head only if they are there
REQUEST = "prepared.json"  # in a head's folder: what it was trained from


def untrained(suite: Suite, out: Path) -> list[PreparedHead]:
    """Return the heads that `prepare` would train."""
    return [step.head for step in steps_of(suite) if has_rows(step.head, step.options) and not _is_trained(step, out)]


def training_notes(suite: Suite, out: Path) -> list[str]:
    """Return a line for each head that `prepare` would train, with the size of an EAGLE head's features, or leave out."""
    lines = []
    for step in steps_of(suite):
        head = step.head
        if not has_rows(head, step.options):
            lines.append(_left_out(head))
        elif not _is_trained(step, out):
            lines.append(f"{head.words} is not trained; run --suite trains it first{_room(step, out)}")
    return lines


def _left_out(head: PreparedHead) -> str:
    return f"{head.words} is not trained without --data {head.task}=FILE; the pair's own head is used"


def _room(step: Step, out: Path) -> str:
    """Return what the features of an EAGLE head take on disk at most; empty if that is unknown, and for other heads."""
    head, options = step.head, step.options
    if head.step.kind != HeadKind.eagle:
        return ""
    found, pair = selection.read_pair(head.pair, replace(options, heads=()))
    recipe = {**pair.defaults.train.get(head.step.kind.value, {}), **head.step.recipe}
    try:
        base = pair.on(head.task).models[head.step.base or default_base(head.step.kind)]
        width = architecture_of(base, found.path.parent).get("hidden_size")
        _, task = selection.read_task(head.task, pair, options)
        rows = len(task.texts(selection.source_of(head.task, pair, options))[1]) - _skipped(step)
    except (ConfigError, MissingAsset):
        return ""
    if not isinstance(width, int):
        return ""
    texts = min(head.step.limit or rows, rows)
    size = texts * int(recipe.get("most", EagleRecipe().most)) * token_bytes(width)
    free = gb(free_bytes(out))
    return f"; its features take at most {gb(size)} in {head.collected(out)}, {texts:,} texts; {free} are free"


def prepare(suite: Suite, out: Path, access: Access, observer: Observer) -> list[str]:
    """Train the heads of a suite that are missing, or that were trained from something else.

    A head is never trained on rows that the suite measures: of a source without a training split, such as a file, the rows
    after the measured ones are taken. Returns the reasons for the heads that could not be trained.
    """
    missing: list[str] = []
    for step in steps_of(suite):
        head = step.head
        if not has_rows(head, step.options):
            observer.message(_left_out(head))
            continue
        if _is_trained(step, out):
            continue
        folder = head.folder(out)
        observer.message(f"training {head.words}, in {folder}")
        try:
            train_head(_request(step, out, access), observer)
        except MissingAsset as error:
            missing.append(f"{head.words}: {error}")
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
    step_table = asdict(head.step)
    recipe = {
        key: value for key, value in step_table.items() if key not in ("pairs", "tasks", "tau", "label", *OPTIONAL)
    }
    recipe |= {key: step_table[key] for key in OPTIONAL if step_table[key]}
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
    if not step.is_measured:
        return 0
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
        seed=head.step.seed, base=head.step.base, recipe=head.step.recipe, out=head.folder(out),
        collected=head.collected(out), minutes=head.step.minutes, trial=0, compare=False, access=access,
    )  # fmt: skip
