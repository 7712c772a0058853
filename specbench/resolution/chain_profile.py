"""The methods that measure the models of a pair alone, and every pair of a chain's models."""

from pathlib import Path
from typing import Any

from specbench.config.construct import Table
from specbench.config.pair import Pair
from specbench.config.presets import Preset, add, preset
from specbench.errors import ConfigError, MissingAsset
from specbench.reporting.chain import alone, under

BASELINE, TARGET = "ar", "target"
GAMMA = 5  # draft length at which pairs of models are measured


def levels_of(method: str) -> list[str]:
    """Return the levels of a method's chain, from the target to the innermost proposer: models, a kind of head, or `pld`."""
    table = preset("method", method).table
    proposer = table.get("proposer")
    levels = [table["scorers"] if isinstance(table.get("scorers"), str) else "target"]
    while isinstance(proposer, dict) and proposer.get("name") == "chain":
        levels.append(proposer["model"])
        proposer = proposer["proposer"]
    if len(levels) < 2 or not isinstance(proposer, dict):
        raise ConfigError(f"method {method} is not a chain of models; help: -m polybasic")
    return [*levels, proposer["model"] if proposer["name"] == "model" else proposer["name"]]


def pairings(levels: list[str], pair: Pair, gamma: int) -> list[str]:
    """Register and return methods for every level alone and every pair of levels.

    Raises MissingAsset if the head of two adjacent levels is missing. Other pairs without a head are left out.
    """

    names = [_register(alone(level), _plain(level)) for level in levels[1:-1]]
    for level in levels:
        if level not in ("eagle", "pld", *pair.models):
            raise ConfigError(
                f"this pair has no model '{level}' of the chain {' > '.join(levels)}; help: a pair of three models, such as"
                " -p tiny-polybasic"
            )
    for i, high in enumerate(levels):
        for low in levels[i + 1 :]:
            proposer: dict[str, Any] = {"name": "model", "model": low, "gamma": gamma}
            if low == "eagle":
                if low is levels[i + 1]:
                    _require_head(pair, high)
                elif not any((head.kind, head.base) == ("eagle", high) for head in pair.heads.values()):
                    continue
                proposer = {"name": "eagle", "base": high, "gamma": gamma}
            elif low == "pld":
                proposer = {"name": "pld", "gamma": gamma}
            names.append(_register(under(low, high), {"name": "speculative", "proposer": proposer, "scorers": high}))
    return names


def models_alone(pair: Pair) -> list[str]:
    """Return plain decoding by every model of a pair, registered, with the target or the first model as the baseline."""
    roles = sorted(pair.models, key=lambda role: role != TARGET)
    first = BASELINE if roles[0] == TARGET else _register(alone(roles[0]), _plain(roles[0]), baseline="")
    return [first, *(_register(alone(role), _plain(role), baseline=first) for role in roles[1:])]


def _plain(role: str) -> Table:
    return {"name": "autoregressive", "scorers": role}


def _register(name: str, table: Table, baseline: str = BASELINE) -> str:
    """Register a method under a name and return it. Without a baseline, it is one."""
    whole = {"description": name, **({"baseline": baseline} if baseline else {}), "target": {"name": "last"}, **table}
    add("method", Preset(name, Path("profile"), whole), listed=False)
    return name


def _require_head(pair: Pair, base: str) -> None:
    """Raise MissingAsset if a model has no EAGLE head."""
    try:
        pair.head_of("eagle", base)
    except MissingAsset as error:
        raise MissingAsset(
            f"{error}; the bundled pair tiny-polybasic has one; or -m polybasic-model, for a chain without a head"
        ) from None
