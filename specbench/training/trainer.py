"""The training of each kind of head: its recipe, its rows, and the fit."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from specbench.config.construct import Table, construct
from specbench.config.pair import FEATURES, TAU, Answers, HeadKind
from specbench.errors import ConfigError, hint
from specbench.models.heads import Head
from specbench.models.heads.classifiers import FEATURES as SUPPORTED_FEATURES
from specbench.models.loaded_pair import LoadedPair
from specbench.observer import Observer
from specbench.training import classifiers, eagle, shards
from specbench.training.eagle import rows_of
from specbench.training.recipes import (
    DSL_RECIPE,
    RECIPES,
    SPECDEC_RECIPE,
    Budget,
    DraftRollout,
    EagleRecipe,
    PrefixRollout,
    SprinterRecipe,
    keys_of,
)
from specbench.training.shards import Columns, Shards, size_plan, token_bytes, tokens_of
from specbench.training.texts import Text, Texts, Writing

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


def check_recipe(kind: HeadKind, recipe: Table, features: str) -> None:
    """Raise ConfigError, with the nearest name, for an unknown key of a recipe, a wrong value or unknown features."""
    keys = keys_of(kind)
    for key in recipe:
        if key not in keys:
            raise ConfigError(f"--set recipe.{key}: the recipe of {kind.value} has no key '{key}'{hint(key, keys)}")
    for part in RECIPES[kind]:
        names = {field.name for field in fields(part)}
        construct(type(part), {key: value for key, value in recipe.items() if key in names}, "recipe")
    if features not in SUPPORTED_FEATURES:
        raise ConfigError(f"--features {features}{hint(features, SUPPORTED_FEATURES)}")


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How a head is trained.

    `answers` is the text after each prompt that it is trained and evaluated on. `features` and `tau` are SPRINTER's. `recipe`
    holds the user's keys.

    With `compare`, SPRINTER's verifier is also fitted with other features and values of tau, for its report.
    """

    base: str
    answers: Answers = Answers.outputs
    features: str = FEATURES
    tau: float = TAU
    seed: int = 0
    recipe: Table
    compare: bool = True


class Trained(NamedTuple):
    """A head, its report on texts that it was not trained on, and the texts whose outputs were collected."""

    head: Head
    report: Table
    texts: Texts


