"""What theory predicts from acceptance rates and forward times, measured or assumed: the speed, and where a method pays."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from specbench.analysis import polybasic, theory
from specbench.analysis.acceptance import (
    acceptance_by_model,
    acceptance_by_rank,
    acceptance_rate,
    accepted_length,
    rule_rate,
)
from specbench.analysis.costs import LEAST, RoundCosts, cost_of, forward_seconds
from specbench.analysis.length_predictions import costs_of, is_covered
from specbench.analysis.method_metrics import levels
from specbench.analysis.run_metrics import Records, rounds_of
from specbench.decoding.traits import Theory
from specbench.errors import PluginError, hint

ASSUMED_DRAFTS = 5  # mean draft length where a stop rule, a lookup or a verifier decides, for an estimate
STEPS = 50  # of the curve over acceptance rates
HALVINGS = 40
Predict = Callable[[theory.Cost, float], float]  # (cost of a forward, the baseline's seconds per token) -> speedup


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """Predicted long-run speedups of one method.

    `predicted` assumes that a block costs as much as one token, as the papers do; `corrected` uses its measured cost.
    `cost_ratio` is the proposer's forward time over the target's. `papers_prediction` is another formula that the paper
    prints, where it does.
    """

    predicted: float
    corrected: float
    cost_ratio: float
    papers_prediction: float | None = None


def predictions(method: Theory | None, baseline: Sequence[str], rows: Records, base: Records) -> Predictions | None:
    """Predict a method's speedup over a baseline that runs a forward of each of `baseline`'s roles per token.

    None if there is no formula, or if a forward time or acceptance rate that it needs was not measured.
    """
    if method is None:
        return None
    costs = _costs(method, baseline, rows, base)
    predict = None if costs is None else FORMULAS[method.formula](method, MeasuredRates(rows))
    if costs is None or predict is None:
        return None
    return Predictions(
        predicted=predict(costs.as_in_papers, costs.per_token),
        corrected=predict(costs.measured, costs.per_token),
        cost_ratio=costs.ratio,
        papers_prediction=_alternate_proposal(method, rows, costs.ratio),
    )


def best_tree(method: Theory | None, baseline: Sequence[str], rows: Records, base: Records) -> theory.BestTree | None:
    """Return the best static tree within the sizes of forwards that were measured; None for methods without such trees."""
    if method is None or method.formula != "tree":
        return None
    costs = _costs(method, baseline, rows, base)
    if costs is None or len(method.models) < 2 or not all(costs.sizes.get(role) for role in method.models):
        return None
    largest = min(max(costs.sizes[role]) for role in method.models[1:])
    widest = max(costs.sizes[method.models[0]])
    return theory.best_tree(method, acceptance_by_rank(rows, LEAST), costs.measured, costs.per_token, largest, widest)


@dataclass(frozen=True)
class _Costs:
    """A method's forward costs: `as_in_papers` prices a block like one token; `measured` uses measured block costs.

    `per_token` is the baseline's cost per token.
    `ratio` is the proposer's forward time over the target's, `sizes` the seconds by model and tokens fed.
    """

    as_in_papers: theory.Cost
    measured: theory.Cost
    per_token: float
    ratio: float
    sizes: Mapping[str, Mapping[int, float]]


def _costs(method: Theory, baseline: Sequence[str], rows: Records, base: Records) -> _Costs | None:
    """Return the costs of a method with a formula; None if a forward time was not measured."""
    costs = forward_seconds(rows)
    single = {role: sizes[1] for role, sizes in costs.items() if 1 in sizes}
    single |= {role: sizes[1] for role, sizes in forward_seconds(base).items() if 1 in sizes}
    roles = list(method.models)
    for role in roles:  # a middle model never reads one token alone
        if role in costs:
            single.setdefault(role, costs[role][min(costs[role])])
    if method.formula not in FORMULAS or not all(role in single for role in (*roles, *baseline)):
        return None
    return _Costs(
        as_in_papers=cost_of(roles, {}, single),
        measured=cost_of(roles, costs, single),
        per_token=sum(single[role] for role in baseline),
        ratio=single[roles[0]] / single[roles[-1]],
        sizes=costs,
    )


def _alternate_proposal(method: Theory, rows: Records, ratio: float) -> float | None:
    """Return SE's own formula for two models (docs/papers/speculative-ensemble.md); None for other methods."""
    if method.formula != "ensemble" or len(method.models) != 2:
        return None
    rate = acceptance_by_model(rows).get(method.models[0], acceptance_rate(rows))
    return None if rate is None else theory.alternate_proposal(rate, method.gamma[0], method.gamma[1], ratio)


class Rates(Protocol):
    """The rates that formulas take. Where there is no rate, no draft token was tested."""

    def overall(self) -> float | None:
        """Return the acceptance rate of all tested draft tokens."""

    def by_model(self) -> Mapping[str, float]:
        """Return the acceptance rate of the drafts of each model, where it differs from the overall rate."""

    def by_rank(self) -> list[float]:
        """Return the acceptance rate of first, second, ... children in a tree, given that the earlier ones were rejected."""

    def levels(self, count: int) -> list[float] | None:
        """Return the acceptance rate of each of `count` tests of a chain, innermost first; None if one is unknown."""

    def deferral(self) -> float:
        """Return the share of positions or answers that a rule defers."""

    def per_test(self) -> tuple[float, float]:
        """Return the number of tokens drafted for each token that SPRINTER's target tests, and the share that it accepts."""


