"""Floor 3: a cell's methods, each table with every open choice settled, grouped with the baseline that they share."""

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as dataclass_fields
from itertools import product
from typing import Any, Literal

from specbench import methods
from specbench.config.construct import convert
from specbench.config.options import Options, overridden
from specbench.config.pair import Pair, head_named
from specbench.config.presets import Preset, preset
from specbench.decoding import targets
from specbench.decoding.method import Method, Proposer
from specbench.decoding.sampling import Sampler
from specbench.decoding.targets import Target
from specbench.errors import ConfigError, hint
from specbench.methods import proposers
from specbench.methods import stopping as stops
from specbench.methods.bild import OriginalBild
from specbench.methods.hugging_face import Assisted
from specbench.methods.stopping import Stop
from specbench.models.heads import Head

Clock = Literal["decoding", "end to end"]  # which seconds a method's headline speedup is of
BESIDES = (
    "description",
    "baseline",
    "temperature",
    "clock",
    "sweep",
)  # what a preset holds besides the constructor's table
MODELS = ("draft", "model", "small", "large", "base", "target")  # keys that name a model; a target may be a table
REGISTERED = (methods, proposers, stops, targets)  # what a method's table may name


@dataclass(frozen=True)
class Arm:
    """One method of a cell: its name, its table with every open choice settled, and what it is measured against."""

    name: str
    table: dict[str, Any]
    baseline: str | None
    temperature: float
    method: Method
    clock: Clock = "decoding"

    @property
    def heads(self) -> list[str]:
        """The trained heads that it reads."""
        return _under(self.table, "head")


@dataclass(frozen=True)
class _Variant:
    """A method's preset, its constructor table with the user's overrides and the pair's roles, and the swept keys in it."""

    found: Preset
    table: dict[str, Any]
    swept: tuple[str, ...] = ()  # dotted paths within the table

    def label(self, method: Method) -> str:
        """The preset's name, with the values that the built method has at the swept keys."""
        values = [f"{path.rpartition('.')[2]}={_shown(_attribute(method, path))}" for path in self.swept]
        return f"{self.found.name}({', '.join(values)})" if values else self.found.name


def roles_of(names: list[str], pair: Pair, options: Options) -> tuple[str, ...]:
    """All roles that these methods and their baselines need, in the pair's order."""
    needed: set[str] = set()
    for each in _variants(names, pair, options):
        needed |= set(_roles(each.table))
        if "baseline" in each.found.table:
            needed |= set(_roles(_baseline_table(each.found, each.table, pair)))
    return tuple(role for role in pair.models if role in needed)


def heads_of(names: list[str], pair: Pair, options: Options) -> tuple[str, ...]:
    """All heads that these methods need, in the pair's order."""
    needed = {head for each in _variants(names, pair, options) for head in _under(each.table, "head")}
    known = {name: {"kind": head.kind, "base": head.base} for name, head in pair.heads.items()}
    for name, _ in options.heads:
        if head_named(name, known) not in needed:
            raise ConfigError(f"--head {name}: none of {', '.join(names)} reads it")
    return tuple(name for name in pair.heads if name in needed) + tuple(sorted(needed - set(pair.heads)))


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
    for each in _variants(names, pair, options):
        found, table = each.found, _with_lengths(each.table, sizes, options.gamma)
        temperature = temperature_of(found) if options.temperature is None else options.temperature
        base_name = found.table.get("baseline")
        clock = convert(found.table.get("clock", "decoding"), Clock, f"{found.path}: clock")
        method = Method.build(table, options.place("method", found.path))
        arm = Arm(each.label(method), table, base_name, temperature, method, clock)
        if arm.method.greedy_only and temperature > 0.0:
            raise ConfigError(f"{found.name} is greedy; it has no meaning at T = {temperature:g}")
        base = arm
        if base_name:
            base_table = _baseline_table(found, table, pair)
            base = Arm(base_name, base_table, None, temperature, Method.build(base_table, f"baseline {base_name}"))
        group = groups.setdefault(json.dumps([base.name, base.table, temperature], sort_keys=True), [base])
        if arm.name not in {other.name for other in group}:
            group.append(arm)
        elif base_name and table != next(other.table for other in group if other.name == arm.name):
            raise ConfigError(f"two methods are called '{arm.name}'; give the files different names")
    return [tuple(group) for group in groups.values()]


