"""The cost of forwards, the tokens of a round, and the speedup of speculation with one proposer (Leviathan et al. 2023).

A distribution of lengths is {length in tokens: probability}. Every test accepts with probability `a`, independently.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import floor

Cost = Callable[[int, int], float]
Lengths = Mapping[int, float]


def mean_cost(cost: Cost, i: int, fed: float) -> float:
    """Return the mean cost of forwards of model i that feed `fed` tokens on average, interpolated between whole numbers."""
    whole = floor(fed)
    least = cost(i, whole)
    return least + (fed - whole) * (cost(i, whole + 1) - least) if fed > whole else least


def expected_accepted(a: float, k: int) -> float:
    """Expected number of accepted tokens among k drafted ones: a (1 - a^k) / (1 - a), and k at a = 1."""
    return sum(a**j for j in range(1, k + 1))


def expectation(distribution: Lengths) -> float:
    """Return the mean of a distribution of lengths, in tokens."""
    return sum(length * probability for length, probability in distribution.items())


def round_lengths(a: float, drafted: int | Lengths) -> dict[int, float]:
    """Return the distribution of tokens per round, 1 .. k + 1 for k draft tokens: accepted ones and a replacement or bonus.

    `drafted` is k, or its distribution. Leviathan et al. 2023, eq. 1, mixed over k.
    """
    distribution: dict[int, float] = defaultdict(float)
    for k, probability in ({drafted: 1.0} if isinstance(drafted, int) else drafted).items():
        for accepted in range(k):
            distribution[accepted + 1] += probability * a**accepted * (1.0 - a)
        distribution[k + 1] += probability * a**k
    return dict(distribution)


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """The speculation scheme of a method: draft length, bonus token, verifying models, and whether the drafter verifies.

    `bonus` is the method's bonus mode: exact, deferred, paper or none.
    """

    gamma: int
    bonus: str
    scorers: int = 1
    drafter_scores: bool = False


def speculative(scheme: Scheme, a: float, cost: Cost, baseline: float, pending: float = 1.0) -> float:
    """Long-run speedup of speculation over a baseline that costs `baseline` per token, at the acceptance rate `a`.

    Model 0 drafts gamma tokens, and models 1 .. scorers verify them in one forward each. With a committed bonus token
    (exact, paper), a round yields (1 - a^(gamma + 1)) / (1 - a) tokens (Leviathan et al. 2023, Theorem 3.8); without one,
    (1 - a^gamma) / (1 - a) (SE, Theorem 3.1). After a round that was accepted whole and ended with a bonus token, the
    first forward of the drafter reads two tokens. A drafter that is also a scorer needs one more forward for an exact
    bonus token. A deferred bonus token is accepted at the rate `pending`, and costs a forward if it is rejected.
    """
    gamma, bonus, scorers, drafter_scores = scheme.gamma, scheme.bonus, scheme.scorers, scheme.drafter_scores
    whole, blocks = a**gamma, expected_accepted(a, gamma)
    if drafter_scores and bonus == "deferred":
        # proportions of rounds that begin without and with a pending token
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
