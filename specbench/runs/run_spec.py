"""The complete specification of a run: run.toml contains a `RunSpec`, and reads back equal to it.

A run has one pair, one task, and the methods that share a baseline and a temperature, with that baseline. They are
interleaved prompt by prompt. All defaults are written out, so that the file is complete without them.
"""

import hashlib
import json
import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, Self

from specbench.config.construct import Table, construct, to_table
from specbench.config.cost import Cost
from specbench.decoding.traits import Traits
from specbench.runs.settings import settings_in
from specbench.vocabulary import Simulation

SEMANTICS = 5  # bumped when the meaning of a recorded number changes, so that old runs are not mixed with new ones
MOST_NAMED = 4  # methods in a folder's name
MOST_SHOWN = 6  # methods in a line about a run
KEY_DIGITS = 8  # of the hash of a run
LONGEST_WORD = 60  # characters of one part of a folder's name

Clock = Literal["decoding", "end to end"]  # the seconds that a headline speedup compares


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a model that SPRINTER's FLOPs formula takes; of an encoder-decoder model, its decoder's."""

    layers: int
    d: int
    heads: int
    d_ff: int
    vocabulary: int


@dataclass(frozen=True, kw_only=True)
class GenerationKeys:
    """What a checkpoint's generation config sets: `rules` that apply to its logits, `ignored` keys, and its `sampling`."""

    rules: Table = field(default_factory=dict)
    ignored: Table = field(default_factory=dict)
    sampling: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """One model of a run: what makes a result with it comparable with another, and its sizes.

    `source` is a folder or a hub id; `revision` the commit of a hub model, `checksum` the hash of a local folder.
    `changes` are keys of a dummy model's architecture. `chat_template` is the name and hash of a template that replaces the
    tokenizer's. `gguf_file` is the file of a GGUF model, and `stored` says how quantized files hold the weights.
    `generation` is None if the checkpoint's generation config sets nothing of these. `placement` says where the
    model runs; None for the run's device. A decoding forward reads at least `forward_bytes` of weights and `position_bytes`
    of the cache per position.
    """

    source: str
    dtype: str
    engine: str = "eager"
    revision: str = ""
    checksum: str = ""
    quantization: str = ""
    cost: Cost | None = None
    gguf_file: str | None = None
    stored: str | None = None
    allowed_keys: tuple[str, ...] = ()
    weights: Literal["real", "dummy"] = "real"
    changes: Table = field(default_factory=dict)
    chat_template: str | None = None
    placement: str | None = None
    generation: GenerationKeys | None = None
    parameters: int
    forward_bytes: float
    position_bytes: float
    shape: Shape

    def without_unapplied_keys(self) -> "ModelSource":
        """Return the model with only the rules of its generation config."""
        if self.generation is None:
            return self
        rules = GenerationKeys(rules=self.generation.rules) if self.generation.rules else None
        return replace(self, generation=rules)

    @property
    def identity(self) -> Table:
        """What makes a result with this model comparable with another, without what follows from it."""
        derived = ("engine", "placement", "stored", "parameters", "forward_bytes", "position_bytes", "shape")
        return {key: value for key, value in to_table(self).items() if key not in derived}


@dataclass(frozen=True, kw_only=True)
class HeadSource:
    """One trained head of a run.

    `trained_on` are the SHA-256 of the rows that it was trained on, without the first `skipped` ones, of `tasks`. On these
    tasks it predicts the output's distance from the target, `predicted_distance`, if it is a verifier.
    """

    source: str
    kind: str
    base: str
    revision: str = ""
    checksum: str = ""
    weights: Literal["real", "dummy"] = "real"
    tasks: tuple[str, ...] = ()
    trained_on: tuple[str, ...] = ()
    skipped: int = 0
    predicted_distance: float | None = None


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """Synthetic logits: how far each model's distributions are from the common ones.

    `rates` are the acceptance rates, by drafting model, that these spreads were calibrated to; empty if no method
    drafts.
    """

    spreads: dict[str, float]
    rates: dict[str, "Rate"] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A configured acceptance rate: of a model's drafts under `method`, which tests them against `scorers`."""

    acceptance: float
    method: str
    scorers: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PairSpec:
    """The models and heads that a run's methods need. `simulated` says what is not real."""

    name: str
    models: dict[str, ModelSource]
    heads: dict[str, HeadSource] = field(default_factory=dict)
    simulated: Simulation = Simulation.none
    synthetic: Synthetic | None = None


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """The samples of a run. `sha256` is over the source's rows, `prompts_sha256` over the prompts made from them.

    `shard` is I/N for a run of the Ith of N parts of the samples. `drawn`: they are random ones, not the first.
    `left_out` counts rows that no prompt was made of, by reason. `without_system` counts dialogues whose system prompt
    was left out, as earlier versions did.
    """

    source: str
    sha256: str
    prompts_sha256: str
    samples: int
    later_turns: int = 0
    total: int
    revision: str = ""
    shard: str | None = None
    drawn: bool | None = None
    left_out: dict[str, int] | None = None
    without_system: int | None = None


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """A run's task. `options` builds the task again; `continues` says that its outputs have no natural end."""

    name: str
    version: str
    continues: bool = False
    options: Table
    data: DataSpec

    @property
    def label(self) -> str:
        """The task and its version, `gsm8k@1a`."""
        return f"{self.name}@{self.version}"


