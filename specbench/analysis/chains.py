"""A method's table read as a chain: what drafts, and the levels that it hands up to."""

from typing import Any

NONE = "–"  # in place of a value that there is not
THRESHOLD = 8  # of a chain whose table does not say: `Chain`'s own
Table = dict[str, Any]


def chain_of(table: Table) -> tuple[Table, list[Table]]:
    """The innermost proposer, empty where a method has none, and the chains around it, the innermost first."""
    proposer: Table = table.get("proposer", {})
    chains: list[Table] = []
    while isinstance(proposer.get("proposer"), dict):
        chains.insert(0, {"threshold": THRESHOLD} | proposer)
        proposer = proposer["proposer"]
    return proposer, chains


def draft_lengths(row: dict[str, Any]) -> str:
    """How many tokens a method drafts: one number, one a model, or the most; and the thresholds of a chain."""
    config, (proposer, chains) = row["config"], chain_of(row["config"])
    above = "".join(f", then at least {each['threshold']}" for each in chains)
    gamma = config.get("gamma") or proposer.get("gamma")
    most = "up to " if "stop" in proposer or proposer.get("name") == "pld" else ""
    lengths = NONE if gamma is None else ", ".join(map(str, gamma)) if isinstance(gamma, list) else f"{most}{gamma}"
    return lengths + above


def alone(level: str) -> str:
    """What plain decoding by a level is called; that of the target is the baseline."""
    return f"{level}-alone"


def under(low: str, high: str) -> str:
    """What speculation with a level's drafts under another's verdict is called."""
    return f"{low}-under-{high}"
