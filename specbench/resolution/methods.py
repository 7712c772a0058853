"""The methods of a request: presets with overrides, sweeps and draft lengths, built, and grouped by their baseline."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

from specbench.analysis.formula import formula_of
from specbench.config import presets
from specbench.config.construct import Table, convert, plain, to_table
from specbench.config.options import GivenOption, Options
from specbench.config.pair import Pair, head_named
from specbench.config.presets import Override, Preset, in_scope, preset
from specbench.decoding.method import Method
from specbench.decoding.rejection import BY_TOKEN
from specbench.decoding.sampling import Sampler
from specbench.errors import ConfigError, MissingAsset, hint
from specbench.models.heads import Head
from specbench.resolution.partial_method import GAMMA, PartialMethod, key_error
from specbench.runs.run_spec import Clock, MethodSpec
from specbench.runs.settings import label_of


@dataclass(frozen=True)
class ResolvedMethod:
    """One method of a run, built. `baseline` is the preset that it is compared with; None for a baseline itself."""

    preset: str
    baseline: str | None
    temperature: float
    method: Method
    clock: Clock = "decoding"
    lossless: bool | None = None  # whether it declares its baseline's distribution; None if it declares none
    settings: Table = field(default_factory=dict)  # the values of swept keys, by path
    is_reference: bool = False  # whether other methods are compared with it besides the baseline

    @property
    def label(self) -> str:
        """The method in its run."""
        return label_of(self.preset, self.settings)

    @property
    def has_draft_length(self) -> bool:
        """Whether the method drafts a set length, which `--gamma` gives."""
        return bool(PartialMethod.of(to_table(self.method), self.label).length_path)

    @property
    def spec(self) -> MethodSpec:
        """The method as run.toml holds it, with all of its defaults."""
        return MethodSpec(
            preset=self.preset,
            options=to_table(self.method),
            traits=replace(self.method.traits(), is_reference=self.is_reference),
            lossless=self.lossless,
            settings=self.settings,
        )


@dataclass(frozen=True)
class _Variant:
    """A method's preset, the partial method with overrides, sweeps, and the pair's roles and heads, and the swept paths."""

    preset: Preset
    partial: PartialMethod
    applied: tuple[Override, ...]
    swept: tuple[str, ...] = ()

    def settings(self, method: Method) -> Table:
        """Return the values of swept keys in a built method."""
        return {path: plain(_attribute(method, path)) for path in self.swept}


@dataclass(frozen=True)
class Methods:
    """The methods of a request on a pair, by names of presets, each expanded once.

    With `assumes_heads`, a head that the pair lacks gets the name of its kind, for estimates before it is trained.
    """

    names: tuple[str, ...]
    pair: Pair
    options: Options
    assumes_heads: bool = False

    @cached_property
    def roles(self) -> tuple[str, ...]:
        """The models that the methods and their baselines need, in the pair's order."""
        needed: set[str] = set()
        for variant in self._variants:
            needed |= set(variant.partial.roles)
            if "baseline" in variant.preset.table:
                needed |= set(self._baseline(variant.preset, variant.partial).roles)
        return tuple(role for role in self.pair.models if role in needed)

    @property
    def heads(self) -> tuple[str, ...]:
        """The heads that the methods need, in the pair's order."""
        needed = set[str]().union(*(variant.partial.heads for variant in self._variants))
        return tuple(name for name in self.pair.heads if name in needed) + tuple(sorted(needed - set(self.pair.heads)))

    @property
    def have_draft_length(self) -> bool:
        """Whether any of the methods drafts a set length, which `--gamma` gives."""
        return any(variant.partial.length_path for variant in self._variants)

    def groups(self, sizes: Mapping[str, int], temperature: float | None = None) -> list[tuple[ResolvedMethod, ...]]:
        """Build the methods, grouped with the baseline that they share, the baseline first.

        `sizes` are numbers of parameters by role, for open draft lengths (`default_length`). `temperature` holds for methods
        for which no option and no preset sets one. Raises ConfigError for a mistake in a method.
        """
        groups: dict[str, list[ResolvedMethod]] = {}
        options = self.options
        try:
            Sampler(options.temperature or 0.0, options.top_k, options.top_p)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        for variant in self._variants:
            base, method = self._built(variant, sizes, temperature)
            key = json.dumps([base.label, to_table(base.method), base.temperature], sort_keys=True)
            _add(groups.setdefault(key, [base]), method)
        return [tuple(group) for group in groups.values()]

    def _built(
        self, variant: "_Variant", sizes: Mapping[str, int], default: float | None = None
    ) -> tuple[ResolvedMethod, ResolvedMethod]:
        """Return the baseline of a method, and the method; for a baseline itself, both are the same.

        `default` is the temperature of a method for which no option and no preset sets one.
        """
        source, options = variant.preset, self.options
        partial = variant.partial.with_lengths(sizes, options.gamma_for(source.name))
        temperature = options.temperature
        if temperature is None:
            is_set = default is None or "temperature" in source.table
            temperature = temperature_of(source) if is_set or default is None else default
        clock: Clock = convert(source.table.get("clock", "decoding"), Clock, f"{source.path}: clock")
        method = Method.build(partial.table, options.location("method", source.path, variant.applied))
        if formula := method.theory():
            formula_of(formula)
        reasons = [test.rejection.undefined_at(temperature) for test in method.verifications()]
        if why := next(filter(None, (method.undefined_at(temperature), method.conflict_at(temperature), *reasons)), ""):
            raise ConfigError(f"{source.name} is not defined at T = {temperature:g}: {why}")
        baseline = source.table.get("baseline")
        settings = variant.settings(method)
        is_reference = bool(source.table.get("reference")) and not settings
        resolved = ResolvedMethod(
            source.name, baseline, temperature, method, clock, settings=settings, is_reference=is_reference
        )
        if not baseline:
            return resolved, resolved
        alone = Method.build(self._baseline(source, partial).table, f"baseline {baseline}")
        base = ResolvedMethod(baseline, None, temperature, alone)
        return base, replace(resolved, lossless=is_lossless(method, alone, temperature))

    @cached_property
    def _presets(self) -> dict[str, Preset]:
        """The presets of the methods, by the name or path that the user gives."""
        return {name: preset("method", name) for name in self.names}

    @cached_property
    def _partials(self) -> dict[str, PartialMethod]:
        """The methods as their presets have them, by the name or path that the user gives."""
        return {name: PartialMethod.of_source(source) for name, source in self._presets.items()}

    @cached_property
    def _variants(self) -> list["_Variant"]:
        """Every method, or every variant of it that a sweep makes, with open draft lengths.

        Each value of a swept key is a variant: of every method that has the key, or of the one whose name it begins with.
        Raises ConfigError for a swept key that no method has, and for options that give one key of a method two values.
        """
        variants: list[_Variant] = []
        unused = {key for key, _ in self.options.over}
        for name in self.names:
            source = self._presets[name]
            base, applied = self._with_overrides(name)
            swept = self._swept(name, base, applied)
            unused -= {key for key, _, _ in swept}
            paths = tuple(".".join(path) for _, path, _ in swept)
            for values in product(*(values for _, _, values in swept)):
                partial = base
                for (_, path, _), value in zip(swept, values, strict=True):
                    length = base.length_value(path, value, self.pair)
                    partial = partial.with_value(path, length, f"method {source.name}")
                partial = self._with_heads(partial.with_roles(self.pair))
                variants.append(_Variant(source, partial, applied, paths))
        if unused:
            key, keys = (
                min(unused),
                {f"method.{key}" for variant in variants for key in variant.partial.settable_keys()},
            )
            raise key_error(f"--over {key}", self.names, key, keys)
        return variants

    def _with_overrides(self, name: str) -> tuple[PartialMethod, tuple[Override, ...]]:
        """Return a method with the overrides that apply to it, and these overrides."""
        base, where = self._partials[name], f"method {self._presets[name].name}"
        applied = tuple(override for override in self.options.overrides_for("method", name) if base.applies(override))
        partial = base
        for override in applied:
            partial = partial.with_value(override.path, override.value, where)
        return partial, applied

    def _swept(
        self, name: str, partial: PartialMethod, applied: Sequence[Override]
    ) -> list[tuple[str, tuple[str, ...], list[object]]]:
        """Return the sweeps that apply to a method: their keys, their paths in it, and the values."""
        label, options = self._presets[name].name, self.options
        settings = {".".join(override.path): (f"--set {override.key}", override.value) for override in applied}
        swept: list[tuple[str, tuple[str, ...], list[object]]] = []
        for key, values in options.over:
            scope, path = _swept_path(key, partial)
            if scope in ("method", label, name) and ".".join(path) in partial.settable_keys():
                _require_open(label, ".".join(path), f"--over {key}", settings)
                settings[".".join(path)] = (f"--over {key}", None)
                swept.append((key, path, values))
        if (gamma := options.gamma_for(name)) and (where := partial.length_path):
            _require_open(label, ".".join(where), f"--gamma {','.join(map(str, gamma))}", settings)
        return swept

    def _baseline(self, source: Preset, draft: PartialMethod) -> PartialMethod:
        """Return the draft of a method's baseline, with the pair's roles and heads."""
        return self._with_heads(draft.baseline(source, self.pair))

    def _with_heads(self, draft: PartialMethod, base: str = "") -> PartialMethod:
        """Return the draft with the pair's head in place of each kind of head, for the model `base` that drafts there.

        A part names a head of the pair or a kind; by default its kind is the first that its proposer reads.

        Raises ConfigError for a head that reads or predicts other models.
        """
        values = dict(draft.values)
        base = next((value for key in ("base", "draft", "model") if isinstance(value := values.get(key), str)), base)
        if draft.head_kind in Head.kinds:
            named = values.get("head") or draft.head_kind
            is_kind = named in Head.kinds and named not in self.pair.heads
            head = values["head"] = self._head(str(named), base) if is_kind or not values.get("head") else named
            spec, verifier = self.pair.heads.get(str(head)), values.get("target")
            if spec and spec.base != base:
                raise ConfigError(f"head '{head}' reads '{spec.base}', but '{base}' drafts here")
            if spec and isinstance(verifier, str) and spec.target != verifier:
                raise ConfigError(f"head '{head}' predicts '{spec.target}', but '{verifier}' verifies here")
        parts = {key: self._with_heads(part, base) for key, part in draft.parts.items()}
        return replace(draft, values=values, parts=parts)

    def _head(self, kind: str, base: str) -> str:
        """Return the name of the pair's head of a kind on a model. Raises MissingAsset without one, if it is not assumed."""
        try:
            return self.pair.head_of(kind, base)
        except MissingAsset:
            if not self.assumes_heads:
                raise
            return kind

    def unused_options(self, pair_name: str) -> dict[GivenOption, ConfigError]:
        """Return errors for the options that no method reads."""
        return {**self._unused_overrides(), **self._unused_lengths(), **self._unused_heads(pair_name)}

    def _unused_overrides(self) -> dict[GivenOption, ConfigError]:
        bases = self._partials
        unused: dict[GivenOption, ConfigError] = {}
        for override in self.options.all_overrides("method", self.names):
            covered = [name for name in self.names if in_scope(override.scope, name)]
            if any(bases[name].applies(override) for name in covered):
                continue
            option = GivenOption("set", override.key)
            keys = {key for draft in bases.values() for key in draft.settable_keys()}
            wrong = [bases[name].value_error(override.path, override.value, str(option)) for name in covered]
            missing = key_error(str(option), self.names, ".".join(override.path), keys)
            if override.scope and not covered:
                missing = ConfigError(f"{option}: '{override.scope}' is not one of the methods {', '.join(self.names)}")
            unused[option] = next(filter(None, wrong), missing)
        return unused

    def _unused_lengths(self) -> dict[GivenOption, ConfigError]:
        bases, unused = self._partials, dict[GivenOption, ConfigError]()
        labels = {name: source.name for name, source in self._presets.items()}  # without aliases
        words = ", ".join(self.names)
        for scope, lengths in self.options.gamma:
            option = GivenOption("gamma", scope, ",".join(map(str, lengths)))
            reading = [
                bases[name]
                for name, label in labels.items()
                if self.options.gamma_for(label) == lengths and bases[name].length_path
            ]
            if scope and not any(in_scope(scope, label) for label in labels.values()):
                message = f"{option}: '{scope}' is not one of the methods {', '.join(labels.values())}"
                unused[option] = ConfigError(message)
            elif not reading:
                unused[option] = ConfigError(f"{option}: {words} has no draft length")
            elif len(lengths) > 1 and not any(draft.listed("models") for draft in reading):
                unused[option] = ConfigError(f"{option}: {words} has one draft length, not one per model")
        return unused

    def _unused_heads(self, pair_name: str) -> dict[GivenOption, ConfigError]:
        unused: dict[GivenOption, ConfigError] = {}
        heads = {name: {"kind": head.kind, "base": head.base} for name, head in self.pair.heads.items()}
        needed = self.heads
        for name, path in self.options.heads:
            scope, colon, head = name.partition(":")
            option = GivenOption("head", name, str(path))
            if colon and not in_scope(scope, pair_name):
                pairs = {pair_name, *presets.names("pair")}
                nearest = "" if scope in pairs else hint(scope, pairs)
                unused[option] = ConfigError(f"--head {name}: this run has no pair '{scope}'{nearest}")
            elif head_named(head if colon else name, heads) not in needed:
                unused[option] = ConfigError(f"--head {name}: none of {', '.join(self.names)} reads it")
        return unused


