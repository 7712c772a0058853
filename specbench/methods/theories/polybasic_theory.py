"""Polybasic: chains of models."""

from specbench.analysis.formula import Rates, formula
from specbench.analysis.polybasic import chain_round
from specbench.analysis.theory import RoundCounts
from specbench.decoding.traits import Theory


@formula("chain")
def chain(method: Theory, rates: Rates) -> RoundCounts | None:
    """Return the counts of a chain, from the acceptance by level. Ignores what an EAGLE head and its base reread."""
    acceptance = rates.levels(len(method.thresholds) + 1)
    if acceptance is None:
        return None
    return chain_round(acceptance, method.gamma[0], list(method.thresholds))
