"""The models that a suite fine-tunes, which of them are ready, and the options of its parts with them."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from specbench.config.construct import Table, construct, to_table
from specbench.config.options import Options
from specbench.config.pair import Pair
from specbench.config.presets import stem
from specbench.features.suites.preparation import PreparedModel
from specbench.features.suites.prepared_heads import measured_first_rows
from specbench.features.suites.suite import Suite
from specbench.files import write
from specbench.resolution import selection
from specbench.training.recipes import FinetuneRecipe

BEGUN = "begun.json"  # in a model's folder: the request whose fine-tuning has begun
CHECKPOINTS = "checkpoints"  # the folder of an interrupted fine-tuning
REQUEST = "prepared.json"  # the request whose fine-tuning is complete


@dataclass(frozen=True)
class TuningStep:
    """A model to fine-tune, and the options of the first part of the suite that uses it.

    `measuring` are the options of all lines of the suite that measure the task.
    """

    model: PreparedModel
    options: Options
    measuring: tuple[Options, ...]

    @property
    def pair(self) -> Pair:
        """The model's pair, as the user changed it."""
        return selection.read_pair(self.model.pair, self.options)[1]

    def skipped(self) -> int:
        """Return the number of first rows that the suite measures (`measured_first_rows`)."""
        return measured_first_rows(self.model.task, self.pair, self.measuring)

    @property
    def identity(self) -> Table:
        """What determines the model: its recipe, the original model and the rows."""
        pair, step = self.pair, self.model.finetune
        about = {
            **{key: value for key, value in asdict(step).items() if key not in ("pairs", "tasks", "roles")},
            "role": self.model.role,
            "task": self.model.task,
            "source": selection.source_of(self.model.task, pair, self.options),
            "skip": self.skipped(),
            "model": to_table(pair.models[self.model.role]),
            "prompts": to_table(selection.read_task(self.model.task, pair, self.options)[1]),
        }
        return dict(json.loads(json.dumps(about)))


def steps_of(suite: Suite) -> Iterator[TuningStep]:
    """Yield each model once, for the parts of the grid in order. A model that the user gives is not fine-tuned."""
    seen = set()
    for line, pair, task in suite.parts():
        for model in models_of(suite, pair, task, line.options):
            step = TuningStep(model, line.options, suite.measuring(task))
            if (key := (model.pair, model.task, model.role)) not in seen and step.pair.weights != "dummy":
                seen.add(key)
                yield step


def pending(suite: Suite, out: Path) -> list[TuningStep]:
    """Return the steps whose models are not ready."""
    return [step for step in steps_of(suite) if not is_ready(step, out)]


def models_of(suite: Suite, pair: str, task: str, options: Options) -> list[PreparedModel]:
    """Return the models that a suite fine-tunes for a pair and a task, without those that the user replaces."""
    models = [model for step in suite.finetune for model in step.models(pair, task)]
    for model in models:
        construct(FinetuneRecipe, model.finetune.recipe, f"finetune of {model.words}: recipe")
        selection.read_pair(pair, options)[1].group(model.role)  # raises for an unknown role
    replaced = {
        override.path[1]
        for override in options.overrides_for("pair", pair)
        if override.path[0] == "models" and override.path[2:3] in (("path",), ("by_task",))
    }
    return [model for model in models if model.role not in replaced]


def with_models(suite: Suite, pair: str, task: str, options: Options, out: Path) -> Options:
    """Return the options of a part of a suite with the models that the suite fine-tunes for its pair and task.

    A model that is not ready, such as one of another recipe, is missing.
    """
    name = stem(pair)
    measuring = suite.measuring(task)
    changes = tuple(
        (
            f"pair.{name}.models.{model.role}.by_task",
            {task: str(_folder_of(TuningStep(model, options, measuring), out))},
        )
        for model in models_of(suite, pair, task, options)
        if selection.read_pair(pair, options)[1].weights != "dummy"
    )
    return replace(options, overrides=(*options.overrides, *changes))


def _folder_of(step: TuningStep, out: Path) -> Path:
    """Return the folder of a model, or of one that does not exist if it is not ready."""
    folder = step.model.folder(out)
    return folder if is_ready(step, out) else folder / "not-fine-tuned"


def is_ready(step: TuningStep, out: Path) -> bool:
    """Return whether the folder has a complete model, fine-tuned from the same model and rows."""
    return _read(step.model.folder(out) / REQUEST) == step.identity


def begin(step: TuningStep, out: Path) -> None:
    """Record what is fine-tuned, and remove the checkpoints of another request from its folder."""
    folder = step.model.folder(out)
    (folder / REQUEST).unlink(missing_ok=True)
    if _read(folder / BEGUN) != step.identity:
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / BEGUN, json.dumps(step.identity, indent=1) + "\n")


def complete(step: TuningStep, out: Path) -> None:
    """Record that the model is complete, and remove its checkpoints."""
    shutil.rmtree(step.model.folder(out) / CHECKPOINTS, ignore_errors=True)
    write(step.model.folder(out) / REQUEST, json.dumps(step.identity, indent=1) + "\n")


def _read(file: Path) -> object:
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
