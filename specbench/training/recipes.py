"""Recipes of heads: how rows are collected, how a head is fitted to them, and the time for both.

Needs no torch, for `train --help`.

The user's keys are `--set recipe.KEY=VALUE`. `meaning_of` returns what `specbench train --help` says of a key.
"""

import math
import time
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Self

from specbench.config.construct import Table, within
from specbench.config.pair import Answers, HeadKind, Pair, drafts

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MEANING = "meaning"
FIXED = ("draft", "target", "answers", "seed")  # fields that other options set
REJECT_WEIGHT = 6.0  # of SpecDec++
Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "train", "train", "validation", "test")  # of every five texts
AUTHORS_SHARE = 0.7  # of the rows that train, where they are split as SPRINTER's authors split them
MOST_EPOCHS = 40  # of a head that drafts, where the recipe sets none
WIDE, NARROW = (4096, 3e-5), (192, 2e-3)  # (width, learning rate): EAGLE's paper, and the bundled target
COLLECTING = 0.5  # share of the budget for the models' outputs


def key(default: Any, meaning: str) -> Any:
    """Return a dataclass field with a default, and its meaning for `--help`."""
    return field(default=default, metadata={MEANING: meaning})


@dataclass(frozen=True)
class PrefixRollout:
    """How SPRINTER's rows are collected: tokens after each prompt, drawn by the roles `draft` and `target`.

    The authors draw greedily; Theorem 1 assumes T = 1. Distributions are read unscaled and unfiltered.
    """

    draft: str = "draft"
    target: str = "target"
    answers: Answers = Answers.outputs
    steps: int = key(20, "tokens after each prompt")
    temperature: float = key(1.0, "sampling temperature")
    seed: int = 0

    def __post_init__(self) -> None:
        within("steps", self.steps, 2, math.inf)
        within("temperature", self.temperature, 0.0, math.inf)


@dataclass(frozen=True)
class DraftRollout:
    """How the rows of SpecDec++ and DSL are collected: tokens after each prompt, drawn by the roles `draft` and `target`."""

    draft: str = "draft"
    target: str = "target"
    answers: Answers = Answers.outputs
    steps: int = key(60, "tokens after each prompt")
    gamma: int = key(10, "draft length with which DSL's rows are collected")
    temperature: float = key(1.0, "sampling temperature")
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("steps", 2), ("gamma", 1), ("temperature", 0.0)):
            within(name, getattr(self, name), least, math.inf)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Adam on minibatches of rows, with early stopping on the validation texts.

    SPRINTER's authors use batches of 10 at 5e-4, for 20 epochs of 7,000 rows; there are more rows here, and larger batches
    take a tenth of the time.
    """

    epochs: int = key(20, "maximum number of epochs")
    batch: int = key(64, "rows per step")
    rate: float = key(2e-3, "learning rate")
    patience: int = key(3, "stop after this many epochs without a lower validation loss")
    reject_weight: float = key(1.0, "weight of the loss of rejected tokens")
    cosine: bool = key(False, "lower the learning rate to 0 over the epochs")
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch", 1), ("rate", 0.0), ("patience", 1), ("reject_weight", 0.0)):
            within(name, getattr(self, name), least, math.inf)


@dataclass(frozen=True, kw_only=True)
class SprinterRecipe(Recipe):
    """`Recipe` for verifiers, with the split and the stopping of SPRINTER's authors as an alternative."""

    split: Literal["texts", "rows"] = key(
        "texts",
        f"texts, or rows, as the authors have it: {100 * AUTHORS_SHARE:.0f} % of the rows train, and the rest"
        " chooses the epoch by accuracy and tests; this leaks, since rows of one text are on both sides",
    )


