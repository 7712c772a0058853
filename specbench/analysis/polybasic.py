"""Polybasic: the exact speedup of chains of n >= 2 models. Each model verifies the tokens of the model below it.

Model 0 drafts, and the last model is the target, as in a `Cost`. acceptance[i] is the rate at which model i + 1 accepts
tokens of model i. thresholds[i] is the minimum number of tokens that model i + 1 collects before model i + 2 tests them.
The tokens of a middle model follow its own distribution, so the rounds of a level are independent and identically
distributed.

See docs/papers/polybasic.md, Speedup with measured costs.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise, product
from math import ceil
from typing import NamedTuple

from specbench.analysis.theory import Cost, Lengths, RoundCounts, expectation, round_lengths

Ends = dict[
    tuple[int, int], float
]  # (tokens of a round or block, tokens up to its end that a model has not read): probability
DRAFTED, THRESHOLDS = range(1, 17), range(1, 33)  # candidates of best_chain


class ChainPlan(NamedTuple):
    """The speedup of a chain over plain decoding by its target, with its draft length and thresholds."""

    speedup: float
    drafted: int
    thresholds: tuple[int, ...]


class Middle(NamedTuple):
    """The best chain of models 0, 1 and 2, the best chain of two of them, and which two."""

    three: ChainPlan
    two: ChainPlan
    models: tuple[int, int]

    @property
    def gain(self) -> float:
        """Speedup of three models over two."""
        return self.three.speedup / self.two.speedup

    @property
    def pays(self) -> bool:
        """Whether three models are faster than two."""
        return self.gain > 1.0


def visits(rounds: Lengths, threshold: int) -> list[float]:
    """Return the probabilities that a block has exactly s tokens after one of its rounds, s = 0 .. threshold - 1."""
    probability = [1.0] + [0.0] * (threshold - 1)
    for s in range(1, threshold):
        probability[s] = sum(probability[s - length] * p for length, p in rounds.items() if length <= s)
    return probability


def inner_rounds(rounds: Lengths, threshold: int) -> float:
    """Return the expected number of rounds until at least `threshold` tokens are pending.

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


class _Levels(NamedTuple):
    """The distributions of a chain by level. A round of level i tests a block of level i - 1 in one forward of model i."""

    acceptance: Sequence[float]  # of the blocks of level i
    least: list[int]  # fewest tokens of a block of level i + 1
    rounds: list[Lengths]  # of level i + 1
    blocks: list[Lengths]  # of level i
    many: list[float]  # blocks of level i per forward of the target


def _levels(acceptance: Sequence[float], drafted: int, thresholds: Sequence[int]) -> _Levels:
    if len(thresholds) != len(acceptance) - 1:
        raise ValueError(f"{len(acceptance) + 1} models need {len(acceptance) - 1} thresholds, not {len(thresholds)}")
    if min(drafted, *thresholds, 1) < 1:
        raise ValueError(f"draft length {drafted} and thresholds {list(thresholds)} must be at least 1")
    least = [*thresholds, 1]  # a block of the target is one round
    blocks: list[Lengths] = [{drafted: 1.0}]
    rounds: list[Lengths] = []
    for a, threshold in zip(acceptance, least, strict=True):
        rounds.append(round_lengths(a, blocks[-1]))
        blocks.append(block_lengths(rounds[-1], threshold))
    many = [1.0]
    for distribution, threshold in zip(reversed(rounds), reversed(least), strict=True):
        many.insert(0, many[0] * inner_rounds(distribution, threshold))
    return _Levels(acceptance, least, rounds, blocks, many)


def _tested(a: float, ends: Ends) -> Ends:
    """Return the distribution of rounds that test such blocks. A model later reads accepted tokens that it has not read."""
    tests: Ends = defaultdict(float)
    for (length, unread), probability in ends.items():
        for accepted in range(length + 1):
            p = a**accepted * (1.0 - a if accepted < length else 1.0)
            tests[accepted + 1, max(1, accepted + 1 - length + unread)] += probability * p
    return tests


def _unread(levels: _Levels, i: int) -> dict[int, float]:
    """Return how many blocks model i begins per forward of the target, on average, by its number of unread tokens."""
    # The model has not read its own last token
    ends: Ends = {(length, 1): probability for length, probability in levels.blocks[i].items()}
    counts: dict[int, float] = defaultdict(float)
    for level in range(i, len(levels.acceptance)):
        tested, least = _tested(levels.acceptance[level], ends), levels.least[level]
        last: Ends = defaultdict(float)
        for s, probability in enumerate(visits(levels.rounds[level], least)):
            for (length, unread), p in tested.items():
                if s + length < least:
                    counts[unread] += levels.many[level + 1] * probability * p
                else:
                    last[s + length, unread] += probability * p
        ends = last
    for (_, unread), probability in ends.items():
        counts[unread] += probability
    return counts


def chain_round(acceptance: Sequence[float], drafted: int, thresholds: Sequence[int]) -> RoundCounts:
    """Return the exact counts of a chain per forward of the target.

    A forward feeds the block to test and the token before it. It feeds one more token if the model's last block was fully
    accepted, and another one for each level above that fully accepted it. Every drafted token is a forward of the drafter.
    Raises ValueError if there is not one threshold per middle model, or if a length is below 1.
    """
    levels = _levels(acceptance, drafted, thresholds)
    below: list[Lengths] = [{0: 1.0}, *levels.blocks]  # tokens that a forward of model i feeds besides the unread ones
    usage = [drafted * levels.many[0], *levels.many]
    forwards = []
    for i, many in enumerate(levels.many):
        fed: dict[int, float] = defaultdict(float)
        unread_tokens = _unread(levels, i)
        for length, probability in below[i].items():
            fed[length + 1] += probability * (usage[i] - many)
            for unread, times in unread_tokens.items():
                fed[length + unread] += probability * times
        forwards.append({k: times for k, times in sorted(fed.items()) if times > 0.0})
    return RoundCounts(expectation(levels.blocks[-1]), forwards)


