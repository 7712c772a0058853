"""Queries on a method's TOML table before the method is built: models, heads, keys and draft lengths."""

import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from difflib import get_close_matches

from specbench.config.construct import Named, Table, convert
from specbench.config.pair import Pair
from specbench.config.presets import Override, Preset, preset
from specbench.decoding.method import Method, Proposer
from specbench.decoding.targets import Target
from specbench.decoding.verify import Rejection
from specbench.errors import ConfigError, hint
from specbench.methods.stopping import Stop
from specbench.methods.tree_drafts import HeadTree
from specbench.resolution.default_length import default_length

BESIDES = ("description", "baseline", "temperature", "clock", "sweep")  # keys of a preset that are no parameters
MODELS = ("draft", "model", "small", "large", "base", "target")  # keys that name a model; a target may be a table
GROUPS = ("scorers", "models")  # keys that list models, or name a group of them
FAMILIES: dict[str, type[Named]] = {  # by key
    "": Method, "proposer": Proposer, "rejection": Rejection, "stop": Stop, "target": Target,
}  # fmt: skip


def constructor(name: str) -> Table:
    """Return a copy of a preset's table with the method's parameters. Raises ConfigError if a name is not a string."""
    source = preset("method", name)
    table = deepcopy({key: value for key, value in source.table.items() if key not in BESIDES})
    require_names(table, str(source.path))
    return table


def require_names(table: Table, where: str) -> None:
    """Raise ConfigError if the value of a key for names, here or in an inner table, is not a name."""
    for key, value in table.items():
        if key in ("name", "head", *MODELS) and key != "target" and not isinstance(value, str):
            raise ConfigError(f"{where}: {key} = {value!r} must be a name")
        if key in GROUPS and not is_names(value):
            raise ConfigError(f"{where}: {key} = {value!r} must be a list of names, or one")
        if key == "proposer" and not isinstance(value, dict):
            raise ConfigError(f"{where}: {key} = {value!r} must be a table with a name")
        if isinstance(value, dict):
            require_names(value, f"{where}: {key}")


def is_names(value: object) -> bool:
    """Return whether a value is a name or a list of names."""
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value))


def inner_tables(table: Table) -> Iterator[tuple[str, Table]]:
    """Yield the tables directly within a table, by key."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield key, value


def words_under(table: Table, key: str) -> list[str]:
    """Return the strings under a key, here and in inner tables."""
    value = table.get(key)
    words = [value] if isinstance(value, str) else []
    return words + [word for _, inner in inner_tables(table) for word in words_under(inner, key)]


def listed(table: Table, key: str) -> list[str]:
    """Return the models that a key lists; empty if the key is missing."""
    value = table.get(key)
    return (
        [str(item) for item in value] if isinstance(value, list | tuple) else [value] if isinstance(value, str) else []
    )


def roles_in(table: Table) -> list[str]:
    """Return all models that a table names. Groups must be resolved."""
    single = [role for key in MODELS for role in words_under(table, key)]
    return [*listed(table, "scorers"), *listed(table, "models"), *single]


def with_roles(table: Table, pair: Pair) -> Table:
    """Return the table with `ensemble` replaced by the pair's roles. Raises ConfigError for a role that the pair lacks."""
    for key in GROUPS:
        value = table.get(key)
        if isinstance(value, str):
            table[key] = list(pair.group(value))
        if key in table and not convert(table[key], tuple[str, ...], key):
            raise ConfigError(f"{key} = []: name at least one model")
    proposer = table.get("proposer")
    if isinstance(proposer, dict) and isinstance(proposer.get("model"), str):
        proposer["model"] = pair.group(proposer["model"])[0]
    for role in roles_in(table):
        if pair.group(role) != (role,):
            raise ConfigError(
                f"'{role}' is a group of models, which cannot be used in place of one; help: name the models"
            )
    return table


def baseline_table(source: Preset, table: Table, pair: Pair) -> Table:
    """Return the table of a method's baseline.

    Where both presets have a target of one kind over the same models, the baseline follows the method's target, overrides
    included. Otherwise, as for a cascade, the baseline has a target of its own.
    """
    base, method = constructor(source.table["baseline"]), source.table
    target, models = method.get("target"), method.get("models") or method.get("scorers")
    plain = base.get("target")
    if (
        isinstance(target, dict)
        and isinstance(plain, dict)
        and target.get("name") == plain["name"]
        and models == base["scorers"]
    ):
        base |= {"target": table["target"], "scorers": table.get("models") or table.get("scorers", [])}
    return with_roles(base, pair)


def innermost(proposer: object, verifier: str) -> tuple[Table | None, str]:
    """Return the innermost proposer of a chain, and the model that verifies its drafts."""
    while isinstance(proposer, dict) and isinstance(proposer.get("proposer"), dict):
        verifier = str(proposer.get("model", ""))
        proposer = proposer["proposer"]
    return (proposer if isinstance(proposer, dict) else None), verifier


def keys_of(table: Table, *before: str) -> set[str]:
    """Return the dotted keys that can be set in a method's table, present or not.

    `before` is the path of an inner table.
    """
    types = _types_of(table, before[-1] if before else "")
    keys = {".".join([*before, key]) for key in {*table, *types} - {"name"}}
    keys |= {".".join([*before, key, "name"]) for key in FAMILIES if key in types and table.get(key) is None}
    keys -= {".".join([*before, key]) for key, _ in inner_tables(table)}
    for key, inner in inner_tables(table):
        keys |= keys_of(inner, *before, key)
    return keys


