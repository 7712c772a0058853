"""What scores.json says of each method of a run."""

from pathlib import Path
from typing import Any

from specbench.records import SCORES, read_json
from specbench.report import metrics as m
from specbench.scoring.metric import NO_ANSWER, Scored

Scores = dict[str, Any]


def scores_of(folder: Path) -> Scores:
    """The run's scores.json; one without rows where nothing was scored yet."""
    path = folder / SCORES
    if path.exists():
        return dict(read_json(path))
    return {"metrics": [], "headline": "", "records": 0, "rows": [], "not_executed": False, "version": ""}


def groups_of(scores: Scores) -> dict[str, str]:
    """Sample -> its subject or category; empty where all are of one."""
    groups = {row["sample"]: row["group"] for row in scores["rows"]}
    return groups if len(set(groups.values())) > 1 else {}


def quality(method: str, scores: Scores) -> dict[str, Any]:
    """Every metric of one method, the headline by group as well, and how often no answer was found.

    Over those generations that no method failed at: a method must not gain by failing where it is hard.
    """
    rows = [row for row in _shared(scores["rows"]) if row["method"] == method]
    told = [row["values"][NO_ANSWER] for row in rows if NO_ANSWER in row["values"]]
    combine = {metric["name"]: metric["combine"] for metric in scores["metrics"]}
    groups = sorted(set(groups_of(scores).values())) if scores["headline"] else []
    headline = scores["headline"]
    return {
        "quality": {name: _estimate(rows, name, how) for name, how in combine.items()},
        "quality_by_group": {
            group: _estimate([row for row in rows if row["group"] == group], headline, combine[headline])
            for group in groups
        },
        "no_answer": sum(told) / len(told) if told else None,
    }


def _shared(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of those (sample, repeat) that every method has."""
    had: dict[str, set[tuple[str, int]]] = {}
    for row in rows:
        had.setdefault(row["method"], set()).add((row["sample"], row["repeat"]))
    common = set.intersection(*had.values()) if had else set()
    return [row for row in rows if (row["sample"], row["repeat"]) in common]


def _estimate(rows: list[dict[str, Any]], name: str, combine: str) -> dict[str, float | None] | None:
    scored = [Scored(row["values"][name], row["sample"], row["group"]) for row in rows if name in row["values"]]
    found = m.quality(scored, combine) if scored else None
    return found._asdict() if found else None
