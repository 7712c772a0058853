"""The methods of a run: presets with overrides, sweeps and draft lengths, built, and grouped by their baseline."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from dataclasses import fields as dataclass_fields
from itertools import product

from specbench.config.construct import Table, convert, to_table
from specbench.config.method_tables import baseline_table, with_roles
from specbench.config.options import Options
from specbench.config.overrides import Override, changed
from specbench.config.pair import Pair
from specbench.config.presets import Preset, preset
from specbench.decoding.method import Method
from specbench.decoding.sampling import Sampler
from specbench.errors import ConfigError
from specbench.experiment import method_table as tables
from specbench.models.heads import Head
from specbench.runs.run_spec import Clock, MethodSpec

GAMMA = "gamma"  # the short name of every method's draft length


@dataclass(frozen=True)
class ResolvedMethod:
    """One method of a run, built. `baseline` is the preset that it is compared with; None for a baseline itself."""

    label: str
    preset: str
    baseline: str | None
    temperature: float
    method: Method
    clock: Clock = "decoding"
    lossless: bool | None = None  # whether it declares its baseline's distribution; None if it declares none

    @property
    def spec(self) -> MethodSpec:
        """The method as run.toml holds it, with all of its defaults."""
        return MethodSpec(
            preset=self.preset,
            options=to_table(self.method),
            traits=self.method.traits(),
            lossless=self.lossless,
        )


@dataclass(frozen=True)
class _Variant:
    """A method's preset, its table with the user's overrides and the pair's roles, and the swept paths within it."""

    preset: Preset
    table: Table
    applied: tuple[Override, ...]
    swept: tuple[str, ...] = ()

    def label(self, method: Method) -> str:
        """Return the preset's name with the values of swept keys in brackets, for example `sd(gamma=5)`."""
        values = [f"{path.rpartition('.')[2]}={_shown(_attribute(method, path))}" for path in self.swept]
        return f"{self.preset.name}({', '.join(values)})" if values else self.preset.name


def roles_of(names: Iterable[str], pair: Pair, options: Options) -> tuple[str, ...]:
    """Return the models that these methods and their baselines need, in the pair's order."""
    needed: set[str] = set()
    for each in _variants(names, pair, options):
        needed |= set(tables.roles_in(each.table))
        if "baseline" in each.preset.table:
            needed |= set(tables.roles_in(_baseline_table(each.preset, each.table, pair)))
    return tuple(role for role in pair.models if role in needed)


def heads_of(names: Iterable[str], pair: Pair, options: Options) -> tuple[str, ...]:
    """Return the heads that these methods need, in the pair's order."""
    needed = {head for each in _variants(names, pair, options) for head in tables.words_under(each.table, "head")}
    return tuple(name for name in pair.heads if name in needed) + tuple(sorted(needed - set(pair.heads)))


def groups_of(
    names: Iterable[str], pair: Pair, sizes: Mapping[str, int], options: Options
) -> list[tuple[ResolvedMethod, ...]]:
    """Build the methods, grouped with the baseline that they share, the baseline first.

    `sizes` are parameters by role, for draft lengths that are open (`method_table.with_lengths`). Raises ConfigError for
    whatever is wrong with a method.
    """
    groups: dict[str, list[ResolvedMethod]] = {}
    try:
        Sampler(options.temperature or 0.0, options.top_k, options.top_p)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    for each in _variants(names, pair, options):
        found, gamma = each.preset, options.gamma_for(each.preset.name)
        table = tables.with_lengths(each.table, sizes, gamma)
        temperature = temperature_of(found) if options.temperature is None else options.temperature
        where = f"{found.path}: clock"
        clock: Clock = convert(found.table.get("clock", "decoding"), Clock, where)
        method = Method.build(table, options.place("method", found.path, each.applied))
        if method.greedy_only and temperature > 0.0:
            raise ConfigError(f"{found.name} is defined for greedy decoding only, not at T = {temperature:g}")
        resolved = base = ResolvedMethod(
            each.label(method), found.name, found.table.get("baseline"), temperature, method, clock
        )
        if resolved.baseline:
            built = Method.build(_baseline_table(found, table, pair), f"baseline {resolved.baseline}")
            base = ResolvedMethod(resolved.baseline, resolved.baseline, None, temperature, built)
            resolved = replace(resolved, lossless=is_lossless(method, built))
        key = json.dumps([base.label, to_table(base.method), temperature], sort_keys=True)
        _add(groups.setdefault(key, [base]), resolved)
    return [tuple(group) for group in groups.values()]


def is_lossless(method: Method, baseline: Method) -> bool | None:
    """Return whether a method declares the same output distribution as its baseline. None if either declares none."""
    own, other = method.declared_distribution(), baseline.declared_distribution()
    return None if own is None or other is None else own == other


def _add(group: list[ResolvedMethod], new: ResolvedMethod) -> None:
    """Add a method to its group if it is new. Raises ConfigError if another method has the same label."""
    same = next((other for other in group if other.label == new.label), None)
    if same is None:
        group.append(new)
    elif new.baseline and new.method != same.method:
        raise ConfigError(f"two methods are called '{new.label}'; give the files different names")


def temperature_of(found: Preset) -> float:
    """Return the temperature of a method's preset, 0 by default. Raises ConfigError for a negative one."""
    where = f"{found.path}: temperature"
    temperature: float = convert(found.table.get("temperature", 0.0), float, where)
    if temperature < 0.0:
        raise ConfigError(f"{where} = {temperature:g} must be at least 0")
    return temperature


