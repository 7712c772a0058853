"""The tables, the answer and the JSON of a measurement under load."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from specbench.analysis.intervals import Estimate
from specbench.features.servers.endpoint import dialect_named
from specbench.features.servers.load.load_metrics import PERCENTILES, TIMES
from specbench.features.servers.load.pays import best_length, break_even
from specbench.features.servers.load.server_run import Level, ServerRun
from specbench.features.servers.served_results import RUN_KIND
from specbench.reporting.column import NONE
from specbench.reporting.tables import Table


def tables_of(run: ServerRun) -> list[Table]:
    """Return the tables: speedups by level, times by level and side, predictions by draft length."""
    out = [_levels(run), _times(run)]
    if run.predictions:
        out.append(_predictions(run))
    return out


def facts_of(run: ServerRun) -> list[str]:
    """Return what was measured, and the scores of both sides."""
    load = run.load
    facts = [
        f"on: {run.on.label}; off: {run.off.label}",
        f"task: {load.task}, at most {load.max_tokens} tokens, {load.sampling}",
        f"blocks of {load.pace.window:g} s after a ramp of {load.pace.ramp:g} s, on and off in turn",
    ]
    shared = [name for name in run.scores["off"] if name in run.scores["on"]]
    return facts + [
        f"{name}: {run.mean_score('off', name):.3f} off, {run.mean_score('on', name):.3f} on" for name in shared
    ]


def _levels(run: ServerRun) -> Table:
    heads = [
        "concurrency", "pairs", "off tokens/s", "on tokens/s", "throughput", "time per token", "end to end",
        "tokens/round", "off against off",
    ]  # fmt: skip
    rows = []
    for level in run.levels:
        label = f"{level.concurrency}" + (", queueing" if level.is_queueing else "")
        tokens = level.acceptance.tokens_per_round
        rows.append(
            [
                label,
                f"{level.pairs}",
                *(f"{level.throughput[side]:.0f}" for side in ("off", "on")),
                *(_times_faster(level.speedups.get(name)) for name in ("throughput", "time per token", "end to end")),
                NONE if tokens is None else f"{tokens:.2f}",
                _times_faster(level.noise),
            ]
        )
    return Table(f"{run.on.label} against {run.off.label}", heads, rows)


def _times(run: ServerRun) -> Table:
    heads = ["concurrency", "time", *(f"{side} {word}" for side in ("off", "on") for word in ("mean", *_words()))]
    rows = [
        [f"{level.concurrency}", name, *_cells(level, "off", name), *_cells(level, "on", name)]
        for level in run.levels
        for name in TIMES
    ]
    return Table("Times in ms", heads, rows)


def _words() -> list[str]:
    return [f"p{q}" for q in PERCENTILES]


def _cells(level: Level, side: str, name: str) -> list[str]:
    found = level.times[side].get(name)
    if found is None:
        return [NONE] * (1 + len(PERCENTILES))
    return [f"{1e3 * value:.1f}" for value in (found.mean, *found.values)]


def _predictions(run: ServerRun) -> Table:
    """Return the predicted speedups of the time per token by draft length and concurrency, and the measured ones beside."""
    levels = sorted({row.concurrency for row in run.predictions})
    lengths = sorted({row.length for row in run.predictions})
    by = {(row.length, row.concurrency): row.speedup for row in run.predictions}
    measured = {(row.length, row.concurrency): row.speedup for row in run.measured}

    def cell(length: int, level: int) -> str:
        text = _times_faster(by[length, level])
        return f"{text}; measured {_times_faster(found)}" if (found := measured.get((length, level))) else text

    rows = [[f"{length}", *(cell(length, level) for level in levels)] for length in lengths]
    heads = ["draft length", *(f"at concurrency {level}" for level in levels)]
    known = ", ".join(map(str, sorted({row.length for row in run.measured})))
    return Table(f"Predicted speedup of the time per token, from draft length {known}", heads, rows)


def answer_of(run: ServerRun) -> str:
    """Return whether speculation pays, up to which concurrency, and with which flags."""
    found = {level.concurrency: level.speedups["throughput"] for level in run.levels if "throughput" in level.speedups}
    if not found:
        return "no verdict: no level has tokens on both sides"
    words = [f"{_verdict(each)} at concurrency {level} ({_times_faster(each)})" for level, each in found.items()]
    text = f"{run.on.label}: {', '.join(words)}"
    if crossing := break_even(found):
        low, high = (NONE if bound is None else f"{bound:.1f}" for bound in crossing[1:])
        text += f"; it breaks even at concurrency {crossing[0]:.1f} [{low}, {high}]"
    if run.predictions:
        lengths = {level: best_length(run.predictions, level) for level in {row.concurrency for row in run.predictions}}
        text += f"; {_advice(run, dict(sorted(lengths.items())))}"
    return text


def _verdict(speedup: Estimate) -> str:
    if speedup.low is not None and speedup.low > 1.0:
        return "faster"
    if speedup.high is not None and speedup.high < 1.0:
        return "slower"
    return "undecided"


def _advice(run: ServerRun, lengths: Mapping[int, int]) -> str:
    """Return the predicted best draft lengths, with the flags of the server."""
    dialect = dialect_named(run.on.dialect)
    distinct = set(lengths.values())
    if len(distinct) == 1:
        return f"predicted best draft length {distinct.pop()}: {dialect.flags(next(iter(lengths.values())))}"
    table = dialect.flags_by_concurrency(lengths)
    each = ", ".join(f"{length} at concurrency {level}" for level, length in lengths.items())
    return f"predicted best draft lengths {each}" + (f": {table}" if table else "")


def _times_faster(value: Estimate | None) -> str:
    if value is None:
        return NONE
    if value.low is None or value.high is None:
        return f"{value.value:.2f}x"
    return f"{value.value:.2f}x [{value.low:.2f}, {value.high:.2f}]"


def run_json(run: ServerRun) -> dict[str, Any]:
    """Return the measurement as JSON."""
    return {
        "kind": RUN_KIND,
        "on": asdict(run.on), "off": asdict(run.off), "load": asdict(run.load), "command": list(run.command),
        "levels": [_level(level) for level in run.levels],
        "scores": run.scores, "failures": run.failures,
        "predictions": [asdict(row) for row in run.predictions],
        "measured": [asdict(row) for row in run.measured],
        "notes": [note.line for note in run.notes],
        "answer": answer_of(run),
    }  # fmt: skip


def _level(level: Level) -> dict[str, Any]:
    acceptance = level.acceptance
    return {
        **{key: value for key, value in asdict(level).items() if key != "acceptance"},
        "counts": acceptance.counts and asdict(acceptance.counts),
        "acceptance": {
            "tokens_per_round": acceptance.tokens_per_round, "by_position": list(acceptance.by_position),
            "by_stream": acceptance.by_stream,
            "by_answers": acceptance.by_answers and asdict(acceptance.by_answers),
            "by_counters": acceptance.by_counters and asdict(acceptance.by_counters),
        },
    }  # fmt: skip
