"""Summaries as points: one a cell and method (and group of prompts), told apart by a suite's dimensions, with its values and
the paper's own beside them."""

import csv
import io
import re
import tomllib
from collections.abc import Iterable
from importlib import resources
from typing import Any

Summary = dict[str, Any]
Point = dict[str, Any]
PLACE = ("pair", "task", "group", "T", "method", "setting", "made_up", "data", "run")
ANY = ""  # in a reference: whatever this dimension is
COMPARED = {"speedup": "papers_speedup"}  # what of ours is by the papers' own averaging, where a value is not


def points(summaries: Iterable[Summary], reference: Iterable[Point] = ()) -> list[Point]:
    """All points of some runs. `values` are numbers or estimates {value, low, high}; `paper` the reference's values of those
    whose pair, method, task and temperature are the paper's, and whose models and data are real."""
    reference, found = list(reference), []
    for summary in summaries:
        for row in summary["methods"]:
            if "tokens" in row:
                found += _of(summary, row)
    for point in found:
        real = not point["made_up"] and point["data"] != "synthetic"
        point["paper"] = _papers(point, reference) if real else {}
    return found


def reference_of(suite: str) -> list[Point]:
    """What the paper prints for a suite's cells, from configs/reference/; empty where it prints no numbers."""
    path = resources.files("specbench.configs") / "reference" / f"{suite}.csv"
    if not path.is_file():
        return []
    rows = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))
    return [{**row, "value": float(row["value"])} for row in rows]


def swept(setting: str) -> tuple[float | None, str]:
    """The number of a setting like `alpha=0.3`, or `gamma=[5, 1]` (its first), and what else was set (`models=...`)."""
    first, *rest = re.split(r", (?=\w+=)", setting)
    try:
        value = tomllib.loads(f"v = {first.partition('=')[2]}")["v"]
    except tomllib.TOMLDecodeError:
        return None, setting
    value = value[0] if isinstance(value, list) and value else value
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    return number, ", ".join(rest)


def _of(summary: Summary, row: dict[str, Any]) -> list[Point]:
    method, _, setting = row["method"].partition("(")
    base, setting = row["method"] == summary["baseline"], setting.removesuffix(")")
    x, variant = swept(setting)
    place: Point = {
        "pair": summary["pair"],
        "task": summary["task"].partition("@")[0],
        "group": "",
        "T": summary["decoding"]["temperature"],
        "method": method,
        "setting": setting,
        "x": x,
        "variant": variant,
        "label": row["label"],
        "made_up": summary["made_up"],
        "data": summary["data"]["source"],
        "run": summary["run"],
        "baseline": base,
    }
    values = {key: value for key, value in row.items() if isinstance(value, int | float | list | dict | tuple)}
    values |= {"score": row["quality"].get(summary["headline"]), "headline": summary["headline"]}
    values |= row["quality"]
    if row.get("generations"):
        values["answer_length"] = row["tokens"] / row["generations"]
    values["target_calls"] = row["forwards_per_token"].get(list(summary["models"])[-1])
    rate = row["rule_rate"] if row.get("rule_rate") is not None else values["target_calls"]
    values["deferral_rate"] = rate  # the oracle runs both models everywhere: only its rule tells
    if base:
        values |= dict.fromkeys(("speedup", "papers_speedup", "end_to_end_speedup", "relative_latency"), 1.0)
    if row["method"] == "sd":
        values["over_sd"] = 1.0
    out = [{**place, "values": values}]
    for group in row.get("groups", {}):
        inner = dict(row["groups"][group]) | ({"speedup": 1.0, "papers_speedup": 1.0} if base else {})
        out.append({**place, "group": group, "values": inner})
    return out


def _papers(point: Point, reference: list[Point]) -> dict[str, float]:
    """The paper's values of a point."""

    def same(known: Point) -> bool:
        ours = {**point, "T": f"{point['T']:g}"}
        alike = all(known[key] in (ANY, ours[key]) for key in ("pair", "method", "task", "T"))
        return alike and known["group"] == ours["group"]  # none is the whole of them

    return {known["metric"]: known["value"] for known in reference if same(known)}


def number_of(value: Any) -> float | None:
    """A value's number, whatever it is told as."""
    if isinstance(value, dict):
        value = value.get("value")
    if isinstance(value, list | tuple):
        value = value[0] if value else None
    return float(value) if isinstance(value, int | float) else None


def bounds_of(value: Any) -> tuple[float, float] | None:
    """A value's interval; the number itself where it has none."""
    number = number_of(value)
    if number is None:
        return None
    low, high = (value.get("low"), value.get("high")) if isinstance(value, dict) else (None, None)
    return (number, number) if low is None or high is None else (low, high)
