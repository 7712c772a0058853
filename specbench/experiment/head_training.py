"""From a request for a trained head to the head in its folder."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

import specbench.tasks  # noqa: F401  (registers the tasks)
from specbench.config.construct import Table
from specbench.config.options import Access, Options
from specbench.config.pair import FEATURES, TAU, HeadKind, Pair, default_base
from specbench.errors import ConfigError
from specbench.experiment import selection
from specbench.files import write
from specbench.models import loader
from specbench.models.heads import Provenance
from specbench.models.resolve import Placement, device_of, resolve_models
from specbench.observer import Observer
from specbench.runs.locking import locked
from specbench.training import texts as texts_
from specbench.training.trainer import Settings, Training, require_known

TEXTS = {HeadKind.sprinter: 600, HeadKind.specdec: 600, HeadKind.dsl: 600, HeadKind.eagle: 0}  # default count; 0 is all


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """A head to train.

    `count` texts are taken (0: all, None: the kind's default) after the first `skip` rows of each task. `base` is the model
    whose states the head reads; empty: the kind's default. `collected` is where the models' outputs are kept.
    """

    kind: HeadKind
    pair: str
    tasks: tuple[str, ...] = ()
    options: Options = field(default_factory=Options)
    count: int | None = None
    skip: int = 0
    base: str = ""
    features: str = FEATURES
    tau: float = TAU
    seed: int = 0
    recipe: Table = field(default_factory=dict)
    out: Path | None = None
    collected: Path | None = None
    access: Access = field(default_factory=Access)


@dataclass(frozen=True)
class TrainedHead:
    """A trained head's folder, and what was measured on texts that it was not trained on."""

    kind: HeadKind
    base: str
    tasks: tuple[str, ...]
    folder: Path
    report: Table


def train_head(request: TrainRequest, observer: Observer) -> TrainedHead:
    """Train a head and write it into its folder. The models' outputs are collected first. A second call resumes.

    Raises ConfigError for a mistake in the request, MissingAsset if a model or data are missing.
    """
    kind, options = request.kind, request.options
    base = request.base or default_base(kind)
    found, pair = selection.read_pair(request.pair, options)
    roles = (base,) if kind == HeadKind.eagle else (base, "target")
    for role in roles:
        pair.group(role)
    tasks = request.tasks or pair.defaults.tasks
    if not tasks:
        raise ConfigError("name the tasks to train on: -t TASK")
    sources = _sources(tasks, pair, options)
    recipe = {**pair.defaults.train.get(kind.value, {}), **request.recipe}
    require_known(kind, recipe, request.features)
    if kind != HeadKind.sprinter and (request.features, request.tau) != (FEATURES, TAU):
        raise ConfigError(f"--features and --tau are a verifier's: {kind.value} has neither")
    device = device_of(options.device)
    models = resolve_models(pair, roles, found.path.parent, Placement(device, options.dtype))
    folder = request.out or _folder(kind, base, found.name)
    with locked([folder, request.collected or folder], request.access):
        with observer.status(f"loading {', '.join(roles)}"):
            loaded = loader.load(models, found.path.parent, device)
            count = TEXTS[kind] if request.count is None else request.count
            texts = texts_.gather(loaded, sources, count, request.skip, request.seed)
        if any(folder.glob("*.safetensors")):
            print(f"{folder} holds a head, which this one replaces; --out keeps both", file=sys.stderr)
        folder.mkdir(parents=True, exist_ok=True)
        about: Table = {
            "models": {role: each.identity for role, each in models.items()},
            "texts": texts.sha256,
            "seed": request.seed,
            "kind": kind.value,
        }
        settings = Settings(base=base, features=request.features, tau=request.tau, seed=request.seed, recipe=recipe)
        kept = request.collected or folder / "collected"
        training = Training(
            settings=settings, loaded=loaded, texts=texts, folder=folder, kept=kept, about=about, observer=observer
        )
        head, report = training.train(kind)
        target = {} if kind == HeadKind.eagle else models["target"].identity
        summary = {key: value for key, value in report.items() if key not in ("curve", "all")}
        own = {"features": request.features, "tau": request.tau} if kind == HeadKind.sprinter else {}
        head.provenance = Provenance(
            models[base].identity, target, texts.about, {**own, "seed": request.seed, **recipe}, summary
        )
        head.save(folder)
        write(folder / "report.json", json.dumps({**texts.about, **report}, indent=1) + "\n")
    return TrainedHead(kind, base, tuple(tasks), folder, report)


def _sources(tasks: tuple[str, ...], pair: Pair, options: Options) -> list[texts_.Source]:
    """Return the tasks with the sources of their rows."""
    built = [(name, selection.read_task(name, pair, options)) for name in tasks]
    return [texts_.Source(name, task, selection.source_of(word, pair, options)) for word, (name, task) in built]


def _folder(kind: HeadKind, base: str, pair: str) -> Path:
    return Path("heads") / pair / (kind.value if base in ("draft", "target") else f"{kind.value}-{base}")
