"""Errors for options that no method of a request reads."""

from collections.abc import Sequence

from specbench.config import presets
from specbench.config.options import Options
from specbench.config.overrides import in_scope
from specbench.config.pair import Pair, head_named
from specbench.errors import ConfigError, hint
from specbench.experiment import method_table as tables
from specbench.experiment.method_resolution import heads_of


def unused_options(names: Sequence[str], pair: Pair, pair_name: str, options: Options) -> dict[str, ConfigError]:
    """Return errors for the options that no method of a request reads, by option as on a command line."""
    bases = {name: tables.constructor(name) for name in names}
    labels = [presets.preset("method", name).name for name in names]  # without aliases
    unused: dict[str, ConfigError] = {}
    for each in options.all_overrides("method", names):
        covered = [name for name in names if in_scope(each.scope, name)]
        if not any(tables.applies(each, bases[name]) for name in covered):
            known = {key for table in bases.values() for key in tables.keys_of(table)}
            option = f"--set {each.key}"
            wrong = [tables.value_error(bases[name], each.path, each.value, option) for name in covered]
            missing = tables.key_error(option, names, ".".join(each.path), known)
            if each.scope and not covered:
                missing = ConfigError(f"{option}: '{each.scope}' is not one of the methods {', '.join(names)}")
            unused[option] = next(filter(None, wrong), missing)
    for scope, lengths in options.gamma:
        option = f"--gamma {scope + '=' if scope else ''}{','.join(map(str, lengths))}"
        reading = [
            bases[name]
            for name, label in zip(names, labels, strict=True)
            if options.gamma_for(label) == lengths and tables.length_path(bases[name])
        ]
        if scope and not any(in_scope(scope, label) for label in labels):
            unused[option] = ConfigError(f"{option}: '{scope}' is not one of the methods {', '.join(labels)}")
        elif not reading:
            unused[option] = ConfigError(f"{option}: {', '.join(names)} has no draft length")
        elif len(lengths) > 1 and not any(table.get("models") for table in reading):
            unused[option] = ConfigError(f"{option}: {', '.join(names)} has one draft length, not one per model")
    known_heads = {name: {"kind": head.kind, "base": head.base} for name, head in pair.heads.items()}
    read = heads_of(names, pair, options)
    for name, path in options.heads:
        scope, colon, head = name.partition(":")
        option = f"--head {name}={path}"
        if colon and not in_scope(scope, pair_name):
            known = {pair_name, *presets.names("pair")}
            nearest = "" if scope in known else hint(scope, known)
            unused[option] = ConfigError(f"--head {name}: this run has no pair '{scope}'{nearest}")
        elif head_named(head if colon else name, known_heads) not in read:
            unused[option] = ConfigError(f"--head {name}: none of {', '.join(names)} reads it")
    return unused
