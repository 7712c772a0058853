"""A method before it is built: a tree of typed parts, in which roles, heads and draft lengths may still be open.

Overrides, sweeps, roles, heads and draft lengths are applied one after the other, and each returns a new one. The method is
built from the table of the last one, since the classes of methods require all of these values.
"""

import typing
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, is_dataclass, replace
from dataclasses import fields as dataclass_fields
from difflib import get_close_matches
from functools import cache

from specbench import methods
from specbench.config.construct import Named, Table, convert, import_modules
from specbench.config.pair import Pair
from specbench.config.presets import UNMEASURED, Override, Preset, preset
from specbench.decoding.method import Method, Proposer
from specbench.decoding.rejection import Rejection
from specbench.decoding.targets import Target
from specbench.errors import ConfigError, hint
from specbench.methods.stopping import Stop
from specbench.methods.tree_drafts import HeadTree
from specbench.resolution.default_length import default_length

BESIDES = (*UNMEASURED, "baseline", "temperature", "clock", "sweep")  # keys of a preset that are no parameters
MODELS = ("draft", "model", "small", "large", "base", "target")  # keys that name a model; a target may be a part
GROUPS = ("scorers", "models")  # keys that list models, or name a group of them
import_modules(methods.__name__, methods.__path__)  # so that all methods, proposers and stop rules are registered
FAMILIES: dict[str, type[Named]] = {  # by key
    "": Method, "proposer": Proposer, "rejection": Rejection, "stop": Stop, "target": Target,
}  # fmt: skip
GAMMA = "gamma"  # the key and the short name of every draft length
Path = tuple[str, ...]  # keys from the method to a value in one of its parts


