"""The conclusion of runs: plain sentences that say which method is faster, by how much, why, and at what cost in quality."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import exp, log
from typing import NamedTuple

from specbench.analysis.intervals import Estimate
from specbench.analysis.metric import Clock
from specbench.analysis.number_format import TIMES
from specbench.analysis.run_summary import MethodSummary, RunSummary
from specbench.note import Note
from specbench.reporting.quality_conclusion import (
    against_lossless,
    change_of_score,
    change_text,
    contradictions,
    example_of_zero,
    lossy_alternative,
    score_range,
    score_sentence,
    uniform_score,
    uniform_scores,
)
from specbench.reporting.reasons import caution, doubts, few_prompts, location_text, losing_rounds, overstated, reasons
from specbench.reporting.standings import MOST_NAMED, SPEEDUPS, alike_text, is_alike, number_of, speedup_of

SAME_DISTRIBUTION = ", with the same output distribution"


class _MethodKey(NamedTuple):
    """A method of several runs: the pair, the method, the baseline, the temperature, and its relation to the baseline.

    `is_over_one_model` says whether the baseline is one model. `lossless` is as in `RunSummary.lossless`, and False too for a
    method whose greedy tokens contradict its declaration.
    """

    pair: str
    method: str
    baseline: str
    temperature: float
    lossless: bool | None
    is_over_one_model: bool


class _MeasuredSpeedup(NamedTuple):
    """A run and the speedup of a method in it, with its clock."""

    summary: RunSummary
    row: MethodSummary
    speedup: Estimate
    clock: str


def run_conclusion(summary: RunSummary) -> list[Note]:
    """Return the conclusion of one run, a sentence per entry. Empty if only the baseline was measured."""
    rows = [row for row in summary.measured_methods if speedup_of(summary, row)]
    if not rows:
        return []
    leading = _leading(summary, rows)
    sentences = [*headline([summary]), *contradictions(summary, rows)]
    if not summary.simulated:
        uniform = (replace(note, text=f"{note.text}{example_of_zero(summary)}") for note in uniform_score(summary))
        sentences += [*lossy_alternative(summary, leading, rows), *against_lossless(summary, rows), *uniform]
    sentences += reasons(summary, leading, rows, is_doubtful=bool(doubts(summary)))
    return [*sentences, *few_prompts(summary), *caution(summary)]


def conclusion(summaries: Sequence[RunSummary]) -> list[Note]:
    """Return the conclusion of one or several runs.

    With several runs, there is a sentence per method with the range over all runs, lossless methods first. Of many methods,
    only the fastest lossless and the fastest other one of each pair over each baseline are named.
    """
    if len(summaries) == 1:
        return run_conclusion(summaries[0])
    return [*_over_all(summaries), *overstated(summaries), *_uncertain(summaries), *uniform_scores(summaries)]


def _over_all(summaries: Sequence[RunSummary]) -> list[Note]:
    """Return the sentences on the methods of several runs."""
    measured = _lines(summaries)
    temperatures = {line.temperature for line in measured}
    names_pair = len({line.pair for line in measured}) > 1
    ordered = sorted(
        measured, key=lambda line: (not line.is_over_one_model, not line.lossless, -_geometric_mean(measured[line]))
    )
    named = ordered if len(ordered) <= MOST_NAMED + 1 else _winners(measured)
    sentences = []
    for line in named:
        name = f"{line.method} with {line.pair}" if names_pair else line.method
        if len(temperatures) > 1:
            name += f" at T = {line.temperature:g}"
        kind = "lossless method" if line.lossless else "method that is not lossless"
        kind += "" if line.is_over_one_model else f" over {line.baseline}"
        average = " on average" if len(measured[line]) > 1 else ""
        standing = f"the fastest {kind}{average}" if len(ordered) > len(named) else ""
        sentences.append(Note("speed", _over_runs(name, standing, line, measured[line]), subject=line.method))
        if all(each.speedup.low is not None and each.speedup.low <= 1.0 for each in measured[line]):
            sentences += losing_rounds([(each.summary, each.row) for each in measured[line]])
        if standing and (alike := _alike_in_all(line, measured)):
            where = "Its" if len(measured[line]) == 1 else "In each run, its"
            sentences.append(Note("alike", f"{where} interval overlaps {alike}.", subject=line.method))
    rest = len(ordered) - len(named)
    if rest:
        sentences.append(Note("more methods", f"{rest} more methods and settings are in the table."))
    return sentences


def _uncertain(summaries: Sequence[RunSummary]) -> Iterator[Note]:
    """Yield the sentence on how many of several runs may give other speeds."""
    uncertain = [summary for summary in summaries if doubts(summary)]
    if uncertain:
        count = "all runs" if len(uncertain) == len(summaries) else f"{len(uncertain)} of {len(summaries)} runs"
        first = f"{uncertain[0].title}: {'; '.join(doubts(uncertain[0]))}"
        yield Note("doubtful", f"Another measurement may give other speeds in {count}; for example, {first}.")


def headline(summaries: Sequence[RunSummary]) -> list[Note]:
    """Return the sentences of a conclusion that a caption has: on speeds, slow baselines, and scores of lossy methods."""
    if len(summaries) > 1:
        return [*_over_all(summaries), *overstated(summaries)]
    (summary,) = summaries
    rows = [row for row in summary.measured_methods if speedup_of(summary, row)]
    if not rows:
        return []
    leading = _leading(summary, rows)
    speed = Note("speed", _headline(summary, leading, rows), subject=leading.method)
    return [*_incomplete(summary), speed, *_leading_score(summary, leading), *overstated([summary])]


def reservations(summaries: Sequence[RunSummary]) -> list[Note]:
    """Return the sentences of a conclusion that limit it: contradicted declarations, few prompts, and unstable speeds."""
    found = [line for summary in summaries for line in contradictions(summary, summary.measured_methods)]
    if len(summaries) > 1:
        return [*found, *_uncertain(summaries), *uniform_scores(summaries)]
    return [*found, *few_prompts(summaries[0]), *caution(summaries[0])]


def _lines(summaries: Sequence[RunSummary]) -> dict[_MethodKey, list[_MeasuredSpeedup]]:
    """Return the speedups of each method, of all runs by one clock: end to end if that is the clock of any of them."""
    clock = Clock.end_to_end if any(summary.end_to_end for summary in summaries) else Clock.decoding
    measured: dict[_MethodKey, list[_MeasuredSpeedup]] = defaultdict(list)
    for summary in summaries:
        for row in summary.measured_methods:
            speedup = row.value(SPEEDUPS[clock])
            if isinstance(speedup, Estimate):
                lossless = False if summary.contradicted(row) else summary.lossless(row)
                is_over_one = len(summary.spec.methods[summary.baseline].traits.roles) == 1
                line = _MethodKey(
                    summary.pair, row.label, summary.baseline, summary.decoding.temperature, lossless, is_over_one
                )
                measured[line].append(_MeasuredSpeedup(summary, row, speedup, clock))
    return measured


def _alike_in_all(line: _MethodKey, measured: dict[_MethodKey, list[_MeasuredSpeedup]]) -> str:
    """Return words for the intervals of the methods whose speeds equal a method's in all of its runs; empty without any."""
    ours = {each.summary.folder: each.speedup for each in measured[line]}
    alike = [
        other.method
        for other, values in measured.items()
        if other != line and other._replace(method=line.method) == line
        and {each.summary.folder for each in values} == ours.keys()
        and all(each.speedup.low and each.speedup.overlaps(ours[each.summary.folder]) for each in values)
    ]  # fmt: skip
    more = f" and {len(alike) - MOST_NAMED} more" if len(alike) > MOST_NAMED else ""
    return f"{'those' if len(alike) > 1 else 'that'} of {', '.join(alike[:MOST_NAMED])}{more}" if alike else ""