def method_on(name: str, pair: Pair, options: Options, sizes: Mapping[str, int] | None = None) -> ResolvedMethod | None:
    """Return a method on a pair. None for a baseline, and if the pair lacks a model or head of the method.

    `sizes` are the models' numbers of parameters, for default draft lengths. By default all are equal.
    """
    try:
        ((_, *methods),) = Methods((name,), pair, options).groups(dict(sizes or dict.fromkeys(pair.models, 1)))
    except (ConfigError, MissingAsset):
        return None
    return methods[0] if methods else None


def is_lossless(method: Method, baseline: Method, temperature: float) -> bool | None:
    """Return whether a method declares its baseline's output distribution at a temperature. None if either declares none."""
    declared = method.declared_distribution() if temperature else method.declared_when_greedy()
    expected = baseline.declared_distribution()
    return None if declared is None or expected is None else declared == expected


def _add(group: list[ResolvedMethod], new: ResolvedMethod) -> None:
    """Add a method to its group if it is new. Raises ConfigError if another method has the same label."""
    same = next((other for other in group if other.label == new.label), None)
    if same is None:
        group.append(new)
    elif new.baseline and new.method != same.method:
        raise ConfigError(f"two methods are called '{new.label}'; give the files different names")


def temperature_of(source: Preset) -> float:
    """Return the temperature of a method's preset, 0 by default. Raises ConfigError for a negative one."""
    where = f"{source.path}: temperature"
    temperature: float = convert(source.table.get("temperature", 0.0), float, where)
    if temperature < 0.0:
        raise ConfigError(f"{where} = {temperature:g} must be at least 0")
    return temperature