def applies(override: Override, table: Table) -> bool:
    """Return whether an override changes a method: if it names the method, or if the method has the key and its type fits."""
    if override.scope:
        return True
    return _types_at(table, override.path) is not None and value_error(table, override.path, override.value, "") is None


def value_error(table: Table, path: tuple[str, ...], value: object, option: str) -> ConfigError | None:
    """Return the error of a value whose type does not fit a key; None if it fits, or if the table lacks the key."""
    types, key = _types_at(table, path), path[-1]
    if types is None or key not in types:
        return None
    if key in (*GROUPS, "name"):
        return None if is_names(value) else ConfigError(f"{option} = {value!r} must be a name, or a list of names")
    try:
        convert(value, types[key], option)
    except ConfigError as error:
        return error
    return None


def _types_at(table: Table, path: tuple[str, ...]) -> dict[str, object] | None:
    """Return the types by field of the inner table that has the last key of a path; None if no table has it."""
    before = ""
    for key in path[:-1]:
        inner = table.get(key)
        if inner is None and key in FAMILIES and key in _types_of(table, before):
            inner = {"name": ""}  # the table that an override of its name makes
        if not isinstance(inner, dict):
            return None
        table, before = inner, key
    types = _types_of(table, before)
    return types if path[-1] in types or path[-1] in table else None


def key_error(option: str, names: Iterable[str], key: str, keys: Iterable[str]) -> ConfigError:
    """Return the error of an option with a key that none of the methods has.

    It suggests the nearest key, otherwise a key whose last word is near.
    """
    keys, methods = sorted(keys), list(names)
    suggestion = hint(key, keys)
    if "did you mean" not in suggestion:
        near = get_close_matches(key.rpartition(".")[2], [other.rpartition(".")[2] for other in keys], n=1)
        meant = next((other for other in keys if near and other.rpartition(".")[2] == near[0]), "")
        suggestion = (f" (did you mean '{meant}'?)" if meant else "") + suggestion
    subject = f"{methods[0]} does not have" if len(methods) == 1 else f"none of {', '.join(methods)} has"
    return ConfigError(f"{option}: {subject} this key{suggestion}")


def _types_of(table: Table, key: str = "") -> dict[str, object]:
    """Return the fields, with their types, of the class that the table under a key names; empty for an unknown name."""
    family, name = FAMILIES.get(key), table.get("name")
    member = family.members.get(name) if family and isinstance(name, str) else None
    if member is None or not is_dataclass(member):
        return {}
    hints = typing.get_type_hints(member)
    return {field.name: hints[field.name] for field in dataclass_fields(member)}


def head_kind(table: Table) -> str:
    """Return the kind of the head that a part of a method reads; empty for one that reads none."""
    member = Proposer.members.get(str(table.get("name")))
    if member is not None and issubclass(member, HeadTree):
        return HeadTree.kind
    return str(table.get("name"))


def length_path(table: Table) -> str:
    """Return the dotted key that `--gamma` sets; empty for a method without a draft length."""
    if "gamma" in _types_of(table):
        return "gamma"
    keys, proposer = ["proposer"], table.get("proposer")
    while isinstance(proposer, dict) and isinstance(proposer.get("proposer"), dict):
        keys, proposer = [*keys, "proposer"], proposer["proposer"]
    return (
        ".".join([*keys, "gamma"]) if isinstance(proposer, dict) and "gamma" in _types_of(proposer, "proposer") else ""
    )


def length_value(table: Table, path: Sequence[str], value: object, pair: Pair) -> object:
    """Return the value of a swept key; one draft length of an ensemble is the first model's, and the others draft 1."""
    models = listed(table, "models")
    if list(path) != ["gamma"] or not models or not isinstance(value, int):
        return value
    return [value] + [1] * (sum(len(pair.group(name)) for name in models) - 1)


def with_lengths(table: Table, sizes: Mapping[str, int], gamma: tuple[int, ...]) -> Table:
    """Return a copy of a table with draft lengths: the user's, the table's, or a default by the models' sizes.

    `sizes` are parameters by role, for `default_length`. The other models of an ensemble draft 1 token.
    """
    table = deepcopy(table)
    models, scorers = listed(table, "models"), listed(table, "scorers") or [""]
    if models:
        if len(gamma) > 1:
            table["gamma"] = list(gamma)
        elif gamma or "gamma" not in table:
            first = gamma[0] if gamma else default_length(sizes, models[0], models[-1])
            table["gamma"] = [first] + [1] * (len(models) - 1)
        return table
    proposer, verifier = innermost(table.get("proposer"), scorers[-1])
    if proposer is not None:
        if gamma and "gamma" in _types_of(proposer, "proposer"):
            proposer["gamma"] = gamma[0]
        elif (
            "model" in proposer and verifier and "gamma" in _types_of(proposer, "proposer") and "gamma" not in proposer
        ):
            proposer["gamma"] = default_length(sizes, str(proposer["model"]), verifier)
    elif "gamma" in (types := _types_of(table)):
        if gamma:
            table["gamma"] = gamma[0]
        elif "gamma" not in table and (verifier := next((key for key in ("model", "target") if key in types), "")):
            table["gamma"] = default_length(sizes, str(table.get("draft", "")), str(table.get(verifier, "")))
    return table
