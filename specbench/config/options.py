"""The options of a run.

The fields of `Options` are declared once: the command line, suites and Python read them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args, get_type_hints

from specbench.config.construct import convert
from specbench.config.flags import (
    Flag,
    Panel,
    data_entry,
    lengths_entry,
    option,
    place_entries,
    read_data,
    read_entries,
    read_heads,
    read_lengths,
    read_shard,
    sweep_entry,
)
from specbench.config.presets import (
    Override,
    in_scope,
    latest,
    names,
    override,
    parse_head,
    parse_override,
    stem,
)
from specbench.config.shard import Shard
from specbench.errors import ConfigError, hint
from specbench.vocabulary import Chat, Device, Dtype, Engine, Overflow, Sampling

MOST_THREADS = 1024
RESULTS, DEFAULT_PAIR = Path("results"), "tiny"
ALSO_SET = {"max_new_tokens": "max_new_tokens", "on_overflow": "overflow", "chat": "chat"}  # option -> key of a task


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a run. None, 0, "" and empty tuples select the default of the method, the pair or the task.

    `data`, `gamma` and `heads` are pairs of a scope and a value; the empty scope covers everything. `data` has sources (FILE,
    hub or synthetic) by task, `gamma` has draft lengths (one, or one per model) by method, and `heads` has folders by name,
    which may begin with `PAIR:`. `overrides` are the keys of `--set` with their values. `over` are the keys of `--over`, each
    with the values to sweep.
    """

    gamma: tuple[tuple[str, tuple[int, ...]], ...] = option(
        (),
        Panel.decoding,
        "Draft length N, or one per model N,N; METHOD=N for one method. [by the models' sizes]",
        entry=lengths_entry,
        read=read_lengths,
    )
    data: tuple[tuple[str, str], ...] = option(
        (),
        Panel.data,
        "hub, synthetic, a file (JSONL, JSON, CSV, Parquet, Arrow), or any data set of the hub as"
        " hf:REPO[:CONFIG][#SPLIT][@REVISION]; TASK=... for one task. [the pair's, else hub]",
        entry=data_entry,
        read=read_data,
    )
    limit: int | None = option(
        None,
        Panel.data,
        "Use only the first N samples; 0: all (synthetic data: 32). [the pair's, else all]",
        short="-n",
    )
    sample: int = option(0, Panel.data, "Use N random samples, the same in every run. Cannot be combined with --limit.")
    max_new_tokens: int | None = option(None, Panel.decoding, "Maximum number of tokens per generation. [the task's]")
    ignore_eos: bool = option(False, Panel.decoding, "Decode a fixed number of tokens: ignore EOS and stop strings.")
    on_overflow: str = option(
        "", Panel.data, "How to treat a prompt that is too long. [the task's]", choices=Overflow, is_unset=True
    )
    chat: str = option("", Panel.data, "Whether to apply the chat template. [the task's]", choices=Chat, is_unset=True)
    temperature: float | None = option(
        None, Panel.decoding, "Sampling temperature; 0 is greedy. [1 for cascades and ensembles, else 0]"
    )
    top_k: int = option(0, Panel.decoding, "Sample from the k most likely tokens; 0: off.")
    top_p: float = option(1.0, Panel.decoding, "Sample from the smallest set of tokens with this probability; 1: off.")
    sampling: str = option(
        "default", Panel.decoding, "checkpoint: as the generation config says.", choices=Sampling, shows_default=False
    )
    seed: int = option(0, Panel.decoding, "Random seed; repeat r uses seed + r.")
    repeats: int = option(
        3, Panel.measurement, "Number of times that each method decodes each prompt. [3]", is_unset=True
    )
    device: str = option("auto", Panel.machine, "auto: CUDA if available.", choices=Device)
    dtype: str = option("auto", Panel.machine, "auto: float32 on a CPU, bfloat16 on a GPU.", choices=Dtype)
    engine: str = option(
        "auto",
        Panel.machine,
        "eager: modules of transformers; lean: specbench's forward pass; graph: lean as CUDA graphs; compiled: graph"
        " with torch.compile; auto: the first available of graph, lean, eager.",
        choices=Engine,
        shows_default=False,
    )
    threads: int = option(  # not part of a run's config
        0,
        Panel.machine,
        "CPU threads; 0: OMP_NUM_THREADS, or by model size and free cores (verify, trace: PyTorch's default).",
        shows_default=False,
    )
    overrides: tuple[tuple[str, Any], ...] = option(
        (),
        Panel.overrides,
        "Override a key: method.target.mu=0.2, task.shots=0, task.mmlu.shots=0.",
        word="set",
        short="-s",
        entry=parse_override,
        read=read_entries,
        also=Flag(
            word="place",
            help="Where a model runs: target=cuda:1 or target=layers:0,1 (layers over two GPUs). [the run's device]",
            panel=Panel.machine,
            entry=place_entries,
        ),
    )
    over: tuple[tuple[str, Any], ...] = option(
        (),
        Panel.overrides,
        "Sweep a key; each value is a variant: gamma=[1, 3, 5], method.target.alpha=[0.1, 0.3], lossy.bonus=[...].",
        entry=sweep_entry,
        read=read_entries,
    )
    heads: tuple[tuple[str, str], ...] = option(
        (),
        Panel.overrides,
        "Use a trained head: sprinter=FOLDER, eagle@middle=FOLDER, PAIR:sprinter=FOLDER.",
        word="head",
        entry=parse_head,
        read=read_heads,
    )
    plugins: tuple[tuple[str, str], ...] = option(  # file name and SHA-256
        (),
        Panel.overrides,
        "A Python file or module that defines targets, stop or rejection rules, proposers, methods, tasks or engines.",
        word="plugin",
    )
    shard: Shard | None = option(
        None,
        Panel.suites,
        "Measure only part I/N of the prompts, in a run folder of its own.",
        parse=Shard.of,
        read=read_shard,
        is_unset=True,
        shows_default=False,
    )

    def __post_init__(self) -> None:
        for name, least in (("limit", 0), ("sample", 0), ("max_new_tokens", 1), ("repeats", 1), ("threads", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} = {value} must be at least {least}")
        if self.threads > MOST_THREADS:
            raise ConfigError(f"threads = {self.threads} must be at most {MOST_THREADS}")
        for name, flag in FLAGS.items():
            if flag.choices:
                _require_choice(name, getattr(self, name), flag.choices)
        for _, lengths in self.gamma:
            if not lengths or min(lengths) < 1:
                raise ConfigError(f"gamma = {','.join(map(str, lengths))}: a draft length must be at least 1")
        for key, _ in self.overrides:
            override(key, None)
        for key, values in self.over:
            if not isinstance(values, list) or not values:
                raise ConfigError(
                    f"--over {key}: expected method.key=[values]; help: --over method.target.alpha=[0.1, 0.3]"
                )
        self._require_consistent()

    def _require_consistent(self) -> None:
        """Raise ConfigError, naming both, if two options give one setting different values.

        `--set a.b.c=1 --set a.b={...}` is an error too: the table would replace the key. In the other order, the key changes
        the table.
        """
        if self.limit is not None and self.sample:
            raise ConfigError(f"--limit {self.limit} and --sample {self.sample} conflict; use one of them")
        for i, (key, value) in enumerate(self.overrides):
            for earlier, other in self.overrides[:i]:
                if (earlier == key and other != value) or earlier.startswith(f"{key}."):
                    raise ConfigError(f"--set {earlier}={other} and --set {key}={value} conflict: give one of them")
        _require_single("head", self.heads)
        _require_single("data", self.data)
        _require_single("gamma", tuple((scope, ",".join(map(str, lengths))) for scope, lengths in self.gamma))
        for name, key in ALSO_SET.items():
            override_value = dict(self.overrides).get(f"task.{key}")
            if (value := getattr(self, name)) and override_value not in (None, value):
                raise ConfigError(f"--{name.replace('_', '-')} and --set task.{key} conflict: give one of them")

    def changes(self) -> dict[str, Any]:
        """Return the options that differ from their defaults."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if getattr(self, field.name) != field.default
        }

    def overrides_for(self, kind: str, name: str) -> list[Override]:
        """Return the overrides of a kind of table that cover a preset, in the order in which to apply them.

        Overrides without a scope come first, so that `task.mmlu.shots=0` holds for `mmlu` beside `task.shots=5`.
        """
        extra = [] if name.endswith(".toml") or name in names(kind) else [name]
        parsed = [override(key, value, [*extra, stem(name)]) for key, value in self.overrides]
        return sorted((o for o in parsed if o.kind == kind and in_scope(o.scope, name)), key=lambda o: bool(o.scope))

    def all_overrides(self, kind: str, extra: Sequence[str] = ()) -> list[Override]:
        """Return all overrides of a kind of table. `extra` are names of presets that are not bundled."""
        stems = [stem(name) for name in extra]
        return [parsed for key, value in self.overrides if (parsed := override(key, value, stems)).kind == kind]

    def data_for(self, task: str) -> str:
        """Return the source of a task's rows; empty for the pair's default."""
        return latest(self.data, task, "")

    def gamma_for(self, method: str) -> tuple[int, ...]:
        """Return a method's draft lengths. Empty means the method's default."""
        return latest(self.gamma, method, ())

    def heads_for(self, pair: str) -> tuple[tuple[str, str], ...]:
        """Return the heads given for a pair: names, kinds or KIND@BASE, with their folders."""
        heads = []
        for name, path in self.heads:
            scope, colon, rest = name.partition(":")
            if not colon or in_scope(scope, pair):
                heads.append((rest if colon else name, path))
        return tuple(heads)

    def location(self, kind: str, path: Path, applied: Sequence[Override]) -> str:
        """Return the location that errors in a table name: its file, and the overrides that changed it."""
        keys = ", ".join(override.key for override in applied if override.kind == kind)
        return f"{path}, changed by --set {keys}" if keys else str(path)


FLAGS: dict[str, Flag] = {each.name: each.metadata["flag"] for each in fields(Options)}  # by field


class RunOptions(TypedDict, total=False):
    """The options of `run`, `plan`, `verify` and `advise`, with the same meaning and defaults as on the command line.

    `data` is `hub`, `synthetic` or a file, and `gamma` a draft length or one per model; each may be a dictionary by task or
    method. `set`, `over` and `head` are dictionaries with the keys of the command-line options of these names. `plugins` are
    Python files. `sandbox` is how generated code is isolated when it is executed to score it; by default it is not executed.
    """

    data: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None
    limit: int | None
    sample: int
    gamma: int | Sequence[int] | Mapping[str, int | Sequence[int]] | None
    max_new_tokens: int | None
    on_overflow: Literal["error", "truncate-left", "truncate-right", "truncate-middle"]
    chat: Literal["off", "auto", "required"]
    ignore_eos: bool
    temperature: float | None
    top_k: int
    top_p: float
    sampling: Literal["default", "checkpoint"]
    seed: int
    repeats: int
    device: str
    dtype: Literal["auto", "float32", "bfloat16", "float16"]
    engine: Literal["auto", "eager", "lean", "graph", "compiled"]
    threads: int
    set: Mapping[str, object]
    over: Mapping[str, Sequence[object]]
    head: Mapping[str, str | PathLike[str]]
    plugins: str | Iterable[str]
    shard: str
    sandbox: Literal["auto", "bwrap", "unshare", "none"] | None


def _require_choice(name: str, value: Any, kind: type[StrEnum]) -> None:
    """Raise ConfigError, with the nearest word, if the value of an option is none of its words.

    A device may also be a numbered GPU, `cuda:1`. The options of ALSO_SET may be empty: the task's value.
    """
    is_unset = value == "" and name in ALSO_SET
    is_numbered = name == "device" and bool(re.fullmatch(r"cuda:\d+", str(value)))
    if value not in list(kind) and not is_unset and not is_numbered:
        raise ConfigError(f"{name} = {value!r}{hint(str(value), kind)}")


def _require_single(flag: str, values: Sequence[tuple[str, str]]) -> None:
    """Raise ConfigError if an option gives one scope two values."""
    values_by_scope: dict[str, str] = {}
    for scope, value in values:
        if values_by_scope.setdefault(scope, value) != value:
            one, two = (f"{scope}={value}" if scope else value for value in (values_by_scope[scope], value))
            raise ConfigError(f"--{flag} {one} and --{flag} {two} conflict: give one of them")


def fields_of(table: Mapping[str, Any], where: str = "", others: Iterable[str] = ()) -> dict[str, Any]:
    """Return the fields of `Options` that a table of options by name gives, as a suite's file or Python has them.

    `set`, `over` and `head` are tables. `data` and `gamma` are one value, or a table by task or method. None leaves these
    five out. `where` is the location of the table. `others` are further names that the error of an unknown option suggests.
    Raises ConfigError, naming the option, for an unknown one and for a value of the wrong type.
    """
    kinds = get_type_hints(Options)
    words = {flag.word or name: name for name, flag in FLAGS.items() if name != "plugins"}
    values: dict[str, Any] = {}
    for word, value in table.items():
        location = f"{where}: {word}" if where else word
        if word not in words:
            nearest = hint(FLAGS[word].word or word if word in FLAGS else word, [*sorted(words), *others])
            raise ConfigError(f"{f'{where}: ' if where else ''}unknown option '{word}'{nearest}")
        name = words[word]
        if read := FLAGS[name].read:
            if value is not None:
                values[name] = read(value, location)
        else:
            allows_none = FLAGS[name].choices or type(None) in get_args(
                kinds[name]
            )  # `Options` rejects None for a choice
            values[name] = None if value is None and allows_none else convert(value, kinds[name], location)
    return values


@dataclass(frozen=True)
class GivenOption:
    """An option with a key, as on a command line: `--data gsm8k=FILE`, or `--set task.shots`, which leaves out its value."""

    flag: Literal["set", "data", "gamma", "head"]
    key: str = ""
    value: str = ""

    def __str__(self) -> str:
        return f"--{self.flag} {'='.join(filter(None, (self.key, self.value)))}"
