"""Record, update and check snapshots by measuring their requests."""

from dataclasses import dataclass, replace
from pathlib import Path

from specbench.config.presets import preset
from specbench.config.request import Request
from specbench.errors import ConfigError
from specbench.experiment.batch import (
    Launch,
    RequestBatch,
    measure_here,
    measure_in_new_process,
)
from specbench.features.gate.comparison import ANCHOR, compare
from specbench.features.gate.snapshot import MeasuredRun, RunSnapshot, measured_run, pooled
from specbench.features.gate.unseen_faults import UnseenFault, unseen_faults, untried
from specbench.features.gate.verdict import GateLimits, GateVerdict, Status
from specbench.runs.run_folder import SAMPLES

SESSIONS, ROUNDS = 2, 5  # defaults of a snapshot with timing
AGREEING, MOST = 3, 4  # sessions needed for a slow-down, and the maximum that a check measures
CLOCKED = ("speed", "engine")  # checks that are affected by timing noise


@dataclass(frozen=True, kw_only=True)
class SnapshotOptions:
    """How to record a snapshot: counters only or with timing from `sessions`."""

    counters_only: bool
    sessions: int = SESSIONS


def record(
    earlier: RunSnapshot | None, out: Path, batch: RequestBatch, how: SnapshotOptions
) -> tuple[RunSnapshot, list[UnseenFault], list[str]]:
    """Measure a request, and return a snapshot of it, added to an earlier one.

    Also returns the known faults that the new measurements could not see, and the methods that were not tried. Raises
    ConfigError if the earlier snapshot is of the other kind.
    """
    (request,) = batch.requests
    if not how.counters_only:
        request = with_anchor(request)
    snapshot = earlier or RunSnapshot([], [], how.counters_only)
    if snapshot.counters_only != how.counters_only:
        raise ConfigError(
            f"the file has {'counters only' if snapshot.counters_only else 'timing'};"
            " help: record the other kind into another file"
        )
    threads = snapshot.runs[0].threads if snapshot.runs else 0
    batch = replace(batch, requests=[request], threads=threads)
    runs = _measure(batch, out, how.counters_only, how.sessions)
    whole = RunSnapshot([*snapshot.requests, request], [*snapshot.runs, *runs], how.counters_only)
    return whole, unseen_faults(runs, replace(batch, requests=[_counters_only(request)]), out), untried(runs)


def update(snapshot: RunSnapshot, out: Path, batch: RequestBatch, count: int | None) -> RunSnapshot:
    """Measure a snapshot's requests with this machine's number of threads, and return a snapshot of the results."""
    batch = replace(batch, requests=snapshot.requests)
    count = count or max(len(run.sessions) for run in snapshot.runs) or SESSIONS
    runs = _measure(batch, out, snapshot.counters_only, count)
    return replace(snapshot, runs=runs)


def check(
    snapshot: RunSnapshot, out: Path, batch: RequestBatch, limits: GateLimits, launch: Launch = measure_in_new_process
) -> list[GateVerdict]:
    """Measure a snapshot's requests again and compare.

    A process can be slow by chance. So while a method is slower than the limit in every session, another session is measured
    in a new process: until AGREEING sessions show a significant slow-down, or MOST sessions are measured.
    """
    limits = replace(limits, counters_only=limits.counters_only or snapshot.counters_only)
    requests = snapshot.requests
    if limits.counters_only and not snapshot.counters_only:
        requests = [_counters_only(request) for request in requests]
    batch = replace(batch, requests=requests, threads=snapshot.runs[0].threads)
    new = measure_sessions(batch, out, measure_here if limits.counters_only else launch, 1)

    def slower(limits: GateLimits) -> bool:
        verdicts = compare(snapshot.runs, new, limits)
        return any(verdict.status is Status.regression and verdict.aspect in CLOCKED for verdict in verdicts)

    for number in range(2, MOST + 1):
        decided = number > AGREEING and slower(limits)
        if decided or not slower(replace(limits, alpha=1.0)):
            break
        new = pooled([*new, *measure_sessions(batch, out, launch, 1, first=number)])
    return compare(snapshot.runs, new, limits)


def measure_sessions(batch: RequestBatch, out: Path, launch: Launch, count: int, first: int = 1) -> list[MeasuredRun]:
    """Measure `count` sessions one after the other, and return their runs, pooled."""
    runs = []
    for number in range(first, first + count):
        folder = out / f"session-{number}"
        launch(batch, folder)
        runs += [measured_run(samples.parent) for samples in sorted(folder.glob(f"*/{SAMPLES}"))]
    return pooled(runs)


def with_anchor(request: Request) -> Request:
    """Return the request with the decoding of transformers added, if `ar` or a method with that baseline is measured."""
    methods = request.methods
    is_anchored = any(preset("method", name).table.get("baseline") == "ar" for name in methods) or "ar" in methods
    return replace(request, methods=(*methods, ANCHOR)) if is_anchored and ANCHOR not in methods else request


def _counters_only(request: Request) -> Request:
    """Return a request with timing as one for counters only: without the anchor, and with one repeat."""
    methods = tuple(name for name in request.methods if name != ANCHOR)
    return replace(request, methods=methods, options=replace(request.options, repeats=1))


def _measure(batch: RequestBatch, out: Path, counters_only: bool, count: int) -> list[MeasuredRun]:
    """Return the measured runs of a snapshot. Raises ConfigError if a generation failed."""
    if counters_only:
        runs = [replace(run, sessions=[], costs={}) for run in measure_sessions(batch, out, measure_here, 1)]
    else:
        runs = measure_sessions(batch, out, measure_in_new_process, count)
    failed = [f"{name} on {run.name}" for run in runs for name, count in run.failed.items() if count]
    if failed:
        raise ConfigError(f"generations failed, so there is no snapshot: {', '.join(failed)}; help: specbench run")
    return runs
