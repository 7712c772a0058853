"""The methods that a pair allows, for the words `all` and `lossless`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from specbench.config import presets
from specbench.config.options import Options
from specbench.config.pair import Pair
from specbench.config.presets import LOSSLESS, WORDS, preset
from specbench.decoding.method import Method
from specbench.errors import ConfigError
from specbench.models.resolve_models import with_other_tokenizer
from specbench.resolution.methods import method_on
from specbench.vocabulary import DefaultFor


def default_method(pair: Pair) -> str:
    """Return the method that answers whether to use a pair: the preset that is the default for pairs of its kind.

    Raises ConfigError for a pair that has neither a target nor the models of its ensemble.
    """
    if {"draft", "target"} <= pair.models.keys():
        kind = DefaultFor.draft
    elif all(role in pair.models for role in pair.ensemble):
        kind = DefaultFor.ensemble
    elif "target" in pair.models:
        kind = DefaultFor.target
    else:
        raise ConfigError("the pair has neither a target nor an ensemble; help: -m METHOD")
    return next(name for name in presets.names("method") if preset("method", name).table.get("default_for") == kind)


def named_methods(names: Sequence[str], pair_name: str, pair: Pair, options: Options, base: Path) -> tuple[str, ...]:
    """Return the names of methods, with the words `all` and `lossless` replaced by the methods that the pair allows.

    Without a name, the pair's default method is returned. Raises ConfigError if the pair allows no method.
    """
    available_methods = {
        word: _available_methods(pair, pair_name, options, word, base) for word in WORDS if word in names
    }
    return tuple(
        dict.fromkeys(
            method for name in names or [default_method(pair)] for method in available_methods.get(name, [name])
        )
    )


def _available_methods(pair: Pair, pair_name: str, options: Options, word: str, base: Path) -> list[str]:
    """Return the presets with a baseline that can be built for a pair, sorted by the number of heads, then of models.

    Relative paths of the pair's models are relative to `base`.
    """
    plain = replace(options, overrides=(), over=(), gamma=())
    foreign = with_other_tokenizer(pair, base)
    built = {
        name: method_on(name, pair, plain)
        for name in sorted({preset("method", n).name for n in presets.names("method")})
    }
    methods = {
        name: resolved
        for name, resolved in built.items()
        if resolved and (resolved.lossless or word != LOSSLESS) and _runs(resolved.method, pair, foreign)
    }
    if not methods:
        raise ConfigError(
            f"-m {word}: pair {pair_name} has the models and heads of no method; help: specbench list methods"
        )
    return sorted(methods, key=lambda name: (len(methods[name].method.heads), len(methods[name].method.roles())))


def _runs(method: Method, pair: Pair, foreign: set[str]) -> bool:
    """Return whether a method only drafts chains with models of another tokenizer, and reads none of their states."""
    bases = {pair.heads[name].base for name in method.heads if name in pair.heads}
    return all(method.only_drafts_chains(role) and role not in bases for role in foreign & set(method.roles()))
