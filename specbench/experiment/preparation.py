"""Training of the heads that a suite needs, before it measures."""

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

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

OPTIONAL = ("base", "on")  # keys of a step that change a head only if they are there
REQUEST = "prepared.json"  # in a head's folder: what it was trained from


def untrained(suite: Suite, out: Path) -> list[PreparedHead]:
    """Return the heads that `prepare` would train."""
    return [step.head for step in _pending(suite, out)]


def _pending(suite: Suite, out: Path) -> list[Step]:
    """Return the steps that `prepare` would take."""
    return [step for step in steps_of(suite) if has_rows(step.head, step.options) and not _is_trained(step, out)]


def training_notes(suite: Suite, out: Path) -> list[str]:
    """Return a line for each head that `prepare` would train or skip, with the disk space of an EAGLE head's features.

    The last line compares the disk space of all features with the free space.
    """
    lines, found = [], _features_of(_pending(suite, out))
    for step in steps_of(suite):
        head = step.head
        if not has_rows(head, step.options):
            lines.append(_left_out(head))
        elif not _is_trained(step, out):
            each = found.get(step.rows_key)
            lines.append(f"{head.words} is not trained; run --suite trains it first")
            if each:
                lines[-1] += (
                    f"; its features take at most {gb(each.bytes)} in {head.collected(out)}, {each.texts:,} texts"
                )
    return [*lines, *([_room(found, out)] if found else [])]


def _left_out(head: PreparedHead) -> str:
    return f"{head.words} is not trained without --data {head.task}=FILE; the pair's own head is used"


class _Features(NamedTuple):
    """The features that EAGLE heads of one collection are trained on: the number of texts, and the most bytes on disk."""

    texts: int
    bytes: int


def _features_of(steps: Sequence[Step]) -> dict[Hashable, _Features]:
    """Return the features of EAGLE heads by collection, as far as their texts and the base's width are known."""
    found: dict[Hashable, _Features] = {}
    for step in steps:
        if step.head.step.kind != HeadKind.eagle or step.rows_key in found:
            continue
        preset, pair = selection.read_pair(step.head.pair, replace(step.options, heads=()))
        try:
            base = pair.on(step.head.task).models[step.head.step.base or default_base(step.head.step.kind)]
            width, texts = architecture_of(base, preset.path.parent).get("hidden_size"), step.texts()
        except (ConfigError, MissingAsset):
            continue
        if isinstance(width, int) and isinstance(most := step.recipe["most"], int):
            found[step.rows_key] = _Features(texts, texts * most * token_bytes(width))
    return found


def _room(found: Mapping[Hashable, _Features], out: Path) -> str:
    """Return a line on the bytes of all features together and the free space, with a "!" if they may not fit."""
    size, free = sum(each.bytes for each in found.values()), free_bytes(out)
    text = f"features of EAGLE heads take at most {gb(size)} together; {gb(free)} are free"
    help_ = "a smaller limit or recipe.most in [[prepare]], or --out on another disk"
    return text if size <= free else f"! {text}; help: {help_}"


def prepare(suite: Suite, out: Path, access: Access, observer: Observer) -> list[str]:
    """Train the heads of a suite that are missing, or that were trained from something else.

    A head is never trained on rows that the suite measures: of a source without a training split, such as a file, the rows
    after the measured ones are taken. Returns the reasons for the heads that could not be trained.
    """
    missing: list[str] = []
    found = _features_of(_pending(suite, out))
    if found and (note := _room(found, out)).startswith("!"):
        observer.message(note)
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
        "skip": step.skipped(),
        "models": {role: asdict(spec) for role, spec in pair.models.items()},
        "dtype": options.dtype,
        "overrides": [[key, value] for key, value in options.overrides],
    }
    return dict(json.loads(json.dumps(about)))


def _request(step: Step, out: Path, access: Access) -> TrainRequest:
    head, options = step.head, step.options
    return TrainRequest(
        kind=head.step.kind, pair=head.pair, tasks=(head.task,), options=replace(options, heads=(), over=(), gamma=()),
        count=head.step.limit, skip=step.skipped(), answers=head.step.answers, features=head.step.features, tau=head.tau,
        seed=head.step.seed, base=head.step.base, recipe=head.step.recipe, out=head.folder(out),
        collected=head.collected(out), minutes=head.step.minutes, trial=0, compare=False, access=access,
    )  # fmt: skip
