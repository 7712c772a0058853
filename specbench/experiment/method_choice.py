"""The methods of a request: the default method of a pair, and the words `all` and `lossless`."""

from collections.abc import Sequence
from dataclasses import replace

from specbench.config.options import Options
from specbench.config.pair import Pair
from specbench.config.presets import LOSSLESS, WORDS, names, preset
from specbench.errors import ConfigError, MissingAsset
from specbench.experiment.method_resolution import ResolvedMethod, groups_of
from specbench.experiment.selection import read_pair


def chosen(wanted: Sequence[str], pair_name: str, options: Options) -> tuple[str, ...]:
    """Return the names of methods: those of a request, with words replaced by all methods that the pair allows.

    Without a name, the pair's default method is returned. Raises ConfigError if the pair allows no method.
    """
    if wanted and not set(wanted) & set(WORDS):
        return tuple(wanted)
    pair = read_pair(pair_name, options)[1]
    found = list(wanted) or [pair.default_method]
    return tuple(
        dict.fromkeys(
            name for each in found for name in (_allowed(pair, pair_name, options, each) if each in WORDS else [each])
        )
    )


def _allowed(pair: Pair, pair_name: str, options: Options, word: str) -> list[str]:
    """Return the presets with a baseline that can be built for a pair, those with the fewest models and heads first."""
    plain = replace(options, overrides=(), over=(), gamma=())
    found: dict[str, ResolvedMethod] = {}
    for name in sorted({preset("method", name).name for name in names("method")}):
        if resolved := _built(name, pair, plain):
            found[name] = resolved
    if word == LOSSLESS:
        found = {name: each for name, each in found.items() if each.lossless}
    if not found:
        raise ConfigError(
            f"-m {word}: pair {pair_name} has the models and heads of no method; help: specbench list methods"
        )
    return sorted(found, key=lambda name: (len(found[name].method.heads), len(found[name].method.roles())))


def _built(name: str, pair: Pair, options: Options) -> ResolvedMethod | None:
    """Return a method on a pair. None for a baseline, and if the pair lacks a model or head of the method."""
    try:
        ((_, *methods),) = groups_of([name], pair, dict.fromkeys(pair.models, 1), options)
    except (ConfigError, MissingAsset):
        return None
    return methods[0] if methods else None
