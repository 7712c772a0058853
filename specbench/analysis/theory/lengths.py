"""Distributions of lengths: tokens per round, tokens per block of rounds, and rounds per block.

A distribution is {length in tokens: probability}. Every test accepts with probability `a`, independently.
"""

from collections import defaultdict
from collections.abc import Mapping

Lengths = Mapping[int, float]


def capped_geometric(a: float, n: int) -> tuple[float, float]:
    """Mean and variance of the tokens per round, 1 .. n, if another token follows each but the last with probability a.

    n is gamma + 1 with a bonus, gamma without. Mean (1 - a^n) / (1 - a), n at a = 1 (Polybasic 2025, eq. 3); variance
    [a - (2n - 1) a^n + (2n - 1) a^(n+1) - a^(2n)] / (1 - a)^2, where the printed one (A.2, eq. 4) is negative (erratum
    PB-3, docs/papers/polybasic.md, Errata).
    """
    mean = sum(a**j for j in range(n))
    return mean, sum((2 * j + 1) * a**j for j in range(n)) - mean**2


def variation(a: float, n: int) -> float:
    """Standard deviation over mean of the tokens per round, at most n.

    It is 0 at a = 0 and a = 1, and largest in between. This is the corrected Theorem 3.3 of Polybasic. Its "a -> 0" means
    one token per round (erratum PB-5, docs/papers/polybasic.md, Errata). Lemma 3.1, E[1/L] = 1 / E[L], has an error of
    the order of its square (erratum PB-7, docs/papers/polybasic.md, Errata).
    """
    mean, variance = capped_geometric(a, n)
    return float(max(variance, 0.0) ** 0.5 / mean)  # rounding can make the variance negative at a = 1


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


def visits(rounds: Lengths, threshold: int) -> list[float]:
    """Probabilities that a block has exactly s tokens after one of its rounds, s = 0 .. threshold - 1."""
    probability = [1.0] + [0.0] * (threshold - 1)
    for s in range(1, threshold):
        probability[s] = sum(probability[s - length] * p for length, p in rounds.items() if length <= s)
    return probability


def inner_rounds(rounds: Lengths, threshold: int) -> float:
    """Expected rounds until at least `threshold` tokens are pending.

    `rounds` is the distribution of tokens per round, from `round_lengths` or measured.

    See docs/papers/polybasic.md, Lengths of rounds and blocks.
    """
    return sum(visits(rounds, threshold))


def block_lengths(rounds: Lengths, threshold: int) -> dict[int, float]:
    """Return the distribution of tokens per block: rounds are added until at least `threshold` tokens are pending.

    With rounds of 1 .. K + 1 tokens, a block has threshold .. threshold + K. Polybasic 2025, Algorithm 1, corrected in
    docs/papers/polybasic.md, Three models.
    """
    distribution: dict[int, float] = defaultdict(float)
    for s, probability in enumerate(visits(rounds, threshold)):
        for length, p in rounds.items():
            if s + length >= threshold:
                distribution[s + length] += probability * p
    return dict(distribution)


def committed(a: float, blocks: int | Lengths) -> float:
    """Expected committed tokens per forward that tests a block, including the replacement or bonus token: Polybasic's L_1.

    `blocks` is the length t of the block or its distribution, and `a` the acceptance rate. This is the mean of
    (1 - a^(t+1)) / (1 - a).
    """
    return expectation(round_lengths(a, blocks))