def temperature_of(found: Preset) -> float:
    """The temperature of a method's preset, 0 by default. Raises ConfigError for a value that is no temperature."""
    where = f"{found.path}: temperature"
    temperature: float = convert(found.table.get("temperature", 0.0), float, where)
    if temperature < 0.0:
        raise ConfigError(f"{where} = {temperature:g} must be at least 0")
    return temperature


def _variants(names: list[str], pair: Pair, options: Options) -> list[_Variant]:
    """Every method, or every variant of it that a sweep makes; draft lengths may be open still.

    A key that is swept makes a variant a value: of every method that has it, or of the one whose name it begins with. Raises
    ConfigError for a swept key that no method has, and for options that give one key of a method two values.
    """
    out = []
    unused = {key for key, _ in options.over}
    changed = {
        ".".join(path): (f"--set {'.'.join(['method', *path])}", value) for path, value in options.under("method")
    }
    for name in names:
        found = preset("method", name)
        base = overridden(_constructor(found), options.under("method"), f"method {found.name}")
        given, swept = dict(changed), []
        for key, values in options.over:
            whose, *path = key.split(".")
            if whose in ("method", found.name, name) and _has(base, path):
                _require_open(found.name, ".".join(path), f"--over {key}", given)
                given[".".join(path)] = (f"--over {key}", None)
                swept.append((path, values))
                unused.discard(key)
        if options.gamma and (where := _length_path(base)):
            _require_open(found.name, where, f"--gamma {','.join(map(str, options.gamma))}", given)
        paths = tuple(".".join(path) for path, _ in swept)
        for values in product(*(values for _, values in swept)):
            changes = [(path, value) for (path, _), value in zip(swept, values, strict=True)]
            table = overridden(base, changes, f"method {found.name}")
            out.append(_Variant(found, _with_roles(table, pair), paths))
    if unused:
        key, known = min(unused), {key for each in out for key in _keys(each.table, "method")}
        raise ConfigError(f"--over {key}: none of {', '.join(names)} has this key{hint(key, known)}")
    _require_lengths(names, [each.table for each in out], options.gamma)
    return out


def have_lengths(names: list[str], pair: Pair, options: Options) -> bool:
    """Whether any of the methods drafts a set length, which `--gamma` gives."""
    return any(_length_path(each.table) for each in _variants(names, pair, options))


def _require_open(method: str, path: str, option: str, given: Mapping[str, tuple[str, Any]]) -> None:
    """Raise ConfigError if another option already sets this key, directly or inside a table."""
    for earlier, (other, value) in given.items():
        rest = path.removeprefix(earlier)
        if not rest or (rest.startswith(".") and isinstance(value, dict) and rest[1:] in _keys_given(value)):
            raise ConfigError(f"{option} and {other} conflict: both give {method}'s {path}; leave one out")


def _keys_given(table: dict[str, Any], before: str = "") -> set[str]:
    """The dotted keys of a table and of the tables within."""
    keys = {f"{before}{key}" for key in table}
    return keys.union(*(_keys_given(v, f"{before}{k}.") for k, v in table.items() if isinstance(v, dict)))


def _require_lengths(names: list[str], tables: list[dict[str, Any]], gamma: tuple[int, ...]) -> None:
    """Raise ConfigError for draft lengths that none of the methods takes."""
    flag = f"--gamma {','.join(map(str, gamma))}"
    if gamma and not any(_length_path(table) for table in tables):
        raise ConfigError(f"{flag}: {', '.join(names)} has no draft length")
    if len(gamma) > 1 and not any(table.get("models") for table in tables):
        raise ConfigError(f"{flag}: {', '.join(names)} has one draft length, not one per model")