@dataclass(frozen=True, kw_only=True)
class MethodSpec:
    """One method of a run.

    `options` builds the method again; `preset` is the name that it was requested by, and `settings` are the values of swept
    keys, by their paths in `options`. `lossless` says whether it declares the
    same output distribution as the baseline; None for the baseline, and for a method that declares none.
    """

    preset: str
    options: Table
    traits: Traits
    lossless: bool | None = None
    settings: Table = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DecodingSpec:
    """The decoding settings of a run. Repeat r uses seed + r."""

    temperature: float
    top_k: int
    top_p: float
    max_new_tokens: int
    ignore_eos: bool
    seed: int
    repeats: int


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """Everything that a run's numbers depend on, except for the machine.

    `methods` are by label (`settings.label_of`), the baseline first. `plugins` are file names with the
    SHA-256 of their text. `changes` say in words what was changed of the presets; the numbers depend on the result alone.
    """

    semantics: int = SEMANTICS
    pair: PairSpec
    task: TaskSpec
    methods: dict[str, MethodSpec]
    baseline: str
    clock: Clock = "decoding"
    decoding: DecodingSpec
    device: str
    plugins: dict[str, str] = field(default_factory=dict)
    changes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<RunSpec {self.words}: {self.generations} generations, {self.key}>"

    @property
    def reference(self) -> str:
        """The method that others are compared with besides the baseline: plain speculative decoding; empty without one."""
        return next((label for label, method in self.methods.items() if method.traits.is_reference), "")

    @property
    def presets(self) -> dict[str, str]:
        """The preset of each method, by label."""
        return {label: method.preset for label, method in self.methods.items()}

    @property
    def words(self) -> str:
        """Pair, task, temperature and methods in one line; of many methods, the first ones and the number of the others."""
        listed_methods = list(self.methods)[:MOST_SHOWN]
        more = [f"{len(self.methods) - MOST_SHOWN} more"] if len(self.methods) > MOST_SHOWN else []
        methods = ", ".join([*listed_methods, *more])
        return f"{self.pair.name}, {self.task.label}, T = {self.decoding.temperature:g}: {methods}"

    def to_toml(self) -> Table:
        """Return the table of run.toml."""
        return to_table(self)

    @classmethod
    def from_toml(cls, table: Table, where: str = "run.toml") -> Self:
        """Read what `to_toml` wrote. Raises ConfigError, naming the key, for a table that is no run spec."""
        return construct(cls, with_traits(with_settings(table)), where)

    @cached_property
    def sha256(self) -> str:
        """A hash of everything that numbers depend on, as hex digits.

        Traits, which follow from the methods, and keys of generation configs that were not applied are left out.
        """
        methods = {
            label: {"preset": method.preset, "options": method.options} for label, method in self.methods.items()
        }
        applied = replace(
            self.pair, models={role: model.without_unapplied_keys() for role, model in self.pair.models.items()}
        )
        table = {key: value for key, value in replace(self, pair=applied).to_toml().items() if key != "changes"}
        return _sha256({**table, "methods": methods})

    @property
    def key(self) -> str:
        """The start of the hash, which names the run's folder and binds its records to it."""
        return self.sha256[:KEY_DIGITS]

    @property
    def checksum(self) -> str:
        """A hash of run.toml in the words of the first revision that stored one, used to detect changes to the file."""
        methods = {label: _as_first_stored(to_table(method)) for label, method in self.methods.items()}
        return _sha256({**self.to_toml(), "methods": methods})

    @property
    def folder(self) -> str:
        """The name of the run's folder: methods, pair, task, and the start of the hash."""
        names = [m.preset for label, m in self.methods.items() if label != self.baseline] or [self.baseline]
        shown = list(dict.fromkeys(names))  # variants have one name
        if len(shown) > MOST_NAMED:
            shown = [*shown[:MOST_NAMED], f"{len(shown) - MOST_NAMED}more"]
        return "_".join([*map(word, ["+".join(shown), self.pair.name, self.task.name]), self.key])

    @property
    def roles(self) -> tuple[str, ...]:
        """The models that its methods need."""
        return tuple(self.pair.models)

    @property
    def generations(self) -> int:
        """The number of generations of a complete run."""
        return len(self.methods) * self.task.data.samples * self.decoding.repeats

    @property
    def engine(self) -> str:
        """One word if all models run on one engine, otherwise the engine of each."""
        engines = {role: model.engine for role, model in self.pair.models.items()}
        kinds = list(dict.fromkeys(engines.values()))
        return kinds[0] if len(kinds) == 1 else ", ".join(f"{role} {engine}" for role, engine in engines.items())


