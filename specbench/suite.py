"""Floor 3: from words on a command line and TOML presets to cells, the units that are measured.

A cell is one pair, one task, and the methods that share a baseline and a temperature, with that baseline: everything that
is interleaved prompt by prompt. Its resolved config names its run folder.
"""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from specbench import methods, proposers, targets
from specbench.errors import ConfigError
from specbench.method import Method
from specbench.models import Found
from specbench.pair import Pair
from specbench.presets import Preset, preset
from specbench.registry import construct
from specbench.sampling import Sampler
from specbench.task import Data, Task

REGISTERED = (methods, proposers, targets)  # what a method's table may name
SEMANTICS = 1  # bumped when the meaning of a recorded number changes, so that old runs are not mixed with new ones
SYNTHETIC_LIMIT = 32  # samples of a source that has no end of its own


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user may say about a run. None, 0 and "" leave it to the method, the pair or the task."""

    gamma: tuple[int, ...] = ()
    data: str = ""
    limit: int | None = None
    max_new_tokens: int | None = None
    ignore_eos: bool = False
    temperature: float | None = None
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    repeats: int = 3
    device: str = "auto"
    dtype: str = "auto"
    overrides: tuple[tuple[str, Any], ...] = ()  # --set a.b=value

    def __post_init__(self) -> None:
        for name, least in (("limit", 0), ("max_new_tokens", 1), ("repeats", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} = {value} must be at least {least}")
        for key, _ in self.overrides:
            if key.split(".")[0] not in ("method", "pair", "task"):
                raise ConfigError(f"--set {key}: start with method., pair. or task.")

    def under(self, kind: str) -> list[tuple[list[str], Any]]:
        """The overrides of one kind of table, their first word dropped."""
        return [(key.split(".")[1:], value) for key, value in self.overrides if key.split(".")[0] == kind]


@dataclass(frozen=True)
class Arm:
    """One method of a cell: its name, its table with every open choice settled, and what it is measured against."""

    name: str
    table: dict[str, Any]
    baseline: str | None
    temperature: float
    method: Method


@dataclass(frozen=True)
class Cell:
    """What one run folder holds. `config` is everything that its numbers depend on, but the machine."""

    pair: str
    task: str
    arms: tuple[Arm, ...]  # the baseline first
    config: dict[str, Any] = field(repr=False)

    @property
    def key(self) -> str:
        """Eight hex digits of the resolved config."""
        canonical = json.dumps(self.config, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(canonical.encode()).hexdigest()[:8]

    @property
    def folder(self) -> str:
        told = [arm.name for arm in self.arms if arm.baseline] or [self.arms[0].name]
        return "_".join(["+".join(told), self.pair, self.task, self.key])


def read_pair(name: str, options: Options) -> tuple[Preset, Pair]:
    """The pair that a name or a path names, with the user's overrides."""
    found = preset("pair", name)
    table = _overridden(found.table, options.under("pair"), f"pair {found.name}")
    return found, construct(Pair, table, str(found.path))


def read_task(name: str, pair: Pair, options: Options) -> tuple[str, Task]:
    """The task that a name or a path names, with what suits the pair and the user's overrides."""
    found = preset("task", name)
    table = {**found.table, **pair.defaults.task.get(found.name, {})}
    table = _overridden(table, options.under("task"), f"task {found.name}")
    return found.name, Task.build(table, str(found.path))


def source_of(pair: Pair, options: Options) -> str:
    """Where a task's rows come from: what the user says, what suits the pair, the hub."""
    return options.data or pair.defaults.data or "hub"


def limited(data: Data, pair: Pair, options: Options) -> Data:
    """The first rows, as many as wanted; 0 is all, but of a synthetic source."""
    limit = options.limit if options.limit is not None else pair.defaults.limit if not options.data else 0
    if not limit:
        limit = SYNTHETIC_LIMIT if data.source == "synthetic" else len(data.samples)
    return data.first(limit)


def roles_of(names: list[str], pair: Pair, options: Options) -> tuple[str, ...]:
    """All roles that these methods and their baselines need, in the pair's order."""
    needed: set[str] = set()
    for name in names:
        table = _method_table(name, pair, options)
        needed |= set(_roles(table))
        if baseline := preset("method", name).table.get("baseline"):
            needed |= set(_roles(_baseline_table(baseline, table, pair)))
    return tuple(role for role in pair.models if role in needed)


def arms(names: list[str], pair: Pair, sizes: Mapping[str, int], options: Options) -> list[tuple[Arm, ...]]:
    """The methods, grouped with the baseline that they share, the baseline first.

    `sizes` are parameters by role. A method whose draft lengths are open gets 1 where its first model costs more than half
    of its last, and 5 otherwise; an ensemble's other models 1.
    """
    groups: dict[str, list[Arm]] = {}
    try:
        Sampler(options.temperature or 0.0, options.top_k, options.top_p)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    for name in names:
        found = preset("method", name)
        table = _with_lengths(_method_table(name, pair, options), sizes, options.gamma)
        temperature = options.temperature if options.temperature is not None else found.table.get("temperature", 0.0)
        base_name = found.table.get("baseline")
        arm = Arm(found.name, table, base_name, temperature, Method.build(table, str(found.path)))
        base = arm
        if base_name:
            base_table = _baseline_table(base_name, table, pair)
            base = Arm(base_name, base_table, None, temperature, Method.build(base_table, f"baseline {base_name}"))
        group = groups.setdefault(json.dumps([base.name, base.table, temperature], sort_keys=True), [base])
        if arm.name not in {other.name for other in group}:
            group.append(arm)
        elif base_name and table != next(other.table for other in group if other.name == arm.name):
            raise ConfigError(f"two methods are called '{arm.name}'; give the files different names")
    return [tuple(group) for group in groups.values()]


