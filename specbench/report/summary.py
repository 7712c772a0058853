"""A run folder as one dictionary: per method its speeds, what explains them, what theory predicted, and its quality."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specbench import theory
from specbench.errors import ConfigError
from specbench.records import SAMPLES, SEMANTICS, Record, read
from specbench.report import metrics as m
from specbench.report.quality import groups_of, quality, scores_of

SUMMARY = "summary.json"


def summarise(folder: Path) -> dict[str, Any]:
    """The summary of a run folder, complete or not. Raises ConfigError where the folder holds no run."""
    if not (folder / "run.toml").exists() or not (folder / SAMPLES).exists():
        raise ConfigError(f"{folder} holds no run (no run.toml and samples.jsonl); help: specbench run")
    config = tomllib.loads((folder / "run.toml").read_text(encoding="utf-8"))
    environment = json.loads((folder / "env.json").read_text(encoding="utf-8"))
    if config.get("semantics") != SEMANTICS:
        raise ConfigError(f"{folder} was written by another version of specbench; measure anew")
    records, scores = list(read(folder)), scores_of(folder)
    wanted = len(config["methods"]) * config["task"]["data"]["samples"] * config["decoding"]["repeats"]
    return {
        "schema": 1,
        "run": folder.name,
        "folder": str(folder),
        "pair": config["pair"]["name"],
        "models": config["pair"]["models"],
        "task": f"{config['task']['name']}@{config['task']['version']}",
        "data": config["task"]["data"],
        "decoding": config["decoding"],
        "engine": config["engine"],
        "made_up": config["pair"].get("made_up", ""),
        "synthetic": config["pair"].get("synthetic"),
        "baseline": config["baseline"],
        "clock": config["clock"],
        "environment": environment,
        "complete": len(records) == wanted,
        "metrics": scores["metrics"],
        "headline": scores["headline"],
        "scored_by": scores["version"],
        "continues": config["task"]["continues"],
        "not_executed": scores["not_executed"],
        "scored": scores["records"] == len(records),
        "methods": [
            _method(name, records, config, groups_of(scores), environment["copy_bytes_per_second"])
            | quality(name, scores)
            for name in config["methods"]
        ],
    }


def _method(
    name: str, records: list[Record], config: dict[str, Any], groups: dict[str, str], bandwidth: float
) -> dict[str, Any]:
    rows, base = m.complete(records, name), m.complete(records, config["baseline"])
    out: dict[str, Any] = {
        "method": name,
        "label": " ".join([name, *(f"({word})" for word in config["pair"].get("made_up", "").split())]),
        "config": config["methods"][name],
        "generations": len(rows),
        "failed": sum(r.method == name and r.error is not None for r in records),
        "first_error": next((r.error for r in records if r.method == name and r.error), None),
        "prompts": len({r.sample for r in rows}),
    }
    if not rows:
        return out
    out |= {
        "tokens": sum(len(r.tokens) for r in rows),
        "tokens_per_second": m.tokens_per_second(rows),
        "end_to_end_tokens_per_second": m.tokens_per_second(rows, end_to_end=True),
        "first_token_seconds": m.first_token_seconds(rows),
        "round_milliseconds": m.round_milliseconds(rows),
        "accepted_length": m.accepted_length(rows),
        "acceptance_rate": m.acceptance_rate(rows),
        "acceptance_by_position": m.acceptance_by_position(rows),
        "acceptance_by_model": m.acceptance_by_model(rows),
        "wasted_share": m.wasted_share(rows),
        "forwards_per_token": m.forwards_per_token(rows),
        "noted": m.noted(rows),
        "rule_rate": m.rule_rate(rows),
        "communication_share": m.communication_share(rows),
        "moved_bytes_per_token": m.moved_per_token(rows),
        "rejections_per_token": m.rejections_per_token(rows),
        "outside_forwards": m.outside_forwards(rows),
        "bound_share": m.bound_share(rows, config["pair"]["traffic"], bandwidth),
        "drift": m.drift(rows),
        "cut_by_length": sum(r.finish in ("length", "window") for r in rows) / len(rows),
        "cut_prompts": sum(r.prompt_cut > 0 for r in rows) / len(rows),
    }
    if name != config["baseline"] and m.paired(rows, base)[0]:
        out |= {
            "speedup": m.speedup(rows, base)._asdict(),
            "end_to_end_speedup": m.speedup(rows, base, end_to_end=True)._asdict(),
            "relative_latency": m.relative_latency(rows, base)._asdict(),
            "geometric_mean_speedup": m.geometric_mean_speedup(rows, base)._asdict(),
            "papers_speedup": m.papers_speedup(rows, base),
            "speedup_by_group": _speedup_by_group(rows, base, groups),
            "identical_output": m.identical_share(rows, base),
            **_predictions(config["methods"][name], config["methods"][config["baseline"]], rows, base),
        }
        if out.get("corrected"):
            out["measured_over_corrected"] = out["speedup"]["value"] / out["corrected"]
    return out


def _speedup_by_group(rows: m.Rows, base: m.Rows, groups: dict[str, str]) -> dict[str, Any]:
    """The speedup on each subject or category; a sample that was not scored yet is of none."""
    out = {}
    for group in sorted(set(groups.values())):
        ours, theirs = ([r for r in side if groups.get(r.sample) == group] for side in (rows, base))
        if m.paired(ours, theirs)[0]:
            out[group] = m.speedup(ours, theirs)._asdict()
    return out


def _predictions(table: dict[str, Any], baseline: dict[str, Any], rows: m.Rows, base: m.Rows) -> dict[str, Any]:
    """Predictions from the measured acceptance and cost ratio: the exact long-run speedup with a block at the price of one
    token, the same at a block's measured price, and where the paper prints another formula, that one."""
    prices = m.forward_seconds(rows)
    single = {role: sizes[1] for role, sizes in prices.items() if 1 in sizes}
    single |= {role: sizes[1] for role, sizes in m.forward_seconds(base).items() if 1 in sizes}
    roles, predicted = _roles(table), _predicted(table, rows)
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
    if overall is None or not roles:
        return None
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


def _roles(table: dict[str, Any]) -> list[str]:
    """The models of a method whose speed has a theory, the (default) proposer first; empty where none is known."""
    if table["name"] == "speculative-ensemble":
        return list(table["models"])
    if table["name"] in ("token-cascade", "sequence-cascade"):
        return [table["small"], table["large"]]
    if table["name"] == "speculative" and table["proposer"]["name"] == "model" and "stop" not in table["proposer"]:
        drafting = table["proposer"]["model"]
        return [drafting, *(role for role in table["scorers"] if role != drafting)]
    return []