def with_settings(table: Table) -> Table:
    """Return the table of a run.toml with the settings of its methods, which earlier revisions stored in labels alone."""
    methods = table.get("methods")
    if not isinstance(methods, dict):
        return table
    return table | {
        "methods": {
            label: {"settings": settings, **method}
            if isinstance(method, dict) and (settings := settings_in(label))
            else method
            for label, method in methods.items()
        }
    }


# Words of traits that earlier revisions stored, with today's
COUNTED = {"speculation": "drafted", "sprinter": "tested"}
FORMULAS = {"sprinter": "untested run"}
REFERENCE = "sd"
NEWER_TRAITS = ("is_reference", "longest_draft", "predicts_distance")  # which the first revisions did not store


def with_traits(table: Table) -> Table:
    """Return the table of a run.toml with the traits that earlier revisions stored in other words, or not at all."""
    methods = table.get("methods")
    if not isinstance(methods, dict):
        return table
    return table | {"methods": {label: _with_traits(method) for label, method in methods.items()}}


def _with_traits(method: object) -> object:
    """Return the table of a method with today's traits; anything else as it is."""
    if not isinstance(method, dict) or not isinstance(traits := method.get("traits"), dict):
        return method
    counted, theory = traits.get("flops", ""), traits.get("theory")
    new = {**traits, "flops": COUNTED.get(counted, counted)}
    if isinstance(theory, dict) and theory.get("formula") in FORMULAS:
        new["theory"] = {**theory, "formula": FORMULAS[theory["formula"]]}
    options = method.get("options", {})
    new.setdefault("is_reference", method.get("preset") == REFERENCE and not method.get("settings"))
    new.setdefault("predicts_distance", new["flops"] == "tested" and options.get("threshold") == 0.5)
    length = str(traits.get("draft_length", ""))
    if length.isdecimal():
        new.setdefault("longest_draft", int(length))
    return {**method, "traits": new}


def _as_first_stored(method: Table) -> Table:
    """Return the table of a method as the first revision stored it, of which checksums of runs are."""
    stored = method["traits"]
    assert isinstance(stored, dict)
    traits = {key: value for key, value in stored.items() if key not in NEWER_TRAITS}
    traits["flops"] = {new: old for old, new in COUNTED.items()}.get(traits["flops"], traits["flops"])
    theory = traits.get("theory")
    if isinstance(theory, dict):
        names = {new: old for old, new in FORMULAS.items()}
        traits["theory"] = {**theory, "formula": names.get(theory["formula"], theory["formula"])}
    return {**{key: value for key, value in method.items() if key != "settings"}, "traits": traits}


def _sha256(table: Table) -> str:
    return hashlib.sha256(json.dumps(table, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def word(name: str) -> str:
    """Return a name as a part of a folder's: plain characters, and at most as many as a path can have."""
    return re.sub(r"[^A-Za-z0-9.+-]", "-", name)[:LONGEST_WORD]