def _variants(names: Iterable[str], pair: Pair, options: Options) -> list[_Variant]:
    """Return every method, or every variant of it that a sweep makes, with open draft lengths.

    Each value of a swept key is a variant: of every method that has the key, or of the one whose name it begins with. Raises
    ConfigError for a swept key that no method has, and for options that give one key of a method two values.
    """
    out, names = [], list(names)
    unused = {key for key, _ in options.over}
    for name in names:
        found = preset("method", name)
        base = tables.constructor(name)
        applied = tuple(each for each in options.overrides_for("method", name) if tables.applies(each, base))
        base = changed(base, [(each.path, each.value) for each in applied], f"method {found.name}")
        given = {".".join(each.path): (f"--set {each.key}", each.value) for each in applied}
        swept: list[tuple[list[str], list[object]]] = []
        for key, values in options.over:
            scope, path = _swept_path(key, base)
            if scope in ("method", found.name, name) and ".".join(path) in tables.keys_of(base):
                _require_open(found.name, ".".join(path), f"--over {key}", given)
                given[".".join(path)] = (f"--over {key}", None)
                swept.append((path, values))
                unused.discard(key)
        if (gamma := options.gamma_for(name)) and (where := tables.length_path(base)):
            _require_open(found.name, where, f"--gamma {','.join(map(str, gamma))}", given)
        paths = tuple(".".join(path) for path, _ in swept)
        for values in product(*(values for _, values in swept)):
            changes = [
                (path, tables.length_value(base, path, value, pair))
                for (path, _), value in zip(swept, values, strict=True)
            ]
            table = changed(base, changes, f"method {found.name}")
            out.append(_Variant(found, _with_heads(with_roles(table, pair), pair), applied, paths))
    if unused:
        key, known = min(unused), {f"method.{key}" for each in out for key in tables.keys_of(each.table)}
        raise tables.key_error(f"--over {key}", names, key, known)
    return out


def _swept_path(key: str, table: Table) -> tuple[str, list[str]]:
    """Return the scope of a swept key and its path in a method's table; `gamma` alone is the method's draft length."""
    scope, *path = key.split(".") if "." in key else ("method", key)
    if path == [GAMMA] and GAMMA not in tables.keys_of(table) and (own := tables.length_path(table)):
        path = own.split(".")
    return scope, path


def has_draft_length(names: Iterable[str], pair: Pair, options: Options) -> bool:
    """Return whether any of the methods drafts a set length, which `--gamma` gives."""
    return any(tables.length_path(each.table) for each in _variants(names, pair, options))


def _require_open(method: str, path: str, option: str, given: Mapping[str, tuple[str, object]]) -> None:
    """Raise ConfigError if another option already sets this key, directly or inside a table."""
    for earlier, (other, value) in given.items():
        rest = path.removeprefix(earlier)
        if not rest or (rest.startswith(".") and isinstance(value, dict) and rest[1:] in _paths_in(value)):
            raise ConfigError(f"{option} and {other} conflict: both give {method}'s {path}; leave one out")


def _paths_in(table: Table, before: str = "") -> set[str]:
    """Return the dotted keys of a table and of the tables within."""
    paths = {f"{before}{key}" for key in table}
    return paths.union(*(_paths_in(inner, f"{before}{key}.") for key, inner in tables.inner_tables(table)))


def _attribute(part: object, path: str) -> object:
    """Return a method's value at a dotted path, such as `proposer.gamma`."""
    for key in path.split("."):
        part = getattr(part, key)
    return part


def _shown(value: object) -> str:
    """Return a value of a built method as TOML would write it in a label."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return str(list(value))
    if is_dataclass(value) and not isinstance(value, type):
        values = ", ".join(f"{field.name}={_shown(getattr(value, field.name))}" for field in dataclass_fields(value))
        name = str(getattr(value, "name", ""))
        return f"{name or type(value).__name__}({values})" if values else name
    return str(value)


def _baseline_table(found: Preset, table: Table, pair: Pair) -> Table:
    """Return the table of a method's baseline, with the pair's roles and heads."""
    return _with_heads(baseline_table(found, table, pair), pair)


def _with_heads(table: Table, pair: Pair) -> Table:
    """Return the table with the pair's heads. Raises ConfigError for a head that does not fit its place."""
    _fill_heads(table, pair, "")
    return table


def _fill_heads(table: Table, pair: Pair, base: str) -> None:
    """Replace each kind of head in a method by the pair's head of that kind, for the model that drafts there."""
    for key in ("base", "draft", "model"):
        if isinstance(value := table.get(key), str):
            base = value
            break
    if (kind := table.get("name")) in Head.kinds:
        head = table.get("head") or pair.head_of(str(kind), base)
        table["head"] = head
        spec, verifier = pair.heads.get(str(head)), table.get("target")
        if spec and spec.base != base:
            raise ConfigError(f"head '{head}' reads '{spec.base}', but '{base}' drafts here")
        if spec and isinstance(verifier, str) and spec.target != verifier:
            raise ConfigError(f"head '{head}' predicts '{spec.target}', but '{verifier}' verifies here")
    for _, inner in tables.inner_tables(table):
        _fill_heads(inner, pair, base)
