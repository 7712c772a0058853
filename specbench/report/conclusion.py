"""The conclusion of a run: plain sentences that say which method is faster, by how much, why, and at what cost in quality."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import exp, log

from specbench.analysis.bootstrap import FEWEST, Estimate
from specbench.analysis.run_summary import MethodSummary, RunSummary
from specbench.report.columns import column_of
from specbench.report.formats import HUNDREDTHS, SCORE, TIMES

SPEEDUPS = {
    "decoding": "speedup",
    "end to end": "end_to_end_speedup",
}  # the speedup of a conclusion, by the run's clock
GAIN = 1.02  # a predicted draft length is recommended from this ratio of speeds on
MOST_NAMED = 3  # methods that a sentence names
SAME_DISTRIBUTION = ", with the same output distribution"


def run_conclusion(summary: RunSummary) -> list[str]:
    """Return the conclusion of one run, a sentence per entry. Empty if only the baseline was measured."""
    rows = [row for row in summary.measured if speedup_of(summary, row)]
    if not rows:
        return []
    lossless = [row for row in rows if summary.lossless(row)]
    leading = max(lossless or rows, key=lambda row: _number(summary, row))
    sentences = [*_incomplete(summary), _headline(summary, leading, rows)]
    if not summary.simulated:
        sentences += [*_faster_but_lossy(summary, leading, rows), *_scores(summary)]
    return [*sentences, *_reason(summary, leading), *_draft_length(summary, leading), *_few_prompts(summary)]


def conclusion(summaries: Sequence[RunSummary]) -> list[str]:
    """Return the conclusion of one or several runs.

    With several runs there is a sentence per method, with the range over all runs, lossless methods first.
    """
    if len(summaries) == 1:
        return run_conclusion(summaries[0])
    found: dict[tuple[str, str, str], list[tuple[str, Estimate]]] = defaultdict(list)
    lossless: dict[tuple[str, str, str], bool] = {}
    for summary in summaries:
        for row in summary.measured:
            if speedup := speedup_of(summary, row):
                key = (summary.pair, row.label, summary.baseline)
                found[key].append((summary.spec.task.name, speedup))
                lossless[key] = summary.lossless(row) is True
    pairs = {pair for pair, _, _ in found}
    ordered = sorted(found, key=lambda key: (not lossless[key], -_geometric_mean(found[key])))
    sentences = [_over_runs(key, found[key], lossless[key], len(pairs) > 1) for key in ordered[:MOST_NAMED]]
    if rest := len(ordered) - MOST_NAMED:
        sentences += [f"{rest} more {'method is' if rest == 1 else 'methods are'} in the table."] if rest > 0 else []
    return sentences


def speedup_of(summary: RunSummary, row: MethodSummary) -> Estimate | None:
    """Return the speedup over the baseline by the run's main clock; None for the baseline."""
    value = row.value(SPEEDUPS[summary.spec.clock])
    return value if isinstance(value, Estimate) else None


def _number(summary: RunSummary, row: MethodSummary) -> float:
    speedup = speedup_of(summary, row)
    return speedup.value if speedup else 0.0


def _geometric_mean(values: Sequence[tuple[str, Estimate]]) -> float:
    return exp(sum(log(each.value) for _, each in values) / len(values))


def _over_runs(
    key: tuple[str, str, str], values: Sequence[tuple[str, Estimate]], lossless: bool, names_pair: bool
) -> str:
    """Return the sentence on one method over several runs."""
    pair, method, baseline = key
    where = f" with {pair}" if names_pair else ""
    faster = sum(each.low is not None and each.low > 1.0 for _, each in values)
    slower = sum(each.high is not None and each.high < 1.0 for _, each in values)
    (least_task, least), *_, (most_task, most) = sorted([*values, *values], key=lambda each: each[1].value)
    span = f"{TIMES.number(least.value)}x ({least_task}) to {TIMES.number(most.value)}x ({most_task})"
    same = SAME_DISTRIBUTION if lossless else ", but not declared lossless"
    if len(values) == 1:
        return f"{method}{where} is {TIMES.text(most)} as fast as {baseline} on {most_task}{same}."
    counts = f"{faster} of {len(values)} runs"
    if slower:
        counts += f", and slower in {slower}"
    return f"{method}{where} is faster than {baseline} in {counts}: {span}{same}."


def _incomplete(summary: RunSummary) -> Iterator[str]:
    if not summary.complete:
        yield "Preliminary, since the run is incomplete:"


def _name(summary: RunSummary, row: MethodSummary) -> str:
    """Return a method with its draft length, unless its label has a setting."""
    length = summary.traits(row).draft_length
    return row.label if "(" in row.method or not length else f"{row.label} (draft length {length})"