def chain(
    acceptance: Sequence[float], drafted: int, thresholds: Sequence[int], cost: Cost, baseline: float | None = None
) -> float:
    """Return the long-run speedup of a chain over a baseline that costs `baseline` per token.

    By default, the baseline is decoding by the target alone. With two models the speedup equals
    `speculative` with an exact bonus token. Raises ValueError as `chain_round` does.
    """
    counts = chain_round(acceptance, drafted, thresholds)
    return counts.speedup(cost, cost(len(acceptance), 1) if baseline is None else baseline)


def best_chain(
    acceptance: Sequence[float], cost: Cost, drafted: Iterable[int] = DRAFTED, thresholds: Iterable[int] = THRESHOLDS
) -> ChainPlan:
    """Return the fastest chain at these acceptance rates, over all given draft lengths and thresholds.

    `cost` should include the measured cost of blocks. Pass fewer candidates for chains of many models.
    """
    lengths, grid = list(drafted), list(product(thresholds, repeat=len(acceptance) - 1))
    return max(ChainPlan(chain(acceptance, k, waits, cost), k, waits) for k in lengths for waits in grid)


def keeps_middle(
    inner: float,
    outer: float,
    direct: float,
    cost: Cost,
    drafted: Iterable[int] = DRAFTED,
    thresholds: Iterable[int] = THRESHOLDS,
) -> Middle:
    """Compare the best chain of models 0, 1 and 2 with the best chain of two of them (the question of Theorem 3.2).

    Model 1 accepts tokens of model 0 at the rate `inner`. Model 2 accepts tokens of model 1 at the rate `outer`, and tokens
    of model 0 at the rate `direct`. `drafted` and `thresholds` are the candidates for three models; two models may draft up
    to 16 tokens.
    """

    def of_two(models: tuple[int, int], a: float) -> ChainPlan:
        return best_chain([a], lambda i, k: cost(models[i], k))

    two = {(0, 2): of_two((0, 2), direct), (1, 2): of_two((1, 2), outer)}
    models = max(two, key=lambda pair: two[pair].speedup)
    return Middle(best_chain([inner, outer], cost, drafted, thresholds), two[models], models)


# Polybasic's own formulas, as printed and as corrected, for comparison with the exact theory. Here alone, models are numbered
# from the target, as in the paper. lengths[0] is L_1, the number of tokens that a forward of the target commits; lengths[1]
# is L_2, the number that a forward of the next model commits; seconds[0] is T_1. kappa is the number of forwards of the
# drafter per verification: K for a chain draft, the depth for a tree. See docs/papers/polybasic.md, Forwards per token and
# Theorem 3.2.


class Condition(NamedTuple):
    """A condition `left < right`."""

    left: float
    right: float

    @property
    def holds(self) -> bool:
        return self.left < self.right


def ceil_forwards(lengths: Sequence[float], kappa: float, tokens: float = 1.0) -> list[float]:
    """Return phi_1 .. phi_n with the ceiling as a factor: phi_i = phi_{i-1} ceil(L_{i-1} / L_i). An approximation.

    Rounds run until a threshold is pending, not until L_1 tokens are accepted. The result is too small if the target rejects
    many tokens, and too large if it accepts nearly all.
    """
    phi = [tokens / lengths[0]]
    for above, length in pairwise(lengths):
        phi.append(phi[-1] * ceil(above / length))
    return [*phi, kappa * phi[-1]]


def seconds_of(forwards: Sequence[float], seconds: Sequence[float]) -> float:
    """Return T = sum of phi_i T_i, in the unit of `seconds`, if a block costs as much as one token.

    See docs/papers/polybasic.md, Forwards per token.
    """
    return sum(phi * t for phi, t in zip(forwards, seconds, strict=True))


def condition_1(two: float, lengths: Sequence[float], seconds: Sequence[float]) -> Condition:
    """Return condition 1 of Theorem 3.2, as printed: T_2' / T_1 < 2 L_2' (1 / L_1 - 1 / L_1').

    `two` is L_1 of target and drafter alone; `lengths` are L_1', L_2' and `seconds` T_1, T_2' of three models. It is derived
    from the printed phi_2 at a ceiling of 2.
    """
    return Condition(seconds[1] / seconds[0], 2 * lengths[1] * (1 / two - 1 / lengths[0]))


def condition_2_printed(two: float, lengths: Sequence[float], middle: float, drafter: float, kappa: float) -> Condition:
    """Return condition 2 as printed, T_2' / T_2 < kappa (L_1 / (2 L_2') - 1), which never holds if 2 L_2' > L_1."""
    return Condition(middle / drafter, kappa * (two / (2 * lengths[1]) - 1))


def condition_by_ceil(two: float, lengths: Sequence[float], seconds: Sequence[float], kappa: float) -> Condition:
    """Return whether three models need fewer seconds per token than two, by Theorem 3.2 with `ceil_forwards`.

    `seconds` are T_1, T_2', T_3, with one drafter for both systems. The condition also keeps some middle models that slow
    decoding down, if the target rejects many tokens; use `keeps_middle` to decide.

    See docs/papers/polybasic.md, Theorem 3.2.
    """
    return Condition(
        seconds_of(ceil_forwards(lengths, kappa), seconds),
        seconds_of(ceil_forwards([two], kappa), [seconds[0], seconds[-1]]),
    )
