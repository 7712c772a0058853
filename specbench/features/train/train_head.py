"""Training of heads, from the request to the folder of the result."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import specbench.tasks  # noqa: F401  (registers the tasks)
from specbench.config.construct import Table
from specbench.config.options import Options
from specbench.config.pair import FEATURES, TAU, Answers, HeadKind, Pair, default_base, drafts
from specbench.config.request import Access
from specbench.errors import ConfigError
from specbench.features.train.head_trial import (
    MOST_TEXTS,
    HeadTrial,
    TrialRequest,
    drafting_of,
    measure_acceptance,
    method_of,
    try_head,
)
from specbench.files import write
from specbench.models import loader
from specbench.models.heads import Provenance
from specbench.models.loaded_pair import LoadedPair
from specbench.models.resolve_models import Execution, device_of, resolve_models
from specbench.models.resolved_model import ResolvedModel
from specbench.observer import Observer
from specbench.reporting.formats.export import method_row
from specbench.resolution import selection
from specbench.runs.locking import locked
from specbench.training.recipes import Budget, recipe_of
from specbench.training.texts import TaskSource, Text, gather
from specbench.training.trainer import Trained, Training, TrainingSettings, check_recipe

TEXTS = {kind: 0 if drafts(kind) else 600 for kind in HeadKind}  # default count; 0 is all
MOST_WRITTEN = 1024  # tokens of a prompt with the target's output, for a draft to learn from
WRITTEN_AT_ONCE, FEWEST_WRITTEN = 8, 10  # outputs


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """A head to train.

    `count` texts are taken (0: all, None: the kind's default) after the first `skip` rows of each task. `answers` is the text
    after each prompt that the head is trained and evaluated on. `base` is the model whose states the head reads; empty: the
    kind's default. `collected` is the folder of the models' outputs. `minutes` is the budget for collecting and fitting, 0
    for no limit. `trial` is the number of held-out prompts on which the head is tried. `compare` also fits SPRINTER's
    verifier with other features and values of tau, for the report.
    """

    kind: HeadKind
    pair: str
    tasks: tuple[str, ...] = ()
    options: Options = field(default_factory=Options)
    count: int | None = None
    skip: int = 0
    answers: Answers = Answers.outputs
    base: str = ""
    features: str = FEATURES
    tau: float = TAU
    seed: int = 0
    recipe: Table = field(default_factory=dict)
    out: Path | None = None
    collected: Path | None = None
    minutes: float = 10.0
    trial: int = 20
    compare: bool = True
    access: Access = field(default_factory=Access)


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """A trained head's folder, what was measured on texts that it was not trained on, and its trial, if there was one.

    `skip` is the number of rows of each task that training left out, and `texts_omitted` the number of texts that the time
    limit left out. `is_limited` says that --limit, or its default, selected fewer texts than there are.
    """

    kind: HeadKind
    base: str
    sources: tuple[TaskSource, ...]
    folder: Path
    report: Table
    skip: int = 0
    texts_omitted: int = 0
    is_limited: bool = False
    trial: HeadTrial | None = None

    @property
    def method(self) -> str:
        """The bundled method that uses the head; empty if there is none."""
        return method_of(self.kind, self.base)


@dataclass(frozen=True, kw_only=True)
class _ResolvedRequest:
    """A request with its pair, the models to load, the tasks and the recipe."""

    request: TrainRequest
    pair: Pair
    where: Path  # the folder of the pair's file
    roles: tuple[str, ...]
    sources: tuple[TaskSource, ...]
    settings: TrainingSettings
    folder: Path

    @property
    def count(self) -> int:
        """The largest number of texts; 0 is all."""
        return TEXTS[self.request.kind] if self.request.count is None else self.request.count

    @property
    def decoding(self) -> Options:
        """The options for decoding with the head: by default, drafts are as long as its blocks."""
        options, length = self.request.options, self.settings.recipe.get("length")
        if options.gamma or not isinstance(length, int):
            return options
        return replace(options, gamma=((self.request.kind.value, (length,)),))


def train_head(request: TrainRequest, observer: Observer) -> TrainingResult:
    """Train a head, write it into its folder, and try it on held-out prompts.

    The models' outputs are collected first. A second call resumes.

    Raises:
        ConfigError: A mistake in the request.
        MissingAsset: A model or data are missing.
    """
    job = _job(request)
    folder, base, trial = job.folder, job.settings.base, None
    with locked([folder, request.collected or folder], request.access):
        trained = _trained(job, observer)
        report: Table = {**trained.texts.about, **trained.report}
        _write_report(folder, report)
        if request.trial:
            trial = try_head(
                TrialRequest(
                    kind=request.kind, base=base, folder=folder, pair=request.pair, options=job.decoding,
                    texts=trained.texts, sources=job.sources, seed=request.seed, prompts=request.trial,
                ),
                observer,
            )  # fmt: skip
        if trial:
            rows = [method_row(summary, row) for summary in trial.summaries for row in summary.methods]
            _write_report(folder, {**report, "trial": rows})
    available = trained.texts.about["available"]
    assert isinstance(available, int)
    return TrainingResult(
        kind=request.kind, base=base, sources=job.sources, folder=folder, report=report, skip=request.skip,
        texts_omitted=available - len(trained.texts.texts), is_limited=job.count > 0, trial=trial,
    )  # fmt: skip


def _job(request: TrainRequest) -> _ResolvedRequest:
    """Resolve a request. Raises ConfigError for a mistake in it."""
    kind, options = request.kind, request.options
    base = request.base or default_base(kind)
    preset, pair = selection.read_pair(request.pair, options)
    roles = (base,) if drafts(kind) else (base, "target")
    for role in roles:
        pair.group(role)
    tasks = request.tasks or pair.defaults.tasks
    if not tasks:
        raise ConfigError("name the tasks to train on: -t TASK")
    if pair.differs_by_task and len(tasks) > 1:
        raise ConfigError(f"{request.pair} has a checkpoint for each task; help: one task, such as -t {tasks[0]}")
    pair = pair.on(tasks[0]).without_costs()
    recipe = recipe_of(kind, pair, request.recipe)
    check_recipe(kind, recipe, request.features)
    if kind != HeadKind.sprinter and (request.features, request.tau) != (FEATURES, TAU):
        raise ConfigError(f"--features and --tau apply to sprinter only; leave them out for {kind.value}")
    return _ResolvedRequest(
        request=request, pair=pair, where=preset.path.parent, roles=roles, sources=_sources(tasks, pair, options),
        settings=TrainingSettings(
            base=base, answers=request.answers, features=request.features, tau=request.tau, seed=request.seed, recipe=recipe,
            compare=request.compare,
        ),
        folder=request.out or _folder(kind, base, preset.name),
    )  # fmt: skip


def _write_report(folder: Path, report: Table) -> None:
    write(folder / "report.json", json.dumps(report, indent=1) + "\n")


def _trained(job: _ResolvedRequest, observer: Observer) -> Trained:
    """Train a head and write it into its folder."""
    request, settings, folder = job.request, job.settings, job.folder
    kind, device = request.kind, device_of(request.options.device)
    pair = job.pair.on(job.sources[0].word) if len(job.sources) == 1 else job.pair
    models = resolve_models(pair, job.roles, job.where, Execution(device, request.options.dtype))
    with observer.status(f"loading {', '.join(job.roles)}"):
        loaded = loader.load(models, job.where, device)
        texts = gather(loaded, job.sources, job.count, request.skip, request.seed)
    if any(folder.glob("*.safetensors")):
        observer.message(f"replacing the head in {folder}; to keep it, choose another folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    about: Table = {
        "models": {role: model.identity for role, model in models.items()},
        "texts": texts.sha256,
        "seed": request.seed,
        "kind": kind.value,
        "answers": settings.answers.value,
    }
    training = Training(
        settings=settings, loaded=loaded, texts=texts, folder=folder, rows_folder=request.collected or folder / "collected",
        about=about, budget=Budget(request.minutes), observer=observer,
    )  # fmt: skip
    trained = training.train(kind)
    provenance = _provenance(job, models, trained)
    trained.head.provenance = provenance
    trained.head.save(folder)
    if drafts(kind):
        acceptance = _acceptance(job, loaded, trained.texts.held_out(request.seed), observer)
        trained = trained._replace(report={**trained.report, **acceptance})
        trained.head.provenance = replace(provenance, report={**provenance.report, **acceptance})
        trained.head.save(folder)
    return trained


def _provenance(job: _ResolvedRequest, models: Mapping[str, ResolvedModel], trained: Trained) -> Provenance:
    """Return which models, texts, settings and results a head's file names."""
    request, settings = job.request, job.settings
    of_kind = {"features": settings.features, "tau": settings.tau} if request.kind == HeadKind.sprinter else {}
    return Provenance(
        models[settings.base].identity,
        {} if drafts(request.kind) else models["target"].identity,
        trained.texts.about,
        {**of_kind, "seed": request.seed, **settings.recipe},
        {key: value for key, value in trained.report.items() if key not in ("curve", "all")},
    )


def _acceptance(job: _ResolvedRequest, loaded: LoadedPair, texts: list[Text], observer: Observer) -> Table:
    """Return for a report the acceptance of a head's drafts on texts that it was not trained on."""
    drafting = drafting_of(job.request.kind, job.request.pair, job.decoding, job.settings.base, job.folder)
    acceptance = measure_acceptance(loaded, job.request.kind, job.folder, drafting, texts, observer)
    if acceptance is None:
        return {}
    return {
        "acceptance": acceptance.rate.value, "acceptance_low": acceptance.rate.low,
        "acceptance_high": acceptance.rate.high, "acceptance_by_position": acceptance.by_position,
        "draft_length": drafting.proposer.gamma, "decoding_temperature": drafting.temperature,
        "decoded_texts": min(len(texts), MOST_TEXTS),
    }  # fmt: skip


def _sources(tasks: tuple[str, ...], pair: Pair, options: Options) -> tuple[TaskSource, ...]:
    """Return the tasks with the sources of their rows."""
    return tuple(
        TaskSource(*selection.read_task(word, pair, options), selection.source_of(word, pair, options), word)
        for word in tasks
    )


def _folder(kind: HeadKind, base: str, pair: str) -> Path:
    return Path("heads") / pair / (kind.value if base in ("draft", "target") else f"{kind.value}-{base}")
