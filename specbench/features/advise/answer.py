"""Advice in words, as a table, as TOML, as options of other engines, and as JSON."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from specbench.analysis.intervals import Estimate
from specbench.analysis.number_format import COUNT, SIGNED_SCORE, TIMES
from specbench.config.construct import Table as TomlTable
from specbench.config.pair import HeadKind
from specbench.data.rows import HUB
from specbench.decoding.engine_options import Drafting
from specbench.decoding.method import Proposer
from specbench.errors import ConfigError
from specbench.features.advise.candidate_set import presets_for
from specbench.features.advise.candidates import Advice, CandidateResult
from specbench.note import Level, Note, warnings_of
from specbench.reporting.notes import SHARD, short_notes
from specbench.reporting.reasons import caution
from specbench.reporting.tables import Table
from specbench.vocabulary import Advised

DIFFER = "Prediction and measurement differ by more than their intervals: a busy machine, or too few prompts."
ON_FRONT = "on the Pareto front"  # of speed and score


class EstimateRow(TypedDict):
    """An estimate with the bounds of its 95 % interval, which is missing for too few prompts."""

    value: float
    low: float | None
    high: float | None


class CandidateRow(TypedDict):
    """A candidate in the JSON of advice."""

    method: str
    lossless: bool
    predicted: EstimateRow | None
    measured: EstimateRow | None
    score_change: EstimateRow | None
    parts: int
    why: str


class AdviceRow(TypedDict):
    """Advice as JSON.

    `pays` is None if the interval of the gain contains 1 or is missing, or if the selected method was not measured.
    `repeats` are the measurements whose mean is `gain`, if there are several. `acceptance` and the costs are of the method
    `measured_with`. `folder` is the last run's.
    """

    pair: str
    task: str
    pays: bool | None
    method: str
    table: TomlTable
    gain: EstimateRow | None
    repeats: list[EstimateRow | None]
    max_drop: float | None
    out_of_time: bool
    measured_with: str
    acceptance: float | None
    cost_ratio: float | None
    block_cost: float | None
    break_even_acceptance: float | None
    break_even_cost_ratio: float | None
    other_engines: list[str]
    warnings: list[str]
    folder: str
    candidates: list[CandidateRow]


def candidates_table(advice: Advice) -> Table:
    """Return the candidates as a table, the best first. The change of the score is shown if it may drop."""
    scored = advice.max_drop is not None
    rows = [
        [
            result.candidate.name, TIMES.text(result.predicted), TIMES.text(result.measured),
            *([SIGNED_SCORE.text(result.score_change)] if scored else []),
            COUNT.text(result.parts or None),
            ", ".join(filter(None, (result.why, ON_FRONT if scored and result in advice.front else ""))),
        ]
        for result in advice.results
    ]  # fmt: skip
    title = f"{advice.pilot.pair}, {advice.pilot.task}: decoding speedup over the target alone"
    columns = ["method", "predicted", "measured", *(["score change"] if scored else []), "parts", "note"]
    return Table(title, columns, rows)


def conditions_of(advice: Advice) -> list[Note]:
    """Return the conditions of the first part and warnings about it, and what may make the last part's speeds differ."""
    first, *notes = [note for note in short_notes([advice.pilot]) if note.kind != SHARD]
    parts = {result.parts for result in advice.results if result.parts}
    if parts:
        first = replace(first, text=f"first part: {first.text}")
    if len(parts) > 1:
        text = "Measured speedups are of the last part that a method was run on: compare those with equal parts."
        notes.append(Note("parts", text))
    return [first, *notes, *(replace(note, level=Level.warning) for note in caution(advice.final))]


def deciding_numbers(advice: Advice) -> Iterator[str]:
    """Yield lines on what decides: acceptance, cost ratio, cost of a block, and where speculation would break even."""
    row, even = advice.pilot_row, advice.break_even
    cost_ratio = row.number("cost_ratio")
    if row.acceptance_rate is None or cost_ratio is None:
        return
    gamma = advice.pilot.traits(row).draft_length
    block = "" if advice.block_cost is None else f", and verifying {gamma} tokens {advice.block_cost:.2f}"
    yield (
        f"Measured with {row.method}: acceptance {row.acceptance_rate:.2f}; relative to a token of the target, a draft token"
        f" costs {cost_ratio:.2f}{block}."
    )
    best = advice.best.candidate
    measured = next((result.candidate for result in advice.results if result.candidate.name == row.method), best)
    if (measured.drafter, measured.proposer.get("name")) != (best.drafter, best.proposer.get("name")):
        yield f"The selected {best.name} drafts in another way than {row.method}."
    if even is None:
        return
    if even.acceptance is None:
        yield f"At these costs, no acceptance makes drafts of {even.gamma} tokens faster than the target alone."
    else:
        yield (
            f"At these costs, drafts of {even.gamma} tokens break even at an acceptance rate of {even.acceptance:.2f},"
            " if each token is accepted independently of the others."
        )
    if even.cost_ratio is not None:
        yield (
            "At the measured tokens per round, they break even if a draft token costs"
            f" {even.cost_ratio:.2f} of one of the target."
        )


