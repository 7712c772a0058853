"""Queries on a method's TOML table that do not need the method's class, so that torch is not imported."""

from collections.abc import Iterator, Mapping
from copy import deepcopy

from specbench.config.construct import Table, convert
from specbench.config.pair import Pair
from specbench.config.presets import Preset, preset
from specbench.errors import ConfigError

# Keys of a preset that are not parameters of the method
BESIDES = (
    "description",
    "baseline",
    "temperature",
    "clock",
    "sweep",
)
MODELS = ("draft", "model", "small", "large", "base", "target")  # keys that name a model; a target may be a table
GROUPS = ("scorers", "models")  # keys that list models, or name a group of them


def constructor(name: str) -> Table:
    """Return a copy of a preset's table with the method's parameters. Raises ConfigError for a name of a wrong type."""
    found = preset("method", name)
    table = deepcopy({key: value for key, value in found.table.items() if key not in BESIDES})
    require_names(table, str(found.path))
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
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(each, str) for each in value))


def inner_tables(table: Table) -> Iterator[tuple[str, Table]]:
    """Yield the tables directly within a table, by key."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield key, value


def words_under(table: Table, key: str) -> list[str]:
    """Return the strings under a key, here and in inner tables."""
    own = table.get(key)
    found = [own] if isinstance(own, str) else []
    return found + [word for _, inner in inner_tables(table) for word in words_under(inner, key)]


def listed(table: Table, key: str) -> list[str]:
    """Return the models that a key lists; empty if the key is missing."""
    value = table.get(key)
    return (
        [str(each) for each in value] if isinstance(value, list | tuple) else [value] if isinstance(value, str) else []
    )


def roles_in(table: Table) -> list[str]:
    """Return all models that a table names. Groups must be resolved."""
    own = [role for key in MODELS for role in words_under(table, key)]
    return [*listed(table, "scorers"), *listed(table, "models"), *own]


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
        pair.group(role)
    return table


def baseline_table(found: Preset, table: Table, pair: Pair) -> Table:
    """Return the table of a method's baseline.

    Where both presets have a target of one kind over the same models, the baseline follows the method's target, overrides
    included. Otherwise, as for a cascade, the baseline has a target of its own.
    """
    base, own = constructor(found.table["baseline"]), found.table
    target, models = own.get("target"), own.get("models") or own.get("scorers")
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


def default_length(sizes: Mapping[str, int], first: str, last: str) -> int:
    """Return the default draft length: 1 if model `first` has more than half of the parameters of model `last`, else 5."""
    known = first in sizes and last in sizes  # otherwise building the method raises the error
    return 1 if known and sizes[first] > 0.5 * sizes[last] else 5
