"""Columns of tables, and the tables that only some methods have: cascades, drafts of varying length, chains."""

from collections.abc import Callable, Mapping
from typing import Any

from specbench.analysis.chains import NONE

Cell = Callable[[dict[str, Any]], str]
Columns = dict[str, Cell]


def special(methods: list[dict[str, Any]], base: str, large: str) -> dict[str, Columns]:
    """The tables, by title, that these methods call for. `large` is the model that verifies last."""
    out: dict[str, Columns] = {}
    if any(r["rule_rate"] is not None for r in methods):
        out["Cascades"] = {
            "method": lambda r: r["label"],
            "relative latency, end to end": relative_latency(base),
            "tokens an answer": _answer_length,
            "rule rate": number("rule_rate", "{:.1%}"),
            "large-model calls/token": _calls(large),
            "rejections/token": number("rejections_per_token", "{:.3f}"),
            "fallbacks": lambda r: _count(r, "fallbacks"),
            "rollbacks": lambda r: _count(r, "rollbacks"),
        }
    if any(r["verifier_rate"] is not None or "stop" in r["config"].get("proposer", {}) for r in methods):
        out["Runs (as SPRINTER counts)"] = {
            "method": lambda r: r["label"],
            "avg tokens": number("average_tokens", "{:.2f}"),
            "ms a generation, end to end": lambda r: "{:.1f} ± {:.1f}".format(*r["generation_milliseconds"]),
            "speedup over sd, end to end": over("sd", "over_sd"),
            "tokens an answer": _answer_length,
            "target calls/token": _calls(large),
            "GFLOP a generation": number("gigaflops", "{:.3g}"),
            "by the paper's count": number("papers_gigaflops", "{:.3g}"),
            "verifier accepts": number("verifier_rate", "{:.1%}"),
            "distance from target, predicted": number("predicted_distance", "{:.3f}"),
        }
    if any(r["levels"] for r in methods):
        out["Chains (as Polybasic counts)"] = {
            "method": lambda r: r["label"],
            "speedup (c), decoding": over(base, "speedup"),
            "accepted length (mu)": number("accepted_length", "{:.2f}"),
            "levels": _levels,
            "middle's tokens discarded/token": number("discarded_per_token", "{:.2f}"),
        }
    return out


def _answer_length(row: dict[str, Any]) -> str:
    return f"{row['tokens'] / row['generations']:.1f}"


def _calls(large: str) -> Cell:
    return lambda r: f"{r['forwards_per_token'].get(large, 0.0):.3f}"


def _levels(row: dict[str, Any]) -> str:
    """What each level tested, from the innermost: whose drafts, at which acceptance, how many tokens a round, how often."""
    return (
        "; ".join(
            f"{level['by'] or 'none'} {'' if level['acceptance'] is None else format(level['acceptance'], '.2f')}:"
            f" {level['length']:.2f} ± {level['lengths_sd']:.2f} tokens, {level['rounds']:.2f} rounds"
            for level in row["levels"]
        )
        or NONE
    )


def number(key: str, form: str) -> Cell:
    return lambda row: NONE if row.get(key) is None else form.format(row[key])


def over(base: str, key: str) -> Cell:
    """An estimate of how a method compares with the baseline; the baseline's own is 1."""
    return lambda row: "1.00x" if row["method"] == base else times(row.get(key))


def relative_latency(base: str) -> Cell:
    """Seconds an answer over the baseline's: lower is faster, so without the x of a speedup."""
    return lambda row: "1" if row["method"] == base else interval(row.get("relative_latency"), "{:.2f}") or NONE


def _count(row: dict[str, Any], key: str) -> str:
    return f"{row['noted'][key]:.0f}" if key in row["noted"] else NONE


def times(estimate: dict[str, float] | None) -> str:
    return interval(estimate, "{:.2f}", "x") or NONE


def interval(estimate: Mapping[str, float | None] | None, form: str, unit: str = "", scale: float = 1.0) -> str:
    """The value, with its interval where there is one; nothing for nothing."""
    if not estimate:
        return ""
    value, low, high = (estimate[key] for key in ("value", "low", "high"))
    assert value is not None
    told = form.format(scale * value) + unit
    return told if low is None or high is None else f"{told} [{form.format(scale * low)}, {form.format(scale * high)}]"


def score(metric: str, missing: str = NONE) -> Cell:
    """A metric times 100, as papers print it; `missing` where it was not scored."""
    return lambda row: interval(row["quality"].get(metric), "{:.1f}", scale=100.0) or missing
