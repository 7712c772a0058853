"""What methods cost in quality: the sentences of a conclusion on scores."""

from collections import Counter
from collections.abc import Iterator, Sequence

from specbench.analysis.intervals import Estimate
from specbench.analysis.run_summary import MethodSummary, RunSummary
from specbench.reporting.column import SCORE
from specbench.reporting.notes import counted


def score_change(summary: RunSummary, row: MethodSummary) -> Estimate | None:
    """Return the change of a method's score; None if the method keeps the distribution, or if the models are simulated."""
    return None if summary.simulated or summary.keeps_distribution(row) else row.score_change


def score_range(measured: Sequence[tuple[RunSummary, MethodSummary]]) -> str:
    """Return the sentence on the least and the greatest change of a method's score over runs; empty if there is none."""
    changes = [
        (change.value, f"{change_text(summary, change)} ({summary.spec.task.name})")
        for summary, row in measured
        if (change := score_change(summary, row))
    ]
    if not changes:
        return ""
    (_, least), (_, most) = min(changes), max(changes)
    part = f" in {len(changes)} of {len(measured)} runs" if len(changes) < len(measured) else ""
    values = f"is {least}" if len(changes) == 1 else f"ranges from {least} to {most}"
    return f" The change of its score{part} {values}."


def score_sentence(summary: RunSummary, change: Estimate) -> str:
    """Return the sentence on the score of a method relative to the baseline's."""
    if change.low is None or change.high is None:
        return f"Its score relative to the baseline's: {change_text(summary, change)}."
    if change.low == change.high == 0.0:
        return f"Its score equals the baseline's ({summary.headline})."
    if change.low <= 0.0 <= change.high:
        return f"Its score cannot be distinguished from the baseline's: {change_text(summary, change)}."
    return f"Its score differs from the baseline's: {change_text(summary, change)}."


def change_text(summary: RunSummary, change: Estimate) -> str:
    """Return the change of a score with its interval, in points of 100."""
    text = f"{summary.headline} {SCORE.number(change.value, signed=True)}"
    if change.low is None or change.high is None:
        return text
    return f"{text} [{SCORE.number(change.low, signed=True)}, {SCORE.number(change.high, signed=True)}]"


def uniform_score(summary: RunSummary) -> Iterator[str]:
    """Yield a warning if all methods score 0, or all score 100."""
    scores = {score.value for row in summary.measured if (score := summary.score(row))}
    if len(scores) == 1 and scores <= {0.0, 1.0}:
        value = f"{100 * scores.pop():.0f}"
        yield f"All methods score {value} on {summary.headline}, so this task cannot show a difference in quality here."


def uniform_scores(summaries: Sequence[RunSummary]) -> Iterator[str]:
    """Yield the warnings of `uniform_score` over several runs, each with the number of runs that have it."""
    warnings = Counter(
        sentence for summary in summaries if not summary.simulated for sentence in uniform_score(summary)
    )
    for sentence, count in warnings.items():
        yield sentence if count == len(summaries) else f"{counted(count, 'run')}: {sentence[0].lower()}{sentence[1:]}"
