"""What differs between the settings, models and data of two runs."""

from collections.abc import Collection, Mapping
from typing import Any

from specbench.config.construct import Table, to_table
from specbench.features.gate.snapshot import MeasuredRun
from specbench.features.gate.verdict import sides
from specbench.runs.run_spec import HeadSource, ModelSource, RunSpec

WeightSource = ModelSource | HeadSource


def _setting_of(run: MeasuredRun) -> tuple[str, str, str]:
    return run.spec.pair.name, run.spec.task.name, run.spec.baseline


def replaced_drafts(base: MeasuredRun, new: MeasuredRun) -> dict[str, list[str]]:
    """Return the models and heads that differ although the baseline reads neither, each with the differences.

    They can only draft for a lossless method, whose distribution is the baseline's.
    """
    a, b = base.spec, new.spec
    fixed = {*a.methods[a.baseline].traits.roles, *b.methods[b.baseline].traits.roles}
    models = a.pair.models.keys() & b.pair.models.keys() - fixed
    changes_of = {role: _changes(f"model {role}", a.pair.models[role], b.pair.models[role]) for role in sorted(models)}
    heads = a.pair.heads.keys() & b.pair.heads.keys()
    changes_of |= {name: _changes(f"head {name}", a.pair.heads[name], b.pair.heads[name]) for name in sorted(heads)}
    return {name: changes for name, changes in changes_of.items() if changes}


def differences(base: MeasuredRun, new: MeasuredRun) -> list[str]:
    """Return why two runs cannot be compared, each reason with both values; empty if they can.

    Changed drafts are left out: they decide about single methods.
    """
    a, b = base.spec, new.spec
    out = [
        f"{what}: {sides(short_text(ours), short_text(theirs))}"
        for what, ours, theirs in (
            ("task version", a.task.version, b.task.version),
            ("meaning of records", a.semantics, b.semantics),
            ("simulated models", a.pair.simulated, b.pair.simulated),
            ("synthetic logits", a.pair.synthetic, b.pair.synthetic),
        )
        if ours != theirs
    ]
    ours, theirs = (spec.methods[spec.baseline].options for spec in (a, b))
    out += [f"baseline {a.baseline}: {change}" for change in changed_settings(ours, theirs)]
    out += tables("task option", a.task.options, b.task.options)
    out += tables("data", _data(a), _data(b))
    out += tables("decoding", *(but(to_table(spec.decoding), "repeats") for spec in (a, b)))
    drafts = replaced_drafts(base, new)
    out += source_differences("model", a.pair.models, b.pair.models, drafts)
    return out + source_differences("head", a.pair.heads, b.pair.heads, drafts)


def _data(spec: RunSpec) -> Table:
    data = spec.task.data
    return {"sha256": data.sha256, "prompts_sha256": data.prompts_sha256, "samples": data.samples}


def changed_settings(one: Mapping[str, Any], other: Mapping[str, Any], path: str = "") -> list[str]:
    """Return the keys in which two tables differ, as `key before -> after`. Inner tables are compared by key."""
    out = []
    for key in dict.fromkeys([*one, *other]):
        before, after = one.get(key), other.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping) and before.get("name") == after.get("name"):
            out += changed_settings(before, after, f"{path}{key}.")
        elif before != after:
            out.append(f"{path}{key} {_setting(before)} -> {_setting(after)}")
    return out


def _setting(value: Any) -> str:
    """Return a setting as text; a table becomes `name(key = value, ...)`."""
    if isinstance(value, Mapping):
        values = ", ".join(f"{key} = {_setting(inner)}" for key, inner in value.items() if key != "name")
        return f"{value.get('name', '')}({values})" if values else str(value.get("name", "{}"))
    return "default" if value is None else shortened(str(value))


def source_differences(
    what: str, a: Mapping[str, WeightSource], b: Mapping[str, WeightSource], without: Collection[str]
) -> list[str]:
    """Return the differences of two sides' models or heads, by role or name, except those in `without`."""
    names = [name for name in {**a, **b} if name not in without]
    return [change for name in names for change in _changes(f"{what} {name}", a.get(name), b.get(name))]


def _changes(what: str, a: WeightSource | None, b: WeightSource | None) -> list[str]:
    """Return the differences of a model or head. Other weights are shown with their location."""
    if a is None or b is None:
        return [f"{what}: {sides(short_text(a and a.source), short_text(b and b.source))}"]
    changes = tables(what, but(_identity(a), "checksum"), but(_identity(b), "checksum"))
    if a.checksum == b.checksum:
        return changes
    before, after = (f"{source.checksum or 'none'} of {short_text(source.source)}" for source in (a, b))
    return [f"{what} checksum: {sides(before, after)}", *changes]


def _identity(source: WeightSource) -> Table:
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
            out.append(f"{what} {key}: {sides(short_text(before), short_text(after))}".strip())
    return out


def but(table: Table, key: str) -> Table:
    return {k: v for k, v in table.items() if k != key}


def short_text(value: object) -> str:
    """Return a value as short text."""
    return shortened("nothing" if value in (None, "") else str(value))


def shortened(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
