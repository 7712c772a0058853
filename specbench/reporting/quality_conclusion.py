"""What the conclusion says about scores: losses, contradictions, uniform scores, and judged answers."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from specbench.analysis.intervals import Estimate
from specbench.analysis.number_format import SCORE, TENTHS_OF_PERCENT, TIMES
from specbench.analysis.quality import win_rates
from specbench.analysis.run_summary import MethodSummary, RunSummary
from specbench.files import read_with_checksum
from specbench.note import Note
from specbench.reporting.setup_lines import counted
from specbench.reporting.standings import MOST_NAMED, alike_text, is_alike, number_of, speedup_of
from specbench.runs.run_folder import SCORES, Judged, Scores, read

MOST_SHOWN = 80  # characters of an example


def contradictions(summary: RunSummary, rows: Sequence[MethodSummary]) -> Iterator[Note]:
    """Yield the methods whose greedy tokens contradict the distribution that they declare."""
    for row in rows:
        if summary.contradicted(row):
            wrong = f"{row.number('wrong_tokens'):.0f} of {row.tokens // max(summary.decoding.repeats, 1)}"
            name = summary.spec.methods[row.method].preset
            yield Note(
                "contradiction",
                f"{row.label} is declared lossless, but {wrong} greedy tokens differ from those that {summary.baseline} would"
                " select, by more than rounding explains",
                help=f"specbench verify -m {name} -p {summary.pair}",
                subject=row.method,
            )


def lossy_alternative(summary: RunSummary, leading: MethodSummary, rows: Sequence[MethodSummary]) -> Iterator[Note]:
    """Yield the fastest method that is not lossless, with its score, if the leading method is lossless."""
    if not summary.keeps_distribution(leading):
        return
    others = [row for row in rows if not summary.keeps_distribution(row) and not summary.contradicted(row)]
    if not others:
        return
    best = max(others, key=lambda row: number_of(summary, row))
    speedup = speedup_of(summary, best)
    kind = "not lossless" if all(summary.lossless(row) is False for row in others) else "not declared lossless"
    rank = f", rank {best.rank} of {len(summary.measured_methods)}" if best.rank and len(rows) > MOST_NAMED else ""
    change = f"; change of its score: {change_text(summary, best.score_change)}" if best.score_change else ""
    alike = [row for row in others if row is not best and is_alike(summary, best, row)]
    more = f" {alike_text(summary, alike)}" if alike else ""
    text = f"The fastest method that is {kind} is {best.label}: {TIMES.text(speedup)}{rank}{change}.{more}"
    yield Note("fastest lossy method", text, subject=best.method)


def against_lossless(summary: RunSummary, rows: Sequence[MethodSummary]) -> Iterator[Note]:
    """Yield whether methods that are not lossless are faster than the fastest lossless one, and their changes of the score.

    The baseline does not count as a lossless method. Of many methods, the fastest are named.
    """
    lossless = [row for row in rows if summary.keeps_distribution(row)]
    speeds = {row.method: value for row in rows if isinstance(value := row.value("over_lossless"), Estimate)}
    others = sorted((row for row in rows if row.method in speeds), key=lambda row: -speeds[row.method].value)
    if not lossless or not others or any(summary.contradicted(row) for row in rows):
        return  # a method that contradicts its declaration may be the one that the ratios refer to
    rival = max(lossless, key=lambda row: row.number("end_to_end_tokens_per_second") or 0.0)
    values = [
        f"{row.label} is {TIMES.text(speeds[row.method])} as fast"
        + (f" (change of the score: {change_text(summary, row.score_change)})" if row.score_change else "")
        for row in others[:MOST_NAMED]
    ]
    more = f"; {len(others) - MOST_NAMED} slower methods are in the table" if len(others) > MOST_NAMED else ""
    faster = [row.label for row in others if (speeds[row.method].low or 0.0) > 1.0]
    answer = f"Faster: {', '.join(faster)}." if faster else "No gain in speed is shown."
    text = f"Compared with {rival.label}, the fastest lossless method, end to end: {'; '.join(values)}{more}. {answer}"
    yield Note("against lossless", text, subject=others[0].method)


def change_of_score(summary: RunSummary, row: MethodSummary) -> Estimate | None:
    """Return the change of a method's score; None if the method keeps the distribution, or if the models are simulated."""
    return None if summary.simulated or summary.keeps_distribution(row) else row.score_change


