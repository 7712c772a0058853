"""The totals of a plan for another machine, in one sentence, and the least change that makes its runs fit."""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.experiment.machine_plan import RECORD, MachineRow
from specbench.machine.accelerator import GIB, Accelerator, smallest_with

HOUR = 3600.0
LONG = 72 * HOUR  # longer times are given in days


@dataclass(frozen=True, kw_only=True)
class MachineTotal:
    """The totals of a plan: seconds under the fast and the slow assumptions, and bytes."""

    seconds: tuple[float, float]
    memory: int
    download: int
    disk: int
    fits: bool
    remedy: str = ""  # with which all runs fit
    complete: bool  # every run has an estimate


def total_of(rows: Sequence[MachineRow]) -> MachineTotal:
    """Return the totals of a plan's rows. A source is downloaded once."""
    timed = [row.seconds for row in rows if row.seconds]
    download = sum({source: size for row in rows for source, size in row.downloads.items()}.values())
    remedies = {row.remedy for row in rows if not row.fits}
    return MachineTotal(
        seconds=(sum(low for low, _ in timed), sum(high for _, high in timed)),
        memory=max((row.memory.total for row in rows if row.memory), default=0),
        download=download,
        disk=download + RECORD * sum(row.generations or 0 for row in rows),
        fits=all(row.fits for row in rows),
        remedy=remedies.pop() if len(remedies) == 1 else "",
        complete=all(row.seconds and not row.why for row in rows),
    )


def sentence(name: str, total: MachineTotal, machine: Accelerator, gpus: int = 1) -> str:
    """Return a plan in one sentence: time, memory and download, or what does not fit and what would."""
    place = f"one {machine.name}" if gpus == 1 else f"{gpus} {machine.name}"
    if not total.memory:
        return f"{name} on {place}: no estimate."
    each = " on a GPU" if gpus > 1 else ""
    need = f"at most {gib(total.memory)} GiB of {machine.memory_gib:.0f} GiB{each}"
    parts = [
        span(*total.seconds) if total.seconds[1] else "time unknown",
        need,
        f"{gib(total.download)} GiB to download",
    ]
    text = f"{name} on {place}: {', '.join(parts)}"
    if not total.fits:
        bigger = smallest_with(total.memory)
        number = "one" if gpus == 1 else str(gpus)
        change = f"it fits on {number} {bigger.name}" if bigger else "no known machine has enough memory"
        if total.remedy:
            change = f"it fits with {total.remedy}"
        text = f"{name} does not fit on {place}: it needs {need.removeprefix('at most ')}; {change}"
    return f"{text}.{'' if total.complete else ' Some runs have no estimate.'}"


def span(low: float, high: float) -> str:
    """Return a range of seconds in the unit that suits its upper end."""
    unit, name = (60.0, "minutes") if high < 2 * HOUR else (HOUR, "hours") if high < LONG else (24 * HOUR, "days")
    first, last = (max(round(each / unit), 1) for each in (low, high))
    return f"{first} {name if first > 1 else name[:-1]}" if first == last else f"{first} to {last} {name}"


def gib(size: float) -> str:
    """Return bytes in GiB, with a digit after the point below 10."""
    found = size / GIB
    return f"{found:.1f}" if 0 < found < 9.95 else f"{found:.0f}"
