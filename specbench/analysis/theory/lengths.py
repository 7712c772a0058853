"""Laws of lengths: tokens of a round, tokens of a block of rounds, and how many rounds a block takes.

A distribution is {length in tokens: probability}. Tests accept with the same odds `a`, independently.
"""

from collections import defaultdict
from collections.abc import Mapping

Lengths = Mapping[int, float]


def capped_geometric(a: float, n: int) -> tuple[float, float]:
    """Mean and variance of a round's tokens, 1 .. n, where each but the last is followed by another with odds a.

    n is gamma + 1 with a bonus, gamma without. Mean (1 - a^n) / (1 - a), n at a = 1 (Polybasic 2025, eq. 3); variance
    [a - (2n - 1) a^n + (2n - 1) a^(n+1) - a^(2n)] / (1 - a)^2, where the printed one (A.2, eq. 4) is negative (erratum
    PB-3, docs/papers/polybasic.md, Errata).
    """
    mean = sum(a**j for j in range(n))
    return mean, sum((2 * j + 1) * a**j for j in range(n)) - mean**2


def variation(a: float, n: int) -> float:
    """Standard deviation over mean of a round's tokens, at most n:

    The corrected Theorem 3.3 of Polybasic. Its "a -> 0" means one token per round (erratum PB-5,
    docs/papers/polybasic.md, Errata). Lemma 3.1, E[1/L] = 1 / E[L], has an error of its square to second order (erratum
    PB-7, docs/papers/polybasic.md, Errata), and a larger one where it is large.

    0 at both ends, a = 0 and a = 1, greatest in between.
    """
    mean, variance = capped_geometric(a, n)
    return float(max(variance, 0.0) ** 0.5 / mean)  # at a = 1 rounding leaves a little on either side of 0


def expectation(distribution: Lengths) -> float:
    """The mean length, in tokens."""
    return sum(length * odds for length, odds in distribution.items())


def round_lengths(a: float, drafted: int | Lengths) -> dict[int, float]:
    """The distribution of a round's tokens, accepted ones and one replacement or bonus: 1 .. k + 1 of k drafted.

    `drafted` is how many, or the distribution of how many. Leviathan et al. 2023, eq. 1, mixed over k.
    """
    distribution: dict[int, float] = defaultdict(float)
    for k, odds in ({drafted: 1.0} if isinstance(drafted, int) else drafted).items():
        for accepted in range(k):
            distribution[accepted + 1] += odds * a**accepted * (1.0 - a)
        distribution[k + 1] += odds * a**k
    return dict(distribution)


def visits(rounds: Lengths, threshold: int) -> list[float]:
    """Odds that a block has exactly s tokens after some round of it, s = 0 .. threshold - 1, where another round follows."""
    odds = [1.0] + [0.0] * (threshold - 1)
    for s in range(1, threshold):
        odds[s] = sum(odds[s - length] * p for length, p in rounds.items() if length <= s)
    return odds


def inner_rounds(rounds: Lengths, threshold: int) -> float:
    """Expected rounds until at least `threshold` tokens are pending: every visit below it costs one round.

    `rounds` is the distribution of a round's tokens, by `round_lengths` or as measured.

    See docs/papers/polybasic.md, Lengths of rounds and blocks.
    """
    return sum(visits(rounds, threshold))


def block_lengths(rounds: Lengths, threshold: int) -> dict[int, float]:
    """The distribution of a block's tokens: rounds are added until at least `threshold` are pending.

    Of rounds of 1 .. K + 1 tokens: threshold .. threshold + K. Polybasic 2025, Algorithm 1, corrected in
    docs/papers/polybasic.md, Three models.
    """
    distribution: dict[int, float] = defaultdict(float)
    for s, odds in enumerate(visits(rounds, threshold)):
        for length, p in rounds.items():
            if s + length >= threshold:
                distribution[s + length] += odds * p
    return dict(distribution)


def committed(a: float, blocks: int | Lengths) -> float:
    """Expected tokens committed a forward that tests a block, replacement or bonus included: Polybasic's L_1.

    `blocks` is the block's length or its distribution, a the odds that a token of it is accepted: the mean of
    (1 - a^(t+1)) / (1 - a).
    """
    return expectation(round_lengths(a, blocks))
