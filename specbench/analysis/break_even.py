"""From which acceptance rate, and up to which cost of a draft, speculation pays at the costs that a run measured."""

from dataclasses import dataclass

from specbench.analysis.acceptance import acceptance_rate, accepted_length
from specbench.analysis.block_costs import LEAST
from specbench.analysis.draft_lengths import RoundCosts, costs_of, is_covered
from specbench.analysis.rows import Rows, rounds_of
from specbench.analysis.theory import expected_accepted
from specbench.decoding.traits import Theory

STEPS = 50  # of the curve over acceptance rates
HALVINGS = 40


@dataclass(frozen=True)
class BreakEven:
    """The break-even points of a method at one draft length, in decoding time.

    `acceptance` is the acceptance rate at which the method equals its baseline, if tokens are accepted independently;
    None if it is slower even when every token is accepted. `cost_ratio` is the largest cost of a draft token over that
    of a one-token forward of the verifying models at which it equals the baseline, at the measured tokens per round;
    None if it is slower even with free drafts. `curve` has the speedup at acceptance rates from 0 to 1.
    """

    gamma: int
    acceptance: float | None
    measured_acceptance: float
    cost_ratio: float | None
    measured_cost_ratio: float
    curve: list[float]


def of_method(method: Theory | None, rows: Rows, base: Rows) -> BreakEven | None:
    """Return the break-even points of a method.

    None for methods that `draft_lengths` does not cover, for a drafter without forwards, and if too few blocks of its
    draft length were measured.
    """
    if method is None or not is_covered(method, rows, base) or method.models[0] not in rows[0].models:
        return None
    gamma = method.gamma[0]
    blocks = sum(x["drafted"] == gamma for x in rounds_of(rows))
    if blocks < LEAST + len(rows):  # the first block of each output is prefill
        return None
    costs, rate = costs_of(method, rows, base), acceptance_rate(rows)
    assert rate is not None
    single = float(sum(each[..., 1] for each in costs.blocks))
    whole = sum(x["accepted"] == gamma for x in rounds_of(rows)) / sum(1 for _ in rounds_of(rows))
    drafting = float(whole * costs.doubled + (1.0 - whole) * costs.first + (gamma - 1) * costs.later)
    without = float(costs.of_round(gamma) - costs.first - (gamma - 1) * costs.later)
    affordable = (accepted_length(rows) * float(costs.per_token) - without) / gamma
    return BreakEven(
        gamma=gamma,
        acceptance=_acceptance(costs, gamma),
        measured_acceptance=rate,
        cost_ratio=affordable / single if affordable > 0.0 else None,
        measured_cost_ratio=drafting / gamma / single,
        curve=[_speedup(costs, gamma, step / STEPS) for step in range(STEPS + 1)],
    )


def _speedup(costs: RoundCosts, gamma: int, rate: float) -> float:
    """Return the decoding speedup if every token is accepted at a rate, independently."""
    whole = rate**gamma
    tokens = expected_accepted(rate, gamma) + (1.0 if costs.bonus else 1.0 - whole)
    spent = whole * costs.of_round(gamma, follows_whole=True) + (1.0 - whole) * costs.of_round(gamma)
    return tokens * float(costs.per_token / spent)


def _acceptance(costs: RoundCosts, gamma: int) -> float | None:
    """Return the acceptance rate at which the speedup is 1; None if there is none."""
    if _speedup(costs, gamma, 1.0) < 1.0:
        return None
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _speedup(costs, gamma, middle) < 1.0 else (low, middle)
    return high
