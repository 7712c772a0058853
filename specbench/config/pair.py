"""Floor 0: a pair's description, read from TOML without torch: which models play which roles, and what suits them."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from specbench.errors import ConfigError, MissingAsset, hint

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Quantization = Literal["", "int4", "int8", "nf4"]
PACKAGE = Path(__file__).parents[1]
BUNDLED = "specbench:"  # a path inside the installed package


class HeadKind(StrEnum):
    """Kinds of trained heads."""

    sprinter = "sprinter"
    specdec = "specdec++"
    dsl = "dsl"
    eagle = "eagle"


FEATURES, TAU = "state", 1.2  # of SPRINTER's verifier: what it reads, and the tau of its labels (best for GPT-Neo)
HEADS = tuple(kind.value for kind in HeadKind)


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """One model: a local folder or a Hugging Face id, at a revision.

    An open revision is resolved to a commit when the model is first fetched; runs record what it was. `quantization` is done
    here, to weights that are not quantised yet. `allowed_keys` are patterns (`lm_head.*`) of weights that the checkpoint may
    lack, which then are random, or hold beyond its architecture; by default any such weight is an error.
    """

    path: str
    revision: str = ""
    dtype: Dtype = "auto"
    quantization: Quantization = ""
    config: dict[str, Any] = field(default_factory=dict)  # keys of a dummy model's architecture that differ
    allowed_keys: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class HeadSpec:
    """A trained head: a local folder or a Hugging Face id, at a revision, and whose states or laws it reads.

    `target` is the model whose verdict it foresees, where it does.
    """

    path: str
    base: str
    kind: str = "eagle"
    target: str = "target"
    revision: str = ""


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """What a run on this pair takes unless told otherwise; `task` holds keys of a task's own table, by task, and `train`
    those of a head's recipe, by kind."""

    data: str = ""
    limit: int = 0  # 0 is all
    tasks: tuple[str, ...] = ()  # where none is named; empty: all
    task: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)  # recipes of heads, by kind

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise ValueError(f"limit = {self.limit} must be at least 0 (0 is all)")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Models by role. `ensemble` names the roles that ensembles combine, the default proposer first.

    Two ways to measure speed without the models' weights: `weights = "dummy"` gives their architectures random ones, and
    `logits = "synthetic"` replaces what they say by laws that accept one another's drafts at the rate `acceptance`: a
    number, one by task, or a run folder, whose measured rate is taken. Whatever is made so is called so wherever it appears.
    """

    description: str = ""
    paper: str = ""
    card: str = ""  # a Markdown file about the models, which `show` prints
    models: dict[str, ModelSpec]
    heads: dict[str, HeadSpec] = field(default_factory=dict)
    ensemble: tuple[str, ...] = ("draft", "target")
    weights: Literal["real", "dummy"] = "real"
    logits: Literal["real", "synthetic"] = "real"
    acceptance: float | str | dict[str, float] = 0.8
    defaults: Defaults = field(default_factory=Defaults)

    @property
    def simulated(self) -> str:
        """What about its models is not real: dummy, synthetic, both or nothing."""
        return " ".join(word for word in (self.weights, self.logits) if word != "real")

    def acceptance_on(self, task: str) -> float:
        """The rate wanted on a task. Raises ConfigError where none is given for it."""
        assert not isinstance(self.acceptance, str)
        if isinstance(self.acceptance, float):
            return self.acceptance
        if task not in self.acceptance:
            raise ConfigError(f"acceptance: no rate for task '{task}'{hint(task, self.acceptance)}")
        return self.acceptance[task]

    def __post_init__(self) -> None:
        rates = list(self.acceptance.values()) if isinstance(self.acceptance, dict) else [self.acceptance]
        for rate in rates:
            if isinstance(rate, float) and not 0.0 < rate <= 1.0:
                raise ValueError(f"acceptance = {rate} must be above 0 and at most 1")
        if self.weights == "real" and any(spec.config for spec in self.models.values()):
            raise ValueError('config changes an architecture, which only weights = "dummy" can')
        for name, head in self.heads.items():
            if head.base not in self.models:
                raise ValueError(f"heads.{name}: no model '{head.base}'{hint(head.base, self.models)}")
            if name in self.models:
                raise ValueError(f"heads.{name}: there is a model of that name")
        for role in self.ensemble:
            if role not in self.models and self.ensemble != ("draft", "target"):
                raise ValueError(f"ensemble: no model '{role}'{hint(role, self.models)}")

    def group(self, name: str) -> tuple[str, ...]:
        """The roles that `name` stands for: `ensemble`, or one role. Raises ConfigError where the pair has no such role."""
        roles = self.ensemble if name == "ensemble" else (name,)
        for role in roles:
            if role not in self.models:
                raise ConfigError(f"this pair has no model '{role}'{hint(role, self.models)}")
        return roles

    def head_of(self, kind: str, base: str) -> str:
        """The first head of a kind that reads a model. Raises MissingAsset, saying what to do, where the pair has none."""
        for name, head in self.heads.items():
            if (head.kind, head.base) == (kind, base):
                return name
        raise MissingAsset(
            f"this pair has no {kind} head for its {base}; help: specbench train {kind} -p PAIR --base {base}, then"
            f" --head {kind}@{base}=FOLDER"
        )


def with_heads(table: dict[str, Any], heads: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """A pair's table with the user's heads in it, without those whose base the pair does not have.

    Raises ConfigError for an unknown name, and for two that name one head.
    """
    given: dict[str, str] = {}
    for name, path in heads:
        found = head_named(name, table.get("heads", {}))
        if given.setdefault(found, name) != name:
            raise ConfigError(f"--head {given[found]} and --head {name} conflict: both name head '{found}'")
        kind, _, base = name.partition("@")
        base = base or default_base(kind)
        known = table.setdefault("heads", {})
        if found in known or base in table.get("models", {}):
            known.setdefault(found, {"kind": kind, "base": base})["path"] = path
    return table


def default_base(kind: str) -> str:
    """The model whose states a kind of head reads, unless a pair says otherwise."""
    return "target" if kind == HeadKind.eagle else "draft"


def head_named(name: str, heads: dict[str, Any]) -> str:
    """The pair's head that a user means by its name, or by KIND@BASE; else the name that a new one gets.

    Raises ConfigError, with the nearest right one, for a name that is neither a head nor a kind.
    """
    kind, _, base = name.partition("@")
    if name in heads:
        return name
    if kind not in HEADS:
        raise ConfigError(f"--head {name}: no such head or kind{hint(kind, dict.fromkeys([*heads, *HEADS]))}")
    base = base or default_base(kind)
    same = [n for n, head in heads.items() if (head.get("kind", "eagle"), head.get("base")) == (kind, base)]
    return same[0] if same else kind if kind not in heads else f"{kind}-{base}"


def folder(path: str, base: Path) -> Path | None:
    """The local folder that `path` names, relative to `base` or to the working directory; None for a hub id."""
    if path.startswith(BUNDLED):
        return PACKAGE / path.removeprefix(BUNDLED)
    candidates = [base / Path(path).expanduser(), Path(path).expanduser()]
    return next((c.resolve() for c in candidates if c.is_dir()), None)