@dataclass(frozen=True, kw_only=True)
class DraftHeadRecipe:
    """AdamW on states of whole texts. 0 means: chosen from the base model, the texts or the budget."""

    epochs: int = key(0, f"passes over the texts; 0: as many as --minutes allow, at most {MOST_EPOCHS}")
    batch: int = key(0, "tokens per step; 0: 1/64 of the training tokens, between 256 and 4096")
    rate: float = key(0.0, "peak learning rate; 0: by the hidden size of the base, 3e-5 at 4096, 2e-3 at 192")
    warm_up: int = key(0, "steps of linear warm-up, at most a quarter of all steps; 0: 5 % of them")
    clip: float = key(0.5, "clip each element of the gradients at this value")
    most: int = key(2048, "tokens after which a text is cut")
    temperature: float = key(0.0, "sampling temperature of the base's outputs that the head is trained on")
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"epochs": 0, "batch": 0, "rate": 0.0, "warm_up": 0, "clip": 0.0, "most": 3, "temperature": 0.0}
        for name, low in (least | self.lowest).items():
            within(name, getattr(self, name), low, math.inf)

    @property
    def lowest(self) -> dict[str, float]:
        """The smallest values of the keys that a kind adds."""
        return {}

    def resolved(self, tokens: int, width: int) -> Self:
        """Return the recipe with batch and learning rate chosen, for `tokens` training tokens and a base of `width`.

        The number of epochs and the warm-up are chosen when the time of a step is known.
        """
        batch = self.batch or min(max(tokens // 64, 256), 4096)
        return replace(self, batch=batch, rate=self.rate or _rate_at(width))


@dataclass(frozen=True, kw_only=True)
class EagleRecipe(DraftHeadRecipe):
    """Regression of the base's next feature, and cross-entropy of the next token (Li et al. 2024)."""

    noise: float = key(0.2, "amplitude of the uniform noise added to features, scaled by 512 / length")
    ce: float = key(0.1, "weight of the cross-entropy relative to the regression's")

    @property
    def lowest(self) -> dict[str, float]:
        return {"noise": 0.0, "ce": 0.0}


@dataclass(frozen=True, kw_only=True)
class Eagle3Recipe(DraftHeadRecipe):
    """Cross-entropy of the tokens of drafts that begin at every token (Li et al. 2025)."""

    layers: tuple[int, ...] = key((), "layers whose inputs the head reads; empty: the second, middle and last but two")
    steps: int = key(3, "tokens of the drafts that are trained on")
    decay: float = key(0.8, "factor of the loss from one token of a draft to the next")
    vocabulary: int = key(
        0, "tokens that the head drafts, the most frequent of the answers; 0: all, by the base's LM head"
    )

    @property
    def lowest(self) -> dict[str, float]:
        return {"steps": 1, "decay": 0.0, "vocabulary": 0}


@dataclass(frozen=True, kw_only=True)
class DFlashRecipe(DraftHeadRecipe):
    """Cross-entropy of the tokens of blocks that begin at random tokens of each text (DeepSpec)."""

    layers: tuple[int, ...] = key(
        (), "layers whose inputs the head reads; empty: as many as it has, spread over the base's"
    )
    depth: int = key(2, "decoder layers of the head")
    length: int = key(7, "tokens of a block")
    anchors: int = key(16, "blocks per text and step")
    decay: float = key(4.0, "the loss of token k of a block has the weight exp(-(k - 1) / decay)")

    @property
    def lowest(self) -> dict[str, float]:
        return {"depth": 1, "length": 1, "anchors": 1, "decay": 0.01}


@dataclass(frozen=True, kw_only=True)
class DSparkRecipe(DFlashRecipe):
    """`DFlashRecipe` with a Markov head and a confidence head; the loss is mostly the distance to the base's distribution."""

    rank: int = key(64, "rank of the Markov head")
    ce: float = key(0.1, "weight of the cross-entropy")
    distance: float = key(0.9, "weight of the distance, sum |q - p|")
    confidence: float = key(1.0, "weight of the confidence head's loss")

    @property
    def lowest(self) -> dict[str, float]:
        return super().lowest | {"rank": 1, "ce": 0.0, "distance": 0.0, "confidence": 0.0}


@dataclass(frozen=True, kw_only=True)
class FinetuneRecipe:
    """Fine-tuning of a whole model at a constant learning rate.

    Adafactor at 1e-3 is what T5's authors use (Raffel et al. 2020).
    """

    epochs: int = key(3, "passes over the training texts")
    batch: int = key(8, "texts per step")
    rate: float = key(1e-3, "learning rate")
    optimizer: str = key("adafactor", "optimizer, by its name in transformers")
    most: int = key(1024, "tokens of a text; longer ones are cut")

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch", 1), ("rate", 0.0), ("most", 2)):
            within(name, getattr(self, name), least, math.inf)


SPECDEC_RECIPE = Recipe(epochs=3, batch=32, rate=1e-3, reject_weight=REJECT_WEIGHT, cosine=True)
DSL_RECIPE = Recipe(epochs=20, batch=32, rate=1e-3)
RECIPES: dict[HeadKind, "tuple[DataclassInstance, ...]"] = {
    HeadKind.sprinter: (PrefixRollout(), SprinterRecipe()),
    HeadKind.specdec: (DraftRollout(), SPECDEC_RECIPE),
    HeadKind.dsl: (DraftRollout(), DSL_RECIPE),
    HeadKind.eagle: (EagleRecipe(),),
    HeadKind.eagle3: (Eagle3Recipe(),),
    HeadKind.dflash: (DFlashRecipe(),),
    HeadKind.dspark: (DSparkRecipe(),),
}


class TrainKind(StrEnum):
    """What `specbench train` trains: the kinds of heads, a whole model, and a draft made of its target's layers."""

    sprinter = HeadKind.sprinter.value
    specdec = HeadKind.specdec.value
    dsl = HeadKind.dsl.value
    eagle = HeadKind.eagle.value
    eagle3 = HeadKind.eagle3.value
    dflash = HeadKind.dflash.value
    dspark = HeadKind.dspark.value
    finetune = "finetune"
    draft = "draft"


def keys_of(kind: HeadKind | TrainKind) -> dict[str, tuple[object, str]]:
    """Return the keys of a kind's recipe, with their defaults and meanings."""
    whole = kind in (TrainKind.finetune, TrainKind.draft)
    parts = (FinetuneRecipe(),) if whole else RECIPES[HeadKind(kind)]
    return {
        attribute.name: (getattr(part, attribute.name), meaning_of(attribute))
        for part in parts
        for attribute in fields(part)
        if attribute.name not in FIXED
    }


def recipe_of(kind: HeadKind, pair: Pair, changes: Table) -> Table:
    """Return the keys of a recipe that differ from the kind's defaults: the pair's, replaced by the user's or the suite's."""
    return {**pair.defaults.train.get(kind.value, {}), **changes}


def whole_recipe(kind: HeadKind, pair: Pair, changes: Table) -> Table:
    """Return all keys of a recipe: `recipe_of` over the kind's defaults."""
    return {**{key: value for key, (value, _) in keys_of(kind).items()}, **recipe_of(kind, pair, changes)}


def rows_key(kind: HeadKind, recipe: Table) -> tuple[object, ...]:
    """Return the values of a whole recipe on which the collected rows depend: heads that agree in them share their rows."""
    if drafts(kind):
        layers = recipe.get("layers") or ("block" if "depth" in recipe else kind, recipe.get("depth"))
        return recipe["most"], recipe["temperature"], layers
    return tuple(recipe[attribute.name] for attribute in fields(RECIPES[kind][0]) if attribute.name not in FIXED)


def meaning_of(attribute: "Field[Any]") -> str:
    """Return what a field of a recipe means."""
    return str(attribute.metadata[MEANING])


def _rate_at(width: int) -> float:
    """Return a learning rate for a width, on a line through NARROW and WIDE in logarithms, and constant beyond them."""
    (wide, low), (narrow, high) = WIDE, NARROW
    share = math.log(min(max(width, narrow), wide) / narrow) / math.log(wide / narrow)
    return float(high * (low / high) ** share)


# The time that the training of a head may take


class Budget:
    """A time limit in minutes, 0 for none, counted from construction.

    Half of it is for collecting the models' outputs. `clock` returns seconds.
    """

    def __init__(self, minutes: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = 60.0 * minutes if minutes else math.inf
        self._clock, self._start = clock, clock()

    @property
    def has_time_limit(self) -> bool:
        return self._seconds < math.inf

    @property
    def remaining(self) -> float:
        """The seconds that are left, at least 0."""
        return max(self._seconds - self.spent, 0.0)

    @property
    def spent(self) -> float:
        """The seconds since the start."""
        return self._clock() - self._start

    def ends_collecting(self) -> bool:
        """Return whether the share for collecting is used up."""
        return self.spent >= COLLECTING * self._seconds
