"""The heads that a suite trains, which of them are trained, and the options of its parts with them."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from specbench.config.construct import Table, to_table
from specbench.config.options import Options
from specbench.config.pair import Pair, head_named
from specbench.config.presets import preset
from specbench.errors import ConfigError
from specbench.features.suites.preparation import PreparedHead
from specbench.features.suites.suite import Suite
from specbench.files import write
from specbench.resolution import selection
from specbench.training.recipes import rows_key, whole_recipe

OPTIONAL = ("base", "on")  # keys of a step that change a head only if they are there
REQUEST = "prepared.json"  # in a head's folder: what it was trained from


@dataclass(frozen=True)
class TrainingStep:
    """A head to train, and the options of the first part of the suite that uses it.

    `measuring` are the options of all lines of the suite that measure the task whose rows train the head.
    """

    head: PreparedHead
    options: Options
    measuring: tuple[Options, ...]

    @property
    def pair(self) -> Pair:
        """The head's pair, without heads that the user gives."""
        return selection.read_pair(self.head.pair, replace(self.options, heads=()))[1]

    @property
    def source(self) -> str:
        """The source of the rows that train the head."""
        return selection.source_of(self.head.task, self.pair, self.options)

    @property
    def recipe(self) -> Table:
        """All keys of the head's recipe: the defaults, replaced by the pair's keys, and these by the suite's."""
        return whole_recipe(self.head.preparation.kind, self.pair, self.head.preparation.recipe)

    @property
    def rows_key(self) -> tuple[object, ...]:
        """What the collected rows depend on, for heads of a suite: equal keys share one collection."""
        head, preparation = self.head, self.head.preparation
        models = (head.pair, preparation.kind, preparation.base)
        rows = (head.task, preparation.limit, preparation.answers, preparation.seed)
        return (*models, *rows, *rows_key(preparation.kind, self.recipe))

    def skipped(self) -> int:
        """Return the number of first rows that the suite measures, of a source without a training split; 0 for others.

        Raises ConfigError if the measured rows are not the first ones.
        """
        return measured_first_rows(self.head.task, self.pair, self.measuring)

    def texts(self) -> int:
        """Return the number of texts that train the head. Reads their source.

        Raises ConfigError for a mistake in the data, and MissingAsset if they are not here.
        """
        _, task = selection.read_task(self.head.task, self.pair, self.options)
        rows = max(len(task.texts(self.source)[1]) - self.skipped(), 0)
        return min(self.head.preparation.limit or rows, rows)


def measured_first_rows(name: str, pair: Pair, measuring: Sequence[Options]) -> int:
    """Return the number of first rows of a task that are measured, of a source without a training split; 0 for others.

    `measuring` are the options of the runs that measure it. Raises ConfigError if the measured rows are not the first ones.
    """
    most = 0
    for options in measuring:
        _, task = selection.read_task(name, pair, options)
        if task.has_training_split(selection.source_of(name, pair, options)):
            continue
        if options.sample or not options.limit:
            raise ConfigError(
                f"{name}: the data has no training split, so the suite trains on rows that it does not measure;"
                " help: --limit N measures the first N rows only"
            )
        most = max(most, options.limit)
    return most


def with_prepared(suite: Suite, pair: str, task: str, options: Options, out: Path) -> Options:
    """Return the options of a part of a suite with the heads that the suite trains for its pair and task.

    A head that the user gives replaces the suite's head.
    """
    heads = [head for step in suite.prepare for head in step.heads(pair, task)]
    trained = tuple(
        (head.name, str(head.folder(out)))
        for head in heads
        if has_rows(head, options) and not _is_replaced(head, options)
    )
    return replace(options, heads=(*options.heads, *trained))


def has_rows(head: PreparedHead, options: Options) -> bool:
    """Return whether the rows of a head are given. They are, unless the head is trained on another task without `--data`."""
    return not head.preparation.on or any(task == head.preparation.on for task, _ in options.data)


def _is_replaced(head: PreparedHead, options: Options) -> bool:
    """Return whether the user gives a head that replaces one of the suite's."""
    heads = preset("pair", head.pair).table.get("heads", {})
    user_heads = [name for name, _ in options.heads_for(head.pair)]
    kinds = [] if head.preparation.base else [head.preparation.kind.value]
    return head_named(head.name, heads) in [head_named(name, heads) for name in user_heads] or any(
        n in user_heads for n in kinds
    )


def steps_of(suite: Suite) -> Iterator[TrainingStep]:
    """Yield each head once, for the parts of the grid in order. A head that the user gives is not trained."""
    seen = set()
    for line, pair, task in suite.parts():
        if suite.prepare and selection.read_pair(pair, replace(line.options, heads=()))[1].weights == "dummy":
            continue  # its heads have random weights too
        for step in suite.prepare:
            for head in step.heads(pair, task):
                key = (head.pair, head.task, head.name)
                if key not in seen and not _is_replaced(head, line.options):
                    seen.add(key)
                    yield TrainingStep(head, line.options, suite.measuring(head.task))


def untrained(suite: Suite, out: Path) -> list[PreparedHead]:
    """Return the heads of a suite that are not trained and whose rows are named."""
    return [step.head for step in pending(suite, out)]


def pending(suite: Suite, out: Path) -> list[TrainingStep]:
    """Return the heads of a suite that are not trained, each with its options."""
    return [step for step in steps_of(suite) if has_rows(step.head, step.options) and not is_trained(step, out)]


def is_trained(step: TrainingStep, out: Path) -> bool:
    """Return whether the folder has a complete head that was trained from the same models and rows."""
    file = step.head.folder(out) / REQUEST
    return file.exists() and json.loads(file.read_text(encoding="utf-8")) == identity_of(step)


def write_identity(step: TrainingStep, out: Path) -> None:
    """Write what a trained head was trained from into its folder."""
    write(step.head.folder(out) / REQUEST, json.dumps(identity_of(step), indent=1) + "\n")


def identity_of(step: TrainingStep) -> Table:
    """Return what determines a head: its recipe, models, rows and numeric type."""
    head, options = step.head, step.options
    _, pair = selection.read_pair(head.pair, replace(options, heads=()))
    step_table = asdict(head.preparation)
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
        "models": {role: to_table(spec) for role, spec in pair.models.items()},
        "dtype": options.dtype,
        "overrides": [[key, value] for key, value in options.overrides],
    }
    return dict(json.loads(json.dumps(about)))
