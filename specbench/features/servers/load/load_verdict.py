"""The answer of a measurement under load: whether speculation pays, up to which concurrency, and with which flags."""

from collections.abc import Mapping

from specbench.analysis.intervals import Estimate
from specbench.analysis.number_format import NONE
from specbench.features.servers.endpoint import backend_named
from specbench.features.servers.load.pays import best_length, break_even
from specbench.features.servers.load.server_run import ServerRun


def answer_of(run: ServerRun) -> str:
    """Return whether speculation pays, up to which concurrency, and with which flags."""
    found = {level.concurrency: level.speedups["throughput"] for level in run.levels if "throughput" in level.speedups}
    if not found:
        return "no verdict: no level has tokens on both sides"
    words = [f"{_verdict(each)} at concurrency {level} ({times_faster(each)})" for level, each in found.items()]
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
    backend = backend_named(run.on.backend)
    distinct = set(lengths.values())
    if len(distinct) == 1:
        return f"predicted best draft length {distinct.pop()}: {backend.flags(next(iter(lengths.values())))}"
    table = backend.flags_by_concurrency(lengths)
    each = ", ".join(f"{length} at concurrency {level}" for level, length in lengths.items())
    return f"predicted best draft lengths {each}" + (f": {table}" if table else "")


def times_faster(value: Estimate | None) -> str:
    """Return a speedup with its interval, as text."""
    if value is None:
        return NONE
    if value.low is None or value.high is None:
        return f"{value.value:.2f}x"
    return f"{value.value:.2f}x [{value.low:.2f}, {value.high:.2f}]"
