"""From a request to fine-tune a model to the model in its folder."""

from dataclasses import dataclass, field
from pathlib import Path

import specbench.tasks  # noqa: F401  (registers the tasks)
from specbench.config.construct import Table
from specbench.config.options import Access, Options
from specbench.errors import ConfigError
from specbench.models import loader
from specbench.models.resolve import Execution, device_of, resolve_models
from specbench.observer import Observer
from specbench.resolution import selection
from specbench.runs.locking import locked
from specbench.training.finetune import Finetuning, finetune
from specbench.training.texts import TaskSource, gather


@dataclass(frozen=True, kw_only=True)
class FinetuneRequest:
    """A model of a pair to fine-tune on a task.

    `count` texts are taken (0: all) after the first `skip` rows. Training ends after `minutes`, if it is not 0.
    """

    pair: str
    role: str
    task: str
    options: Options = field(default_factory=Options)
    count: int = 0
    skip: int = 0
    seed: int = 0
    minutes: float = 0.0
    recipe: Table = field(default_factory=dict)
    out: Path | None = None
    access: Access = field(default_factory=Access)


@dataclass(frozen=True)
class FinetunedModel:
    """A fine-tuned model's folder and report, with its role and task."""

    folder: Path
    role: str
    task: str
    report: Table


def finetune_model(request: FinetuneRequest, observer: Observer) -> FinetunedModel:
    """Fine-tune a model on the training rows of a task. A second call resumes.

    Raises:
        ConfigError: A mistake in the request.
        MissingAsset: The model, data or accelerate are missing.
    """
    options = request.options
    preset, pair = selection.read_pair(request.pair, options)
    pair.group(request.role)
    if pair.weights == "dummy":
        raise ConfigError("a model with dummy weights cannot be fine-tuned")
    name, task = selection.read_task(request.task, pair, options)
    source = TaskSource(name, task, selection.source_of(request.task, pair, options), request.task)
    folder = request.out or Path("models") / preset.name / f"{request.role}-{name.replace(':', '-')}"
    device, base = device_of(options.device), preset.path.parent
    models = resolve_models(pair, (request.role,), base, Execution(device, "float32", "eager"))
    with locked([folder], request.access):
        with observer.status(f"loading {request.role}"):
            loaded = loader.load(models, base, device)
            texts = gather(loaded, [source], request.count, request.skip, request.seed)
        job = Finetuning(loaded, request.role, texts, folder, request.seed, request.minutes, request.recipe)
        return FinetunedModel(folder, request.role, name, finetune(job, observer))
