"""Seconds per token of a method whose models were never measured: theory at an assumed acceptance rate.

Works on a method's TOML table with the pair's roles. A forward is assumed to cost the same for one token and for a draft.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from specbench.analysis.theory import ensembles, polybasic, speculation
from specbench.config.construct import Table
from specbench.config.method_tables import default_length, innermost, listed, roles_in

ADAPTIVE = 5  # assumed mean draft length where a stop rule or a verifier decides
HEAD = "eagle@"  # prefix of an EAGLE head's cost, before its base
LOOKUP = "pld"  # drafts without a forward


@dataclass(frozen=True, kw_only=True)
class Assumption:
    """The acceptance rate of draft tokens, and the share of tokens or answers that a cascade defers to its large model."""

    acceptance: float
    deferral: float


FAST = Assumption(acceptance=0.9, deferral=0.0)  # assumed
SLOW = Assumption(acceptance=0.5, deferral=1.0)  # assumed


def seconds_per_token(
    table: Table, seconds: Mapping[str, float], sizes: Mapping[str, int], assumed: Assumption
) -> float:
    """Return the mean seconds per token of a method.

    `seconds` is the time of a forward by role, and by HEAD and role for EAGLE heads; `sizes` are parameters by role. A method
    of an unknown kind, as a plugin defines, costs between one forward of its fastest model and one of each of its models. If
    it names no model, all models of the pair count.
    """
    kind = table.get("name")
    scorers = listed(table, "scorers")
    if kind == "autoregressive":
        return sum(seconds[role] for role in scorers)
    if kind == "parallel":
        return max(seconds[role] for role in scorers)
    if kind == "hf-generate":
        return seconds[str(table["model"])]
    if kind in ("token-cascade", "sequence-cascade"):
        return seconds[str(table["small"])] + assumed.deferral * seconds[str(table["large"])]
    if kind in ("bild", "sprinter", "hf-assisted"):
        return _drafting_pair(table, seconds, sizes, assumed)
    if kind == "speculative-ensemble":
        return _ensemble(table, seconds, sizes, assumed)
    if kind == "speculative" and isinstance(table.get("proposer"), dict):
        return _speculative(table, seconds, sizes, assumed)
    named = [seconds[role] for role in dict.fromkeys(roles_in(table)) if role in seconds] or list(seconds.values())
    return min(named) if assumed is FAST else sum(named)


def _drafting_pair(table: Table, seconds: Mapping[str, float], sizes: Mapping[str, int], assumed: Assumption) -> float:
    """Return the seconds per token of a draft model and a target, without a deferred bonus token."""
    draft = str(table.get("draft") or table.get("small"))
    target = str(table.get("model") or table.get("target") or table.get("large"))
    gamma = _integer(table.get("gamma")) or default_length(sizes, draft, target)
    scheme = speculation.Scheme(gamma=gamma if table["name"] == "hf-assisted" else ADAPTIVE, bonus="exact")
    costs = (seconds[draft], seconds[target])
    return 1.0 / speculation.speculative(scheme, assumed.acceptance, lambda i, _: costs[i], 1.0)


def _ensemble(table: Table, seconds: Mapping[str, float], sizes: Mapping[str, int], assumed: Assumption) -> float:
    models = listed(table, "models")
    costs = [seconds[role] for role in models]
    given = table.get("gamma")
    gamma = [int(each) for each in given] if isinstance(given, list | tuple) else []
    gamma = gamma or [default_length(sizes, models[0], models[-1])]
    gamma += [1] * (len(models) - len(gamma))
    speedup = ensembles.speculative_ensemble([assumed.acceptance] * len(models), gamma, lambda i, _: costs[i])
    return sum(costs) / speedup


def _speculative(table: Table, seconds: Mapping[str, float], sizes: Mapping[str, int], assumed: Assumption) -> float:
    """Return the seconds per token of speculation by a model, a head, a lookup, or a chain of them."""
    scorers = listed(table, "scorers")
    inner, verifier = innermost(table["proposer"], scorers[-1])
    assert inner is not None
    drafter = _drafter(inner)
    fixed = _integer(inner.get("gamma")) or default_length(sizes, drafter, verifier)
    gamma = ADAPTIVE if "stop" in inner else fixed
    middle, thresholds = _middle(table["proposer"])
    if middle:
        models = [drafter, *middle, scorers[-1]]
        rates = [assumed.acceptance] * (len(models) - 1)
        costs = [_seconds(role, seconds) for role in models]
        return 1.0 / polybasic.chain(rates, gamma, thresholds, lambda i, _: costs[i], 1.0)
    verifying = [role for role in scorers if role != drafter]
    scheme = speculation.Scheme(
        gamma=gamma,
        bonus=str(table.get("bonus", "deferred")),
        scorers=len(verifying),
        drafter_scores=drafter in scorers,
    )
    costs = [_seconds(role, seconds) for role in (drafter, *verifying)]
    a = assumed.acceptance
    return 1.0 / speculation.speculative(scheme, a, lambda i, _: costs[i], 1.0, pending=a)


def _middle(proposer: object) -> tuple[list[str], list[int]]:
    """Return the middle models of a chain and their thresholds, the innermost first."""
    models: list[str] = []
    thresholds: list[int] = []
    while isinstance(proposer, dict) and proposer.get("name") == "chain":
        models.insert(0, str(proposer.get("model")))
        thresholds.insert(0, _integer(proposer.get("threshold")) or 1)
        proposer = proposer.get("proposer")
    return models, thresholds


def _drafter(proposer: Table) -> str:
    """Return the key of a proposer's cost: a role, a head with its base, or LOOKUP."""
    if proposer.get("name") == "eagle":
        return f"{HEAD}{proposer.get('base', 'target')}"
    return str(proposer.get("model", LOOKUP))


def _seconds(key: str, seconds: Mapping[str, float]) -> float:
    return 0.0 if key == LOOKUP else seconds[key]


def _integer(value: object) -> int:
    return value if isinstance(value, int) else 0
