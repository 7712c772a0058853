"""Fine-tuning of a model of a pair, and draft models that are made of layers of a target."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

import specbench.tasks  # noqa: F401  (registers the tasks)
from specbench.config.construct import Table
from specbench.config.options import Options
from specbench.config.pair import Answers
from specbench.config.request import Access
from specbench.errors import ConfigError
from specbench.features.train.train_head import FEWEST_WRITTEN, MOST_WRITTEN, WRITTEN_AT_ONCE
from specbench.models import loader
from specbench.models.loaded_pair import LoadedPair
from specbench.models.resolve_models import Execution, device_of, resolve_models
from specbench.models.resolved_model import ResolvedModel, shape_of
from specbench.observer import Observer
from specbench.resolution import selection
from specbench.runs.locking import locked
from specbench.training.pruning import SHARE, prune
from specbench.training.texts import TaskSource, Text, Texts, Writing, gather
from specbench.training.trainer import Finetuning, finetune


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
    chosen = _WholeModel.of(request, request.role)
    name = chosen.source.name
    folder = request.out or Path("models") / chosen.pair_name / f"{request.role}-{name.replace(':', '-')}"
    with locked([folder], request.access):
        with observer.status(f"loading {request.role}"):
            loaded = chosen.load()
            texts = gather(loaded, [chosen.source], request.count, request.skip, request.seed)
        job = Finetuning(loaded, request.role, texts, folder, request.seed, request.minutes, request.recipe)
        return FinetunedModel(folder, request.role, name, finetune(job, observer))


@dataclass(frozen=True, kw_only=True)
class DraftRequest:
    """A draft to make of `layers` layers of a pair's target, and to train on the target's outputs for a task.

    With `layers` = 0, it has one in SHARE of the target's layers. `count` prompts are taken after the first `skip` rows.
    If `minutes` is not 0, half of it is for the target's outputs, and half for training.
    """

    pair: str
    task: str
    layers: int = 0
    options: Options = field(default_factory=Options)
    count: int = 600
    skip: int = 0
    seed: int = 0
    minutes: float = 0.0
    recipe: Table = field(default_factory=dict)
    out: Path | None = None
    access: Access = field(default_factory=Access)


@dataclass(frozen=True)
class MadeDraft:
    """A draft's folder, the source of its target, the target's layers that it has, and the report of its training."""

    folder: Path
    target: str
    layers: Sequence[int]
    report: Table


@dataclass(frozen=True)
class _WholeModel:
    """A model of a pair that is trained as a whole, in float32, and the rows of its task."""

    pair_name: str
    source: TaskSource
    models: Mapping[str, ResolvedModel]
    base: Path  # what the pair's local folders are relative to
    device: torch.device

    @classmethod
    def of(cls, request: "FinetuneRequest | DraftRequest", role: str) -> "_WholeModel":
        """Raise ConfigError for a mistake in the request, and MissingAsset if the model is not here."""
        options = request.options
        preset, pair = selection.read_pair(request.pair, options)
        pair = pair.without_costs()
        pair.group(role)
        if pair.weights == "dummy":
            raise ConfigError("a model with dummy weights cannot be fine-tuned, and has no outputs to learn from")
        name, task = selection.read_task(request.task, pair, options)
        source = TaskSource(name, task, selection.source_of(request.task, pair, options), request.task)
        device, base = device_of(options.device), preset.path.parent
        models = resolve_models(pair, (role,), base, Execution(device, "float32", "eager"))
        return cls(preset.name, source, models, base, device)

    def load(self) -> LoadedPair:
        return loader.load(self.models, self.base, self.device)


def make_draft(request: DraftRequest, observer: Observer) -> MadeDraft:
    """Make a draft of some layers of a target, and fine-tune it on the target's greedy outputs.

    Raises:
        ConfigError: A mistake in the request, or a target whose layers cannot be divided.
        MissingAsset: The model, data or accelerate are missing.
    """
    begin, chosen = time.monotonic(), _WholeModel.of(request, "target")
    folder = request.out or Path("models") / chosen.pair_name / "draft"
    with locked([folder], request.access):
        with observer.status("loading target"):
            loaded = chosen.load()
            texts = gather(loaded, [chosen.source], request.count, request.skip, request.seed)
            draft = chosen.load()  # a second copy, of which layers are removed
        whole = draft.models["target"].transformers()
        layers = prune(whole, request.layers or max(shape_of(whole.config).layers // SHARE, 1))
        written = _written(loaded, texts, request, begin, observer)
        job = Finetuning(draft, "target", written, folder, request.seed, request.minutes / 2.0, request.recipe)
        report = finetune(job, observer)
    return MadeDraft(folder, chosen.models["target"].spec.path, layers, report)


def _written(loaded: LoadedPair, texts: Texts, request: DraftRequest, begin: float, observer: Observer) -> Texts:
    """Return the texts with the target's outputs, as many as half of the minutes allow but at least one batch."""
    settings, written = Writing("target", MOST_WRITTEN, 0.0, request.seed), list[Text]()
    end = begin + 30.0 * request.minutes if request.minutes else math.inf
    with observer.progress("generating the target's outputs", len(texts.texts)) as advance:
        for at in range(0, len(texts.texts), WRITTEN_AT_ONCE):
            if written and time.monotonic() > end:
                break
            part = texts.texts[at : at + WRITTEN_AT_ONCE]
            written += settings.with_generated_answers(loaded, part)
            for _ in part:
                advance()
    if len(written) < FEWEST_WRITTEN:
        raise ConfigError(
            f"the time allowed {len(written)} outputs of the target, too few to learn from; help: --minutes"
        )
    return Texts(written, {**texts.about, "texts": len(written), "answers": Answers.outputs.value})
