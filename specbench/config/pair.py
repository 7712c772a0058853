"""The description of a pair in TOML: models by role, where each runs, trained heads and defaults. Imports no torch."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from specbench.config.cost import Cost
from specbench.config.quantization_kind import NOT_QUANTIZED, QuantizationKind
from specbench.errors import ConfigError, MissingAsset, hint, nearest
from specbench.vocabulary import Dtype, Simulation

Parallel = Literal["none", "layers"]
ONE_DEVICE = re.compile(r"cpu|cuda|cuda:\d+")
PLACEMENT_FORMS = "ROLE=DEVICE or ROLE=layers:DEVICES, such as target=cuda:1 or target=layers:0,1"
Generation = Literal["checkpoint", "off"]
PACKAGE = Path(__file__).parents[1]
GGUF_SUFFIX = ".gguf"
BUNDLED = "specbench:"  # a path inside the installed package
FEATURES, TAU = "state", 1.2  # defaults of SPRINTER's verifier: its features, and the tau of its labels


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The placement of one model.

    `devices` are the names of its devices (`cuda:0`, `cpu`, `disk`), empty for the run's device. With `layers`, each device
    holds consecutive layers, of at most `memory_gib` if given.
    """

    parallel: Parallel = "none"
    devices: tuple[str, ...] = ()
    memory_gib: tuple[float, ...] = ()

    @property
    def label(self) -> str | None:
        """The placement in words, for run specs and tables; None for the run's device."""
        if not self.devices:
            return None
        names = ", ".join(self.devices)
        return names if self.parallel == "none" else f"{self.parallel} on {names}"


def placement_of(
    device: str, devices: Sequence[int | str], parallel: Parallel, memory_gib: Sequence[float]
) -> Placement:
    """Return the placement that the keys of a pair's model describe. Raises ValueError if they conflict."""
    if device and not ONE_DEVICE.fullmatch(device):
        raise ValueError(f"device = '{device}' must be cpu, cuda or cuda:N")
    if parallel == "none":
        if devices or memory_gib:
            raise ValueError('devices and memory_gib need parallel = "layers"')
        return Placement(devices=(device,) if device else ())
    if device:
        raise ValueError('device and parallel = "layers" conflict: name the devices in `devices`')
    names = tuple(
        f"cuda:{device}" if isinstance(device, int) else "cuda:0" if device == "cuda" else device for device in devices
    )
    if len(names) < 2:
        raise ValueError('parallel = "layers" needs at least two `devices`, such as [0, 1]')
    if not all(ONE_DEVICE.fullmatch(name) or name == "disk" for name in names):
        raise ValueError(f"devices = {list(devices)} must be numbers of GPUs, cpu or disk")
    if len(set(names)) < len(names):
        raise ValueError(f"devices = {list(devices)} names a device twice")
    if names[0] == "disk":
        raise ValueError("the first of several devices must not be disk")
    if "disk" in names and not memory_gib:
        raise ValueError("devices with disk need memory_gib, a limit for each device")
    if memory_gib and len(memory_gib) != len(names):
        raise ValueError("memory_gib has one limit per device")
    return Placement(parallel=parallel, devices=names, memory_gib=tuple(memory_gib))


def place_overrides(texts: Sequence[str]) -> list[tuple[str, Any]]:
    """Return the overrides of `--place` options, which replace the placement in a pair's file.

    Raises ConfigError for a text that is not one of PLACEMENT_FORMS.
    """
    overrides: list[tuple[str, Any]] = []
    for text in texts:
        role, equals, where = text.partition("=")
        kind, colon, names = where.partition(":")
        key = f"pair.models.{role}"
        if equals and role and kind == "layers" and colon:
            devices = [int(name) if name.isdecimal() else name for name in names.split(",")]
            overrides += [(f"{key}.device", ""), (f"{key}.parallel", kind), (f"{key}.devices", devices)]
        elif equals and role and ONE_DEVICE.fullmatch(where):
            overrides += [(f"{key}.device", where), (f"{key}.parallel", "none"), (f"{key}.devices", [])]
        else:
            raise ConfigError(f"--place {text}: expected {PLACEMENT_FORMS}")
    return overrides


