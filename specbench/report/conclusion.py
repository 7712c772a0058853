"""The conclusion of a run: plain sentences that say which method is faster, by how much, why, and at what cost in quality."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import exp, log
from typing import NamedTuple

from specbench.analysis.bootstrap import FEWEST, Estimate
from specbench.analysis.run_summary import MethodSummary, RunSummary
from specbench.report.columns import column_of
from specbench.report.formats import HUNDREDTHS, SCORE, TIMES

SPEEDUPS = {
    "decoding": "speedup",
    "end to end": "end_to_end_speedup",
}  # the speedup of a conclusion, by the run's clock
MOST_NAMED = 3  # methods that a sentence names
SAME_DISTRIBUTION = ", with the same output distribution"


class _Line(NamedTuple):
    """A method of several runs: the pair, the method, the baseline, and whether it declares the same distribution."""

    pair: str
    method: str
    baseline: str
    lossless: bool | None


class _Measured(NamedTuple):
    """The speedup of a run, and the run's task, with its temperature if these differ."""

    place: str
    speedup: Estimate


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
    temperatures = {summary.decoding.temperature for summary in summaries}
    found: dict[_Line, list[_Measured]] = defaultdict(list)
    for summary in summaries:
        for row in summary.measured:
            if speedup := speedup_of(summary, row):
                line = _Line(summary.pair, row.label, summary.baseline, summary.lossless(row))
                place = f", T = {summary.decoding.temperature:g}" if len(temperatures) > 1 else ""
                found[line].append(_Measured(f"{summary.spec.task.name}{place}", speedup))
    names_pair = len({line.pair for line in found}) > 1
    ordered = sorted(found, key=lambda line: (line.baseline != "ar", not line.lossless, -_geometric_mean(found[line])))
    named = ordered if len(ordered) == MOST_NAMED + 1 else ordered[:MOST_NAMED]
    sentences = [_over_runs(line, found[line], names_pair) for line in named]
    rest = len(ordered) - len(named)
    return [*sentences, f"{rest} more methods are in the table."] if rest else sentences


def speedup_of(summary: RunSummary, row: MethodSummary) -> Estimate | None:
    """Return the speedup over the baseline by the run's main clock; None for the baseline."""
    value = row.value(SPEEDUPS[summary.spec.clock])
    return value if isinstance(value, Estimate) else None


def _number(summary: RunSummary, row: MethodSummary) -> float:
    speedup = speedup_of(summary, row)
    return speedup.value if speedup else 0.0


def _geometric_mean(values: Sequence[_Measured]) -> float:
    return exp(sum(log(each.speedup.value) for each in values) / len(values))


def _over_runs(line: _Line, values: Sequence[_Measured], names_pair: bool) -> str:
    """Return the sentences on one method over several runs."""
    name = f"{line.method} with {line.pair}" if names_pair else line.method
    same = {True: SAME_DISTRIBUTION, False: ", but it is not lossless", None: ""}[line.lossless]
    least, *_, most = sorted([*values, *values], key=lambda each: each.speedup.value)
    if len(values) == 1:
        return f"{name} is {TIMES.text(most.speedup)} as fast as {line.baseline} on {most.place}{same}."
    span = f"{TIMES.number(least.speedup.value)}x ({least.place}) to {TIMES.number(most.speedup.value)}x ({most.place})"
    if all(each.speedup.low is None for each in values):
        return f"The speedup of {name} over {line.baseline} ranges from {span}{same}. Intervals need more prompts."
    faster = sum(each.speedup.low is not None and each.speedup.low > 1.0 for each in values)
    slower = sum(each.speedup.high is not None and each.speedup.high < 1.0 for each in values)
    than, runs = f"than {line.baseline} in", len(values)
    if max(faster, slower) == runs:
        which = f"significantly {'faster' if faster else 'slower'} {than} {'both' if runs == 2 else f'all {runs}'} runs"
    elif not faster and not slower:
        which = f"neither significantly faster nor slower {than} any of {runs} runs"
    else:
        which = f"significantly faster {than} {faster} of {runs} runs, and significantly slower in {slower}"
    return f"{name} is {which}. Its speedup ranges from {span}{same}."