def _swept_path(key: str, draft: PartialMethod) -> tuple[str, tuple[str, ...]]:
    """Return the scope of a swept key and its path in a method; `gamma` alone is the method's draft length."""
    scope, *path = key.split(".") if "." in key else ("method", key)
    if path == [GAMMA] and GAMMA not in draft.settable_keys() and draft.length_path:
        return scope, draft.length_path
    return scope, tuple(path)


def _require_open(method: str, path: str, option: str, settings: Mapping[str, tuple[str, object]]) -> None:
    """Raise ConfigError if another option already sets this key, directly or inside a table."""
    for earlier, (other, value) in settings.items():
        rest = path.removeprefix(earlier)
        if not rest or (rest.startswith(".") and isinstance(value, dict) and rest[1:] in _paths_in(value)):
            raise ConfigError(f"{option} and {other} conflict: both give {method}'s {path}; leave one out")


def _paths_in(table: Table, before: str = "") -> set[str]:
    """Return the dotted keys of a table and of the tables within."""
    paths = {f"{before}{key}" for key in table}
    inner = {key: value for key, value in table.items() if isinstance(value, dict)}
    return paths.union(*(_paths_in(value, f"{before}{key}.") for key, value in inner.items()))


def _attribute(part: object, path: str) -> object:
    """Return a method's value at a dotted path, such as `proposer.gamma`."""
    for key in path.split("."):
        part = getattr(part, key)
        if key == "rejection" and part is None:
            part = BY_TOKEN
    return part