@dataclass(frozen=True)
class MeasuredRates:
    """The rates of recorded generations."""

    rows: Records

    def overall(self) -> float | None:
        return acceptance_rate(self.rows)

    def by_model(self) -> Mapping[str, float]:
        return acceptance_by_model(self.rows)

    def by_rank(self) -> list[float]:
        return acceptance_by_rank(self.rows)

    def levels(self, count: int) -> list[float] | None:
        rates = [level.acceptance for level in levels(self.rows) if level.acceptance is not None]
        return rates if len(rates) == count else None

    def deferral(self) -> float:
        return rule_rate(self.rows) or 0.0

    def per_test(self) -> tuple[float, float]:
        """Return the rates over all runs that end with a forward of the target.

        A run is what was drafted since the last such forward.
        """
        rounds = [entry for record in self.rows for entry in record.rounds]
        tested = max(sum(entry.tested for entry in rounds), 1)
        drafted, accepted = sum(entry.drafted for entry in rounds), sum(entry.accepted for entry in rounds)
        return drafted / tested, accepted / tested


@dataclass(frozen=True, kw_only=True)
class AssumedRates:
    """One acceptance rate for every test, and the share of tokens or answers that a cascade defers to its large model.

    Of the children of a token in a tree, only the first is assumed to be accepted.
    """

    acceptance: float
    deferred: float

    def overall(self) -> float | None:
        return self.acceptance

    def by_model(self) -> Mapping[str, float]:
        return {}

    def by_rank(self) -> list[float]:
        return [self.acceptance]

    def levels(self, count: int) -> list[float] | None:
        return [self.acceptance] * count

    def deferral(self) -> float:
        return self.deferred

    def per_test(self) -> tuple[float, float]:
        return ASSUMED_DRAFTS, self.acceptance


def _speculation(method: Theory, rates: Rates) -> Predict | None:
    by_model, overall = rates.by_model(), rates.overall()
    if overall is None:
        return None
    deferred = method.drafter_scores and method.bonus == "deferred"
    scheme = theory.Scheme(
        gamma=method.gamma[0],
        bonus=method.bonus,
        scorers=len(method.models) - 1,
        drafter_scores=method.drafter_scores,
    )
    accepted = by_model.get(method.models[0], overall) if deferred else overall
    pending = by_model.get(method.models[-1], 1.0)
    return lambda cost, base: theory.speculative(scheme, accepted, cost, base, pending)


def _tree(method: Theory, rates: Rates) -> Predict | None:
    by_rank = rates.by_rank()
    return (lambda cost, base: theory.tree_speedup(method, by_rank, cost, base)) if by_rank else None


def _chain(method: Theory, rates: Rates) -> Predict | None:
    """Return the formula of a chain, from the acceptance by level. Ignores what an EAGLE head and its base reread."""
    acceptance = rates.levels(len(method.thresholds) + 1)
    if acceptance is None:
        return None
    return lambda cost, base: polybasic.chain(acceptance, method.gamma[0], list(method.thresholds), cost, base)


def _ensemble(method: Theory, rates: Rates) -> Predict | None:
    by_model, overall = rates.by_model(), rates.overall()
    if overall is None:
        return None
    a = [by_model.get(role, overall) for role in method.models]

    def predict(cost: theory.Cost, base: float) -> float:
        """Return the speedup. The formula is over the ensemble that decodes in turn, a forward of each model per token."""
        in_turn = sum(cost(i, 1) for i in range(len(a)))
        return theory.speculative_ensemble(a, list(method.gamma), cost) * base / in_turn

    return predict


def _sprinter(method: Theory, rates: Rates) -> Predict:
    drafted, accepted = rates.per_test()
    return lambda cost, base: theory.sprinter(drafted, accepted, cost, base, bonus=method.bonus != "none")


def _token_cascade(method: Theory, rates: Rates) -> Predict:
    rate = rates.deferral()
    tokens = round(1 / rate) if rate else 1
    return lambda cost, base: theory.sequential_cascade(rate, cost, tokens) * base / cost(1, 1)


def _sequence_cascade(method: Theory, rates: Rates) -> Predict:
    return lambda cost, base: theory.sequential_cascade(rates.deferral(), cost, 1) * base / cost(1, 1)


FORMULAS: dict[str, Callable[[Theory, Rates], Predict | None]] = {
    "speculation": _speculation,
    "tree": _tree,
    "chain": _chain,
    "ensemble": _ensemble,
    "sprinter": _sprinter,
    "token cascade": _token_cascade,
    "sequence cascade": _sequence_cascade,
}


def formula_of(method: Theory) -> Callable[[Theory, Rates], Predict | None]:
    """Return a method's formula. Raises PluginError, with the nearest name, if there is none of its name."""
    if method.formula not in FORMULAS:
        raise PluginError(f"Theory.formula = '{method.formula}' is no formula{hint(method.formula, FORMULAS)}")
    return FORMULAS[method.formula]


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
    whole = rate**gamma
    tokens = theory.expected_accepted(rate, gamma) + (1.0 if costs.bonus else 1.0 - whole)
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
