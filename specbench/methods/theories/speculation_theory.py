"""Speculation: drafts of one length, token by token or as a block (Leviathan et al. 2023)."""

from specbench.analysis.formula import Rates, formula
from specbench.analysis.theory import RoundCounts, Scheme, speculative
from specbench.decoding.traits import Theory


@formula("speculation")
def speculation(method: Theory, rates: Rates) -> RoundCounts | None:
    """Return the counts of speculation whose drafter runs a forward per token."""
    by_model, overall = rates.by_model(), rates.overall()
    if overall is None:
        return None
    deferred = method.drafter_scores and method.bonus == "deferred"
    scheme = Scheme(
        gamma=method.gamma[0],
        bonus=method.bonus,
        scorers=len(method.models) - 1,
        drafter_scores=method.drafter_scores,
    )
    accepted = by_model.get(method.models[0], overall) if deferred else overall
    return speculative(scheme, accepted, by_model.get(method.models[-1], 1.0))


@formula("block")
def block(method: Theory, rates: Rates) -> RoundCounts | None:
    """Return the counts of speculation whose drafter writes a draft in one forward over as many rows."""
    counts = speculation(method, rates)
    return None if counts is None else counts._replace(forwards=[{method.gamma[0]: 1.0}, *counts.forwards[1:]])