def cell(
    group: tuple[Arm, ...],
    pair_name: str,
    found: dict[str, Found],
    task_name: str,
    task: Task,
    data: Data,
    max_new_tokens: int,
    options: Options,
    device: str,
) -> Cell:
    """The cell of one group of methods on one task."""
    roles = {role for arm in group for role in arm.method.roles()}
    config = {
        "semantics": SEMANTICS,
        "pair": {"name": pair_name, "models": {r: _present(f.identity()) for r, f in found.items() if r in roles}},
        "task": {
            "name": task_name,
            "version": task.version,
            "metrics": list(task.metrics),
            "signature": dict(task.signature()),
            "options": {k: v for k, v in _fields(task).items() if k != "description"},
            "data": _present(
                {
                    "source": data.source,
                    "revision": data.revision,
                    "sha256": data.sha256,
                    "samples": len(data.samples),
                    "total": data.total,
                }
            ),
        },
        "baseline": group[0].name,
        "methods": {arm.name: arm.table for arm in group},
        "decoding": {
            "temperature": group[0].temperature,
            "top_k": options.top_k,
            "top_p": options.top_p,
            "max_new_tokens": max_new_tokens,
            "ignore_eos": options.ignore_eos,
            "seed": options.seed,
            "repeats": options.repeats,
        },
        "engine": {"name": "eager", "device": device},
    }
    return Cell(pair_name, task_name, group, config)


def parse_override(text: str) -> tuple[str, Any]:
    """`a.b=VALUE`, VALUE as a TOML literal, a bare word as a string."""
    key, equals, value = text.partition("=")
    if not equals or "." not in key:
        raise ConfigError(f"--set {text}: write it as table.key=value, for example method.target.mu=0.2")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def _method_table(name: str, pair: Pair, options: Options) -> dict[str, Any]:
    """A method's constructor table with the user's overrides and the pair's roles in it; draft lengths may be open still."""
    found = preset("method", name)
    return _with_roles(_overridden(_constructor(found), options.under("method"), f"method {found.name}"), pair)


def _baseline_table(name: str, table: dict[str, Any], pair: Pair) -> dict[str, Any]:
    """The table of a method's baseline. Where the two targets are of one kind, the baseline follows the method's own law."""
    base = _constructor(preset("method", name))
    if base["target"]["name"] == table["target"]["name"]:
        base |= {"target": table["target"], "scorers": table.get("models") or table["scorers"]}
    return _with_roles(base, pair)


def _constructor(found: Preset) -> dict[str, Any]:
    return deepcopy({k: v for k, v in found.table.items() if k not in ("description", "baseline", "temperature")})


def _with_roles(table: dict[str, Any], pair: Pair) -> dict[str, Any]:
    """The table with the pair's roles for `ensemble`. Raises ConfigError for a role that the pair has not."""
    for key in ("scorers", "models"):
        if isinstance(table.get(key), str):
            table[key] = list(pair.group(table[key]))
    proposer = table.get("proposer")
    if isinstance(proposer, dict) and isinstance(proposer.get("model"), str):
        proposer["model"] = pair.group(proposer["model"])[0]
    for role in _roles(table):
        pair.group(role)
    return table


def _roles(table: dict[str, Any]) -> list[str]:
    proposer = table.get("proposer", {})
    return [*table.get("scorers", []), *table.get("models", []), *([proposer["model"]] if "model" in proposer else [])]


def _with_lengths(table: dict[str, Any], sizes: Mapping[str, int], gamma: tuple[int, ...]) -> dict[str, Any]:
    """The table with its draft lengths settled: the user's, its own, or by the models' sizes."""
    table = deepcopy(table)
    models, proposer = table.get("models"), table.get("proposer")
    if models:
        if len(gamma) > 1:
            table["gamma"] = list(gamma)
        elif gamma or "gamma" not in table:
            first = gamma[0] if gamma else _length(sizes, models[0], models[-1])
            table["gamma"] = [first] + [1] * (len(models) - 1)
    elif proposer and "model" in proposer and (gamma or "gamma" not in proposer):
        proposer["gamma"] = gamma[0] if gamma else _length(sizes, proposer["model"], table["scorers"][-1])
    return table


def _length(sizes: Mapping[str, int], first: str, last: str) -> int:
    return 1 if sizes[first] > 0.5 * sizes[last] else 5


def _overridden(table: dict[str, Any], changes: list[tuple[list[str], Any]], where: str) -> dict[str, Any]:
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


def _fields(thing: Any) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in vars(thing).items()}


def _present(table: dict[str, Any]) -> dict[str, Any]:
    """Without what is None, which TOML cannot say."""
    return {k: v for k, v in table.items() if v is not None}
