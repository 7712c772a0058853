"""Floor 0: what a user may say about a run, and how it changes the tables of configs/."""

import tomllib
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from specbench.errors import ConfigError, hint

ALSO_SET = {
    "max_new_tokens": "task.max_new_tokens",
    "on_overflow": "task.overflow",
    "chat": "task.chat",
}  # option -> key


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user may say about a run. None, 0 and "" leave it to the method, the pair or the task."""

    gamma: tuple[int, ...] = ()
    data: str = ""
    limit: int | None = None
    sample: int = 0
    max_new_tokens: int | None = None
    ignore_eos: bool = False
    on_overflow: str = ""
    chat: str = ""
    temperature: float | None = None
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    repeats: int = 3
    device: str = "auto"
    dtype: str = "auto"
    engine: str = "auto"
    overrides: tuple[tuple[str, Any], ...] = ()  # --set a.b=value
    plugins: tuple[tuple[str, str], ...] = ()  # name and checksum
    heads: tuple[tuple[str, str], ...] = ()  # --head NAME=FOLDER
    over: tuple[tuple[str, Any], ...] = ()  # --over method.a.b=[values], of one method --over NAME.a.b=[values]

    def __post_init__(self) -> None:
        for name, least in (("limit", 0), ("sample", 0), ("max_new_tokens", 1), ("repeats", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} = {value} must be at least {least}")
        for key, _ in self.overrides:
            if key.split(".")[0] not in ("method", "pair", "task"):
                raise ConfigError(f"--set {key}: start with method., pair. or task.")
        for key, values in self.over:
            if not isinstance(values, list) or not values:
                raise ConfigError(f"--over {key}: write it as method.key=[values], e.g. method.target.alpha=[0.1, 0.3]")
        self._require_consistent()

    def _require_consistent(self) -> None:
        """Raise ConfigError, naming both, where two options give one setting different values."""
        if self.limit is not None and self.sample:
            raise ConfigError(f"--limit {self.limit} and --sample {self.sample} conflict: give one of them")
        for i, (key, value) in enumerate(self.overrides):
            for earlier, other in self.overrides[:i]:
                if (earlier == key and other != value) or earlier.startswith(f"{key}."):
                    raise ConfigError(f"--set {earlier}={other} and --set {key}={value} conflict: give one of them")
        for i, (name, path) in enumerate(self.heads):
            for earlier, other in self.heads[:i]:
                if earlier == name and other != path:
                    raise ConfigError(f"--head {name}={other} and --head {name}={path} conflict: give one of them")
        for option, key in ALSO_SET.items():
            if (value := getattr(self, option)) and dict(self.overrides).get(key, value) != value:
                raise ConfigError(f"--{option.replace('_', '-')} and --set {key} conflict: give one of them")

    @classmethod
    def checked(cls, **given: Any) -> "Options":
        """Options from keyword arguments. Raises ConfigError, with the nearest name, for one that there is not."""
        known = {each.name for each in fields(cls)}
        for name in given:
            if name not in known:
                raise ConfigError(f"unknown option '{name}'{hint(name, known)}")
        return cls(**given)

    def changes(self) -> dict[str, Any]:
        """What is not as it is by default."""
        return {
            each.name: getattr(self, each.name) for each in fields(self) if getattr(self, each.name) != each.default
        }

    def with_override(self, key: str, value: Any) -> "Options":
        """The same, with one more key overridden."""
        return replace(self, overrides=(*self.overrides, (key, value)))

    def under(self, kind: str) -> list[tuple[list[str], Any]]:
        """The overrides of one kind of table, their first word dropped."""
        return [(key.split(".")[1:], value) for key, value in self.overrides if key.split(".")[0] == kind]

    def place(self, kind: str, path: Path) -> str:
        """What to name where a table of a kind is wrong: its file, and the overrides that changed it."""
        told = ", ".join(key for key, _ in self.overrides if key.split(".")[0] == kind)
        return f"{path}, changed by --set {told}" if told else str(path)


class SandboxKind(StrEnum):
    """How generated code is isolated; `none` disables isolation."""

    auto = "auto"
    bwrap = "bwrap"
    unshare = "unshare"
    none = "none"


@dataclass(frozen=True, kw_only=True)
class Access:
    """How a command takes the folders that it writes to.

    `fresh` drops what they hold, `wait` waits for another process to finish, and `break_lock` removes the lock of a process
    that is not on this host.
    """

    fresh: bool = False
    wait: bool = False
    break_lock: bool = False


def parse_override(text: str, flag: str = "--set") -> tuple[str, Any]:
    """`a.b=VALUE`, VALUE as a TOML literal, a bare word as a string. Raises ConfigError, which names the flag."""
    key, equals, value = text.partition("=")
    if not equals or "." not in key:
        example = {"--set": "method.target.mu=0.2", "--over": "method.target.alpha=[0.1, 0.3]"}[flag]
        raise ConfigError(f"{flag} {text}: write it as table.key=value, for example {example}")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def parse_head(text: str) -> tuple[str, str]:
    """`NAME=FOLDER`, NAME a head of the pair, a kind, or KIND@BASE."""
    name, _, path = text.partition("=")
    if not name or not path:
        raise ConfigError(f"--head {text}: write it as NAME=FOLDER, for example sprinter=heads/tiny/sprinter")
    return name.strip(), path.strip()


def overridden(table: dict[str, Any], changes: list[tuple[list[str], Any]], where: str) -> dict[str, Any]:
    """A copy of the table with the changes in it."""
    table = deepcopy(table)
    for path, value in changes:
        place = table
        for key in path[:-1]:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                raise ConfigError(f"--set: '{key}' of {where} is not a table")
        place[path[-1]] = value
    return table
