"""Speculation with static draft trees."""

from specbench.analysis.formula import Rates, formula
from specbench.analysis.theory import RoundCounts, tree
from specbench.decoding.traits import Theory


@formula("tree")
def tree_rounds(method: Theory, rates: Rates) -> RoundCounts | None:
    """Return the counts of speculation with a static tree, from the acceptance by rank."""
    by_rank = rates.by_rank()
    return tree(method, by_rank) if by_rank else None
