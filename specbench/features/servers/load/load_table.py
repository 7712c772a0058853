"""The tables of a measurement under load."""

from specbench.analysis.number_format import NONE
from specbench.features.servers.load.load_metrics import PERCENTILES, TIMES
from specbench.features.servers.load.load_verdict import times_faster
from specbench.features.servers.load.server_run import Level, ServerRun
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
        "concurrency", "pairs", "off tokens/s", "on tokens/s", "throughput", "TPOT", "end to end",
        "tokens/round", "A/A test",
    ]  # fmt: skip
    rows = []
    for level in run.levels:
        label = f"{level.concurrency}" + (", queueing" if level.is_queueing else "")
        tokens = level.acceptance.tokens_per_round
        rows.append(
            [
                label,
                f"{level.pairs}",
                *(f"{level.throughput[side]:.0f}" if side in level.throughput else NONE for side in ("off", "on")),
                *(times_faster(level.speedups.get(name)) for name in ("throughput", "TPOT", "end to end")),
                NONE if tokens is None else f"{tokens:.2f}",
                times_faster(level.noise),
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
    """Return the predicted speedups of TPOT by draft length and concurrency, and the measured ones beside."""
    levels = sorted({row.concurrency for row in run.predictions})
    lengths = sorted({row.length for row in run.predictions})
    by = {(row.length, row.concurrency): row.speedup for row in run.predictions}
    measured = {(row.length, row.concurrency): row.speedup for row in run.measured}

    def cell(length: int, level: int) -> str:
        text = times_faster(by[length, level])
        return f"{text}; measured {times_faster(found)}" if (found := measured.get((length, level))) else text

    rows = [[f"{length}", *(cell(length, level) for level in levels)] for length in lengths]
    heads = ["draft length", *(f"at concurrency {level}" for level in levels)]
    known = ", ".join(map(str, sorted({row.length for row in run.measured})))
    return Table(f"Predicted speedup of TPOT, from draft length {known}", heads, rows)
