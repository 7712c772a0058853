"""The quality of a run's methods: scores, from scores.json, and the win rates of a judge."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from specbench import scoring
from specbench.analysis.intervals import Estimate, by_prompt, interval, interval_of_sums, mean_of_bounded, wilson
from specbench.analysis.metric import Direction, Metric, declare
from specbench.analysis.number_format import PERCENT, SCORE, SIGNED_SCORE, TENTHS_OF_PERCENT
from specbench.analysis.points import Point, PointValue
from specbench.errors import ConfigError
from specbench.files import read_with_checksum
from specbench.runs.run_folder import JUDGED, SCORES, Judged, JudgedRow, ScoreRow, Scores
from specbench.scoring import NO_ANSWER, Scored, is_combiner

JUDGE = "judge"  # the value of a point that names the judge


def scores_of(folder: Path) -> Scores:
    """Return a run's scores.json, without rows if nothing was scored yet. Raises ConfigError if it is damaged."""
    path = folder / SCORES
    if path.exists():
        scores = read_with_checksum(path, Scores, f"specbench score {folder}")
        names = [entry["name"] for entry in scores["metrics"]]
        if scores["headline"] and scores["headline"] not in names:
            raise ConfigError(
                f"{path}: damaged: headline '{scores['headline']}' is none of its metrics; help: specbench score"
            )
        if wrong := next((e["combine"] for e in scores["metrics"] if not is_combiner(e["combine"])), None):
            raise ConfigError(f"{path}: damaged: unknown way to combine scores '{wrong}'; help: specbench score")
        return scores
    return {"metrics": [], "headline": "", "records": 0, "rows": [], "not_executed": False, "version": ""}


def scores_by_prompt(scores: Scores, prompts: Mapping[str, str]) -> Scores:
    """Return scores with the sample that stands for each prompt, so that samples with equal prompts count as one."""
    return {**scores, "rows": [{**row, "sample": prompts.get(row["sample"], row["sample"])} for row in scores["rows"]]}


def groups_of(scores: Scores) -> dict[str, str]:
    """Return the subject or category of each sample. Empty if all have the same."""
    groups = {row["sample"]: row["group"] for row in scores["rows"]}
    return groups if len(set(groups.values())) > 1 else {}


@dataclass(frozen=True)
class Quality:
    """The scores of one method: every metric, the main one by group, and the share of generations without an answer."""

    quality: dict[str, Estimate | None]
    quality_by_group: dict[str, Estimate | None]
    no_answer: float | None


def quality(method: str, scores: Scores) -> Quality:
    """Return the scores of one method, over the generations that completed with every method.

    Otherwise a method would gain from failing on hard prompts.
    """
    rows = [row for row in _common_rows(scores["rows"]) if row["method"] == method]
    unanswered = [float(v) for row in rows if isinstance(v := row["values"].get(NO_ANSWER), int | float)]
    combine = {entry["name"]: entry["combine"] for entry in scores["metrics"]}
    headline = scores["headline"]
    groups = sorted(set(groups_of(scores).values())) if headline else []
    return Quality(
        {name: _score(rows, name, how) for name, how in combine.items()},
        {
            group: _score([row for row in rows if row["group"] == group], headline, combine[headline])
            for group in groups
        },
        sum(unanswered) / len(unanswered) if unanswered else None,
    )


def score_change(method: str, baseline: str, scores: Scores, metric: str = "", factor: float = 1.0) -> Estimate | None:
    """Return a method's score minus `factor` x the baseline's, with the interval over prompts that both have.

    The score is the main one, or another `metric` of the run. None for the baseline, and where either score is undefined.
    """
    metric = metric or scores["headline"]
    if method == baseline or not metric:
        return None
    combine = _combine_of(scores, metric)
    rows = _paired_rows(method, baseline, scores, metric)
    if not len(rows):
        return None
    width, whole = rows.shape[1] // 2, scoring.combiner(combine).whole
    if combine == "mean":
        sums = np.stack([rows[:, 0] - factor * rows[:, width], np.ones(len(rows))], axis=1)
        return interval_of_sums(sums, lambda s: s[..., 0] / s[..., 1])
    change = interval(rows, lambda part: whole(part[:, :width]) - factor * whole(part[:, width:]))
    return None if np.isnan(change.value) else change


