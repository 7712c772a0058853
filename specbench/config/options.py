"""The options of a run, how commands use their folders, and requests: methods, a pair and tasks with options."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args, get_type_hints

from specbench.config.construct import convert
from specbench.config.presets import Override, in_scope, latest, names, override, stem
from specbench.errors import ConfigError, hint


class Overflow(StrEnum):
    """How a prompt that is too long is treated."""

    error = "error"
    left = "truncate-left"
    right = "truncate-right"
    middle = "truncate-middle"


class Chat(StrEnum):
    """Whether the models' chat template is applied."""

    off = "off"
    auto = "auto"
    required = "required"


class Device(StrEnum):
    """The device of a run."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Engine(StrEnum):
    """What runs the models."""

    auto = "auto"
    eager = "eager"
    lean = "lean"
    graph = "graph"
    compiled = "compiled"


class Dtype(StrEnum):
    """The precision of weights and activations."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class Sampling(StrEnum):
    """Where a temperature, top-k and top-p come from that no option and no preset sets."""

    default = "default"  # 0, and no filters
    checkpoint = "checkpoint"  # the generation config of the target


CHOICES: dict[str, type[StrEnum]] = {  # by option
    "device": Device, "dtype": Dtype, "engine": Engine, "on_overflow": Overflow, "chat": Chat,
    "sampling": Sampling,
}  # fmt: skip


class SandboxKind(StrEnum):
    """How generated code is isolated; `none` disables isolation."""

    auto = "auto"
    bwrap = "bwrap"
    unshare = "unshare"
    none = "none"


TABLES = {"set": "overrides", "over": "over", "head": "heads"}  # options that are tables -> fields
MOST_THREADS = 1024
ALSO_SET = {"max_new_tokens": "max_new_tokens", "on_overflow": "overflow", "chat": "chat"}  # option -> key of a task


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a run. None, 0, "" and empty tuples select the default of the method, the pair or the task.

    `data`, `gamma` and `heads` are pairs of a scope and a value; the empty scope covers everything. The scope of `data` is a
    task (FILE, hub or synthetic), that of `gamma` a method (draft lengths, one per model). A name in `heads` may begin with
    `PAIR:`. `overrides` are keys of `--set` with their values, `over` those of `--over` with the values to sweep.
    """

    gamma: tuple[tuple[str, tuple[int, ...]], ...] = ()
    data: tuple[tuple[str, str], ...] = ()
    limit: int | None = None
    sample: int = 0
    max_new_tokens: int | None = None
    ignore_eos: bool = False
    on_overflow: str = ""
    chat: str = ""
    temperature: float | None = None
    top_k: int = 0
    top_p: float = 1.0
    sampling: str = "default"
    seed: int = 0
    repeats: int = 3
    device: str = "auto"
    dtype: str = "auto"
    engine: str = "auto"
    threads: int = (
        0  # of a CPU; 0 selects by the size of the models and the free processors. Not part of a run's config
    )
    overrides: tuple[tuple[str, Any], ...] = ()
    plugins: tuple[tuple[str, str], ...] = ()  # file name and SHA-256
    heads: tuple[tuple[str, str], ...] = ()
    over: tuple[tuple[str, Any], ...] = ()
    shard: str = ""  # I/N: the Ith of N parts of the prompts

    def __post_init__(self) -> None:
        for name, least in (("limit", 0), ("sample", 0), ("max_new_tokens", 1), ("repeats", 1), ("threads", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} = {value} must be at least {least}")
        if self.threads > MOST_THREADS:
            raise ConfigError(f"threads = {self.threads} must be at most {MOST_THREADS}")
        for name, kind in CHOICES.items():
            _require_choice(name, getattr(self, name), kind)
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
        if self.shard and not (re.fullmatch(r"[1-9]\d*/[1-9]\d*", self.shard) and _is_part(self.shard)):
            raise ConfigError(f"--shard {self.shard}: expected I/N with I from 1 to N; help: --shard 1/4")
        self._require_consistent()

    def _require_consistent(self) -> None:
        """Raise ConfigError, naming both, if two options give one setting different values."""
        if self.limit is not None and self.sample:
            raise ConfigError(f"--limit {self.limit} and --sample {self.sample} conflict; use one of them")
        for i, (key, value) in enumerate(self.overrides):
            for earlier, other in self.overrides[:i]:
                if (earlier == key and other != value) or earlier.startswith(f"{key}."):
                    raise ConfigError(f"--set {earlier}={other} and --set {key}={value} conflict: give one of them")
        _require_single("head", self.heads)
        _require_single("data", self.data)
        _require_single("gamma", tuple((scope, ",".join(map(str, lengths))) for scope, lengths in self.gamma))
        for option, key in ALSO_SET.items():
            override_value = dict(self.overrides).get(f"task.{key}")
            if (value := getattr(self, option)) and override_value not in (None, value):
                raise ConfigError(f"--{option.replace('_', '-')} and --set task.{key} conflict: give one of them")

    def changes(self) -> dict[str, Any]:
        """Return the options that differ from their defaults."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if getattr(self, field.name) != field.default
        }

    def overrides_for(self, kind: str, name: str) -> list[Override]:
        """Return the overrides of a kind of table that cover a preset, unscoped ones first."""
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