def _incomplete(summary: RunSummary) -> Iterator[str]:
    if not summary.complete:
        yield "The run is incomplete; these results are preliminary."


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
    text, name = TIMES.text(speedup), _name(summary, leading)
    measured = "" if leading.rank else " measured"  # without ranks, only the numbers are compared
    fastest = f", the fastest {kind}method{measured}," if len(rows) > 1 else ""
    if speedup.high is not None and speedup.high < 1.0:
        return f"{name}{fastest} is slower than {base}: {text}{clock}{same}. Do not use it with these models here."
    if speedup.low is not None and speedup.low <= 1.0:
        return f"The speeds of {name} and {base} cannot be distinguished: {text}{clock}{same}."
    if alike:
        others = ", ".join(f"{row.label} ({TIMES.text(speedup_of(summary, row))})" for row in alike[:MOST_NAMED])
        more = f" and {len(alike) - MOST_NAMED} more" if len(alike) > MOST_NAMED else ""
        return (
            f"{name} is {text} as fast as {base} on this machine{clock}{same}. It cannot be distinguished from"
            f" {others}{more}."
        )
    return f"{name}{fastest} is {text} as fast as {base} on this machine{clock}{same}."


def _is_alike(summary: RunSummary, leading: MethodSummary, row: MethodSummary) -> bool:
    """Whether the speeds of two methods cannot be distinguished, and both are lossless or neither is."""
    same_kind = summary.lossless(leading) == summary.lossless(row)
    return bool(same_kind and leading.rank and row.method in leading.rank.alike)


def _faster_but_lossy(summary: RunSummary, leading: MethodSummary, rows: Sequence[MethodSummary]) -> Iterator[str]:
    """Yield the score of a leading method that is not lossless, and the lossy methods that are distinguishably faster."""
    if summary.lossless(leading) is not True and leading.score_change:
        yield f"Its score differs from the baseline's: {_change(summary, leading.score_change)}."
    alike = leading.rank.alike if leading.rank else ()
    faster = [row for row in rows if _number(summary, row) > _number(summary, leading) and row.method not in alike]
    if faster:
        faster.sort(key=lambda row: -_number(summary, row))
        texts = []
        for row in faster[:MOST_NAMED]:
            change = f", {_change(summary, row.score_change)}" if row.score_change else ""
            texts.append(f"{row.label} ({TIMES.text(speedup_of(summary, row))}{change})")
        more = f", and {len(faster) - MOST_NAMED} more" if len(faster) > MOST_NAMED else ""
        known = all(summary.lossless(row) is False for row in faster)
        yield f"Faster, but not {'lossless' if known else 'declared lossless'}: {'; '.join(texts)}{more}."


def _change(summary: RunSummary, change: Estimate) -> str:
    """Return the change of a score with its interval, in points of 100."""
    text = f"{summary.headline} {SCORE.number(change.value, signed=True)}"
    if change.low is None or change.high is None:
        return text
    return f"{text} [{SCORE.number(change.low, signed=True)}, {SCORE.number(change.high, signed=True)}]"


def _scores(summary: RunSummary) -> Iterator[str]:
    """Yield a warning if all methods score 0, or all score 100."""
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
    yield (
        f"Each round commits {HUNDREDTHS.number(length)} tokens (acceptance rate {HUNDREDTHS.number(rate)}) and takes as long"
        f" as {HUNDREDTHS.number(cost)} tokens of {base.method}{', while decoding' if summary.end_to_end else ''}."
    )
    share = leading.number("measured_over_corrected")
    if share is not None:
        yield (
            f"The {'decoding ' if summary.end_to_end else ''}speedup is {100 * share:.0f} % of the theoretical one at the"
            " measured acceptance and costs."
        )


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
    best, measured_speedup = max(lengths, key=lambda each: each.speedup.value), leading.speedup
    ratio = column_of("cost_ratio").format.text(leading.number("cost_ratio"))
    if best.speedup.value <= 1.0 and measured_speedup and measured_speedup.value <= 1.0:
        yield f"No draft length from 1 to {lengths[-1].gamma} is predicted to be faster than {summary.baseline}."
    elif best.is_faster:
        yield (
            f"A draft length of {best.gamma} is predicted to be {TIMES.text(best.gain)} as fast as {theory.gamma[0]};"
            f" help: --gamma {best.gamma}"
        )
    else:
        yield (
            f"No other draft length from 1 to {lengths[-1].gamma} is predicted to be clearly faster (a draft forward costs"
            f" {ratio} of a target forward)."
        )


def _few_prompts(summary: RunSummary) -> Iterator[str]:
    if summary.data.samples < FEWEST:
        yield f"Intervals need at least {FEWEST} prompts; help: -n 20"