class HeadKind(StrEnum):
    """Kinds of trained heads."""

    sprinter = "sprinter"
    specdec = "specdec++"
    dsl = "dsl"
    eagle = "eagle"
    eagle3 = "eagle3"
    dflash = "dflash"
    dspark = "dspark"
    mtp = "mtp"


def drafts(kind: str) -> bool:
    """Return whether heads of a kind draft tokens."""
    return kind in (HeadKind.eagle, HeadKind.eagle3, HeadKind.dflash, HeadKind.dspark, HeadKind.mtp)


class Answers(StrEnum):
    """The text after a prompt that a head is trained and evaluated on: outputs of the models, or the data's answer."""

    outputs = "outputs"
    reference = "reference"


HEADS = tuple(kind.value for kind in HeadKind)


def is_gguf(name: str) -> bool:
    """Return whether a file name or path is that of a GGUF file."""
    return name.lower().endswith(GGUF_SUFFIX)


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """One model: a local folder or a Hugging Face id, at a revision.

    Without a revision, the newest commit is used; runs record it. `gguf_file` is the name of a GGUF file in the folder or the
    repository, which holds weights, config and tokenizer. `quantization` is applied when unquantized weights are loaded; `a8`
    rounds the inputs of weights that are quantized already. `engine` runs the model unless `--engine` names another; by
    default the fastest that can. `device`, or `devices` with `parallel`, are where the model runs (`Placement`), by default
    the run's device. `allowed_keys` are patterns (`lm_head.*`) of weights that may be missing from the checkpoint, and are
    then random, or that may be in addition to the architecture's. By default such weights are an error. `chat_template` is
    the name of a bundled chat template, or a Jinja file; it replaces the tokenizer's. `generation` says whether the rules of
    the checkpoint's generation_config.json, such as a repetition penalty, apply to its logits (`checkpoint`) or not (`off`).
    With `cost`, neurons that change no output are added when the weights are loaded, so that a forward reads more weights.
    """

    path: str
    revision: str = ""
    gguf_file: str = ""
    dtype: Dtype = Dtype.auto
    quantization: QuantizationKind = NOT_QUANTIZED
    cost: Cost | None = None
    chat_template: str = ""
    engine: str = "auto"
    device: str = ""
    devices: tuple[int | str, ...] = ()
    parallel: Parallel = "none"
    memory_gib: tuple[float, ...] = ()
    generation: Generation = "checkpoint"
    by_task: dict[str, str] = field(default_factory=dict)  # paths of checkpoints that replace `path` on a task
    config: dict[str, Any] = field(default_factory=dict)  # keys of a dummy model's architecture that differ
    allowed_keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.quantization and "disk" in self.devices:
            raise ValueError("a quantized model can be split in layers over GPUs only")
        for path in (self.path, *self.by_task.values()):
            if is_gguf(path):
                folder, _, name = path.rpartition("/")
                parent = folder or ("/" if path.startswith("/") else ".")
                raise ValueError(
                    f'path = "{path}" names a GGUF file; in a pair file, write path = "{parent}" and gguf_file = "{name}"'
                )
        if self.gguf_file and not is_gguf(self.gguf_file):
            raise ValueError(f'gguf_file = "{self.gguf_file}" must end with {GGUF_SUFFIX}')
        if self.parallel != "none" and (self.gguf_file or self.cost or str(self.quantization) == "a8"):
            raise ValueError('gguf_file, cost and quantization = "a8" need a model on one device, without parallel')
        if self.cost and str(self.quantization) == "nf4":
            raise ValueError("cost and nf4 conflict: the scales of added weights would change those of others")
        assert self.placement

    @property
    def placement(self) -> Placement:
        """Where the model runs. Raises ValueError if its keys conflict."""
        return placement_of(self.device, self.devices, self.parallel, self.memory_gib)


