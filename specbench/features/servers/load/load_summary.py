"""From blocks of load to results: levels, scores, and predictions by draft length."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

import msgspec

from specbench.analysis.intervals import Estimate
from specbench.experiment.scorer import grade
from specbench.features.servers.endpoint import Endpoint
from specbench.features.servers.load.blocks import NOISE, Block
from specbench.features.servers.load.guards import load_notes
from specbench.features.servers.load.load_metrics import (
    TIMES,
    acceptance_by_prompt,
    acceptance_of,
    paired,
    percentiles,
    throughput_ratios,
    throughput_speedup,
    time_per_token,
    time_speedup,
)
from specbench.features.servers.load.load_verdict import answer_of
from specbench.features.servers.load.pays import LevelTimes, MeasuredSpeculation, PredictedSpeedup, predicted_speedups
from specbench.features.servers.load.server_run import Level, Load, MeasuredLength, ServerRun, ServerRunRequest
from specbench.features.servers.request_log import LoggedRequest
from specbench.features.servers.served import Description, SpeculationCounts
from specbench.note import Note
from specbench.runs.record import Record

ROUNDS = "rounds.json"


class RoundTimes(msgspec.Struct, kw_only=True):
    """What one run measured at its draft length, which predictions of later runs use too.

    Args:
        off: What identifies the server without speculation.
        on: What identifies the server with it, besides its draft length.
        load: What was sent.
        speculation: The times and counts.
        measured: The speedups of TPOT.
    """

    off: Description
    on: Description
    load: Load
    speculation: MeasuredSpeculation
    measured: list[MeasuredLength]


def summary_of(
    request: ServerRunRequest, on: Endpoint, off: Endpoint, blocks: Sequence[Block], folder: Path
) -> ServerRun:
    """Return the results of the finished blocks."""
    levels = [_level(concurrency, on, blocks) for concurrency in request.concurrencies]
    by_side = {
        side: [block for block in blocks if (block.pair < 0 or block.side == "off") is (side == "off")]
        for side in ("on", "off")
    }
    predictions, measured = _predictions(request.load, on.description, off.description, levels, blocks, folder)
    run = ServerRun(
        on=on.description,
        off=off.description,
        load=request.load,
        levels=levels,
        scores={side: _scores(request, rows) for side, rows in by_side.items()},
        failures={
            side: sum(r.error is not None for block in rows for r in block.requests) for side, rows in by_side.items()
        },
        predictions=predictions,
        measured=measured,
        notes=[*load_notes({"on": on, "off": off}, by_side, request.load), *_unscored(request)],
        request=request.stored(),
    )
    return replace(run, answer=answer_of(run))


def blocks_of(blocks: Sequence[Block], concurrency: int, arm: str) -> list[Block]:
    """Return the blocks of an arm at a concurrency: `on`, or NOISE, whose second blocks are called on."""
    return [block for block in blocks if block.concurrency == concurrency and (block.pair < 0) is (arm == NOISE)]


def _level(concurrency: int, on: Endpoint, blocks: Sequence[Block]) -> Level:
    pairs = paired(blocks_of(blocks, concurrency, "on"))
    speedups: dict[str, Estimate] = {}
    if throughput := throughput_speedup(pairs):
        speedups["throughput"] = throughput
    for name, time_of in TIMES.items():
        if estimate := time_speedup(pairs, time_of, name == "TPOT"):
            speedups[name] = estimate
    sides = {"off": [off for off, _ in pairs], "on": [on for _, on in pairs]}
    slots = on.description.slots
    waited = any((block.waiting or 0) > 0 for rows in sides.values() for block in rows)
    streams_steps = on.backend.streams_steps
    unit, accepted = acceptance_by_prompt(_done(sides["on"]), streams_steps)
    return Level(
        concurrency=concurrency,
        pairs=len(pairs),
        throughput={side: mean(block.throughput for block in rows) for side, rows in sides.items() if rows},
        speedups=speedups,
        noise=throughput_speedup(paired(blocks_of(blocks, concurrency, NOISE))),
        times={
            side: {name: found for name, of in TIMES.items() if (found := percentiles(_done(rows), of))}
            for side, rows in sides.items()
        },
        acceptance=acceptance_of(sides["on"], streams_steps),
        is_queueing=waited or (slots is not None and concurrency > slots),
        ratios=throughput_ratios(pairs),
        accepted=accepted,
        accepted_unit=unit,
    )


def _unscored(request: ServerRunRequest) -> list[Note]:
    """Say which tasks are not scored."""
    tasks = dict.fromkeys(prompt.task.name for prompt in request.prompts if prompt.task.executes_code)
    text = f"not scored, since outputs would have to be executed: {', '.join(tasks)}"
    return [Note("not scored", text)] if tasks else []


def _scores(request: ServerRunRequest, blocks: Sequence[Block]) -> dict[str, dict[int, float]]:
    """Return the values of each metric by prompt, from the first finished output of each."""
    outputs: dict[int, LoggedRequest] = {}
    for done in _done(blocks):
        outputs.setdefault(done.key.prompt, done)
    if request.load.ignore_eos:
        return {}  # such texts continue after the end of the answer
    values: dict[str, dict[int, float]] = {}
    for at, output in sorted(outputs.items()):
        prompt = request.prompts[at]
        if prompt.task.executes_code:
            continue
        text = prompt.task.stopped(output.text)
        record = Record(method="served", sample=prompt.sample.id, repeat=0, seed=0, order=0, text=text)
        for name, value in grade(prompt.task, prompt.sample, record, None).items():
            if isinstance(value, float):
                values.setdefault(name, {})[at] = value
    return values


def _predictions(
    load: Load, on: Description, off: Description, levels: Sequence[Level], blocks: Sequence[Block], folder: Path
) -> tuple[list[PredictedSpeedup], list[MeasuredLength]]:
    """Return predicted speedups by draft length, and the measured ones of this run and earlier ones of the same servers.

    Both are empty without acceptance by position. Levels that queue are left out.
    """
    free = [level for level in levels if not level.is_queueing]
    found = {level.concurrency: _level_times(blocks, level.concurrency) for level in free}
    by_level = {concurrency: times for concurrency, times in found.items() if times.off}
    if not by_level:
        return [], []
    positions = min(len(counts.shares_by_position) for times in by_level.values() for counts in times.counts)
    length = min(on.speculation.length or positions, positions)
    measured = [
        MeasuredLength(length=length, concurrency=level.concurrency, speedup=level.speedups["TPOT"])
        for level in free
        if "TPOT" in level.speedups
    ]
    this = RoundTimes(
        off=_without_address(off),
        on=_without_address(on),
        load=load,
        speculation=MeasuredSpeculation(length, by_level),
        measured=measured,
    )
    (folder / ROUNDS).write_bytes(msgspec.json.encode(this))
    others = _other_lengths(this, folder)
    predictions = predicted_speedups(this.speculation, [each.speculation for each in others])
    return predictions, [*measured, *(row for each in others for row in each.measured)]


def _level_times(blocks: Sequence[Block], concurrency: int) -> LevelTimes:
    """Return the times and counts of the pairs whose blocks have times per token, and counts by position."""
    off_seconds, on_seconds, counts = list[float](), list[float](), list[SpeculationCounts]()
    for off, on in paired(blocks_of(blocks, concurrency, "on")):
        without, with_ = (percentiles(block.done, time_per_token) for block in (off, on))
        counted = acceptance_of([on], False).counts
        if without and with_ and without.mean > 0.0 and with_.mean > 0.0 and counted and counted.shares_by_position:
            off_seconds.append(without.mean)
            on_seconds.append(with_.mean)
            counts.append(counted)
    return LevelTimes(off_seconds, on_seconds, counts)


def _other_lengths(this: RoundTimes, folder: Path) -> list[RoundTimes]:
    """Return what earlier runs beside `folder` measured with the same servers and load at other draft lengths."""
    found: dict[int, RoundTimes] = {}
    for path in sorted(folder.parent.glob(f"*/{ROUNDS}"), key=lambda path: path.stat().st_mtime):
        try:
            other = msgspec.json.decode(path.read_bytes(), type=RoundTimes)
        except msgspec.DecodeError:
            continue  # of another version
        is_same = (other.off, other.on, other.load) == (this.off, this.on, this.load)
        ours, theirs = this.speculation, other.speculation
        if is_same and theirs.length != ours.length and ours.levels.keys() <= theirs.levels.keys():
            found[theirs.length] = other
    return list(found.values())


def _without_address(description: Description) -> Description:
    """Return a description without address and draft length, in which runs of one server may differ."""
    speculation = replace(description.speculation, length=None, settings={})
    return replace(description, url="", speculation=speculation)


def _done(blocks: Sequence[Block]) -> list[LoggedRequest]:
    return [request for block in blocks for request in block.done]