class RunOptions(TypedDict, total=False):
    """The options of `run`, `plan`, `verify` and `advise`: those of the command line, with the same meaning and defaults.

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
    """Raise ConfigError, with the nearest word, if the value of an option is none of its words. A GPU may have a number."""
    is_unset = value == "" and name in ALSO_SET
    is_numbered = name == "device" and bool(re.fullmatch(r"cuda:\d+", str(value)))
    if value not in list(kind) and not is_unset and not is_numbered:
        raise ConfigError(f"{name} = {value!r}{hint(str(value), kind)}")


def _is_part(shard: str) -> bool:
    index, count = map(int, shard.split("/"))
    return index <= count


def _require_single(flag: str, values: Sequence[tuple[str, str]]) -> None:
    """Raise ConfigError if an option gives one scope two values."""
    values_by_scope: dict[str, str] = {}
    for scope, value in values:
        if values_by_scope.setdefault(scope, value) != value:
            one, two = (f"{scope}={value}" if scope else value for value in (values_by_scope[scope], value))
            raise ConfigError(f"--{flag} {one} and --{flag} {two} conflict: give one of them")


def fields_of(table: Mapping[str, Any], where: str = "", others: Iterable[str] = ()) -> dict[str, Any]:
    """Return the fields of `Options` that a table of options by name gives, as a suite's file or Python has them.

    `set`, `over` and `head` are tables. `data` and `gamma` are one value, or a table by task or method; None leaves these
    five out. `where` is the location of the table. `others` are names that an unknown option may be mistaken for.
    Raises ConfigError, naming the option, for an unknown one and for a value of the wrong type.
    """
    kinds = get_type_hints(Options)
    plain = kinds.keys() - {*TABLES.values(), "plugins"}
    renamed = {field: option for option, field in TABLES.items()}
    values: dict[str, Any] = {}
    for name, value in table.items():
        location = f"{where}: {name}" if where else name
        if name not in plain and name not in TABLES:
            nearest = hint(renamed.get(name, name), [*sorted(plain), *TABLES, *others])
            raise ConfigError(f"{f'{where}: ' if where else ''}unknown option '{name}'{nearest}")
        if value is None and name in {*TABLES, "data", "gamma"}:
            continue
        if name in TABLES:
            values[TABLES[name]] = tuple(_entries(value, location, "table" if where else "dictionary"))
        elif name == "data":
            kind = "a path, or the name of a source"
            values[name] = tuple((scope, _path(item, location, kind)) for scope, item in _scoped(value, location))
        elif name == "gamma":
            values[name] = tuple((scope, _lengths(item, location)) for scope, item in _scoped(value, location))
        else:
            allows_none = name in CHOICES or type(None) in get_args(kinds[name])  # `Options` rejects None for a choice
            values[name] = None if value is None and allows_none else convert(value, kinds[name], location)
    if "heads" in values:
        values["heads"] = tuple(
            (name, _path(path, f"{where}: head" if where else "head")) for name, path in values["heads"]
        )
    return values


def _entries(value: object, location: str, kind: str) -> Iterable[tuple[str, Any]]:
    """Return the keys and values of a table."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{location} = {value!r} must be a {kind}")
    if wrong := [key for key in value if not isinstance(key, str)]:
        raise ConfigError(f"{location}: key {wrong[0]!r} must be a text")
    return value.items()


def _scoped(value: object, location: str) -> Iterable[tuple[str, Any]]:
    """Return an option as values by scope, from one value for all or a table of values by name."""
    if isinstance(value, Mapping):
        return ((str(key), value) for key, value in value.items())
    if isinstance(value, str | int | PathLike) or (isinstance(value, Sequence) and value):
        return (("", value),)
    if value == ():
        return ()
    raise ConfigError(f"{location} = {value!r} must be one value, or a table of values by name")


def _path(value: object, location: str, kind: str = "a path") -> str:
    if not isinstance(value, str | PathLike):
        raise ConfigError(f"{location}: {value!r} must be {kind}")
    return str(value)


def _lengths(value: object, location: str) -> tuple[int, ...]:
    """Return draft lengths from an integer or a list of integers."""
    lengths = (value,) if isinstance(value, int) else tuple(value) if isinstance(value, Sequence) else ()
    if not lengths or not all(isinstance(length, int) and not isinstance(length, bool) for length in lengths):
        raise ConfigError(f"{location} = {value!r} must be an integer, or a list of one integer per model")
    return lengths


@dataclass(frozen=True, kw_only=True)
class Access:
    """How a command accesses the folders that it writes to.

    `fresh` discards their content, `wait` waits for another process to finish, and `break_lock` removes the lock of a process
    that is not on this host. `restart` keeps records of another machine as an earlier attempt and measures again, instead of
    failing. `untimed` marks a run whose device other runs share, so that its times mean nothing.
    """

    fresh: bool = False
    wait: bool = False
    break_lock: bool = False
    restart: bool = False
    untimed: bool = False


@dataclass(frozen=True, kw_only=True)
class Request:
    """Methods to measure on a pair and tasks.

    Names are presets or paths to TOML files; `all` selects every method that the pair allows, `lossless` only the
    lossless ones. Without methods, the pair's default is used, without tasks the pair's default tasks. `sandbox` is the
    backend for executing generated code, which is not executed if it is None.
    """

    methods: tuple[str, ...]
    pair: str
    tasks: tuple[str, ...] = ()
    options: Options
    out: Path = Path("results")
    access: Access = field(default_factory=Access)
    sandbox: SandboxKind | None = None