@dataclass(frozen=True, kw_only=True)
class HeadSpec:
    """A trained head: a local folder or a Hugging Face id, at a revision.

    `base` is the model whose hidden states or distributions it reads, `target` the model whose verdict it predicts, if any.
    """

    path: str
    base: str
    kind: str = HeadKind.eagle.value
    target: str = "target"
    revision: str = ""

    @property
    def drafts(self) -> bool:
        """Whether it drafts tokens."""
        return drafts(self.kind)


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """Defaults for runs on a pair.

    `task` maps a task to keys of its table, and `train` a kind of head to keys of its recipe.
    """

    data: str = ""
    limit: int = 0  # 0 is all
    tasks: tuple[str, ...] = ()  # if none is named; empty: all
    task: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)  # recipes of heads, by kind

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise ValueError(f"limit = {self.limit} must be at least 0 (0 is all)")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Models by role. `ensemble` names the roles that ensembles combine, the default proposer first.

    Speed can be measured without the models' weights: `weights = "dummy"` uses random weights, and `logits = "synthetic"`
    replaces the models' logits by synthetic ones with the acceptance rate `acceptance`: a number, a number per task, a number
    per model that drafts, or the path of a run folder or of a speculation_profile.json, whose measured rate is used. Results
    are marked as dummy or synthetic everywhere.
    """

    description: str = ""
    paper: str = ""
    stands_for: str = ""  # the paper's pair, whose printed values reports show next to this pair's
    card: str = ""  # a Markdown file about the models, which `show` prints
    models: dict[str, ModelSpec]
    heads: dict[str, HeadSpec] = field(default_factory=dict)
    ensemble: tuple[str, ...] = ("draft", "target")
    weights: Literal["real", "dummy"] = "real"
    logits: Literal["real", "synthetic"] = "real"
    acceptance: float | str | dict[str, float] = 0.8
    defaults: Defaults = field(default_factory=Defaults)

    @property
    def simulated(self) -> Simulation:
        """What is not real about the models."""
        return Simulation.of(self.weights, self.logits)

    @property
    def acceptance_by_model(self) -> dict[str, float]:
        """The acceptance rates by drafting model; empty if `acceptance` is not such a table."""
        rates = self.acceptance
        return rates if isinstance(rates, dict) and rates.keys() <= self.models.keys() else {}

    def acceptance_on(self, task: str) -> float:
        """Return the acceptance rate for a task. Raises ConfigError if there is none."""
        assert not isinstance(self.acceptance, str)
        if isinstance(self.acceptance, float):
            return self.acceptance
        if task not in self.acceptance:
            similar = [key for key in self.acceptance if nearest(key, self.models)]
            models = f"; '{similar[0]}' is no model{hint(similar[0], self.models, 'models')}" if similar else ""
            raise ConfigError(f"acceptance: no rate for task '{task}'{hint(task, self.acceptance)}{models}")
        return self.acceptance[task]

    def __post_init__(self) -> None:
        rates = list(self.acceptance.values()) if isinstance(self.acceptance, dict) else [self.acceptance]
        for rate in rates:
            if isinstance(rate, float) and not 0.0 < rate <= 1.0:
                raise ValueError(f"acceptance = {rate} must be above 0 and at most 1")
        if isinstance(self.acceptance, dict) and not self.acceptance_by_model:
            models = [key for key in self.acceptance if key in self.models]
            other = next((key for key in self.acceptance if key not in self.models), "")
            if models:
                raise ValueError(
                    f"acceptance: '{models[0]}' is a model and '{other}' is no model{hint(other, self.models, 'models')};"
                    " rates are by model or by task"
                )
        if self.weights == "real" and any(spec.config for spec in self.models.values()):
            raise ValueError('config changes the architecture of a model, which requires weights = "dummy"')
        for name, head in self.heads.items():
            if head.base not in self.models:
                raise ValueError(f"heads.{name}: no model '{head.base}'{hint(head.base, self.models)}")
            if name in self.models:
                raise ValueError(f"heads.{name}: a model has the same name")
        for role in self.ensemble:
            if role not in self.models and self.ensemble != ("draft", "target"):
                raise ValueError(f"ensemble: no model '{role}'{hint(role, self.models)}")

    @property
    def differs_by_task(self) -> bool:
        """Whether a model has a checkpoint of its own for a task."""
        return any(spec.by_task for spec in self.models.values())

    def without_costs(self) -> "Pair":
        """Return the pair without `cost` keys: its outputs are the same, and its forwards are faster."""
        return replace(self, models={role: replace(spec, cost=None) for role, spec in self.models.items()})

    def on(self, task: str) -> "Pair":
        """Return the pair with the checkpoints of a task. A variant without an entry has its task's."""
        models = {
            role: replace(
                spec, path=spec.by_task.get(task) or spec.by_task.get(task.partition(":")[0]) or spec.path, by_task={}
            )
            for role, spec in self.models.items()
        }
        return replace(self, models=models)

    def group(self, name: str) -> tuple[str, ...]:
        """Return the roles of the group `ensemble`, or of one role. Raises ConfigError for an unknown role."""
        roles = self.ensemble if name == "ensemble" else (name,)
        for role in roles:
            if role not in self.models:
                draft = "; help: --draft PATH" if role == "draft" and list(self.models) == ["target"] else ""
                raise ConfigError(f"this pair has no model '{role}'{draft or hint(role, self.models)}")
        return roles

    def head_of(self, kind: str, base: str) -> str:
        """Return the first head of a kind that reads a model. Raises MissingAsset if the pair has none."""
        for name, head in self.heads.items():
            if (head.kind, head.base) == (kind, base):
                return name
        train = "" if kind == HeadKind.mtp else f"specbench train {kind} -p PAIR --base {base}, then "
        help_ = f"{train}--head {kind}@{base}=FOLDER"
        raise MissingAsset(f"this pair has no {kind} head for its {base}; help: {help_}")


