"""Polybasic: the exact speedup of chains of n >= 2 models. Each model verifies the tokens of the model below it.

Model 0 drafts, and the last model is the target, as in a `Cost`. acceptance[i] is the rate at which model i + 1 accepts
tokens of model i. thresholds[i] is the least number of tokens that model i + 1 collects before model i + 2 tests them. Tokens
of a middle model follow its own distribution, so the rounds of a level are independent and identically distributed.

See docs/papers/polybasic.md, Speedup with measured costs.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import product
from typing import NamedTuple

from specbench.analysis.theory.lengths import Lengths, block_lengths, expectation, inner_rounds, round_lengths, visits
from specbench.analysis.theory.speculation import Cost

Ends = dict[
    tuple[int, int], float
]  # (tokens of a round or block, those up to its end that a model has not read): probability
DRAFTED, THRESHOLDS = range(1, 17), range(1, 33)  # candidates of best_chain


class ChainRound(NamedTuple):
    """Expectations per forward of the target: committed tokens, and forwards[i][k] of model i that feed k tokens."""

    tokens: float
    forwards: list[dict[int, float]]


class Plan(NamedTuple):
    """The speedup of a chain over plain decoding by its target, with its draft length and thresholds."""

    speedup: float
    drafted: int
    thresholds: tuple[int, ...]


class Middle(NamedTuple):
    """The best chain of models 0, 1 and 2, the best chain of two of them, and which two."""

    three: Plan
    two: Plan
    models: tuple[int, int]

    @property
    def gain(self) -> float:
        """Speedup of three models over two."""
        return self.three.speedup / self.two.speedup

    @property
    def pays(self) -> bool:
        """Whether three models are faster than two."""
        return self.gain > 1.0


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
    found: Ends = defaultdict(float)
    for (length, unread), odds in ends.items():
        for accepted in range(length + 1):
            p = a**accepted * (1.0 - a if accepted < length else 1.0)
            found[accepted + 1, max(1, accepted + 1 - length + unread)] += odds * p
    return found


def _unread(levels: _Levels, i: int) -> dict[int, float]:
    """Expected number of blocks per forward of the target that model i begins, by the number of unread tokens."""
    ends: Ends = {(length, 1): odds for length, odds in levels.blocks[i].items()}  # it has not read its own last token
    found: dict[int, float] = defaultdict(float)
    for level in range(i, len(levels.acceptance)):
        tested, least = _tested(levels.acceptance[level], ends), levels.least[level]
        last: Ends = defaultdict(float)
        for s, odds in enumerate(visits(levels.rounds[level], least)):
            for (length, unread), p in tested.items():
                if s + length < least:
                    found[unread] += levels.many[level + 1] * odds * p
                else:
                    last[s + length, unread] += odds * p
        ends = last
    for (_, unread), odds in ends.items():
        found[unread] += odds
    return found


def chain_round(acceptance: Sequence[float], drafted: int, thresholds: Sequence[int]) -> ChainRound:
    """Return the exact expectations per forward of the target.

    A forward feeds the block to test and the token before it. It feeds one more token if the model's last block was accepted
    whole, and another one for each level above that accepted it whole. Every drafted token is a forward of the drafter.
    Raises ValueError if the number of thresholds is not that of middle models, or a length is below 1.
    """
    levels = _levels(acceptance, drafted, thresholds)
    below: list[Lengths] = [{0: 1.0}, *levels.blocks]  # tokens that a forward of model i feeds besides the unread ones
    usage = [drafted * levels.many[0], *levels.many]
    forwards = []
    for i, many in enumerate(levels.many):
        fed: dict[int, float] = defaultdict(float)
        unread_tokens = _unread(levels, i)
        for length, odds in below[i].items():
            fed[length + 1] += odds * (usage[i] - many)
            for unread, times in unread_tokens.items():
                fed[length + unread] += odds * times
        forwards.append({k: times for k, times in sorted(fed.items()) if times > 0.0})
    return ChainRound(expectation(levels.blocks[-1]), forwards)


def chain(
    acceptance: Sequence[float], drafted: int, thresholds: Sequence[int], cost: Cost, baseline: float | None = None
) -> float:
    """Long-run speedup of a chain over a baseline that costs `baseline` per token, by default decoding by the target alone.

    With two models it equals `speculative` with an exact bonus token. Raises ValueError as `chain_round` does.
    """
    tokens, forwards = chain_round(acceptance, drafted, thresholds)
    spent = sum(times * cost(i, k) for i, fed in enumerate(forwards) for k, times in fed.items())
    return tokens * (cost(len(acceptance), 1) if baseline is None else baseline) / spent


def best_chain(
    acceptance: Sequence[float], cost: Cost, drafted: Iterable[int] = DRAFTED, thresholds: Iterable[int] = THRESHOLDS
) -> Plan:
    """Return the fastest chain at these acceptance rates, over all given draft lengths and thresholds.

    `cost` should include the measured cost of blocks. Pass fewer candidates for chains of many models.
    """
    lengths, grid = list(drafted), list(product(thresholds, repeat=len(acceptance) - 1))
    return max(Plan(chain(acceptance, k, waits, cost), k, waits) for k in lengths for waits in grid)


def keeps_middle(
    inner: float,
    outer: float,
    direct: float,
    cost: Cost,
    drafted: Iterable[int] = DRAFTED,
    thresholds: Iterable[int] = THRESHOLDS,
) -> Middle:
    """Compare the best chain of models 0, 1 and 2 with the best chain of two of them (the question of Theorem 3.2).

    Model 1 accepts tokens of model 0 at the rate `inner`; model 2 accepts those of model 1 at `outer` and those of model 0 at
    `direct`. `drafted` and `thresholds` are the candidates for three models; two models may draft up to 16 tokens.
    """

    def of_two(models: tuple[int, int], a: float) -> Plan:
        return best_chain([a], lambda i, k: cost(models[i], k))

    two = {(0, 2): of_two((0, 2), direct), (1, 2): of_two((1, 2), outer)}
    models = max(two, key=lambda each: two[each].speedup)
    return Middle(best_chain([inner, outer], cost, drafted, thresholds), two[models], models)
