"""The training of each kind of head: its recipe, its rows, and the fit."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from specbench.config.construct import Table, construct
from specbench.config.pair import FEATURES, TAU, HeadKind
from specbench.errors import ConfigError, hint
from specbench.models.heads import Head
from specbench.models.heads.sprinter import FEATURES as KNOWN_FEATURES
from specbench.models.loader import LoadedPair
from specbench.observer import Observer
from specbench.training import draft_length, eagle, fitting, sprinter
from specbench.training.shards import Rows, collected
from specbench.training.texts import Text, Texts

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
RECIPES: dict[HeadKind, tuple[type, ...]] = {
    HeadKind.sprinter: (sprinter.Rollout, fitting.Recipe),
    HeadKind.specdec: (draft_length.Rollout, fitting.Recipe),
    HeadKind.dsl: (draft_length.Rollout, fitting.Recipe),
    HeadKind.eagle: (eagle.EagleRecipe,),
}


def require_known(kind: HeadKind, recipe: Table, features: str) -> None:
    """Raise ConfigError, with the nearest name, for an unknown key of a recipe, a wrong value or unknown features."""
    known = {field.name for part in RECIPES[kind] for field in fields(part)}
    known -= {"draft", "target", "seed"}  # set by other options, or fixed
    for key in recipe:
        if key not in known:
            raise ConfigError(f"--set recipe.{key}: the recipe of {kind.value} has no key '{key}'{hint(key, known)}")
    for part in RECIPES[kind]:
        names = {field.name for field in fields(part)}
        construct(part, {key: value for key, value in recipe.items() if key in names}, "recipe")
    if features not in KNOWN_FEATURES:
        raise ConfigError(f"--features {features}{hint(features, KNOWN_FEATURES)}")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a head is trained. `features` and `tau` are SPRINTER's; `recipe` holds the user's keys."""

    base: str
    features: str = FEATURES
    tau: float = TAU
    seed: int = 0
    recipe: Table


@dataclass(frozen=True, kw_only=True)
class Training:
    """What all kinds of training share: the loaded models, the texts, and the folders."""

    settings: Settings
    loaded: LoadedPair
    texts: Texts
    folder: Path
    kept: Path
    about: Table
    observer: Observer

    def train(self, kind: HeadKind) -> tuple[Head, Table]:
        """Train a head of a kind. Returns it, and its report on texts that it was not trained on."""
        trainers = {
            HeadKind.sprinter: self._sprinter,
            HeadKind.specdec: self._specdec,
            HeadKind.dsl: self._dsl,
            HeadKind.eagle: self._eagle,
        }
        return trainers[kind]()

    def _sprinter(self) -> tuple[Head, Table]:
        base, features, tau, seed = (
            self.settings.base,
            self.settings.features,
            self.settings.tau,
            self.settings.seed,
        )
        rollout = self._built(sprinter.Rollout, draft=base, seed=seed)
        rows = sprinter.balanced(self._rows(lambda text: sprinter.rows_of(self.loaded, text, rollout), rollout), seed)
        recipe = self._built(fitting.Recipe, seed=seed)
        embedding = self.loaded.models[base].get_input_embeddings().weight.detach()
        shared = sprinter.Fitting(embedding, recipe, seed, rollout.temperature == 1.0)
        thresholds = sorted({*sprinter.THRESHOLDS, tau})
        every = tuple(dict.fromkeys((*sprinter.SHOWN, features)))
        with self.observer.progress("fitting verifiers", len(every) * len(thresholds)) as advance:
            heads = sprinter.compare(rows, features, thresholds, shared, advance)
        head, report = heads[features, tau]
        reports = [each for _, each in heads.values()]
        sprinter.plot([each for each in reports if each["tau_train"] == tau], self.folder / "roc")
        return head, {
            **report,
            "all": [{key: value for key, value in each.items() if key != "curve"} for each in reports],
        }

    def _specdec(self) -> tuple[Head, Table]:
        rollout = self._built(draft_length.Rollout, draft=self.settings.base, seed=self.settings.seed)
        rows = self._rows(lambda text: draft_length.specdec_rows(self.loaded, text, rollout), rollout)
        recipe = self._built(fitting.Recipe, draft_length.SPECDEC_RECIPE, seed=self.settings.seed)
        return draft_length.train_specdec(rows, recipe, self.settings.seed)

    def _dsl(self) -> tuple[Head, Table]:
        rollout = self._built(draft_length.Rollout, draft=self.settings.base, seed=self.settings.seed)
        rows = self._rows(lambda text: draft_length.dsl_rows(self.loaded, text, rollout), rollout)
        recipe = self._built(fitting.Recipe, draft_length.DSL_RECIPE, seed=self.settings.seed)
        return draft_length.train_dsl(rows, recipe, self.settings.seed)

    def _eagle(self) -> tuple[Head, Table]:
        base = self.settings.base
        recipe = self._built(eagle.EagleRecipe, seed=self.settings.seed)
        rows = self._rows(lambda text: eagle.rows_of(self.loaded, text, base, recipe), recipe.most)
        training = eagle.EagleTraining(self.loaded, base, recipe, self.folder, self.about)
        with self.observer.progress("training", eagle.steps_of(rows, recipe)) as advance:
            head, report = eagle.train(training, rows, advance)
        (self.folder / eagle.CHECKPOINT).unlink(missing_ok=True)
        return head, report

    def _rows(self, make: Callable[[Text], Rows], settings: object) -> Rows:
        """Collect the rows of every text, under the head's folder. Raises ConfigError if there are none."""
        with self.observer.progress("collecting", len(self.texts.texts)) as advance:
            about = {**self.about, "settings": str(settings)}
            rows = collected(self.kept, self.texts.texts, make, about, advance)
        if not rows:
            raise ConfigError("these texts gave no rows to train on")
        return rows

    def _built(self, kind: type[T], start: T | None = None, **more: object) -> T:
        """Return a recipe or a rollout from its defaults or those of `start`, with the user's keys that it has."""
        known = [field.name for field in fields(kind)]
        defaults = {} if start is None else {name: getattr(start, name) for name in known}
        own = {key: value for key, value in self.settings.recipe.items() if key in known}
        return construct(kind, {**defaults, **more, **own}, "recipe")
