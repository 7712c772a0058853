"""Parse command-line values into the library's options."""

from collections.abc import Sequence

from specbench.config.construct import Table
from specbench.config.overrides import scoped
from specbench.config.presets import WORDS
from specbench.errors import ConfigError, hint
from specbench.reporting.plots.figures import FORMATS, KNOWN_FORMATS


def words(values: Sequence[str] | None) -> list[str]:
    """Split repeated options and comma lists alike into words."""
    return [word.strip() for value in values or [] for word in value.split(",") if word.strip()]


def named(methods: Sequence[str]) -> list[str]:
    """Return the methods that are named, without the words `all` and `lossless`."""
    return [method for method in methods if method not in WORDS]


def pair_of_models(draft: str, target: str) -> str:
    """Return a pair without a TOML file as the value of --pair. Raises ConfigError for a draft without a target."""
    if not target:
        raise ConfigError("--draft needs --target")
    return f"draft={draft},target={target}" if draft else f"target={target}"


def plot_formats(values: Sequence[str] | None, plots: object) -> Sequence[str]:
    """Return the formats of plots. Raises ConfigError for an unknown format, and for a format without `--plots`."""
    formats = words(values)
    if formats and not plots:
        raise ConfigError("--plot-format applies to --plots; help: --plots FOLDER")
    for each in formats:
        if each not in KNOWN_FORMATS:
            raise ConfigError(f"--plot-format {each}{hint(each, KNOWN_FORMATS)}")
    return formats or FORMATS


def lengths(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse draft lengths, `N` or `N,N,...`, perhaps after `METHOD=`. Returns the method (empty: all) and the lengths."""
    method, value = scoped(text, "method", "--gamma")
    try:
        numbers = tuple(int(word) for word in value.split(",") if word.strip())
    except ValueError:
        raise ConfigError(f"--gamma {text}: write it as N, N,N or METHOD=N") from None
    if not numbers or min(numbers) < 1:
        raise ConfigError(f"--gamma {text}: a draft length is at least 1")
    return method, numbers


def imported(plugins: Sequence[str] | None) -> tuple[tuple[str, str], ...]:
    """Import plugins, and return their names and checksums. Without plugins, torch is not imported."""
    if not plugins:
        return ()
    from specbench.resolution.plugins import load_all  # imports torch

    return load_all(plugins)


def judge_table(source: str, model: str) -> Table:
    """Return the table of a judge: a server for a URL, or a local model. Empty without a source."""
    if not source:
        if model:
            raise ConfigError("--judge-model needs --judge URL")
        return {}
    if source.startswith(("http://", "https://")):
        if not model:
            raise ConfigError("--judge-model is missing: the name of the model that the server runs")
        return {"name": "endpoint", "url": source, "model": model}
    if model:
        raise ConfigError(f"--judge-model applies to a server; --judge {source} is a local model")
    return {"name": "prompted", "path": source}