ANOTHER_TIME = "The interval covers other prompts, but not another time: a later measurement may differ by more."


def ranking_of_heads(advice: Advice) -> Iterator[str]:
    """Yield the speedups of the heads that the request names, each in its best candidate, the fastest first."""
    found = {}
    for head in advice.heads:
        own = [result for result in advice.results if result.candidate.drafter == head and result.on_first]
        if own:
            found[head] = max(own, key=lambda result: result.on_first.value if result.on_first else 0.0)
    ranked = sorted(found.items(), key=lambda item: -(item[1].on_first.value if item[1].on_first else 0.0))
    texts = []
    for head, result in ranked:
        predicted = f", predicted {TIMES.text(result.predicted)}" if result.predicted else ""
        texts.append(f"{head} {TIMES.text(result.on_first)} ({result.candidate.name}{predicted})")
    if texts:
        yield f"The named heads on the same prompts, the fastest first: {'; '.join(texts)}."
    if unmeasured := [head for head in advice.heads if head not in found]:
        yield f"Not measured: {', '.join(unmeasured)}."


def answer(advice: Advice) -> Iterator[str]:
    """Yield the advice: how named heads compare, what to use and its TOML, the gain, and how other engines name it."""
    yield from ranking_of_heads(advice)
    best, gain = advice.best, advice.gain or advice.best.measured
    name = best.candidate.name
    if gain is None:
        yield from _unmeasured(advice)
        return
    where = "on held-out prompts" if advice.gain else "on the prompts used for selection"
    if advice.repeats:
        where += f" in {len(advice.repeats)} processes ({', '.join(TIMES.text(each.value) for each in advice.repeats)})"
    if advice.gain and sum(result.parts == best.parts for result in advice.results) > 1:
        where += ", where it was compared with one other method"
    if advice.pays is None:
        yield (
            f"It cannot be decided: the selected candidate, {name}, reaches {TIMES.text(gain)} {where}."
            f" Help: {_more(advice)}."
        )
    elif not advice.pays:
        yield f"Do not speculate here: the selected candidate, {name}, reaches {TIMES.text(gain)} {where}."
    else:
        yield f"Use {name}: {TIMES.text(gain)}, measured {where}."
    if advice.is_out_of_time:
        yield "The time limit was reached before all parts of the prompts were measured. Help: --minutes."
    if not best.candidate.lossless:
        yield f"{name} is not declared lossless: there, its score changes by {SIGNED_SCORE.text(best.score_change)}."
    for other in advice.faster_but_unproven:
        change = "scores cannot be compared here, since the target alone scores 0."
        if other.score_change:
            text = SIGNED_SCORE.text(other.score_change)
            change = f"the change of its score, {text}, may exceed the allowed drop. Help: {_more(advice)}."
        yield f"{other.candidate.name} is faster, {TIMES.text(other.measured)}, but {change}"
    if best.predicted is not None and not best.predicted.overlaps(gain):
        yield DIFFER
    yield _later(advice) if advice.repeats else ANOTHER_TIME
    yield from _without_draft(advice)
    if advice.pays:
        yield toml_of(advice)
        yield from other_engines(best, sources_of(advice), kinds_of(advice))


def _later(advice: Advice) -> str:
    """Return what the interval of a gain that was measured repeatedly covers."""
    prompts = advice.final.spec.task.data.samples
    return f"The 95 % interval is for the speedup of a later run on this machine, on {prompts} other prompts."


def _without_draft(advice: Advice) -> Iterator[str]:
    """Yield what can be tried for a target that was advised on without a draft model and without a head."""
    if any(result.candidate.drafter for result in advice.results):
        return
    pair = advice.pilot.spec.pair
    source = shlex.quote(pair.models["target"].source)
    task = advice.pilot.spec.task
    is_named = task.data.source == "synthetic" or task.data.source.startswith(HUB) or Path(task.data.source).is_file()
    lookups = (*presets_for(Advised.lookup), *presets_for(Advised.other_lookup))
    data = f" --data {shlex.quote(task.data.source)}" if is_named else ""
    target = f"-p target={source} -t {task.name}{data}"
    yield (
        f"Only lookups ({', '.join(lookups)}) need neither a draft model nor a head. A small model of the"
        f" same family can draft (--draft PATH). To make one: specbench train draft {target} (one sixth of the target's"
        " layers, so that a draft token costs about a sixth of a target token, and more in small models, because of the LM"
        f" head), or specbench train eagle {target} (a head of one layer). Each takes minutes to hours, mostly for outputs"
        " of the target."
    )


def _more(advice: Advice) -> str:
    """Return the options that make intervals shorter."""
    sampled = advice.pilot.decoding.temperature > 0.0
    return "-n for more prompts, or more --repeats" if sampled else "-n for more prompts"


