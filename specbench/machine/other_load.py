"""The processor time that other programs use while this one measures. Linux only; unknown elsewhere."""

import os
import resource
from pathlib import Path

STAT = Path("/proc/stat")
BUSY = (0, 1, 2, 5, 6, 7)  # columns of /proc/stat: user, nice, system, irq, softirq, steal


class OtherLoad:
    """Measures the CPU seconds of other programs from its creation on.

    Processes of this program, such as the workers of models that run in parallel, do not count. Time that a hypervisor
    gives to other guests does. The clock of /proc/stat ticks every 10 ms, so short times are inexact, and may be
    negative; their sums are exact.
    """

    def __init__(self) -> None:
        self._start = _others()

    def seconds(self) -> float | None:
        """Return the CPU seconds of other programs so far, over all processors; None if they are unknown."""
        now = _others()
        return None if now is None or self._start is None else now - self._start


def _others() -> float | None:
    if not STAT.exists():
        return None
    ticks = STAT.read_text().split("\n", 1)[0].split()[1:]
    busy = sum(int(ticks[i]) for i in BUSY if i < len(ticks)) / os.sysconf("SC_CLK_TCK")
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return busy - sum(each.ru_utime + each.ru_stime for each in own) - sum(map(_seconds_of, _descendants(os.getpid())))


def _descendants(pid: int) -> list[int]:
    """Return the running processes that a process has started, directly or not."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(word) for word in path.read_text().split()]
        except OSError:  # it has just ended
            continue
        for child in children:
            found += [child, *_descendants(child)]
    return found


def _seconds_of(pid: int) -> float:
    """Return the CPU seconds of a process; 0 if it has just ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime
