"""What identifies the models, heads and settings of a measurement, and how two of them differ."""

from collections.abc import Collection, Mapping

from specbench.config.construct import Table, to_table
from specbench.regression.measurement import Measured
from specbench.runs.run_spec import HeadSource, ModelSource

Source = ModelSource | HeadSource


def replaced_drafts(base: Measured, new: Measured) -> dict[str, list[str]]:
    """Return the models and heads that differ although the baseline reads neither, each with the differences.

    They can only draft for a lossless method, whose distribution is the baseline's.
    """
    a, b = base.spec, new.spec
    fixed = {*a.methods[a.baseline].traits.roles, *b.methods[b.baseline].traits.roles}
    models = a.pair.models.keys() & b.pair.models.keys() - fixed
    found = {role: _changes(f"model {role}", a.pair.models[role], b.pair.models[role]) for role in sorted(models)}
    heads = a.pair.heads.keys() & b.pair.heads.keys()
    found |= {name: _changes(f"head {name}", a.pair.heads[name], b.pair.heads[name]) for name in sorted(heads)}
    return {name: changes for name, changes in found.items() if changes}


def sources(what: str, a: Mapping[str, Source], b: Mapping[str, Source], without: Collection[str]) -> list[str]:
    """Return the differences of two sides' models or heads, by role or name, except those in `without`."""
    names = [name for name in {**a, **b} if name not in without]
    return [change for name in names for change in _changes(f"{what} {name}", a.get(name), b.get(name))]


def _changes(what: str, a: Source | None, b: Source | None) -> list[str]:
    """Return the differences of a model or head. Other weights are shown with their location."""
    if a is None or b is None:
        return [f"{what}: {sides(shown(a and a.source), shown(b and b.source))}"]
    changes = tables(what, but(_identity(a), "checksum"), but(_identity(b), "checksum"))
    if a.checksum == b.checksum:
        return changes
    before, after = (f"{each.checksum or 'none'} of {shown(each.source)}" for each in (a, b))
    return [f"{what} checksum: {sides(before, after)}", *changes]


def _identity(source: Source) -> Table:
    """Return what identifies a model or head, without a head's training data and quality.

    With a checksum or a commit, the location is irrelevant.
    """
    if isinstance(source, ModelSource):
        identity = source.identity
    else:
        reported = ("tasks", "trained_on", "skipped", "predicted_distance")
        identity = {key: value for key, value in to_table(source).items() if key not in reported}
    return but(identity, "source") if source.checksum or source.revision else identity


def tables(what: str, a: Mapping[str, object], b: Mapping[str, object]) -> list[str]:
    """Return the keys in which two tables differ, with both values. Inner tables are compared by key."""
    out = []
    for key in {**a, **b}:
        before, after = a.get(key), b.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            out += tables(f"{what} {key}".strip(), before, after)
        elif before != after:
            out.append(f"{what} {key}: {sides(shown(before), shown(after))}".strip())
    return out


def but(table: Table, key: str) -> Table:
    return {k: v for k, v in table.items() if k != key}


def sides(base: object, new: object) -> str:
    """Return two values with the names of their sides."""
    return f"{base} in BASE, {new} in NEW"


def shown(value: object) -> str:
    """Return a value as short text."""
    return shortened("nothing" if value in (None, "") else str(value))


def shortened(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
