"""Polybasic's own formulas, as printed and as corrected, for comparison with the exact theory.

In this module alone, models are numbered from the target, as in the paper. lengths[0] is L_1, the tokens that a forward of
the target commits; lengths[1] is L_2, those of a forward of the next model; seconds[0] is T_1. kappa is the number of
forwards of the drafter per verification: K for a chain draft, the depth for a tree.

See docs/papers/polybasic.md, Forwards per token; docs/papers/polybasic.md, Theorem 3.2.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import ceil
from typing import NamedTuple


class Condition(NamedTuple):
    """A condition `left < right`."""

    left: float
    right: float

    @property
    def holds(self) -> bool:
        return self.left < self.right


def printed_forwards(lengths: Sequence[float], kappa: float, tokens: float = 1.0) -> list[float]:
    """phi_1 .. phi_n, forwards of each model for `tokens` tokens, as printed.

    phi_1 = N / L_1, phi_i = N / (L_i ceil(L_{i-1} / L_i)), phi_n = kappa phi_{n-1}. It divides by the number of rounds
    instead of multiplying, so a middle model may run less often than the target (erratum PB-1, docs/papers/polybasic.md,
    Errata).
    """
    phi = [tokens / lengths[0]]
    phi += [tokens / (length * ceil(above / length)) for above, length in pairwise(lengths)]
    return [*phi, kappa * phi[-1]]


def ceil_forwards(lengths: Sequence[float], kappa: float, tokens: float = 1.0) -> list[float]:
    """phi_1 .. phi_n with the ceiling as a factor: phi_i = phi_{i-1} ceil(L_{i-1} / L_i). An approximation.

    Rounds run until a threshold is pending, not until L_1 tokens are accepted. The result is too small if the target rejects
    many tokens, and too large if it accepts nearly all.
    """
    phi = [tokens / lengths[0]]
    for above, length in pairwise(lengths):
        phi.append(phi[-1] * ceil(above / length))
    return [*phi, kappa * phi[-1]]


def true_forwards(length: float, rounds: Sequence[float], kappa: float, tokens: float = 1.0) -> list[float]:
    """Exact phi_1 .. phi_n: phi_1 = N / L_1, phi_i = phi_{i-1} rounds_i, phi_n = kappa phi_{n-1}.

    `rounds` are the expected rounds per block (`inner_rounds`) of each middle model, the one below the target first, at the
    thresholds that L_1, `length`, refers to.

    See docs/papers/polybasic.md, Forwards per token.
    """
    phi = [tokens / length]
    for each in rounds:
        phi.append(phi[-1] * each)
    return [*phi, kappa * phi[-1]]


def seconds_of(forwards: Sequence[float], seconds: Sequence[float]) -> float:
    """T = sum of phi_i T_i, in the unit of `seconds`, if a block costs as much as one token.

    See docs/papers/polybasic.md, Forwards per token.
    """
    return sum(phi * t for phi, t in zip(forwards, seconds, strict=True))


def condition_1(two: float, lengths: Sequence[float], seconds: Sequence[float]) -> Condition:
    """Condition 1 of Theorem 3.2, as printed: T_2' / T_1 < 2 L_2' (1 / L_1 - 1 / L_1').

    `two` is L_1 of target and drafter alone; `lengths` are L_1', L_2' and `seconds` T_1, T_2' of three models. It is derived
    from the printed phi_2 at a ceiling of 2.
    """
    return Condition(seconds[1] / seconds[0], 2 * lengths[1] * (1 / two - 1 / lengths[0]))


def condition_2(two: float, lengths: Sequence[float], middle: float, drafter: float, kappa: float) -> Condition:
    """Condition 2 of Theorem 3.2, corrected: T_2' / T_2 < kappa (2 L_2' / L_1 - 1).

    `middle` is T_2', and `drafter` is T_2 of the two-model system. The printed right side, `condition_2_printed`, is negative
    wherever the theorem applies. This condition is also derived from the printed phi_2.

    See erratum PB-2, docs/papers/polybasic.md, Errata.
    """
    return Condition(middle / drafter, kappa * (2 * lengths[1] / two - 1))


def condition_2_printed(two: float, lengths: Sequence[float], middle: float, drafter: float, kappa: float) -> Condition:
    """Condition 2 as printed, T_2' / T_2 < kappa (L_1 / (2 L_2') - 1), which never holds if 2 L_2' > L_1."""
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
