"""What scores.json says of each method of a run."""

from pathlib import Path
from typing import Any

from specbench.analysis import metrics as m
from specbench.errors import ConfigError
from specbench.files import read_sealed
from specbench.runs.run_folder import SCORES
from specbench.runs.scores import ScoreRow, Scores
from specbench.scoring.metric import NO_ANSWER, Scored, is_combiner


def scores_of(folder: Path) -> Scores:
    """The run's scores.json; one without rows where nothing was scored yet. Raises ConfigError where it is damaged."""
    path = folder / SCORES
    if path.exists():
        scores = read_sealed(path, Scores, f"specbench score {folder}")
        names = [metric["name"] for metric in scores["metrics"]]
        if scores["headline"] and scores["headline"] not in names:
            raise ConfigError(
                f"{path}: damaged: headline '{scores['headline']}' is none of its metrics; help: specbench score"
            )
        if wrong := next((m["combine"] for m in scores["metrics"] if not is_combiner(m["combine"])), None):
            raise ConfigError(f"{path}: damaged: unknown way to combine scores '{wrong}'; help: specbench score")
        return scores
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
    unanswered = [float(v) for row in rows if isinstance(v := row["values"].get(NO_ANSWER), int | float)]
    combine = {metric["name"]: metric["combine"] for metric in scores["metrics"]}
    groups = sorted(set(groups_of(scores).values())) if scores["headline"] else []
    headline = scores["headline"]
    return {
        "quality": {name: _estimate(rows, name, how) for name, how in combine.items()},
        "quality_by_group": {
            group: _estimate([row for row in rows if row["group"] == group], headline, combine[headline])
            for group in groups
        },
        "no_answer": sum(unanswered) / len(unanswered) if unanswered else None,
    }


def _shared(rows: list[ScoreRow]) -> list[ScoreRow]:
    """The rows of those (sample, repeat) that every method has."""
    had: dict[str, set[tuple[str, int]]] = {}
    for row in rows:
        had.setdefault(row["method"], set()).add((row["sample"], row["repeat"]))
    common = set.intersection(*had.values()) if had else set()
    return [row for row in rows if (row["sample"], row["repeat"]) in common]


def _estimate(rows: list[ScoreRow], name: str, combine: str) -> dict[str, float | None] | None:
    scored = [Scored(row["values"][name], row["sample"], row["group"]) for row in rows if name in row["values"]]
    found = m.quality(scored, combine) if scored else None
    return found._asdict() if found else None