@dataclass(frozen=True)
class PartialMethod:
    """A method, or a part of one, with the values that are known.

    Args:
        key: The key in the part above; empty for the method itself.
        values: The values by key, the name of the class among them.
        parts: The inner parts by key.
    """

    key: str
    values: Table
    parts: "Mapping[str, PartialMethod]" = field(default_factory=dict)

    @classmethod
    def of_preset(cls, name: str) -> "PartialMethod":
        """Return the method of a preset, by its name or its file. Raises ConfigError if a name is not a string."""
        return cls.of_source(preset("method", name))

    @classmethod
    def of_source(cls, source: Preset) -> "PartialMethod":
        """Return the method of a preset that was read. Raises ConfigError if a name is not a string."""
        return cls.of({key: value for key, value in source.table.items() if key not in BESIDES}, str(source.path))

    @classmethod
    def of(cls, table: Table, where: str, key: str = "") -> "PartialMethod":
        """Return the method, or the part under a key, that a table describes.

        Raises ConfigError, naming `where`, if a key for a name, for names or for a proposer has a value of another type.
        """
        for inner, value in table.items():
            if inner in ("name", "head", *MODELS) and inner != "target" and not isinstance(value, str):
                raise ConfigError(f"{where}: {inner} = {value!r} must be a name")
            if inner in GROUPS and not is_names(value):
                raise ConfigError(f"{where}: {inner} = {value!r} must be a list of names, or one")
            if inner == "proposer" and not isinstance(value, dict):
                raise ConfigError(f"{where}: {inner} = {value!r} must be a table with a name")
        parts = {
            inner: cls.of(value, f"{where}: {inner}", inner)
            for inner, value in table.items()
            if isinstance(value, dict)
        }
        return cls(key, deepcopy({inner: value for inner, value in table.items() if inner not in parts}), parts)

    @property
    def table(self) -> Table:
        """The table from which the method is built."""
        return {**deepcopy(self.values), **{key: part.table for key, part in self.parts.items()}}

    @property
    def types(self) -> dict[str, object]:
        """The types of the parameters of the part's class; empty for an unknown name."""
        name = self.values.get("name")
        return types_of(self.key, name) if isinstance(name, str) else {}

    def walk(self) -> "Iterator[PartialMethod]":
        """Yield this part and all parts within it, outer ones first."""
        yield self
        for part in self.parts.values():
            yield from part.walk()

    def listed(self, key: str) -> list[str]:
        """Return the models that a key lists; empty without the key."""
        value = self.values.get(key)
        if isinstance(value, list | tuple):
            return [str(item) for item in value]
        return [value] if isinstance(value, str) else []

    @property
    def roles(self) -> list[str]:
        """All models that are named. Groups must be resolved."""
        single = [value for part in self.walk() for key in MODELS if isinstance(value := part.values.get(key), str)]
        return [*self.listed("scorers"), *self.listed("models"), *single]

    @property
    def heads(self) -> set[str]:
        """All heads that are named."""
        return {head for part in self.walk() if isinstance(head := part.values.get("head"), str)}

    @property
    def head_kind(self) -> str:
        """The kind of the head that this part reads, or its name for a part that reads none."""
        name = str(self.values.get("name"))
        member = Proposer.members.get(name)
        return HeadTree.kind if member is not None and issubclass(member, HeadTree) else name

    # Values

    def with_value(self, path: Path, value: object, where: str) -> "PartialMethod":
        """Return the method with a value at a path. Raises ConfigError if the path passes through a value."""
        key, *rest = path
        if not rest:
            if isinstance(value, dict):
                part = PartialMethod.of(value, f"{where}: {key}", key)
                return replace(self, values=_without(self.values, key), parts={**self.parts, key: part})
            return replace(self, values={**self.values, key: value}, parts=_without(self.parts, key))
        if key in self.values:
            raise ConfigError(f"--set: '{key}' of {where} is not a table")
        part = self.parts.get(key, PartialMethod(key, {}))
        return replace(self, parts={**self.parts, key: part.with_value(tuple(rest), value, where)})

    def settable_keys(self, *before: str) -> set[str]:
        """Return the dotted keys that can be set, given or not. `before` is the path of this part.

        A part that is lacking is set by its name: `rejection.name`, if the class has the parameter `rejection`.
        """
        keys = {".".join([*before, key]) for key in {*self.values, *self.types} - {"name", *self.parts}}
        keys |= {".".join([*before, key, "name"]) for key in FAMILIES if key in self.types and self._lacks(key)}
        return keys.union(*(part.settable_keys(*before, key) for key, part in self.parts.items()))

    def _lacks(self, key: str) -> bool:
        return key not in self.parts and self.values.get(key) is None

    def applies(self, override: Override) -> bool:
        """Return whether an override changes the method. It was selected by its scope (`Options.overrides_for`).

        An override that names methods always does, so that a wrong key is an error. Without a scope, it changes only methods
        that have the key with a type that the value fits.
        """
        if override.scope:
            return True
        return self._types_at(override.path) is not None and not self.value_error(override.path, override.value, "")

    def value_error(self, path: Path, value: object, option: str) -> ConfigError | None:
        """Return the error of a value whose type does not fit a key; None if it fits, or if there is no such key."""
        types, key = self._types_at(path), path[-1]
        if types is None or key not in types:
            return None
        if key in (*GROUPS, "name"):
            return None if is_names(value) else ConfigError(f"{option} = {value!r} must be a name, or a list of names")
        try:
            convert(value, types[key], option)
        except ConfigError as error:
            return error
        return None

    def _types_at(self, path: Path) -> dict[str, object] | None:
        """Return the parameters, with their types, of the part that has the last key of a path; None if no part has it."""
        part = self
        for key in path[:-1]:
            if key in part.parts:
                part = part.parts[key]
            elif key in FAMILIES and key in part.types and part._lacks(key):
                part = PartialMethod(key, {"name": ""})  # the part that an override of its name makes
            else:
                return None
        has_key = path[-1] in part.types or path[-1] in part.values or path[-1] in part.parts
        return part.types if has_key else None

    # Roles

    def with_roles(self, pair: Pair) -> "PartialMethod":
        """Return the method with groups replaced by the pair's roles. A proposer drafts with the first model of a group.

        Raises ConfigError for a role that the pair lacks, for an empty list, and for a group in place of one model.
        """
        values = dict(self.values)
        for key in GROUPS:
            if isinstance(value := values.get(key), str):
                values[key] = list(pair.group(value))
            if key in values and not convert(values[key], tuple[str, ...], key):
                raise ConfigError(f"{key} = []: name at least one model")
        method, proposer = replace(self, values=values), self.parts.get("proposer")
        if proposer and "model" in proposer.values:
            (first, *_) = pair.group(str(proposer.values["model"]))
            method = method.with_value(("proposer", "model"), first, "")
        for role in method.roles:
            if pair.group(role) != (role,):
                raise ConfigError(
                    f"'{role}' is a group of models, which cannot be used in place of one; help: name the models"
                )
        return method

    def baseline(self, source: Preset, pair: Pair) -> "PartialMethod":
        """Return the baseline of the method, which the preset `source` names.

        If both presets have a target of one kind over the same models, the baseline gets the method's target and scorers,
        overrides included. Both then have the same output distribution, so that only their speeds differ: after
        `--set method.we-se.target.weights=...`, `we` mixes the models with the same weights. Otherwise, as for a cascade, the
        baseline keeps the target of its own preset.
        """
        base, original = PartialMethod.of_preset(source.table["baseline"]), PartialMethod.of_source(source)
        targets = [method.parts["target"].values.get("name") for method in (base, original) if "target" in method.parts]
        models = original.values.get("models") or original.values.get("scorers")
        if len(targets) == 2 and targets[0] == targets[1] and models == base.values["scorers"]:
            scorers = self.values.get("models") or self.values.get("scorers", [])
            values = {**base.values, "scorers": scorers}
            base = replace(base, values=values, parts={**base.parts, "target": self.parts["target"]})
        return base.with_roles(pair)

    # Draft lengths

    @property
    def _innermost(self) -> "tuple[Path, PartialMethod | None, str]":
        """The path of the proposer at the end of a chain, the proposer, and the model that verifies its drafts.

        In `polybasic-model`, where `target` verifies `middle` and `middle` verifies `draft`, it is the model proposer of
        `draft`, at ("proposer", "proposer"), and `middle`. Without a chain, it is the method's proposer and the last scorer.
        """
        path: Path = ("proposer",)
        verifier = (self.listed("scorers") or [""])[-1]
        part = self.parts.get("proposer")
        while part is not None and "proposer" in part.parts:
            verifier = str(part.values.get("model", ""))
            path, part = (*path, "proposer"), part.parts["proposer"]
        return path, part, verifier

    @property
    def length_path(self) -> Path:
        """The path of the value that `--gamma` sets; empty for a method without a draft length.

        It is the method's own parameter, or the innermost proposer's: `gamma`, `proposer.gamma` or `proposer.proposer.gamma`.
        """
        if GAMMA in self.types:
            return (GAMMA,)
        path, proposer, _ = self._innermost
        return (*path, GAMMA) if proposer is not None and GAMMA in proposer.types else ()

    def length_value(self, path: Path, value: object, pair: Pair) -> object:
        """Return the value of a swept key. A single draft length of an ensemble is the first model's; the others draft 1.

        For example, 3 is [3, 1, 1] for an ensemble of three models.
        """
        models = self.listed("models")
        if path != (GAMMA,) or not models or not isinstance(value, int):
            return value
        return [value] + [1] * (sum(len(pair.group(name)) for name in models) - 1)

    def with_lengths(self, sizes: Mapping[str, int], gamma: tuple[int, ...]) -> "PartialMethod":
        """Return the method with a draft length: the user's `gamma`, else the method's own, else a default by models' sizes.

        `sizes` are the numbers of parameters by role (`default_length`). The length is set at `length_path`. A single one is
        the first model's in an ensemble, and the others draft 1 token.
        """
        if models := self.listed("models"):
            if not gamma and GAMMA in self.values:
                return self
            first = gamma[0] if gamma else default_length(sizes, models[0], models[-1])
            whole = list(gamma) if len(gamma) > 1 else [first] + [1] * (len(models) - 1)
            return self.with_value((GAMMA,), whole, "")
        path, proposer, verifier = self._innermost
        if proposer is None:
            keys = [key for key in ("model", "target") if key in self.types]
            drafter, verifier = str(self.values.get("draft", "")), str(self.values.get(keys[0], "")) if keys else ""
            return self._with_length((GAMMA,), self, gamma, (drafter, verifier, bool(keys)), sizes)
        drafter = str(proposer.values.get("model", ""))
        is_known = "model" in proposer.values and bool(verifier)
        return self._with_length((*path, GAMMA), proposer, gamma, (drafter, verifier, is_known), sizes)

    def _with_length(
        self,
        path: Path,
        part: "PartialMethod",
        gamma: tuple[int, ...],
        models: tuple[str, str, bool],
        sizes: Mapping[str, int],
    ) -> "PartialMethod":
        """Return the method with a length at a path in `part`: the user's, else the part's own, else a default.

        `models` are the drafting model, the verifying model, and whether a default follows from them. Without one, the class
        has its own default, or raises an error for the missing value.
        """
        drafter, verifier, is_known = models
        if GAMMA not in part.types:
            return self
        if gamma:
            return self.with_value(path, gamma[0], "")
        if GAMMA in part.values or not is_known:
            return self
        return self.with_value(path, default_length(sizes, drafter, verifier), "")


def types_of(key: str, name: str) -> dict[str, object]:
    """Return the parameters, with their types, of the class with a name in a key's family; empty for an unknown one."""
    family = FAMILIES.get(key)
    member = family.members.get(name) if family else None
    return _parameters(member) if member is not None and is_dataclass(member) else {}


@cache
def _parameters(member: type) -> dict[str, object]:
    hints = typing.get_type_hints(member)
    return {each.name: hints[each.name] for each in dataclass_fields(member)}


def is_names(value: object) -> bool:
    """Return whether a value is a name or a list of names."""
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value))


def key_error(option: str, names: Iterable[str], key: str, keys: Iterable[str]) -> ConfigError:
    """Return the error of an option with a key that none of the methods has.

    It suggests the nearest key, otherwise a key whose last word is near: `proposer.gamma` for `gama`.
    """
    keys, methods = sorted(keys), list(names)
    suggestion = hint(key, keys)
    if "did you mean" not in suggestion:
        near = get_close_matches(key.rpartition(".")[2], [other.rpartition(".")[2] for other in keys], n=1)
        meant = next((other for other in keys if near and other.rpartition(".")[2] == near[0]), "")
        suggestion = (f" (did you mean '{meant}'?)" if meant else "") + suggestion
    subject = f"{methods[0]} does not have" if len(methods) == 1 else f"none of {', '.join(methods)} has"
    return ConfigError(f"{option}: {subject} this key{suggestion}")


def _without(table: Mapping[str, typing.Any], key: str) -> dict[str, typing.Any]:
    return {other: value for other, value in table.items() if other != key}
