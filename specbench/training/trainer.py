"""What `specbench train` does with each kind of head: its recipe held against what there is, its rows, its fit."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.config.pair import HeadKind
from specbench.errors import ConfigError
from specbench.observer import Observer

if TYPE_CHECKING:
    from specbench.models.heads import Head
    from specbench.training.shards import Rows
    from specbench.training.texts import Text, Texts


def require_known(kind: HeadKind, recipe: dict[str, Any], features: str) -> None:
    """Raises ConfigError, with the nearest right one, for a recipe's key or for features that there are not."""
    from dataclasses import fields

    from specbench.config.construct import construct
    from specbench.errors import hint
    from specbench.models.heads.sprinter import FEATURES
    from specbench.training import draft_length as lengths
    from specbench.training import eagle, fitting, sprinter

    parts: dict[HeadKind, tuple[type[Any], ...]] = {
        HeadKind.sprinter: (sprinter.Walk, fitting.Recipe),
        HeadKind.eagle: (eagle.EagleRecipe,),
    }
    known = {field.name for part in parts.get(kind, (lengths.Walk, fitting.Recipe)) for field in fields(part)}
    known -= {"draft", "target", "seed"}  # which have options of their own, or one value
    for key in recipe:
        if key not in known:
            raise ConfigError(f"--set recipe.{key}: the recipe of {kind.value} has no key '{key}'{hint(key, known)}")
    for part in parts.get(kind, (lengths.Walk, fitting.Recipe)):  # ranges, before the models are at work
        names = {field.name for field in fields(part)}
        construct(part, {key: value for key, value in recipe.items() if key in names}, "recipe")
    if features not in FEATURES:
        raise ConfigError(f"--features {features}{hint(features, FEATURES)}")


class Training:
    """What the four kinds of training share: the loaded models, the texts, and where collected rows lie."""

    def __init__(
        self, kind: HeadKind, loaded: Any, texts: "Texts", folder: Path, base: str, features: str, tau: float, seed: int,
        recipe: dict[str, Any], about: dict[str, Any], kept: Path | None, observer: Observer,
    ) -> None:  # fmt: skip
        self.observer = observer
        self.kind, self.loaded, self.texts, self.folder, self.base = kind, loaded, texts, folder, base
        self.features, self.tau, self.seed, self.recipe, self.about = features, tau, seed, recipe, about
        self.kept = kept or folder / "collected"

    def sprinter(self) -> tuple["Head", dict[str, Any]]:
        from specbench.training import sprinter
        from specbench.training.fitting import Recipe

        walk = self._built(sprinter.Walk, draft=self.base, seed=self.seed)
        rows = sprinter.balanced(self._rows(lambda text: sprinter.rows_of(self.loaded, text, walk), walk), self.seed)
        recipe = self._built(Recipe, seed=self.seed)
        embedding = self.loaded.models[self.base].get_input_embeddings().weight.detach()
        thresholds = sorted({*sprinter.THRESHOLDS, self.tau})
        features = tuple(dict.fromkeys((*sprinter.SHOWN, self.features)))
        with self.observer.progress("fitting verifiers", len(features) * len(thresholds)) as advance:
            heads = sprinter.compare(
                rows, embedding, self.features, thresholds, recipe, self.seed, walk.temperature == 1.0, advance
            )
        head, report = heads[self.features, self.tau]
        every = [told for _, told in heads.values()]
        shown = [told for told in every if told["tau_train"] == self.tau]
        sprinter.plot(shown, self.folder / "roc")
        return head, report | {"all": [{key: value for key, value in told.items() if key != "curve"} for told in every]}

    def specdec(self) -> tuple["Head", dict[str, Any]]:
        from specbench.training import draft_length as lengths

        walk = self._built(lengths.Walk, draft=self.base, seed=self.seed)
        rows = self._rows(lambda text: lengths.specdec_rows(self.loaded, text, walk), walk)
        return lengths.train_specdec(rows, self._built(lengths.SPECDEC_RECIPE, seed=self.seed), self.seed)

    def dsl(self) -> tuple["Head", dict[str, Any]]:
        from specbench.training import draft_length as lengths

        walk = self._built(lengths.Walk, draft=self.base, seed=self.seed)
        rows = self._rows(lambda text: lengths.dsl_rows(self.loaded, text, walk), walk)
        return lengths.train_dsl(rows, self._built(lengths.DSL_RECIPE, seed=self.seed), self.seed)

    def eagle(self) -> tuple["Head", dict[str, Any]]:
        from specbench.training import eagle

        recipe = self._built(eagle.EagleRecipe, seed=self.seed)
        rows = self._rows(lambda text: eagle.rows_of(self.loaded, text, self.base, recipe), recipe.most)
        with self.observer.progress("training", eagle.steps_of(rows, recipe)) as advance:
            head, report = eagle.train(self.loaded, self.base, rows, recipe, self.folder, advance, self.about)
        (self.folder / eagle.CHECKPOINT).unlink(missing_ok=True)
        return head, report

    def _rows(self, make: Callable[["Text"], "Rows"], settings: Any) -> "Rows":
        """What the models say of every text, collected under the head's folder."""
        from specbench.training.shards import collected

        with self.observer.progress("collecting", len(self.texts.texts)) as advance:
            about = self.about | {"settings": str(settings)}
            rows = collected(self.kept, self.texts.texts, make, about, advance)
        if not rows:
            raise ConfigError("these texts gave no rows to train on")
        return rows

    def _built(self, kind: Any, **more: Any) -> Any:
        """A recipe or a walk, with those of the user's keys that it has."""
        from dataclasses import asdict, fields

        from specbench.config.construct import construct

        start = {} if isinstance(kind, type) else asdict(kind)
        made = kind if isinstance(kind, type) else type(kind)
        known = {field.name for field in fields(made)}
        return construct(made, start | more | {k: v for k, v in self.recipe.items() if k in known}, "recipe")