def _attribute(method: Any, path: str) -> Any:
    """A method's value at a dotted path, such as `proposer.gamma`."""
    for key in path.split("."):
        method = getattr(method, key)
    return method


def _shown(value: Any) -> str:
    """A value of a built method as TOML would write it in a label."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return str(list(value))
    if is_dataclass(value) and not isinstance(value, type):
        values = ", ".join(f"{field.name}={_shown(getattr(value, field.name))}" for field in dataclass_fields(value))
        return (
            f"{getattr(value, 'name', type(value).__name__)}({values})" if values else str(getattr(value, "name", ""))
        )
    return str(value)


def _has(table: dict[str, Any], path: list[str]) -> bool:
    return ".".join(path) in _keys(table)


def _keys(table: dict[str, Any], *before: str) -> set[str]:
    """What can be said of a method, `a.b`, under the words before: keys that stand in its table, and those that could."""
    families = (Method, Proposer, Stop, Target)
    members = [family.members[table["name"]] for family in families if table.get("name") in family.members]
    fields = {field.name for member in members if is_dataclass(member) for field in dataclass_fields(member)}
    keys = {".".join([*before, key]) for key in {*table, *fields} - {"name"} if not isinstance(table.get(key), dict)}
    for key, inner in table.items():
        if isinstance(inner, dict):
            keys |= _keys(inner, *before, key)
    return keys


def _baseline_table(found: Preset, table: dict[str, Any], pair: Pair) -> dict[str, Any]:
    """The table of a method's baseline. Where the presets' targets are of one kind and of the same models, it follows the
    method's law, overrides and all; otherwise, as in a cascade, the baseline has a law of its own."""
    base, own = _constructor(preset("method", found.table["baseline"])), found.table
    target, models = own.get("target"), own.get("models") or own.get("scorers")
    if isinstance(target, dict) and target.get("name") == base["target"]["name"] and models == base["scorers"]:
        base |= {"target": table["target"], "scorers": table.get("models") or table.get("scorers", [])}
    return _with_roles(base, pair)


def _constructor(found: Preset) -> dict[str, Any]:
    """A copy of a preset's table without what is about the method. Raises ConfigError where a key that names something, here
    or in a table within, holds anything but a name."""
    table = deepcopy({k: v for k, v in found.table.items() if k not in BESIDES})
    _require_names(table, str(found.path))
    return table


def _require_names(table: dict[str, Any], where: str) -> None:
    for key, value in table.items():
        if key in ("name", "head", *MODELS) and key != "target" and not isinstance(value, str):
            raise ConfigError(f"{where}: {key} = {value!r} must be a name")
        if key in ("scorers", "models") and not _is_names(value):
            raise ConfigError(f"{where}: {key} = {value!r} must be a list of names, or one")
        if key == "proposer" and not isinstance(value, dict):
            raise ConfigError(f"{where}: {key} = {value!r} must be a table with a name")
        if isinstance(value, dict):
            _require_names(value, f"{where}: {key}")


def _is_names(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(each, str) for each in value))


def _with_roles(table: dict[str, Any], pair: Pair) -> dict[str, Any]:
    """The table with the pair's roles for `ensemble`. Raises ConfigError for a role that the pair has not."""
    for key in ("scorers", "models"):
        if isinstance(table.get(key), str):
            table[key] = list(pair.group(table[key]))
        if key in table and not convert(table[key], tuple[str, ...], key):
            raise ConfigError(f"{key} = []: name at least one model")
    proposer = table.get("proposer")
    if isinstance(proposer, dict) and isinstance(proposer.get("model"), str):
        proposer["model"] = pair.group(proposer["model"])[0]
    for role in _roles(table):
        pair.group(role)
    _settle_heads(table, pair, "")
    return table


