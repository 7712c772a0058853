"""What theory predicts from acceptance rates and forward times, measured or assumed: the speed, and where a method pays."""

from collections.abc import Callable, Iterable, Mapping, Sequence
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
from specbench.analysis.costs import (
    LEAST,
    ForwardCosts,
    RoundCosts,
    cost_of,
    forward_costs,
    forward_count,
    host_per_forward,
    run_sizes,
    sizes_of,
)
from specbench.analysis.length_predictions import costs_of, is_covered
from specbench.analysis.method_metrics import levels
from specbench.analysis.method_records import Records, rounds_of, seconds, token_count
from specbench.analysis.metric import Direction, Metric, declare
from specbench.analysis.number_format import TIMES
from specbench.decoding.traits import Theory
from specbench.errors import PluginError, hint

ASSUMED_DRAFTS = 5  # mean draft length where a stop rule, a lookup or a verifier decides, for an estimate
STEPS = 50  # of the curve over acceptance rates
HALVINGS = 40
Formula = Callable[[Theory, "Rates"], theory.RoundCounts | None]


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
    if method is None or method.formula not in FORMULAS:
        return None
    costs = _costs([*method.models, *baseline], rows, base)
    counts = None if costs is None else FORMULAS[method.formula](method, MeasuredRates(rows))
    if costs is None or counts is None:
        return None
    per_token, ratio = _per_token(costs, baseline), costs[method.models[0]].of(1) / costs[method.models[-1]].of(1)
    return Predictions(
        predicted=counts.speedup(cost_of(method.models, costs, as_in_papers=True), per_token),
        corrected=counts.speedup(cost_of(method.models, costs), per_token),
        cost_ratio=ratio,
        papers_prediction=_alternate_proposal(method, rows, ratio),
    )


def best_tree(method: Theory | None, rows: Records, base: Records) -> theory.BestTree | None:
    """Return the best static tree within the sizes of forwards whose cost is known, with the time outside forwards.

    None for methods without such trees, and without a baseline. Outside forwards, a tree is assumed to take as long as the
    baseline for each forward, and for each of its tokens what the method's trees take more than that, per token.
    """
    if method is None or method.formula != "tree" or len(method.models) < 2 or not base:
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

    def block(self, role: str) -> float:
        """Return the mean number of tokens that a forward of this model reads, in a cascade that defers single tokens."""

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

    def block(self, role: str) -> float:
        sizes = sizes_of(self.rows, role)
        forwards = sum(count for count, _ in sizes.values())
        return sum(size * count for size, (count, _) in sizes.items()) / forwards if forwards else 1.0

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

    def block(self, role: str) -> float:
        return 1.0 / self.deferred if self.deferred else 1.0

    def per_test(self) -> tuple[float, float]:
        return ASSUMED_DRAFTS, self.acceptance


def _speculation(method: Theory, rates: Rates) -> theory.RoundCounts | None:
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
    return theory.speculative(scheme, accepted, by_model.get(method.models[-1], 1.0))


def _block(method: Theory, rates: Rates) -> theory.RoundCounts | None:
    """Return the counts of speculation whose drafter writes a draft in one forward over as many rows."""
    counts = _speculation(method, rates)
    return None if counts is None else counts._replace(forwards=[{method.gamma[0]: 1.0}, *counts.forwards[1:]])


def _tree(method: Theory, rates: Rates) -> theory.RoundCounts | None:
    by_rank = rates.by_rank()
    return theory.tree(method, by_rank) if by_rank else None


def _chain(method: Theory, rates: Rates) -> theory.RoundCounts | None:
    """Return the counts of a chain, from the acceptance by level. Ignores what an EAGLE head and its base reread."""
    acceptance = rates.levels(len(method.thresholds) + 1)
    if acceptance is None:
        return None
    return polybasic.chain_round(acceptance, method.gamma[0], list(method.thresholds))


def _ensemble(method: Theory, rates: Rates) -> theory.RoundCounts | None:
    by_model, overall = rates.by_model(), rates.overall()
    if overall is None:
        return None
    return theory.speculative_ensemble([by_model.get(role, overall) for role in method.models], method.gamma)


def _drawn_model(method: Theory, rates: Rates) -> theory.RoundCounts:
    weights = method.parameters or {}
    return theory.drawn_model([weights[role] for role in method.models])


def _untested_run(method: Theory, rates: Rates) -> theory.RoundCounts:
    drafted, accepted = rates.per_test()
    return theory.untested_run(drafted, accepted, bonus=method.bonus != "none")


def _token_cascade(method: Theory, rates: Rates) -> theory.RoundCounts:
    return theory.sequential_cascade(rates.deferral(), rates.block(method.models[-1]))


def _sequence_cascade(method: Theory, rates: Rates) -> theory.RoundCounts:
    return theory.sequential_cascade(rates.deferral())


FORMULAS: dict[str, Formula] = {
    "speculation": _speculation,
    "block": _block,
    "tree": _tree,
    "chain": _chain,
    "ensemble": _ensemble,
    "drawn model": _drawn_model,
    "untested run": _untested_run,
    "token cascade": _token_cascade,
    "sequence cascade": _sequence_cascade,
}


def formula_of(method: Theory) -> Formula:
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