def with_heads(table: dict[str, Any], heads: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """Return a pair's table with the user's heads, without those whose base the pair does not have.

    Raises ConfigError for an unknown name, and for two names of one head.
    """
    names_by_label: dict[str, str] = {}
    for name, path in heads:
        label = head_named(name, table.get("heads", {}))
        if names_by_label.setdefault(label, name) != name:
            raise ConfigError(f"--head {names_by_label[label]} and --head {name} conflict: both name head '{label}'")
        kind, base = kind_and_base(name)
        heads_table = table.setdefault("heads", {})
        if label in heads_table or base in table.get("models", {}):
            heads_table.setdefault(label, {"kind": kind, "base": base})["path"] = path
    return table


def default_base(kind: str) -> str:
    """Return the model whose states a kind of head reads by default."""
    return "target" if drafts(kind) else "draft"


def kind_and_base(name: str) -> tuple[str, str]:
    """Return the kind of a head, and the model that it reads, from KIND, KIND@BASE or KIND/LABEL."""
    kind, _, base = name.partition("/")[0].partition("@")
    return kind, base or default_base(kind)


def head_named(name: str, heads: dict[str, Any]) -> str:
    """Return the pair's head of a name, a kind or KIND@BASE; otherwise the name for a new head.

    With KIND/LABEL, a pair has several heads of a kind. Raises ConfigError, with the nearest known name, if the name is
    neither a head nor a kind.
    """
    kind, base = kind_and_base(name)
    if name in heads:
        return name
    if kind not in HEADS:
        raise ConfigError(f"--head {name}: no such head or kind{hint(kind, dict.fromkeys([*heads, *HEADS]))}")
    if "/" in name:
        return name
    same = [n for n, head in heads.items() if (head.get("kind", HeadKind.eagle), head.get("base")) == (kind, base)]
    return same[0] if same else kind if kind not in heads else f"{kind}-{base}"


def folder(path: str, base: Path) -> Path | None:
    """Return the local folder of a path relative to `base` or the working directory; None for a hub id.

    Raises MissingAsset for a bundled model that is made on first use if its files cannot be written.
    """
    if path.startswith(BUNDLED):
        from specbench.tiny import dequantized  # imported here to keep `list` and `--help` fast

        inner = path.removeprefix(BUNDLED)
        return dequantized.made(inner) or PACKAGE / inner
    candidates = [base / Path(path).expanduser(), Path(path).expanduser()]
    return next((c.resolve() for c in candidates if os.path.isdir(c)), None)  # False for an impossible name
