"""What a suite prepares before it measures: heads and models that it trains."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from specbench.config.pair import FEATURES, TAU, Answers, HeadKind
from specbench.config.presets import stem


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """Heads of one kind: one for each of these pairs, tasks and values of tau.

    Each is trained on `limit` texts of the task's training split, with these `answers`, for at most `minutes` if it is not 0.
    `recipe` holds keys of `--set recipe.KEY`. With several values of tau, a head is called KIND/TAU, otherwise KIND. A
    `label` distinguishes heads of one kind and tau with other recipes: KIND/LABEL, or KIND/TAU-LABEL. With a `base`, the
    head reads that model, and is called KIND@BASE. With `on`, the rows of that task train one head for all `tasks`; without
    `--data ON=FILE`, the head is not trained, and the pair's own is used.
    """

    kind: HeadKind
    pairs: tuple[str, ...]
    tasks: tuple[str, ...]
    label: str = ""
    base: str = ""
    on: str = ""
    tau: tuple[float, ...] = (TAU,)
    features: str = FEATURES
    answers: Answers = Answers.outputs
    limit: int = 600
    minutes: float = 0.0
    seed: int = 0
    recipe: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind != HeadKind.sprinter and (self.tau, self.features) != ((TAU,), FEATURES):
            raise ValueError(f"tau and features apply to sprinter only, not to {self.kind}")

    def heads(self, pair: str, task: str) -> Iterator["PreparedHead"]:
        """Yield the heads of a pair for the runs on a task."""
        if pair in self.pairs and task in self.tasks:
            kind = "@".join(filter(None, (self.kind.value, self.base)))
            for tau in self.tau:
                words = [f"{tau:g}"] * (len(self.tau) > 1) + [self.label] * bool(self.label)
                yield PreparedHead(self, pair, self.on or task, "/".join(filter(None, (kind, "-".join(words)))), tau)


@dataclass(frozen=True)
class PreparedHead:
    """A head of a preparation. `task` is the one whose rows train it."""

    preparation: Preparation
    pair: str
    task: str
    name: str
    tau: float

    @property
    def words(self) -> str:
        """The head in words."""
        return f"{self.name} of {self.pair} on {self.task}"

    def folder(self, out: Path) -> Path:
        """Return the head's folder inside the results folder."""
        label = self.preparation.kind.value
        if self.preparation.kind == HeadKind.sprinter:
            features = "" if self.preparation.features == FEATURES else f"-{self.preparation.features}"
            label += f"-tau{self.tau:g}{features}"
        suffix = "".join(f"-{word}" for word in (self.preparation.base, self.preparation.label) if word)
        return self.collected(out).parent / f"{label}{suffix}"

    def collected(self, out: Path) -> Path:
        """Return the folder of the models' outputs, which heads of the same kind share."""
        return out / "heads" / stem(self.pair) / stem(self.task).replace(":", "@") / f"{self.preparation.kind}-outputs"


@dataclass(frozen=True, kw_only=True)
class Finetune:
    """Models to fine-tune: these roles of each pair, on each task.

    Each is trained on `limit` texts of the task's training split (0: all) for at most `minutes` if it is not 0. `recipe`
    holds keys of `--set recipe.KEY`. Runs on the task then use the fine-tuned models.
    """

    pairs: tuple[str, ...]
    tasks: tuple[str, ...]
    roles: tuple[str, ...] = ("draft", "target")
    limit: int = 0
    minutes: float = 0.0
    seed: int = 0
    recipe: dict[str, Any] = field(default_factory=dict)

    def models(self, pair: str, task: str) -> Iterator["PreparedModel"]:
        """Yield the models of a pair for the runs on a task."""
        if pair in self.pairs and task in self.tasks:
            yield from (PreparedModel(self, pair, task, role) for role in self.roles)


@dataclass(frozen=True)
class PreparedModel:
    """A model of a pair that a suite fine-tunes on a task."""

    finetune: Finetune
    pair: str
    task: str
    role: str

    @property
    def words(self) -> str:
        """The model in words."""
        return f"{self.role} of {self.pair} on {self.task}"

    def folder(self, out: Path) -> Path:
        """Return the model's folder inside the results folder."""
        return out / "models" / stem(self.pair) / stem(self.task).replace(":", "@") / self.role


def require_distinct(steps: Sequence[Preparation]) -> None:
    """Raise ValueError, with both entries, for two heads that would replace each other.

    These have one name for the same pair and measured task, or one folder and different recipes.
    """
    names: dict[tuple[str, str, str], int] = {}
    folders: dict[Path, int] = {}
    recipes = [replace(step, pairs=(), tasks=(), tau=(TAU,)) for step in steps]  # a folder's name has the others
    for i, step in enumerate(steps):
        for pair, task in product(dict.fromkeys(step.pairs), dict.fromkeys(step.tasks)):
            for head in step.heads(pair, task):
                key, folder = (pair, task, head.name), head.folder(Path())
                other = names.get(key, folders.get(folder, i))
                if key in names or recipes[other] != recipes[i]:
                    raise ValueError(
                        f"prepare[{other}] and prepare[{i}] both train '{head.name}' of {pair} on {head.task}; help: a label"
                        " for one of them"
                        if other != i
                        else f"prepare[{i}] trains '{head.name}' of {pair} on {head.task} twice; help: each tau once"
                    )
                names[key], folders[folder] = i, i


def require_distinct_models(steps: Sequence[Finetune]) -> None:
    """Raise ValueError for a model that is fine-tuned twice."""
    seen = set()
    for step in steps:
        for pair, task in product(step.pairs, step.tasks):
            for model in step.models(pair, task):
                if (folder := model.folder(Path())) in seen:
                    raise ValueError(f"finetune: {model.words} is fine-tuned twice")
                seen.add(folder)