def _winners(measured: dict[_MethodKey, list[_MeasuredSpeedup]]) -> list[_MethodKey]:
    """Return the fastest lossless and the fastest other method of each pair over each baseline, those of one model first.

    Methods are compared at one temperature: the one that most of them have, or the lowest of several.
    """
    groups: dict[tuple[bool, str, str, bool], dict[float, list[_MethodKey]]] = defaultdict(lambda: defaultdict(list))
    for line in measured:
        key = not line.is_over_one_model, line.baseline, line.pair, not line.lossless
        groups[key][line.temperature].append(line)
    compared = (
        max(groups[key].items(), key=lambda at_one: (len(at_one[1]), -at_one[0]))[1]  # (temperature, lines)
        for key in sorted(groups)
    )
    return [max(lines, key=lambda line: _geometric_mean(measured[line])) for lines in compared]


def _leading(summary: RunSummary, rows: Sequence[MethodSummary]) -> MethodSummary:
    """Return the fastest method, preferably a lossless one."""
    lossless = [row for row in rows if summary.keeps_distribution(row)]
    return max(lossless or rows, key=lambda row: number_of(summary, row))


def _geometric_mean(values: Sequence[_MeasuredSpeedup]) -> float:
    return exp(sum(log(measured.speedup.value) for measured in values) / len(values))