def score_range(measured: Sequence[tuple[RunSummary, MethodSummary]]) -> str:
    """Return the sentence on the least and the greatest change of a method's score over runs; empty if there is none."""
    changes = [
        (change.value, f"{change_text(summary, change)} ({summary.spec.task.name})")
        for summary, row in measured
        if (change := change_of_score(summary, row))
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


def uniform_score(summary: RunSummary) -> Iterator[Note]:
    """Yield a warning if all methods score 0, or all score 100."""
    scores = {score.value for row in summary.measured_methods if (score := summary.score(row))}
    if len(scores) == 1 and scores <= {0.0, 1.0}:
        value = f"{100 * scores.pop():.0f}"
        text = (
            f"All methods score {value} on {summary.headline}, so this task cannot show a difference in quality here."
        )
        yield Note("uniform score", text)


def example_of_zero(summary: RunSummary) -> str:
    """Return a sentence with an output that scored 0 and what its grader looked for; empty for another score or no texts."""
    folder, scores = Path(summary.folder), [summary.score(row) for row in summary.measured_methods]
    if any(score and score.value for score in scores) or not (folder / SCORES).is_file():
        return ""
    excerpts = read_with_checksum(folder / SCORES, Scores).get("samples", {})
    record = next((each for each in read(folder) if each.error is None and each.text.strip()), None)
    if record is None or record.sample not in excerpts:
        return ""
    signature = next(metric["signature"] for metric in summary.metrics if metric["name"] == summary.headline)
    return (
        f" For example, {record.method} wrote {_end_of(record.text)}, where the reference is"
        f" {_end_of(excerpts[record.sample]['reference'])} ({signature.partition('|task:')[0]})."
    )


def _end_of(text: str) -> str:
    """Return the end of a text in quotes, on one line."""
    plain = " ".join(text.split())
    return f'"{plain}"' if len(plain) <= MOST_SHOWN else f'"...{plain[-MOST_SHOWN:]}"'


def uniform_scores(summaries: Sequence[RunSummary]) -> Iterator[Note]:
    """Yield the warnings of `uniform_score` over several runs, each with the number of runs that have it."""
    counts = Counter(note.text for summary in summaries if not summary.simulated for note in uniform_score(summary))
    for text, count in counts.items():
        in_some = f"{counted(count, 'run')}: {text[0].lower()}{text[1:]}"
        yield Note("uniform score", text if count == len(summaries) else in_some)


def judged_conclusion(judged: Judged) -> list[Note]:
    """Return how often the judge preferred each method, and whether that differs from chance."""
    rates, text = win_rates(judged["rows"]), TENTHS_OF_PERCENT.text
    if rates.equal == rates.comparisons:
        both = f"{judged['of']} and {judged['against']}"
        equal = f"All {counted(rates.comparisons, 'text')} of {both} are equal, so the judge was not called."
        return [Note("judge", equal)]
    out = [
        f"{judged['label']} prefers {judged['of']} in {text(rates.wins)} and {judged['against']} in {text(rates.losses)} of"
        f" {counted(rates.comparisons, 'comparison')}; {text(rates.ties)} are ties."
    ]
    decided = rates.decided
    if decided is None:
        out.append("All comparisons are ties, so this judge shows no difference between the methods.")
    elif decided.low is None or decided.high is None:
        out.append("Intervals need more prompts.")
    elif decided.low <= 0.5 <= decided.high:
        out.append(f"Without ties, {judged['of']} wins {text(decided)}, which cannot be distinguished from 50 %.")
    else:
        more = "more" if decided.value > 0.5 else "less"
        out.append(f"Without ties, {judged['of']} wins {text(decided)}, significantly {more} than half.")
    if rates.equal:
        out.append(f"{counted(rates.equal, 'comparison')} had equal texts: ties, without a call of the judge.")
    if rates.unclear:
        out.append(f"{counted(rates.unclear, 'answer')} of the judge named no letter and counted as a tie.")
    return [Note("judge", sentence) for sentence in out]
