"""The methods of a suite's line as tables, grouped by baseline, without their classes: for plans that load no torch.

Overrides and sweeps apply where a table has a place for the key. `specbench.experiment.method_resolution` checks more.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from specbench.config.construct import Table
from specbench.config.method_tables import baseline_table, constructor, with_roles
from specbench.config.options import Options
from specbench.config.overrides import changed
from specbench.config.pair import Pair
from specbench.config.presets import preset

GAMMA = "gamma"
DRAFTING = ("bild", "sprinter", "hf-assisted")  # methods with a draft length of their own instead of a proposer's


@dataclass(frozen=True)
class Variant:
    """A method's table with one value for each swept key."""

    preset: str
    swept: str
    table: Table


@dataclass(frozen=True)
class Group:
    """The methods that share a baseline and a temperature, the baseline first."""

    temperature: float
    variants: tuple[Variant, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The presets of its methods, each once."""
        return tuple(dict.fromkeys(each.preset for each in self.variants))


def groups_of(names: Sequence[str], pair: Pair, options: Options) -> list[Group]:
    """Return the methods of a request, grouped with their baselines. Raises ConfigError for a role that the pair lacks."""
    groups: dict[str, tuple[float, list[Variant]]] = {}
    for name in names:
        found = preset("method", name)
        own = found.table.get("temperature", 0.0)
        temperature = float(own if options.temperature is None else options.temperature)
        for variant in _variants(name, pair, options):
            base = variant
            if "baseline" in found.table:
                table = baseline_table(found, variant.table, pair)
                base = Variant(found.table["baseline"], "", table)
            key = json.dumps([base.preset, base.table, temperature], sort_keys=True)
            _, members = groups.setdefault(key, (temperature, [base]))
            if not any((each.preset, each.swept) == (variant.preset, variant.swept) for each in members):
                members.append(variant)
    return [Group(temperature, tuple(members)) for temperature, members in groups.values()]


def _variants(name: str, pair: Pair, options: Options) -> list[Variant]:
    """Return a method's table once per combination of its swept values."""
    found = preset("method", name)
    base = constructor(name)
    overrides = [each for each in options.overrides_for("method", name) if each.scope or _has_place(base, each.path)]
    base = changed(base, [(each.path, each.value) for each in overrides], f"method {found.name}")
    base = _with_gamma(base, options.gamma_for(found.name))
    swept: list[tuple[list[str], list[object]]] = []
    for key, values in options.over:
        scope, *path = key.split(".") if "." in key else ("method", key)
        if path == [GAMMA] and GAMMA not in base:
            path = _length_path(base)
        if scope in (found.name, name, "method") and path and (scope != "method" or _has_place(base, path)):
            swept.append((path, values))
    variants = []
    for values in product(*(values for _, values in swept)):
        changes = [(path, _length_value(base, path, value)) for (path, _), value in zip(swept, values, strict=True)]
        table = with_roles(changed(base, changes, f"method {found.name}"), pair)
        variants.append(Variant(found.name, json.dumps(values), table))
    return variants


def _has_place(table: Table, path: Sequence[str]) -> bool:
    """Return whether a table has the key of a path, or could have it: a table may omit its draft length."""
    place: object = table
    for key in path[:-1]:
        place = place.get(key) if isinstance(place, dict) else None
    return isinstance(place, dict) and (path[-1] in place or list(path) == _length_path(table))


def _with_gamma(table: Table, gamma: tuple[int, ...]) -> Table:
    """Return the table with the draft lengths of `--gamma`, where it has a place for them."""
    path = _length_path(table)
    if not gamma or not path:
        return table
    return changed(table, [(path, list(gamma) if table.get("models") else gamma[0])], "")


def _length_path(table: Table) -> list[str]:
    """Return the path of a method's draft length; empty for a method without one."""
    if table.get("models") or table.get("name") in DRAFTING:
        return [GAMMA]
    path: list[str] = []
    while isinstance(inner := table.get("proposer"), dict):
        path, table = [*path, "proposer"], inner
    return [*path, GAMMA] if path else []


def _length_value(table: Table, path: Sequence[str], value: object) -> object:
    """Return a swept value. One draft length of an ensemble is the first model's."""
    return [value] if list(path) == [GAMMA] and table.get("models") and isinstance(value, int) else value
