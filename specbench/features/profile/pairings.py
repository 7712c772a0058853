"""The methods that `profile` measures: the models of a chain alone, and every pair of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specbench.config.construct import Table
from specbench.config.pair import HeadKind, Pair
from specbench.config.presets import Preset, add, preset
from specbench.errors import ConfigError, MissingAsset
from specbench.features.profile.chain_profile import alone, under

BASELINE, TARGET = "ar", "target"
TREES_OF_HEADS = ("eagle-tree", "eagle2")  # proposers of an EAGLE head besides its chains


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


def levels_and_trees(methods: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the levels that a profile measures, from its first chain, and the trees of heads of all its chains."""
    chains = [levels_of(method) for method in methods]
    trees = [chain[-1] for chain in chains if chain[-1] in TREES_OF_HEADS]
    *models, lowest = chains[0]
    return [*models, HeadKind.eagle.value if lowest in TREES_OF_HEADS else lowest], list(dict.fromkeys(trees))


def pairings(levels: list[str], pair: Pair, gamma: int, trees: Sequence[str] = ()) -> list[str]:
    """Register and return methods for every level alone and every pair of levels.

    `trees` are further proposers of an EAGLE head, such as `eagle2`, each measured under every model that has one. Raises
    MissingAsset if the head of two adjacent levels is missing. Other pairs without a head are left out.
    """
    registered = [_add_for_profile(alone(level), _plain(level)) for level in levels[1:-1]]
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
                registered += [
                    _add_for_profile(under(tree, high), _drafted_by({"name": tree, "base": high}, high))
                    for tree in trees
                ]
            elif low == "pld":
                proposer = {"name": "pld", "gamma": gamma}
            registered.append(_add_for_profile(under(low, high), _drafted_by(proposer, high)))
    return registered


def models_alone(pair: Pair) -> list[str]:
    """Return plain decoding by every model of a pair, registered, with the target or the first model as the baseline."""
    roles = sorted(pair.models, key=lambda role: role != TARGET)
    first = BASELINE if roles[0] == TARGET else _add_for_profile(alone(roles[0]), _plain(roles[0]), baseline="")
    return [first, *(_add_for_profile(alone(role), _plain(role), baseline=first) for role in roles[1:])]


def _drafted_by(proposer: Table, scorers: str) -> Table:
    return {"name": "speculative", "proposer": proposer, "scorers": scorers}


def _plain(role: str) -> Table:
    return {"name": "autoregressive", "scorers": role}


def _add_for_profile(name: str, table: Table, baseline: str = BASELINE) -> str:
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
