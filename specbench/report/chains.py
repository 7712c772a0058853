"""A method's table read as a chain: what drafts, and the levels that it hands up to."""

from typing import Any

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
