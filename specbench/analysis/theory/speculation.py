"""What a forward costs, and what speculation by one draft gains."""

from collections.abc import Callable
from math import floor

Cost = Callable[[int, int], float]


def price(cost: Cost, i: int, fed: float) -> float:
    """What forwards of model i cost that feed so many tokens on average: between two lengths, in proportion."""
    whole = floor(fed)
    least = cost(i, whole)
    return least + (fed - whole) * (cost(i, whole + 1) - least) if fed > whole else least


def expected_accepted(a: float, k: int) -> float:
    """Expected accepted tokens of k drafted ones, a (1 - a^k) / (1 - a); k at a = 1."""
    return sum(a**j for j in range(1, k + 1))


def speculative(
    a: float,
    gamma: int,
    cost: Cost,
    baseline: float,
    *,
    bonus: str,
    scorers: int,
    drafter_scores: bool = False,
    pending: float = 1.0,
) -> float:
    """Long-run speedup of speculation over a baseline that costs `baseline` a token.

    Model 0 drafts gamma tokens; models 1 .. scorers verify them in one forward each. `bonus` is the method's. With one that
    is committed (exact, paper): Leviathan et al. 2023, Theorem 3.8, tokens a round (1 - a^(gamma + 1)) / (1 - a). Without,
    SE's Theorem 3.1, (1 - a^gamma) / (1 - a). The drafter reads two tokens in a round's first forward where the last round
    was accepted whole and followed by a bonus. Where it is a scorer too, it reads its last drafted token for an exact bonus
    at once, in a forward more; a deferred one is accepted at the rate `pending`, and costs a forward where it is rejected.
    """
    whole, blocks = a**gamma, expected_accepted(a, gamma)
    if drafter_scores and bonus == "deferred":
        # Rounds that begin without a pending token, and with one, in this proportion:
        fresh, opened = 1.0 - pending * whole, whole
        block = blocks + 1.0 - whole
        verifying = sum(cost(i, gamma + 1) for i in range(1, scorers + 1))
        spent = fresh * (gamma * cost(0, 1) + verifying)
        spent += opened * (cost(0, 2) + pending * ((gamma - 1) * cost(0, 1) + verifying))
        return (fresh * block + opened * (1.0 + pending * block)) * baseline / spent
    more = bonus != "none"
    tokens = blocks + (1.0 if more else 1.0 - whole)
    drafting = gamma * cost(0, 1)
    if more:
        exact = drafter_scores and bonus == "exact"
        drafting += whole * (cost(0, 1) if exact else cost(0, 2) - cost(0, 1))
    verifying = sum(cost(i, gamma + 1 if more else gamma) for i in range(1, scorers + 1))
    return tokens * baseline / (drafting + verifying)
