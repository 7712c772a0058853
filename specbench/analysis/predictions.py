"""What theory says of a method, from the acceptance and the prices that were measured."""

from collections.abc import Callable
from typing import Any

from specbench.analysis import metrics as m
from specbench.analysis import speculation as d
from specbench.analysis import theory
from specbench.analysis.chains import chain_of


def predictions(table: dict[str, Any], baseline: dict[str, Any], rows: m.Rows, base: m.Rows) -> dict[str, Any]:
    """Predictions from the measured acceptance and cost ratio: the exact long-run speedup with a block at the price of one
    token, the same at a block's measured price, and where the paper prints another formula, that one."""
    prices = m.forward_seconds(rows)
    single = {role: sizes[1] for role, sizes in prices.items() if 1 in sizes}
    single |= {role: sizes[1] for role, sizes in m.forward_seconds(base).items() if 1 in sizes}
    roles, predicted = _roles(table), _predicted(table, rows)
    for role in roles:  # a middle model never reads one token alone
        if role in prices:
            single.setdefault(role, prices[role][min(prices[role])])
    if predicted is None or not all(role in single for role in (*roles, *baseline["scorers"])):
        return {}
    as_in_papers, measured = m.cost_of(roles, {}, single), m.cost_of(roles, prices, single)
    per_token = sum(single[role] for role in baseline["scorers"])
    c = single[roles[0]] / single[roles[-1]]
    out = {
        "predicted": predicted(as_in_papers, per_token),
        "corrected": predicted(measured, per_token),
        "cost_ratio": c,
    }
    if table["name"] == "speculative-ensemble" and len(roles) == 2:
        a = m.acceptance_by_model(rows).get(roles[0], m.acceptance_rate(rows))
        assert a is not None
        out["papers_prediction"] = theory.alternate_proposal(a, table["gamma"][0], table["gamma"][1], c)
    return out


def _predicted(table: dict[str, Any], rows: m.Rows) -> Callable[[theory.Cost, float], float] | None:
    """The method's theory: from a cost and the baseline's seconds a token to a speedup. None where there is none."""
    rates, overall, roles = m.acceptance_by_model(rows), m.acceptance_rate(rows), _roles(table)
    if table["name"] in ("token-cascade", "sequence-cascade"):
        rate = m.rule_rate(rows)
        read = round(1 / rate) if rate and table["name"] == "token-cascade" else 1
        return lambda cost, base: theory.sequential_cascade(rate or 0.0, cost, read)
    if table["name"] == "sprinter":
        return _sprinter(table, rows)
    if overall is None or not roles:
        return None
    if table.get("proposer", {}).get("name") == "chain":
        return _chain(table, rows)
    if table["name"] == "speculative-ensemble":
        a = [rates.get(role, overall) for role in roles]
        return lambda cost, base: theory.speculative_ensemble(a, table["gamma"], cost)
    drafts = roles[0] in table["scorers"]
    deferred = drafts and table.get("bonus", "deferred") == "deferred"
    return lambda cost, base: theory.speculative(
        rates.get(roles[0], overall) if deferred else overall,
        table["proposer"]["gamma"],
        cost,
        base,
        bonus=table.get("bonus", "deferred"),
        scorers=len(roles) - 1,
        drafter_scores=drafts,
        pending=rates.get(roles[-1], 1.0),
    )


def _sprinter(table: dict[str, Any], rows: m.Rows) -> Callable[[theory.Cost, float], float]:
    """Over all runs that end with a forward of the target: what was drafted since the last one, and how it fared."""
    rounds = [x for r in rows for x in r.rounds]
    tested = sum(x["tested"] for x in rounds)
    drafted = sum(x["drafted"] for x in rounds) / max(tested, 1)
    accepted = sum(x["accepted"] for x in rounds) / max(tested, 1)
    return lambda cost, base: theory.sprinter(drafted, accepted, cost, base, bonus=table.get("bonus", True))


def _chain(table: dict[str, Any], rows: m.Rows) -> Callable[[theory.Cost, float], float] | None:
    """Measured acceptance, level by level. What an EAGLE head reads again, and its base reads for it, is left out."""
    proposer, chains = chain_of(table)
    thresholds = [each["threshold"] for each in chains]
    rates = [level.acceptance for level in d.levels(rows)]
    known = [rate for rate in rates if rate is not None]
    if len(known) != len(thresholds) + 1:
        return None
    return lambda cost, base: theory.chain(known, proposer["gamma"], thresholds, cost, base)


def _roles(table: dict[str, Any]) -> list[str]:
    """The models of a method whose speed has a theory, the (default) proposer first; empty where none is known."""
    if table["name"] == "speculative-ensemble":
        return list(table["models"])
    if table["name"] in ("token-cascade", "sequence-cascade"):
        return [table["small"], table["large"]]
    if table["name"] == "sprinter":
        return [table["draft"], table["target"]]
    if table["name"] != "speculative":
        return []
    proposer, chains = chain_of(table)
    if proposer["name"] not in ("model", "eagle") or "stop" in proposer or "gamma" not in proposer:
        return []  # of drafts whose length varies there is no theory here
    drafting = proposer["model"] if proposer["name"] == "model" else proposer["head"]
    return [drafting, *(each["model"] for each in chains), *(role for role in table["scorers"] if role != drafting)]