def _over_runs(method: str, standing: str, line: _MethodKey, values: Sequence[_MeasuredSpeedup]) -> str:
    """Return the sentences on one method over several runs. `standing` is its rank among others, if it has one."""
    name = f"{method}, {standing}," if standing else method
    clock = values[0].clock
    same = {True: SAME_DISTRIBUTION, False: "" if standing else ", but it is not lossless", None: ""}[line.lossless]
    least, *_, most = sorted([*values, *values], key=lambda measured: measured.speedup.value)
    if len(values) == 1:
        (only,) = values
        change = change_of_score(only.summary, only.row)
        quality = f" (change of its score: {change_text(only.summary, change)})" if change else ""
        rank = f", rank {only.row.rank} of {len(only.summary.measured_methods)}" if only.row.rank and standing else ""
        if (
            only.speedup.low is not None
            and only.speedup.high is not None
            and only.speedup.low <= 1.0 <= only.speedup.high
        ):
            fact = f"cannot be distinguished from {line.baseline}: {TIMES.text(only.speedup)}"
        else:
            fact = f"is {TIMES.text(only.speedup)} as fast as {line.baseline}"
        synthetic = " with synthetic prompts" if only.summary.data.source == "synthetic" else ""
        return f"{name} {fact} on {only.summary.spec.task.name}{synthetic} ({clock}{rank}){same}{quality}."
    span = " to ".join(
        f"{TIMES.number(measured.speedup.value)}x ({measured.summary.spec.task.name})" for measured in (least, most)
    )
    scores = score_range([(measured.summary, measured.row) for measured in values])
    if all(measured.speedup.low is None for measured in values):
        which = f"{method}, {standing}" if standing else method
        over = "" if f"over {line.baseline}" in standing else f" over {line.baseline}"
        return f"The speedup of {which}{over} ({clock}) ranges from {span}{same}.{scores} Intervals need more prompts."
    faster = sum(measured.speedup.low is not None and measured.speedup.low > 1.0 for measured in values)
    slower = sum(measured.speedup.high is not None and measured.speedup.high < 1.0 for measured in values)
    than, runs = f"than {line.baseline} in", len(values)
    if max(faster, slower) == runs:
        which = f"significantly {'faster' if faster else 'slower'} {than} {'both' if runs == 2 else f'all {runs}'} runs"
    elif not faster and not slower:
        which = f"neither significantly faster nor slower {than} any of {runs} runs"
    elif not faster:
        which = f"significantly slower {than} {slower} of {runs} runs, and significantly faster in none"
    else:
        which = f"significantly faster {than} {faster} of {runs} runs, and significantly slower in {slower or 'none'}"
    return f"{name} is {which}. Its speedup ({clock}) ranges from {span}{same}.{scores}"


def _incomplete(summary: RunSummary) -> Iterator[Note]:
    if not summary.complete:
        yield Note("incomplete", "The run is incomplete; these results are preliminary.")


def _name(summary: RunSummary, row: MethodSummary) -> str:
    """Return a method with its draft length, unless its label has a setting."""
    length = summary.traits(row).draft_length
    return (
        row.label if summary.spec.methods[row.method].settings or not length else f"{row.label} (draft length {length})"
    )


def _headline(summary: RunSummary, leading: MethodSummary, rows: Sequence[MethodSummary]) -> str:
    """Return the sentence on the fastest method, preferably a lossless one, and those that equal it."""
    speedup, base = speedup_of(summary, leading), summary.baseline
    assert speedup is not None
    lossless = summary.keeps_distribution(leading)
    same = SAME_DISTRIBUTION if lossless else ""
    kind = "lossless " if lossless and not all(summary.keeps_distribution(row) for row in rows) else ""
    alike = [row for row in rows if row is not leading and is_alike(summary, leading, row)]
    name = _name(summary, leading)
    measured = "" if leading.rank else " measured"  # without ranks, only the numbers are compared
    fastest = f", the fastest {kind}method{measured}," if len(rows) > 1 else ""
    rank = (
        f", rank {leading.rank} of {len(summary.measured_methods)}" if leading.rank and len(rows) > MOST_NAMED else ""
    )
    text = f"{TIMES.text(speedup)} ({summary.clock}{rank})"
    synthetic = "on synthetic prompts " if summary.data.source == "synthetic" else ""
    where = f"{synthetic}{location_text(summary)}"
    if speedup.value < 1.0 and (speedup.high is None or speedup.high < 1.0):
        advice = "" if doubts(summary) or speedup.high is None else " Do not use it with these models here."
        if fastest:
            return (
                f"No {kind}method{measured} is faster than {base} {where}; the fastest is {name}: {text}{same}.{advice}"
            )
        return f"{name} is slower than {base} {where}: {text}{same}.{advice}"
    if speedup.low is not None and speedup.low <= 1.0:
        here = " in this run" if doubts(summary) else ""
        fact = f"cannot be distinguished{here}: {text}{same}."
        if len(rows) > 1 and speedup.value < 1.0:
            than = f"{base} {synthetic}".rstrip()
            return f"No {kind}method is measurably faster than {than}; {name} and {base} {fact}"
        return f"The speeds of {name} and {base} {synthetic}{fact}"
    fact = f"is {TIMES.text(speedup)} as fast as {base} {where} ({summary.clock}{rank}){same}."
    return f"{name} {fact} {alike_text(summary, alike)}" if alike else f"{name}{fastest} {fact}"


def _leading_score(summary: RunSummary, leading: MethodSummary) -> Iterator[Note]:
    """Yield the score of a leading method that is not lossless."""
    if change := change_of_score(summary, leading):
        yield Note("score", score_sentence(summary, change), subject=leading.method)