def _unmeasured(advice: Advice) -> Iterator[str]:
    """Yield the advice to use a candidate that was predicted only."""
    best = advice.best
    prediction = f"{best.candidate.name} has the highest prediction, {TIMES.text(best.predicted)}"
    if advice.is_out_of_time:
        yield (
            "The time limit was reached before any candidate was measured on prompts other than those of the first part."
            f" {prediction}. Help: --minutes."
        )
        return
    if best.predicted and best.predicted.high is not None and best.predicted.high < 1.0:
        yield f"Do not speculate here: {prediction}."
    elif not advice.is_usable:
        yield f"It cannot be decided: {prediction}. Help: a run with more prompts."
    else:
        yield f"Use {best.candidate.name}: {TIMES.text(best.predicted)}, predicted and not measured."
        yield toml_of(advice)
        yield from other_engines(best, sources_of(advice), kinds_of(advice))


def toml_of(advice: Advice) -> str:
    """Return the selected method as the text of a TOML file."""
    import tomli_w  # imported here to keep `--help` fast

    head = f"# Chosen by specbench advise on {advice.pilot.pair}, {advice.pilot.spec.task.name}.\n"
    return head + tomli_w.dumps(table_of(advice)).rstrip()


def table_of(advice: Advice) -> TomlTable:
    """Return the selected method as the table of a TOML file, with the temperature at which it was selected."""
    best, temperature = advice.best.candidate, advice.pilot.decoding.temperature
    measured = advice.final.spec.methods.get(best.name)
    is_preset = best.kind in (None, "chain")
    options = (
        measured.options if measured and is_preset else best.table
    )  # of a preset, with the pair's values if it ran
    return {
        "description": f"{best.name}, chosen by specbench advise",
        "baseline": advice.pilot.baseline,
        **({"temperature": temperature} if temperature else {}),
        **options,
    }


def other_engines(
    result: CandidateResult, sources: Mapping[str, str], kinds: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Yield the options of other engines for a method that they have; speeds there are not measured here.

    `sources` are the folders or hub ids of models and heads by name, `kinds` those of heads, by default EAGLE-1.
    """
    candidate, rule = result.candidate, result.candidate.table.get("rejection")
    if not candidate.lossless or not candidate.proposer:
        return
    head = str(candidate.proposer.get("head", ""))
    drafting = Drafting(
        source=sources.get(head or str(candidate.proposer.get("model", "")), ""),
        head_kind=(kinds or {}).get(head, HeadKind.eagle) if head else "",
        rejection=str(rule["name"]) if isinstance(rule, dict) else "",
    )
    try:
        proposer = Proposer.build(candidate.proposer, candidate.name)
    except ConfigError:  # a preset whose draft length or head the pair gives
        return
    for engine, text in proposer.engine_options(drafting):
        yield f"{engine}, not measured there: {text}"


def kinds_of(advice: Advice) -> dict[str, str]:
    """Return the kinds of the pair's heads, by name."""
    return {name: head.kind for name, head in advice.pilot.spec.pair.heads.items()}


def sources_of(advice: Advice) -> dict[str, str]:
    """Return the folders or hub ids of the pair's models and heads, by name."""
    pair = advice.pilot.spec.pair
    models = {name: model.source for name, model in pair.models.items()}
    return models | {name: head.source for name, head in pair.heads.items()}


def advice_row(advice: Advice) -> AdviceRow:
    """Return advice as JSON."""
    best = advice.best
    return {
        "pair": advice.pilot.pair,
        "task": advice.pilot.task,
        "pays": advice.pays,
        "method": best.candidate.name,
        "table": table_of(advice),
        "gain": _row(advice.gain),
        "repeats": [_row(each) for each in advice.repeats],
        "max_drop": advice.max_drop,
        "out_of_time": advice.is_out_of_time,
        "measured_with": advice.pilot_row.method,
        "acceptance": advice.pilot_row.acceptance_rate,
        "cost_ratio": advice.pilot_row.number("cost_ratio"),
        "block_cost": advice.block_cost,
        "break_even_acceptance": advice.break_even.acceptance if advice.break_even else None,
        "break_even_cost_ratio": advice.break_even.cost_ratio if advice.break_even else None,
        "other_engines": list(other_engines(best, sources_of(advice), kinds_of(advice))) if advice.is_usable else [],
        "warnings": [note.line for note in warnings_of(conditions_of(advice))],
        "folder": advice.final.folder,
        "candidates": [
            {
                "method": result.candidate.name,
                "lossless": result.candidate.lossless,
                "predicted": _row(result.predicted),
                "measured": _row(result.measured),
                "score_change": _row(result.score_change),
                "parts": result.parts,
                "why": result.why,
            }
            for result in advice.results
        ],
    }


def _row(estimate: Estimate | None) -> EstimateRow | None:
    return EstimateRow(value=estimate.value, low=estimate.low, high=estimate.high) if estimate else None
