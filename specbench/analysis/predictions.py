"""What theory predicts from acceptance rates and forward times, measured or assumed: the speed, and where a method pays."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from specbench.analysis import theory
from specbench.analysis.acceptance import (
    acceptance_by_rank,
    acceptance_rate,
    accepted_length,
)
from specbench.analysis.costs import (
    LEAST,
    ForwardCosts,
    RoundCosts,
    cost_of,
    forward_costs,
    forward_count,
    host_per_forward,
    run_sizes,
)
from specbench.analysis.formula import MeasuredRates, known_formula
from specbench.analysis.length_predictions import costs_of, is_covered
from specbench.analysis.method_records import Records, rounds_of, seconds, token_count
from specbench.analysis.metric import Direction, Metric, declare
from specbench.analysis.number_format import TIMES
from specbench.decoding.traits import Theory

STEPS = 50  # of the curve over acceptance rates
HALVINGS = 40


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """Predicted long-run speedups of one method.

    `predicted` assumes that a block costs as much as one token, as the papers do; `corrected` uses its measured cost.
    `cost_ratio` is the proposer's forward time over the target's, 0 if theory names the target only. `papers_prediction` is
    another formula that the paper prints, where it does.
    """

    predicted: float
    corrected: float
    cost_ratio: float
    papers_prediction: float | None = None


def predictions(method: Theory | None, baseline: Sequence[str], rows: Records, base: Records) -> Predictions | None:
    """Predict a method's speedup over a baseline that runs a forward of each of `baseline`'s roles per token.

    None if there is no formula or the plugin that registers it is not loaded, or if a forward time or acceptance rate that it
    needs was not measured.
    """
    formula = None if method is None else known_formula(method.formula)
    costs = None if method is None else _costs([*method.models, *baseline], rows, base)
    if method is None or formula is None or costs is None:
        return None
    rates = MeasuredRates(rows)
    counts = formula(method, rates)
    if counts is None:
        return None
    proposer, target = method.models[0], method.models[-1]
    per_token, ratio = (
        _per_token(costs, baseline),
        costs[proposer].of(1) / costs[target].of(1) if len(method.models) > 1 else 0.0,
    )
    return Predictions(
        predicted=counts.speedup(cost_of(method.models, costs, as_in_papers=True), per_token),
        corrected=counts.speedup(cost_of(method.models, costs), per_token),
        cost_ratio=ratio,
        papers_prediction=formula.papers(method, rates, ratio) if formula.papers else None,
    )


def best_tree(method: Theory | None, rows: Records, base: Records) -> theory.BestTree | None:
    """Return the best static tree within the sizes of forwards whose cost is known, with the time outside forwards.

    None for methods without such trees, and without a baseline. Outside forwards, a tree is assumed to take as long as the
    baseline for each forward, and for each of its tokens what the method's trees take more than that, per token.
    """
    if method is None or method.shape is None or len(method.models) < 2 or not base:
        return None
    costs = _costs(method.models, rows, base)
    if costs is None:
        return None
    drafter, *verifiers = method.models
    largest, widest = min(costs[role].stated for role in verifiers), costs[drafter].stated
    cost, per_token = cost_of(method.models, costs), sum(map(seconds, base)) / token_count(base)
    host, drafted = host_per_forward(base), sum(each.drafted for each in rounds_of(rows))
    more = (host_per_forward(rows) - host) * forward_count(rows)  # of all rounds, because of their drafts
    host_per_node = max(more, 0.0) / max(drafted, 1)

    def speedup(shape: Sequence[int], counts: theory.RoundCounts) -> float:
        return counts.speedup(cost, per_token, host * counts.number + host_per_node * len(shape))

    return theory.best_tree(method, acceptance_by_rank(rows, LEAST), speedup, largest, widest)


def _costs(roles: Iterable[str], rows: Records, base: Records) -> dict[str, ForwardCosts] | None:
    """Return the costs of these models' forwards; None if one has no forwards."""
    costs = {role: forward_costs(run_sizes(rows, base, role)) for role in roles}
    known = {role: each for role, each in costs.items() if each}
    return known if len(known) == len(costs) else None


def _per_token(costs: Mapping[str, ForwardCosts], baseline: Sequence[str]) -> float:
    """Return the seconds of a token of a baseline that runs a forward of each of these models, without other time."""
    return sum(costs[role].of(1) for role in baseline)


# Break-even points


@dataclass(frozen=True)
class BreakEven:
    """The break-even points of a method at one draft length, in decoding time.

    `acceptance` is the acceptance rate at which the method equals its baseline, if tokens are accepted independently;
    None if it is slower even when every token is accepted. `cost_ratio` is the cost of a draft token / the cost of a
    one-token forward of the verifying models at which it equals the baseline, at the measured tokens per round; None if it is
    slower even with free drafts. `curve` has the speedup at acceptance rates from 0 to 1.
    """

    gamma: int
    acceptance: float | None
    measured_acceptance: float
    cost_ratio: float | None
    measured_cost_ratio: float
    curve: list[float]


def break_even(method: Theory | None, rows: Records, base: Records) -> BreakEven | None:
    """Return the break-even points of a method.

    None for methods that `length_predictions` does not cover, for a drafter without forwards, and if too few blocks of its
    draft length were measured.
    """
    if method is None or not is_covered(method, rows, base) or method.models[0] not in rows[0].models:
        return None
    gamma = method.gamma[0]
    blocks = sum(x.drafted == gamma for x in rounds_of(rows))
    if blocks < LEAST + len(rows):  # the first block of each output is prefill
        return None
    costs, rate = costs_of(method, rows, base), acceptance_rate(rows)
    assert rate is not None
    single = float(sum(block[..., 1] for block in costs.blocks))
    whole = sum(x.accepted == gamma for x in rounds_of(rows)) / sum(1 for _ in rounds_of(rows))
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
    whole, bonus = rate**gamma, "exact" if costs.bonus else "none"
    tokens = theory.speculative(theory.Scheme(gamma=gamma, bonus=bonus), rate).tokens
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


for _about in (
    Metric(
        name="predicted", heading="theory", format=TIMES, better=Direction.higher,
        definition="The long-run speedup at the measured acceptance rate (of a tree, by rank) and cost ratio c, if a block"
        " costs as much as one token, as the papers assume.",
    ),
    Metric(
        name="corrected", heading="corrected theory", format=TIMES, better=Direction.higher,
        definition="The same at the measured cost of a block of each length; lengths that did not occur are interpolated.",
    ),
    Metric(
        name="papers_prediction", heading="paper's theory", format=TIMES, better=Direction.higher,
        definition="Speculative Ensemble of two models: its Theorem 3.6 as printed, which describes one cycle and not the"
        " long run.",
    ),
    Metric(
        name="cost_ratio", heading="c",
        definition="Seconds of a one-token forward of the first model / of the last. The c of SE and of Leviathan et al.",
    ),
    Metric(
        name="measured_over_corrected", heading="measured/corrected",
        definition="speedup / corrected. A value well below 1 means that time is spent on something that theory does not"
        " model (see outside forwards).",
    ),
):  # fmt: skip
    declare(_about)
