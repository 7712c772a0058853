"""What was asked for on a command line, as the library wants to know it."""

from typing import Any

import typer

from specbench.errors import ConfigError
from specbench.options import Options, parse_head, parse_override
from specbench.presets import preset


def words(values: list[str] | None) -> list[str]:
    """Repeated options and comma lists alike."""
    return [word.strip() for value in values or [] for word in value.split(",") if word.strip()]


def lengths(text: str) -> tuple[int, ...]:
    """Draft lengths, written N or N,N,...."""
    try:
        lengths = tuple(int(word) for word in text.split(",") if word.strip())
    except ValueError:
        raise ConfigError(f"--gamma {text}: write it as N or N,N") from None
    if lengths and min(lengths) < 1:
        raise ConfigError(f"--gamma {text}: a draft length is at least 1")
    return lengths


def with_plugins(plugins: list[str] | None) -> tuple[tuple[str, str], ...]:
    """The plugins' names and checksums, once they are imported."""
    if not plugins:
        return ()
    from specbench.plugins import load

    return tuple(map(load, plugins))


def require_known(methods: list[str], pair: str, tasks: list[str]) -> None:
    """Raise ConfigError for a misspelt name, before torch is waited for. Plugins are to be imported first."""
    for kind, asked in (("method", methods), ("pair", [pair]), ("task", tasks)):
        for name in asked:
            preset(kind, name)


def spoken(ctx: typer.Context) -> dict[str, str]:
    """The options that stand on the command line, whatever their values: parameter -> how it is written."""
    return {
        each.name: each.opts[0]
        for each in ctx.command.params
        if each.name and getattr(ctx.get_parameter_source(each.name), "name", "") == "COMMANDLINE"
    }


def options_of(
    *,
    gamma: str = "",
    set_: list[str] | None = None,
    over: list[str] | None = None,
    head: list[str] | None = None,
    plugin: list[str] | None = None,
    **told: Any,
) -> Options:
    """Options from a command's: what is written as text is parsed, plugins are imported, the rest stays as it is."""
    return Options(
        gamma=lengths(gamma),
        overrides=tuple(map(parse_override, set_ or [])),
        over=tuple(parse_override(text, "--over") for text in over or []),
        heads=tuple(map(parse_head, head or [])),
        plugins=with_plugins(plugin),
        **told,
    )
