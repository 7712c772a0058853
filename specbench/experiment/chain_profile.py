"""The methods that measure every pair of a chain's models."""

from pathlib import Path
from typing import Any

from specbench.analysis.chains import alone, under
from specbench.config.pair import Pair
from specbench.config.presets import Preset, add, preset
from specbench.errors import ConfigError

BASELINE = "ar"
GAMMA = 5  # draft length at which pairs of models are measured


def levels_of(method: str) -> list[str]:
    """The levels of a method's chain, from the target down to what drafts: a model, or a kind of head, or prompt lookup."""
    table = preset("method", method).table
    proposer = table.get("proposer")
    levels = [table["scorers"] if isinstance(table.get("scorers"), str) else "target"]
    while isinstance(proposer, dict) and proposer.get("name") == "chain":
        levels.append(proposer["model"])
        proposer = proposer["proposer"]
    if len(levels) < 2 or not isinstance(proposer, dict):
        raise ConfigError(f"{method} is no chain of models; polybasic is one")
    return [*levels, proposer["model"] if proposer["name"] == "model" else proposer["name"]]


def pairings(levels: list[str], pair: Pair, gamma: int) -> list[str]:
    """Methods for every level alone and every pair of levels, made known as presets. Without a head for a base, not those."""

    def known(name: str, table: dict[str, Any]) -> str:
        add("method", Preset(name, Path("profile"), {"description": name, "baseline": BASELINE, **table}), listed=False)
        return name

    last = {"target": {"name": "last"}}
    names = [known(alone(level), {"name": "autoregressive", "scorers": level, **last}) for level in levels[1:-1]]
    for level in levels:
        if level not in ("eagle", "pld"):
            pair.group(level)
    for i, high in enumerate(levels):
        for low in levels[i + 1 :]:
            proposer: dict[str, Any] = {"name": "model", "model": low, "gamma": gamma}
            if low == "eagle":
                if low is levels[i + 1]:
                    pair.head_of("eagle", high)  # without which there is no chain
                elif not any((head.kind, head.base) == ("eagle", high) for head in pair.heads.values()):
                    continue
                proposer = {"name": "eagle", "base": high, "gamma": gamma}
            elif low == "pld":
                proposer = {"name": "pld", "gamma": gamma}
            names.append(
                known(under(low, high), {"name": "speculative", "proposer": proposer, "scorers": high, **last})
            )
    return names
