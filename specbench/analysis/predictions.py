"""What theory predicts of a method's speed, from the acceptance and the forward times that were measured."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specbench.analysis import metrics as m
from specbench.analysis import speculation as d
from specbench.analysis import theory
from specbench.decoding.traits import Theory

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


def predictions(method: Theory | None, baseline: Sequence[str], rows: m.Rows, base: m.Rows) -> Predictions | None:
    """Predict a method's speedup over a baseline that runs a forward of each of `baseline`'s roles per token.

    None if there is no formula, or if a forward time or acceptance rate that it needs was not measured.
    """
    if method is None:
        return None
    costs = m.forward_seconds(rows)
    single = {role: sizes[1] for role, sizes in costs.items() if 1 in sizes}
    single |= {role: sizes[1] for role, sizes in m.forward_seconds(base).items() if 1 in sizes}
    roles = list(method.models)
    for role in roles:  # a middle model never reads one token alone
        if role in costs:
            single.setdefault(role, costs[role][min(costs[role])])
    predict = FORMULAS[method.formula](method, rows) if method.formula in FORMULAS else None
    if predict is None or not all(role in single for role in (*roles, *baseline)):
        return None
    as_in_papers, measured = m.cost_of(roles, {}, single), m.cost_of(roles, costs, single)
    per_token = sum(single[role] for role in baseline)
    ratio = single[roles[0]] / single[roles[-1]]
    return Predictions(
        predicted=predict(as_in_papers, per_token),
        corrected=predict(measured, per_token),
        cost_ratio=ratio,
        papers_prediction=_alternate_proposal(method, rows, ratio),
    )


def _alternate_proposal(method: Theory, rows: m.Rows, ratio: float) -> float | None:
    """SE's own formula for two models (docs/papers/speculative-ensemble.md); None for other methods."""
    if method.formula != "ensemble" or len(method.models) != 2:
        return None
    rate = m.acceptance_by_model(rows).get(method.models[0], m.acceptance_rate(rows))
    return None if rate is None else theory.alternate_proposal(rate, method.gamma[0], method.gamma[1], ratio)


def _speculation(method: Theory, rows: m.Rows) -> Predict | None:
    rates, overall = m.acceptance_by_model(rows), m.acceptance_rate(rows)
    if overall is None:
        return None
    deferred = method.drafter_scores and method.bonus == "deferred"
    scheme = theory.Scheme(
        gamma=method.gamma[0],
        bonus=method.bonus,
        scorers=len(method.models) - 1,
        drafter_scores=method.drafter_scores,
    )
    accepted = rates.get(method.models[0], overall) if deferred else overall
    pending = rates.get(method.models[-1], 1.0)
    return lambda cost, base: theory.speculative(scheme, accepted, cost, base, pending)


def _chain(method: Theory, rows: m.Rows) -> Predict | None:
    """Acceptance by level. What an EAGLE head and its base read again is left out."""
    rates = [level.acceptance for level in d.levels(rows)]
    known = [rate for rate in rates if rate is not None]
    if len(known) != len(method.thresholds) + 1:
        return None
    return lambda cost, base: theory.chain(known, method.gamma[0], list(method.thresholds), cost, base)


def _ensemble(method: Theory, rows: m.Rows) -> Predict | None:
    rates, overall = m.acceptance_by_model(rows), m.acceptance_rate(rows)
    if overall is None:
        return None
    a = [rates.get(role, overall) for role in method.models]
    return lambda cost, base: theory.speculative_ensemble(a, list(method.gamma), cost)


def _sprinter(method: Theory, rows: m.Rows) -> Predict:
    """Over all runs that end with a forward of the target: what was drafted since the last one, and how it fared."""
    rounds = [each for record in rows for each in record.rounds]
    tested = max(sum(each["tested"] for each in rounds), 1)
    drafted = sum(each["drafted"] for each in rounds) / tested
    accepted = sum(each["accepted"] for each in rounds) / tested
    return lambda cost, base: theory.sprinter(drafted, accepted, cost, base, bonus=method.bonus != "none")


def _token_cascade(method: Theory, rows: m.Rows) -> Predict:
    rate = m.rule_rate(rows)
    return lambda cost, base: theory.sequential_cascade(rate or 0.0, cost, round(1 / rate) if rate else 1)


def _sequence_cascade(method: Theory, rows: m.Rows) -> Predict:
    rate = m.rule_rate(rows)
    return lambda cost, base: theory.sequential_cascade(rate or 0.0, cost, 1)


FORMULAS: dict[str, Callable[[Theory, m.Rows], Predict | None]] = {
    "speculation": _speculation,
    "chain": _chain,
    "ensemble": _ensemble,
    "sprinter": _sprinter,
    "token cascade": _token_cascade,
    "sequence cascade": _sequence_cascade,
}
