"""What identifies the models, heads and settings of a measurement, and how two of them differ."""

from collections.abc import Mapping

from specbench.config.construct import Table, to_table
from specbench.regression.measurement import Measured
from specbench.runs.run_spec import HeadSource, ModelSource


def replaced_drafts(base: Measured, new: Measured) -> dict[str, list[str]]:
    """Return the models and heads that differ although the baseline reads neither, each with the differences.

    They can only draft for a lossless method, whose distribution is the baseline's.
    """
    a, b = base.spec, new.spec
    fixed = {*a.methods[a.baseline].traits.roles, *b.methods[b.baseline].traits.roles}
    found = {
        role: tables(f"model {role}", model_of(a.pair.models[role]), model_of(b.pair.models[role]))
        for role in a.pair.models
        if role in b.pair.models and role not in fixed
    }
    found |= {
        name: tables(f"head {name}", head_of(a.pair.heads[name]), head_of(b.pair.heads[name]))
        for name in a.pair.heads
        if name in b.pair.heads
    }
    return {name: changes for name, changes in found.items() if changes}


def model_of(model: ModelSource) -> Table:
    """Return what identifies a model. With a checksum or a commit, its location is irrelevant."""
    return but(model.identity, "source") if model.checksum or model.revision else model.identity


def head_of(head: HeadSource) -> Table:
    """Return what identifies a head, without its training data and quality."""
    reported = ("tasks", "trained_on", "skipped", "predicted_distance")
    identity = {key: value for key, value in to_table(head).items() if key not in reported}
    return but(identity, "source") if head.checksum or head.revision else identity


def tables(what: str, a: Mapping[str, object], b: Mapping[str, object]) -> list[str]:
    """Return the keys in which two tables differ, with both values. Inner tables are compared by key."""
    out = []
    for key in {**a, **b}:
        before, after = a.get(key), b.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            out += tables(f"{what} {key}".strip(), before, after)
        elif before != after:
            out.append(f"{what} {key}: {shown(before)} | {shown(after)}".strip())
    return out


def but(table: Table, key: str) -> Table:
    return {k: v for k, v in table.items() if k != key}


def shown(value: object) -> str:
    """Return a value as short text."""
    return shortened("nothing" if value in (None, "") else str(value))


def shortened(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
