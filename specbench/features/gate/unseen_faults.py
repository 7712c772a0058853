"""Faults that a snapshot could not see: known faults are injected, and the recorded methods decode the same prompts again.

A fault replaces functions of the rejection rule in this process, so that presets, labels and hashes of runs stay as they are.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from torch import Tensor

from specbench.decoding import rejection
from specbench.experiment.batch import RequestBatch, measure_here
from specbench.features.gate.snapshot import MeasuredRun, measured_run
from specbench.runs.run_folder import SAMPLES

LENIENT = 1.5  # factor of the acceptance probability


class Fault(StrEnum):
    """Faults of token-by-token rejection that lose exactness."""

    lenient = f"drafts are accepted {LENIENT:g} times as often"
    replacement = "replacements are drawn from the target distribution"


@dataclass(frozen=True)
class UnseenFault:
    """A fault that leaves the tokens and counters of a method unchanged.

    Args:
        run: The name of the run.
        method: The label of the method.
        fault: The fault.
        generations: The number of recorded generations.
        is_greedy: Whether the run is greedy, so that no number of generations would show the fault.
    """

    run: str
    method: str
    fault: Fault
    generations: int
    is_greedy: bool

    def __str__(self) -> str:
        why = "greedy decoding does not depend on it" if self.is_greedy else f"{self.generations} generations"
        return f"{self.method} on {self.run}: {self.fault} ({why})"


@contextmanager
def injected(fault: Fault) -> Iterator[None]:
    """Decode with a fault in the rejection of drafted tokens."""
    right = rejection.accepted_count_distribution, rejection.residual

    def lenient(x: Tensor, pi: Tensor, q: Tensor) -> Tensor:
        return right[0](x, LENIENT * pi, q)

    def from_target(pi: Tensor, q: Tensor) -> Tensor:
        return pi

    try:
        if fault is Fault.lenient:
            rejection.accepted_count_distribution = lenient
        else:
            rejection.residual = from_target
        yield
    finally:
        rejection.accepted_count_distribution, rejection.residual = right


def untried(runs: Sequence[MeasuredRun]) -> list[str]:
    """Return the methods that draft and that no fault is injected into, since they test drafts in another way."""
    names = [
        name
        for run in runs
        for name, rows in run.generations.items()
        if any(row.tested for row in rows) and not _tests_token_by_token(run, name)
    ]
    return list(dict.fromkeys(names))


def unseen_faults(runs: Sequence[MeasuredRun], batch: RequestBatch, out: Path) -> list[UnseenFault]:
    """Return the faults that the recorded runs do not show.

    Methods that do not draft, or that have another rejection rule, are left out. Greedy runs are not decoded again.

    Args:
        runs: The recorded runs.
        batch: The requests that measure them, for counters only.
        out: The folder of the runs with faults.
    """
    tested = [(run, name) for run in runs for name in run.generations if _tests_token_by_token(run, name)]
    found = [_unseen(run, name, fault) for fault in Fault for run, name in tested if _is_greedy(run)]
    if len(found) == len(tested) * len(Fault):
        return found
    for number, fault in enumerate(Fault, 1):
        folder = out / f"fault-{number}"
        with injected(fault):
            measure_here(batch, folder)
        faulty = {
            run.spec.sha256: run for run in map(measured_run, (each.parent for each in folder.glob(f"*/{SAMPLES}")))
        }
        found += [
            _unseen(run, name, fault)
            for run, name in tested
            if not _is_greedy(run) and run.spec.sha256 in faulty and _is_equal(run, faulty[run.spec.sha256], name)
        ]
    return found


def _unseen(run: MeasuredRun, name: str, fault: Fault) -> UnseenFault:
    return UnseenFault(run.name, name, fault, len(run.generations[name]), _is_greedy(run))


def _is_greedy(run: MeasuredRun) -> bool:
    return run.spec.decoding.temperature == 0.0


def _tests_token_by_token(run: MeasuredRun, name: str) -> bool:
    """Return whether a method of a run drafts, and tests drafted tokens one by one."""
    spec = run.spec.methods[name]
    is_tree = spec.traits.theory is not None and spec.traits.theory.formula == "tree"
    return any(row.tested for row in run.generations[name]) and not is_tree and not spec.options.get("rejection")


def _is_equal(run: MeasuredRun, faulty: MeasuredRun, name: str) -> bool:
    """Return whether a method has the same tokens and counters in both runs, for the generations that both have."""
    rows = {(row.sample, row.repeat): row for row in faulty.generations[name]}
    pairs = [(row, rows[row.sample, row.repeat]) for row in run.generations[name] if (row.sample, row.repeat) in rows]
    return bool(pairs) and all(a.ids == b.ids and a.counters == b.counters for a, b in pairs)