def _settle_heads(table: dict[str, Any], pair: Pair, base: str) -> None:
    """Give every part that is named like a kind of head the pair's head of that kind, for the model that drafts there."""
    base = next((table[key] for key in ("base", "draft", "model") if isinstance(table.get(key), str)), base)
    if table.get("name") in Head.kinds:
        table.setdefault("head", "")
        table["head"] = table["head"] or pair.head_of(table["name"], base)
        spec, verifier = pair.heads.get(table["head"]), table.get("target")
        if spec and spec.base != base:
            raise ConfigError(f"head '{table['head']}' reads '{spec.base}', and '{base}' drafts here")
        if spec and isinstance(verifier, str) and spec.target != verifier:
            raise ConfigError(f"head '{table['head']}' foresees '{spec.target}', and '{verifier}' verifies here")
    for inner in table.values():
        if isinstance(inner, dict):
            _settle_heads(inner, pair, base)


def _roles(table: dict[str, Any]) -> list[str]:
    own = [role for key in MODELS for role in _under(table, key)]
    return [*table.get("scorers", []), *table.get("models", []), *own]


def _under(table: dict[str, Any], key: str) -> list[str]:
    """The words under a key, here and in the tables within."""
    own = [table[key]] if isinstance(table.get(key), str) else []
    return own + [word for inner in table.values() if isinstance(inner, dict) for word in _under(inner, key)]


def _length_path(table: dict[str, Any]) -> str:
    """The dotted key of a method's table that `--gamma` gives; empty for a method that does not draft a set length."""
    if table.get("models") or table.get("name") in (OriginalBild.name, Assisted.name):
        return "gamma"
    keys, proposer = ["proposer"], table.get("proposer")
    while isinstance(proposer, dict) and isinstance(proposer.get("proposer"), dict):
        keys, proposer = [*keys, "proposer"], proposer["proposer"]
    return ".".join([*keys, "gamma"]) if isinstance(proposer, dict) and "gamma" in _keys(proposer) else ""


def _with_lengths(table: dict[str, Any], sizes: Mapping[str, int], gamma: tuple[int, ...]) -> dict[str, Any]:
    """The table with its draft lengths settled: the user's, its own, or by the models' sizes."""
    table = deepcopy(table)
    models, scorers = table.get("models"), table.get("scorers") or [""]
    proposer, above = _innermost(table.get("proposer"), scorers[-1])
    if models:
        if len(gamma) > 1:
            table["gamma"] = list(gamma)
        elif gamma or "gamma" not in table:
            first = gamma[0] if gamma else _length(sizes, models[0], models[-1])
            table["gamma"] = [first] + [1] * (len(models) - 1)
    elif proposer and gamma and "gamma" in _keys(proposer):
        proposer["gamma"] = gamma[0]
    elif proposer and "model" in proposer and above and "gamma" not in proposer:
        proposer["gamma"] = _length(sizes, proposer["model"], above)
    elif gamma and table.get("name") == OriginalBild.name:
        table["gamma"] = gamma[0]
    elif table.get("name") == Assisted.name and (gamma or "gamma" not in table):
        table["gamma"] = gamma[0] if gamma else _length(sizes, table.get("draft", ""), table.get("model", ""))
    return table


def _innermost(proposer: Any, above: str) -> tuple[dict[str, Any] | None, str]:
    """The proposer at the end of a chain, and the model that verifies it."""
    while isinstance(proposer, dict) and isinstance(proposer.get("proposer"), dict):
        proposer, above = proposer["proposer"], proposer.get("model", "")
    return (proposer if isinstance(proposer, dict) else None), above


def _length(sizes: Mapping[str, int], first: str, last: str) -> int:
    known = first in sizes and last in sizes  # else building the method says what is missing
    return 1 if known and sizes[first] > 0.5 * sizes[last] else 5