def _headline(summary: RunSummary, leading: MethodSummary, rows: Sequence[MethodSummary]) -> str:
    """Return the sentence on the fastest method, preferably a lossless one, and those that equal it."""
    speedup, base = speedup_of(summary, leading), summary.baseline
    assert speedup is not None
    lossless = summary.lossless(leading) is True
    same = SAME_DISTRIBUTION if lossless else ""
    kind = "lossless " if lossless and any(summary.lossless(row) is not True for row in rows) else ""
    clock = f" ({summary.spec.clock})" if summary.end_to_end else ""
    alike = [row for row in rows if row is not leading and _is_alike(summary, leading, row)]
    text = TIMES.text(speedup)
    if speedup.high is not None and speedup.high < 1.0:
        fastest = f", the fastest {kind}method," if len(rows) > 1 else ""
        return f"Do not use it with these models here: {_name(summary, leading)}{fastest} is {text} as fast as {base}{same}."
    if speedup.low is not None and speedup.low <= 1.0:
        return f"The speeds of {_name(summary, leading)} and {base} cannot be distinguished: {text}{same}."
    if alike:
        others = ", ".join(f"{row.label} ({TIMES.text(speedup_of(summary, row))})" for row in alike[:MOST_NAMED])
        more = f" and {len(alike) - MOST_NAMED} more" if len(alike) > MOST_NAMED else ""
        return (
            f"{_name(summary, leading)} is {text} as fast as {base} on this machine{clock}{same}. It cannot be distinguished"
            f" from {others}{more}."
        )
    fastest = f", the fastest {kind}method," if len(rows) > 1 else ""
    return f"{_name(summary, leading)}{fastest} is {text} as fast as {base} on this machine{clock}{same}."


def _is_alike(summary: RunSummary, leading: MethodSummary, row: MethodSummary) -> bool:
    """Whether the speeds of two methods cannot be distinguished, and both are lossless or neither is."""
    same_kind = summary.lossless(leading) == summary.lossless(row)
    return bool(same_kind and leading.rank and row.rank and row.rank.first <= leading.rank.last)


def _faster_but_lossy(summary: RunSummary, leading: MethodSummary, rows: Sequence[MethodSummary]) -> Iterator[str]:
    """Yield the score of a leading method that is not lossless, and the methods that are faster than it but not lossless."""
    if summary.lossless(leading) is not True and leading.score_change:
        yield f"Its score changes by {_change(summary, leading.score_change)}."
    faster = [row for row in rows if _number(summary, row) > _number(summary, leading) and row is not leading]
    if faster:
        faster.sort(key=lambda row: -_number(summary, row))
        texts = []
        for row in faster[:MOST_NAMED]:
            change = f", {_change(summary, row.score_change)}" if row.score_change else ""
            texts.append(f"{row.label} ({TIMES.text(speedup_of(summary, row))}{change})")
        more = f", and {len(faster) - MOST_NAMED} more" if len(faster) > MOST_NAMED else ""
        yield f"Faster, but not lossless: {'; '.join(texts)}{more}."


def _change(summary: RunSummary, change: Estimate) -> str:
    """Return the change of a score with its interval, in points of 100."""
    text = f"{summary.headline} {SCORE.number(change.value, signed=True)}"
    if change.low is None or change.high is None:
        return text
    return f"{text} [{SCORE.number(change.low, signed=True)}, {SCORE.number(change.high, signed=True)}]"


def _scores(summary: RunSummary) -> Iterator[str]:
    """Yield a warning if no score lies strictly between 0 and 100."""
    scores = {score.value for row in summary.measured if (score := summary.score(row))}
    if len(scores) == 1 and scores <= {0.0, 1.0}:
        value = f"{100 * scores.pop():.0f}"
        yield f"All methods score {value} on {summary.headline}, so this task cannot show a difference in quality here."


def _reason(summary: RunSummary, leading: MethodSummary) -> Iterator[str]:
    """Yield why the leading method has its speed: tokens per round against the time of a round."""
    base = next((row for row in summary.measured if row.method == summary.baseline), None)
    length, rate, ours = leading.accepted_length, leading.acceptance_rate, leading.tokens_per_second
    if base is None or base.tokens_per_second is None or not length or not ours or rate is None:
        return
    cost = length * base.tokens_per_second / ours  # in tokens of the baseline
    text = (
        f"A round commits {HUNDREDTHS.number(length)} tokens (acceptance {HUNDREDTHS.number(rate)}) in the time in which"
        f" {base.method} generates {HUNDREDTHS.number(cost)}"
    )
    share = leading.number("measured_over_corrected")
    if share is not None:
        text += f"; the speedup is {HUNDREDTHS.number(share)} of what theory gives at the measured costs"
    yield f"{text}."


def _draft_length(summary: RunSummary, leading: MethodSummary) -> Iterator[str]:
    """Yield the draft length that is predicted to be the fastest."""
    theory, lengths = summary.traits(leading).theory, leading.predicted_lengths
    measured = {
        each.gamma[0]
        for row in summary.measured
        if (each := summary.traits(row).theory)
        and each.gamma
        and row.method.partition("(")[0] == leading.method.partition("(")[0]
    }
    if not lengths or theory is None or len(measured) > 1:
        return
    known = {each.gamma: each for each in lengths}
    best, used = max(lengths, key=lambda each: each.speedup.value), known[theory.gamma[0]]
    ratio = column_of("cost_ratio").format.text(leading.number("cost_ratio"))
    if best.speedup.value <= 1.0:
        yield f"No draft length from 1 to {lengths[-1].gamma} is predicted to be faster than {summary.baseline}."
    elif best.speedup.value > GAIN * used.speedup.value:
        yield (
            f"A draft length of {best.gamma} is predicted to be faster: {TIMES.text(best.speedup)}, against"
            f" {TIMES.number(used.speedup.value)}x at {used.gamma}; help: --gamma {best.gamma}"
        )
    else:
        yield (
            f"No other draft length from 1 to {lengths[-1].gamma} is predicted to be more than"
            f" {100 * (GAIN - 1):.0f} % faster (a draft forward costs {ratio} of a target forward)."
        )


def _few_prompts(summary: RunSummary) -> Iterator[str]:
    if summary.data.samples < FEWEST:
        yield f"There are no intervals, since they need at least {FEWEST} prompts; help: -n 20"
