"""SPRINTER: a learned verifier reads every drafted token, and the target tests only the last token of a run.

A token is acceptable iff its probability in the draft model is at most its probability in the target. eta_tp is the rate at
which the verifier accepts acceptable tokens, eta_fp the rate at which it accepts others. See docs/papers/sprinter.md, Theory.
"""

import math

from specbench.analysis.formula import Rates, formula
from specbench.analysis.theory import RoundCounts, forwards_of_mean
from specbench.decoding.traits import Theory


def expected_run(n: int, eta_tp: float, eta_fp: float) -> float:
    """Return E[X], infinite at eta_fp = 1 (Theorem 2).

    eta_tp (1 - eta_tp^n) / (1 - eta_tp) + eta_tp^n eta_fp / (1 - eta_fp)
    """
    return expected_drafts(n, eta_tp, eta_fp) - 1.0


def expected_drafts(n: int, eta_tp: float, eta_fp: float, most: int | None = None) -> float:
    """Return E[X + 1], drafted tokens per run, including the last and rejected one (Theorem 3); infinite at eta_fp = 1.

    (1 - eta_tp^n) / (1 - eta_tp) + eta_tp^n / (1 - eta_fp), the sum of P(X >= j). A run has at most `most` tokens.
    """
    if most is not None:
        return sum(eta_tp ** min(j, n) * eta_fp ** max(j - n, 0) for j in range(most))
    reached = eta_tp**n
    rest = reached / (1.0 - eta_fp) if eta_fp < 1.0 else math.inf if reached else 0.0
    return sum(eta_tp**j for j in range(n)) + rest


def untested_run(drafted: float, accepted: float, *, bonus: bool = True) -> RoundCounts:
    """Return the counts of SPRINTER per forward of the target.

    Model 0 drafts, and model 1 is the target. `drafted` is the measured number of drafted tokens per forward of the target.
    The last one is tested, and accepted at the rate `accepted`. All drafted tokens are committed, with a replacement for a
    rejected last one, and a bonus token after an accepted one. The target reads the drafted tokens and the token before them;
    without a bonus token, one token less. The draft model reads two tokens after a bonus token. The verifier's time is
    part of the draft model's. The speedup is exact if the cost of a block is linear in its length.

    See docs/papers/sprinter.md, Speedup with measured costs.
    """
    drafting = {1: drafted - accepted, 2: accepted} if bonus else {1: drafted}
    return RoundCounts(drafted + (accepted if bonus else 0.0), [drafting, forwards_of_mean(drafted + bonus)])


@formula("untested run")
def runs(method: Theory, rates: Rates) -> RoundCounts:
    """Return the counts of SPRINTER, from the drafted and accepted tokens per forward of the target."""
    drafted, accepted = rates.per_test()
    return untested_run(drafted, accepted, bonus=method.bonus != "none")
