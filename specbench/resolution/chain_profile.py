"""The methods that measure every pair of a chain's models."""

from pathlib import Path
from typing import Any

from specbench.config.pair import Pair
from specbench.config.presets import Preset, add, preset
from specbench.errors import ConfigError, MissingAsset
from specbench.reporting.chain import alone, under

BASELINE = "ar"
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

    def registered(name: str, table: dict[str, Any]) -> str:
        add("method", Preset(name, Path("profile"), {"description": name, "baseline": BASELINE, **table}), listed=False)
        return name

    last = {"target": {"name": "last"}}
    names = [registered(alone(level), {"name": "autoregressive", "scorers": level, **last}) for level in levels[1:-1]]
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
            names.append(
                registered(under(low, high), {"name": "speculative", "proposer": proposer, "scorers": high, **last})
            )
    return names


def _require_head(pair: Pair, base: str) -> None:
    """Raise MissingAsset if a model has no EAGLE head."""
    try:
        pair.head_of("eagle", base)
    except MissingAsset as error:
        raise MissingAsset(f"{error}; the bundled pair tiny-polybasic has one") from None