@dataclass(frozen=True, kw_only=True)
class Training:
    """The state that all kinds of training share: the loaded models, the texts and the folders."""

    settings: TrainingSettings
    loaded: LoadedPair
    texts: Texts
    folder: Path
    rows_folder: Path
    about: Table
    budget: Budget
    observer: Observer

    def train(self, kind: HeadKind) -> Trained:
        """Train a head of a kind on as many texts as the budget allows."""
        trainers = {
            HeadKind.sprinter: self._sprinter,
            HeadKind.specdec: self._specdec,
            HeadKind.dsl: self._dsl,
            HeadKind.eagle: self._eagle,
        }
        return trainers[kind]()

    def _sprinter(self) -> Trained:
        base, features, tau, seed = (
            self.settings.base,
            self.settings.features,
            self.settings.tau,
            self.settings.seed,
        )
        rollout = self._built(PrefixRollout(), draft=base, answers=self.settings.answers, seed=seed)
        collected, texts = self._rows(lambda text: classifiers.rows_of(self.loaded, text, rollout), rollout)
        rows = classifiers.balanced(collected, seed)
        embedding = self.loaded.models[base].transformers().get_input_embeddings().weight.detach()
        shared = classifiers.Fitting(
            embedding, self._built(SprinterRecipe(), seed=seed), seed, rollout.temperature == 1.0
        )
        thresholds = sorted({*classifiers.THRESHOLDS, tau}) if self.settings.compare else [tau]
        every = tuple(dict.fromkeys((*classifiers.SHOWN, features))) if self.settings.compare else (features,)
        with self.observer.progress("fitting verifiers", len(every) * len(thresholds)) as advance:
            heads = classifiers.compare(rows, every, thresholds, shared, advance)
        head, report = heads[features, tau]
        reports = [entry for _, entry in heads.values()]
        classifiers.plot([entry for entry in reports if entry["tau_train"] == tau], self.folder / "roc")
        compared = [{key: value for key, value in entry.items() if key != "curve"} for entry in reports]
        return Trained(head, {**report, "all": compared}, self._answered(texts, rollout.temperature))

    def _specdec(self) -> Trained:
        rollout = self._draft_rollout()
        rows, texts = self._rows(lambda text: classifiers.specdec_rows(self.loaded, text, rollout), rollout)
        recipe = self._built(SPECDEC_RECIPE, seed=self.settings.seed)
        head, report = classifiers.train_specdec(rows, recipe, self.settings.seed)
        return Trained(head, report, self._answered(texts, rollout.temperature))

    def _dsl(self) -> Trained:
        rollout = self._draft_rollout()
        rows, texts = self._rows(lambda text: classifiers.dsl_rows(self.loaded, text, rollout), rollout)
        recipe = self._built(DSL_RECIPE, seed=self.settings.seed)
        head, report = classifiers.train_dsl(rows, recipe, self.settings.seed)
        return Trained(head, report, self._answered(texts, rollout.temperature))

    def _draft_rollout(self) -> DraftRollout:
        settings = self.settings
        return self._built(DraftRollout(), draft=settings.base, answers=settings.answers, seed=settings.seed)

    def _answered(self, texts: Texts, temperature: float | None) -> Texts:
        """Return texts whose description says which answers were used, and the temperature at which tokens were drawn."""
        drawn: Table = {} if temperature is None else {"temperature": temperature}
        return Texts(texts.texts, {**texts.about, "answers": self.settings.answers.value, **drawn})

    def _eagle(self) -> Trained:
        base = self.settings.base
        recipe = self._built(EagleRecipe(), seed=self.settings.seed)
        training = eagle.EagleTraining(
            pair=self.loaded, base=base, recipe=recipe, folder=self.folder, about=self.about,
            budget=self.budget, observer=self.observer,
        )  # fmt: skip
        checkpoint = training.checkpoint()  # needs the texts of the interrupted training, and no others
        if checkpoint:
            self.observer.message(f"resuming after {checkpoint['done']} of {checkpoint['total']} steps")
        writing = Writing(base, recipe.most, recipe.temperature, self.settings.seed)
        is_written = self.settings.answers == Answers.outputs
        settings = writing if is_written else recipe.most
        if not checkpoint:
            self._plan_size(recipe.most, is_written, settings)
        files, texts = self._shards(
            lambda text: rows_of(self.loaded, text, base, recipe.most),
            settings,
            lambda: checkpoint is not None or self.budget.ends_collecting(),
        )
        head, report = eagle.train(training, files, checkpoint)
        (self.folder / eagle.CHECKPOINT).unlink(missing_ok=True)
        return Trained(head, report, self._answered(texts, recipe.temperature if is_written else None))

    def _plan_size(self, most: int, generated: bool, settings: object) -> None:
        """Report the size of the features that are not on disk yet. Raises ConfigError if there is no room for them."""
        base = self.settings.base
        missing = shards.missing(shards.folder_of(self.rows_folder, self._collection(settings)), self.texts.texts)
        window = self.loaded.window_of(self.loaded.models).length or most
        size = tokens_of(missing, min(most, window), generated) * token_bytes(
            self.loaded.models[base].transformers().config.hidden_size
        )
        if missing:
            self.observer.message(
                size_plan(len(missing), size, generated, self.budget.has_time_limit, self.rows_folder)
            )

    def _collection(self, settings: object) -> Table:
        """Return what identifies collected rows."""
        return {**self.about, "settings": str(settings)}

    def _rows(self, make: Callable[[Text], Columns], settings: object) -> tuple[Columns, Texts]:
        """Collect rows as `_shards` does, and read them into memory."""
        files, texts = self._shards(make, settings)
        return files.rows(), texts

    def _shards(
        self, make: Callable[[Text], Columns], settings: object, ends: Callable[[], bool] | None = None
    ) -> tuple[Shards, Texts]:
        """Collect the rows of texts, under the head's folder, until `ends` returns true; by default for half of the budget.

        With settings of type `Writing`, the outputs of a model replace the reference answers first.

        Raises ConfigError if there are none.
        """
        count = len(self.texts.texts)
        outputs = "reference answers" if self.settings.answers == Answers.reference else "outputs"
        with self.observer.progress(f"collecting {outputs}", count) as advance:
            ends = ends or self.budget.ends_collecting

            def collect(texts: Sequence[Text]) -> Iterable[Columns]:
                answered = (
                    settings.with_generated_answers(self.loaded, texts) if isinstance(settings, Writing) else texts
                )
                return map(make, answered)

            about = self._collection(settings)
            files = shards.collected(self.rows_folder, self.texts.texts, collect, about, advance, ends)
        if not files.paths:
            raise ConfigError("no training rows were collected; help: more texts (--limit), or another task (-t)")
        if files.texts < count:
            self.observer.message(f"training on {files.texts} of {count} texts; a larger --minutes uses more")
        texts = self.texts.first(files.texts)
        return files, Texts(texts.texts, {**texts.about, "available": count})

    def _built(self, start: T, **more: object) -> T:
        """Return a recipe or a rollout from `start`, with the user's keys that it has."""
        defaults = {field.name: getattr(start, field.name) for field in fields(start)}
        changes = {key: value for key, value in self.settings.recipe.items() if key in defaults}
        return construct(type(start), {**defaults, **more, **changes}, "recipe")
