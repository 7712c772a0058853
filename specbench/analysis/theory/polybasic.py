"""Polybasic: chains of n >= 2 models, each the target of the one below: exact, not as printed in the paper.

As in a `Cost`, model 0 drafts, and the last model is the target. acceptance[i] is the rate at which model i + 1 accepts what
model i hands up; thresholds[i] is how many tokens model i + 1 collects at least before it hands them up, for every model
between the two. What a middle hands up follows its own distribution, so the rounds of a level are independent and alike.

See docs/papers/polybasic.md, Speedup with measured prices.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import product
from typing import NamedTuple

from specbench.analysis.theory.lengths import Lengths, block_lengths, expectation, inner_rounds, round_lengths, visits
from specbench.analysis.theory.speculation import Cost

Ends = dict[
    tuple[int, int], float
]  # (tokens of a round or block, how many up to its end some model has not read): odds
DRAFTED, THRESHOLDS = range(1, 17), range(1, 33)  # what a planner tries


class ChainRound(NamedTuple):
    """Expected a forward of the target: the tokens it commits, and forwards[i][k], those of model i that feed k tokens."""

    tokens: float
    forwards: list[dict[int, float]]


class Plan(NamedTuple):
    """A chain's speedup over plain decoding by its target, at this draft length and these thresholds."""

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

    acceptance: Sequence[float]  # of what level i hands up
    least: list[int]  # tokens of a block of level i + 1
    rounds: list[Lengths]  # of level i + 1
    blocks: list[Lengths]  # of level i
    many: list[float]  # blocks of level i a forward of the target


def _levels(acceptance: Sequence[float], drafted: int, thresholds: Sequence[int]) -> _Levels:
    if len(thresholds) != len(acceptance) - 1:
        raise ValueError(f"{len(acceptance) + 1} models need {len(acceptance) - 1} thresholds, not {len(thresholds)}")
    if min(drafted, *thresholds, 1) < 1:
        raise ValueError(f"draft length {drafted} and thresholds {list(thresholds)} must be at least 1")
    least = [*thresholds, 1]  # what the target commits is a block of one round
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
    """The distribution of a round that tests such blocks. A model that read less than it accepts reads the rest too."""
    found: Ends = defaultdict(float)
    for (length, unread), odds in ends.items():
        for accepted in range(length + 1):
            p = a**accepted * (1.0 - a if accepted < length else 1.0)
            found[accepted + 1, max(1, accepted + 1 - length + unread)] += odds * p
    return found


def _unread(levels: _Levels, i: int) -> dict[int, float]:
    """How often, a forward of the target, model i begins a block with so many tokens unread."""
    ends: Ends = {(length, 1): odds for length, odds in levels.blocks[i].items()}  # its own last token it never read
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
    """What a forward of the target commits and brings with it, exactly, by the distributions of lengths from the drafter up.

    A forward feeds what a cache lacks: the block to test and the one token before; two where the model's last block was
    accepted whole, and one more for each level above that accepted it whole as well. Every draw is a forward of the drafter.
    Raises ValueError where there are not as many thresholds as models between the two, or where a length is below 1.
    """
    levels = _levels(acceptance, drafted, thresholds)
    below: list[Lengths] = [{0: 1.0}, *levels.blocks]  # what a forward of model i feeds beside the unread
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
    """Long-run speedup of a chain over a baseline that costs `baseline` a token; by default plain decoding by its target.

    cost(i, k) = cost(i, 1) is a block for the price of one token. For n = 2 it is `speculative` with an exact bonus.
    Raises ValueError as `chain_round`.
    """
    tokens, forwards = chain_round(acceptance, drafted, thresholds)
    spent = sum(times * cost(i, k) for i, fed in enumerate(forwards) for k, times in fed.items())
    return tokens * (cost(len(acceptance), 1) if baseline is None else baseline) / spent


def best_chain(
    acceptance: Sequence[float], cost: Cost, drafted: Iterable[int] = DRAFTED, thresholds: Iterable[int] = THRESHOLDS
) -> Plan:
    """The fastest chain at these rates, of all draft lengths and all thresholds; of many models, give fewer.

    Draft lengths and thresholds trade off against measured prices, so `cost` should know a block's.
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
    """Whether model 1 pays between model 0 and model 2: the best chain of three beside the best of two, at their own lengths.

    Model 1 accepts model 0 at the rate `inner`, model 2 model 1 at `outer`, and model 2 model 0 at `direct`. `drafted` and
    `thresholds` are those of the three; two models may draft up to 16 tokens. What Polybasic's Theorem 3.2 asks.
    """

    def of_two(models: tuple[int, int], a: float) -> Plan:
        return best_chain([a], lambda i, k: cost(models[i], k))

    two = {(0, 2): of_two((0, 2), direct), (1, 2): of_two((1, 2), outer)}
    models = max(two, key=lambda each: two[each].speedup)
    return Middle(best_chain([inner, outer], cost, drafted, thresholds), two[models], models)
