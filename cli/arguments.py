"""What was asked for on a command line, as the library wants to know it."""

from typing import Any

import typer

from specbench.config.options import Options, parse_head, parse_override
from specbench.errors import ConfigError


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
        plugins=imported(plugin),
        **told,
    )


def imported(plugins: list[str] | None) -> tuple[tuple[str, str], ...]:
    """The plugins' names and checksums, once they are imported. Without plugins, torch is not imported."""
    if not plugins:
        return ()
    from specbench.experiment.plugins import load_all

    return load_all(plugins)
