"""Training of the heads that a suite needs, before it measures."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from specbench.config.model_files import architecture_of
from specbench.config.options import Access
from specbench.config.pair import HeadKind, default_base
from specbench.config.suite import PreparedHead, Suite
from specbench.errors import ConfigError, MissingAsset
from specbench.experiment.training import TrainRequest, train_head
from specbench.observer import Observer
from specbench.resolution import selection
from specbench.resolution.prepared_heads import TrainingStep, has_rows, is_trained, pending, steps_of, write_identity
from specbench.training.shards import free_disk_bytes, gb, token_bytes


def training_notes(suite: Suite, out: Path) -> list[str]:
    """Return a line for each head that `train_missing_heads` would train or skip.

    Lines of EAGLE heads have the disk space of their features. The last line compares the disk space of all features with the
    free space.
    """
    lines, features = [], _features_of(pending(suite, out))
    for step in steps_of(suite):
        head = step.head
        if not has_rows(head, step.options):
            lines.append(_skip_note(head))
        elif not is_trained(step, out):
            feature_set = features.get(step.rows_key)
            lines.append(f"{head.words} is not trained; run --suite trains it first")
            if feature_set:
                lines[-1] += (
                    f"; its features take at most {gb(feature_set.bytes)} in {head.collected(out)},"
                    f" {feature_set.texts:,} texts"
                )
    return [*lines, *([_room(features, out)] if features else [])]


def _skip_note(head: PreparedHead) -> str:
    return f"{head.words} is not trained without --data {head.task}=FILE; the pair's own head is used"


class _Features(NamedTuple):
    """The features that EAGLE heads of one collection are trained on: the number of texts, and the most bytes on disk."""

    texts: int
    bytes: int


def _features_of(steps: Sequence[TrainingStep]) -> dict[Hashable, _Features]:
    """Return the features of EAGLE heads by collection, as far as their texts and the base's width are known."""
    features: dict[Hashable, _Features] = {}
    for step in steps:
        preparation = step.head.preparation
        if preparation.kind != HeadKind.eagle or step.rows_key in features:
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


def _room(features: Mapping[Hashable, _Features], out: Path) -> str:
    """Return a line on the bytes of all features together and the free space, with a "!" if they may not fit."""
    size, free = sum(feature.bytes for feature in features.values()), free_disk_bytes(out)
    text = f"features of EAGLE heads take at most {gb(size)} together; {gb(free)} are free"
    help_ = "a smaller limit or recipe.most in [[prepare]], or --out on another disk"
    return text if size <= free else f"! {text}; help: {help_}"


def train_missing_heads(suite: Suite, out: Path, access: Access, observer: Observer) -> list[str]:
    """Train the heads of a suite that are missing, or that were trained from something else.

    A head is never trained on rows that the suite measures: of a source without a training split, such as a file, the rows
    after the measured ones are taken. Returns the reasons for the heads that could not be trained.
    """
    missing: list[str] = []
    features = _features_of(pending(suite, out))
    if features and (note := _room(features, out)).startswith("!"):
        observer.message(note)
    for step in steps_of(suite):
        head = step.head
        if not has_rows(head, step.options):
            observer.message(_skip_note(head))
            continue
        if is_trained(step, out):
            continue
        folder = head.folder(out)
        observer.message(f"training {head.words}, in {folder}")
        try:
            train_head(_request(step, out, access), observer)
        except MissingAsset as error:
            missing.append(f"{head.words}: {error}")
            continue
        write_identity(step, out)
    return missing


def _request(step: TrainingStep, out: Path, access: Access) -> TrainRequest:
    head, options, source = step.head, step.options, step.head.preparation
    return TrainRequest(
        kind=source.kind, pair=head.pair, tasks=(head.task,), options=replace(options, heads=(), over=(), gamma=()),
        count=source.limit, skip=step.skipped(), answers=source.answers, features=source.features, tau=head.tau,
        seed=source.seed, base=source.base, recipe=source.recipe, out=head.folder(out), collected=head.collected(out),
        minutes=source.minutes, trial=0, compare=False, access=access,
    )  # fmt: skip