def bounded_score_change(method: str, baseline: str, scores: Scores) -> Estimate | None:
    """Return what `score_change` does, with bounds that a few prompts with heavy losses do not break.

    Only means over prompts have such bounds; other metrics, such as BLEU over a corpus, keep their interval.
    """
    change = score_change(method, baseline, scores)
    if change is None or _combine_of(scores, scores["headline"]) != "mean":
        return change
    rows = _paired_rows(method, baseline, scores, scores["headline"])
    return mean_of_bounded(rows[:, 0] - rows[:, rows.shape[1] // 2])


def _combine_of(scores: Scores, metric: str) -> str:
    """Return how a metric combines the scores of samples."""
    return {entry["name"]: entry["combine"] for entry in scores["metrics"]}[metric]


def _paired_rows(method: str, baseline: str, scores: Scores, metric: str) -> np.ndarray:
    """Return the statistics of two methods on the prompts that both have, (prompts, 2 d): ours, then the baseline's."""
    ours, theirs = (_by_sample(scores, name, metric, _combine_of(scores, metric)) for name in (method, baseline))
    return np.array([[*ours[sample], *theirs[sample]] for sample in ours if sample in theirs])


def _by_sample(scores: Scores, method: str, name: str, combine: str) -> dict[str, list[float]]:
    """Return the statistics of a metric by sample, over the generations that every method has."""
    rows = [row for row in _common_rows(scores["rows"]) if row["method"] == method and name in row["values"]]
    scored = [Scored(row["values"][name], row["sample"], row["group"]) for row in rows]
    samples = dict.fromkeys(row["sample"] for row in rows)
    return dict(zip(samples, scoring.table(combine, scored).tolist(), strict=True)) if scored else {}


def score_estimate(scored: Sequence[Scored], combine: str) -> Estimate | None:
    """Return a metric over prompts, with its interval. None if it is undefined, as pass@k from fewer than k generations.

    Repeats of a prompt stay together. If every score is 0 or 1 and all are equal, the interval is Wilson's.
    """
    rows, whole = scoring.table(combine, scored), scoring.combiner(combine).whole
    ones = np.stack([rows[:, 0], np.ones(len(rows))], axis=1)
    estimate = interval_of_sums(ones, lambda s: s[..., 0] / s[..., 1]) if combine == "mean" else interval(rows, whole)
    if np.isnan(estimate.value):
        return None
    is_share = rows.shape[1] == 2 and set(rows[:, 0].tolist()) in ({0.0}, {1.0})
    return wilson(estimate.value, len(rows)) if is_share and estimate.low is not None else estimate.within(0.0, 1.0)


def _common_rows(rows: list[ScoreRow]) -> list[ScoreRow]:
    """Return the rows of those (sample, repeat) that every method has."""
    had: dict[str, set[tuple[str, int]]] = {}
    for row in rows:
        had.setdefault(row["method"], set()).add((row["sample"], row["repeat"]))
    common = set.intersection(*had.values()) if had else set()
    return [row for row in rows if (row["sample"], row["repeat"]) in common]


def _score(rows: list[ScoreRow], name: str, combine: str) -> Estimate | None:
    scored = [Scored(row["values"][name], row["sample"], row["group"]) for row in rows if name in row["values"]]
    return score_estimate(scored, combine) if scored else None


# Win rates: how often a judge preferred one method's continuation to another's


@dataclass(frozen=True)
class WinRates:
    """The outcomes of the comparisons of two methods, as shares, with intervals over prompts.

    `decided` is wins / (wins + losses), None if every comparison is a tie. `half_ties` is wins + ties / 2. `wins_spread` is
    the standard deviation of the wins over repeats, as in SPRINTER's table. `unclear` counts answers that name no letter,
    and `equal` the comparisons of equal texts, which are not sent to the judge.
    """

    wins: Estimate
    ties: Estimate
    losses: Estimate
    half_ties: Estimate
    decided: Estimate | None
    wins_spread: float
    comparisons: int
    unclear: int
    equal: int


def win_rates(rows: Sequence[JudgedRow]) -> WinRates:
    """Return the shares of wins, ties and losses of one or more comparisons."""
    table = by_prompt(
        (*(row["verdict"] == outcome for outcome in (1.0, 0.5, 0.0)), row.get("prompt", row["sample"])) for row in rows
    )
    decided = table[table[:, 0] + table[:, 2] > 0]
    repeats = defaultdict(list)
    for row in rows:
        repeats[row["repeat"]].append(row["verdict"] == 1.0)
    return WinRates(
        wins=_share(table, [0]),
        ties=_share(table, [1]),
        losses=_share(table, [2]),
        half_ties=_share(np.stack([2 * table[:, 0] + table[:, 1], table[:, 1] + 2 * table[:, 2]], axis=1), [0]),
        decided=_share(decided[:, [0, 2]], [0]) if len(decided) else None,
        wins_spread=float(np.std([np.mean(wins) for wins in repeats.values()])),
        comparisons=len(rows),
        unclear=sum(row["unclear"] for row in rows),
        equal=sum(row.get("equal", False) for row in rows),
    )


def _share(table: np.ndarray, columns: Sequence[int]) -> Estimate:
    """Return the sum of these columns of a table (prompts, values) / the sum of all columns, with its interval."""
    share = interval_of_sums(table, lambda sums: sums[..., columns].sum(-1) / sums.sum(-1)).within(0.0, 1.0)
    return wilson(share.value, len(table)) if share.low is not None and share.value in (0.0, 1.0) else share


def win_rate_values(rates: WinRates) -> dict[str, PointValue]:
    """Return the win rates by the keys of their report columns."""
    values: dict[str, PointValue] = {
        "wins": rates.wins,
        "ties": rates.ties,
        "losses": rates.losses,
        "wins_half_ties": rates.half_ties,
        "wins_spread": rates.wins_spread,
    }
    return values if rates.decided is None else {**values, "decided_wins": rates.decided}


def judged_of(folder: Path) -> Judged | None:
    """Return the comparisons of a run folder; None for a run that was not judged."""
    path = folder / JUDGED
    if not path.exists():
        return None
    return read_with_checksum(path, Judged, "restore or delete it, and judge again")


def judged_points(folder: Path, points: Sequence[Point]) -> list[Point]:
    """Return the win rates of a judged run, as another point of the judged method. Empty for other runs."""
    judged = judged_of(folder)
    if judged is None or not judged["rows"]:
        return []
    template = next((p for p in points if (p.run, p.name) == (folder.name, judged["of"]) and not p.group), None)
    if template is None:
        return []
    return [replace(template, values={**win_rate_values(win_rates(judged["rows"])), JUDGE: judged["label"]})]


for _about in (
    Metric(
        name="score", format=SCORE, better=Direction.higher, is_ranked=True,
        definition="A column per metric of the task, under the metric's name. The first table has the main metric only.",
    ),
    Metric(
        name="score_change", heading="change of the score", format=SIGNED_SCORE, better=Direction.higher,
        definition="The main score minus the baseline's, with the interval over prompts that both completed.",
    ),
    Metric(
        name="no_answer", heading="no answer", unit="share", format=PERCENT, better=Direction.lower,
        definition="Share of generations whose text contains no answer.",
    ),
    Metric(
        name="wins", unit="share", format=TENTHS_OF_PERCENT, better=Direction.higher,
        definition="Comparisons in which the judge preferred the method's continuation / comparisons.",
    ),
    Metric(
        name="ties", unit="share", format=TENTHS_OF_PERCENT,
        definition="Comparisons in which the judge preferred neither / comparisons.",
    ),
    Metric(
        name="losses", unit="share", format=TENTHS_OF_PERCENT, better=Direction.lower,
        definition="Comparisons in which the judge preferred the other method's continuation / comparisons.",
    ),
    Metric(
        name="decided_wins", heading="wins without ties", unit="share", format=TENTHS_OF_PERCENT,
        better=Direction.higher, definition="Wins / (wins + losses).",
    ),
    Metric(
        name="wins_half_ties", heading="wins and half of the ties", unit="share", format=TENTHS_OF_PERCENT,
        better=Direction.higher, definition="(Wins + ties / 2) / comparisons. 50 % if neither is preferred.",
    ),
    Metric(
        name="wins_spread", heading="wins, standard deviation", unit="share", format=TENTHS_OF_PERCENT,
        definition="Standard deviation of the wins over repeats, as SPRINTER prints it.",
    ),
):  # fmt: skip
    declare(_about)
