"""The number of CPU threads that decode: chosen from the size of the models and the free processors, and fixed for a run."""

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath

from specbench.machine.hardware import OtherLoad

# A second thread begins to pay at about twice this size. Before the CPU kernels, two threads on two AMD EPYC cores decoded a
# token of the bundled target (13 MB) in 1.25 ms instead of 1.26 ms, and of a model of 25 million float32 parameters in 3.5 ms
# instead of 4.8 ms.
BYTES_PER_THREAD = 32_000_000
INTERVAL = 0.2  # seconds over which the load of other programs is measured
TOLERATED = 0.25  # processors that other programs may use without costing a thread
VARIABLE = "OMP_NUM_THREADS"
CGROUPS, OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


@dataclass(frozen=True)
class Threads:
    """A number of threads, and why it is that number, in a few words for a note; empty if unknown."""

    count: int
    reason: str = ""


@dataclass(frozen=True)
class Cores:
    """The processors that this process may use: by its affinity, by its quota, and how many of them others keep busy."""

    allowed: int
    quota: float = math.inf
    busy: float = 0.0

    @property
    def usable(self) -> int:
        """The number of threads that could run at once if no other program ran, at least 1."""
        return max(1, math.floor(min(self.allowed, self.quota)))

    @property
    def free(self) -> int:
        """The number of threads that can run at once beside other programs, at least 1."""
        taken = max(0, math.ceil(self.busy - TOLERATED))
        return max(1, min(self.usable, self.allowed - taken))


def choose(weights_bytes: int, cores: Cores) -> Threads:
    """Return the number of threads for models of which the largest reads this many bytes of weights per token."""
    wanted = max(1, weights_bytes // BYTES_PER_THREAD)
    if wanted <= cores.free:
        return Threads(wanted, f"model of {weights_bytes / 1e6:.0f} MB")
    if cores.free < cores.usable:
        return Threads(cores.free, f"{cores.free} of {cores.usable} cores free")
    return Threads(cores.free, "1 core" if cores.free == 1 else f"{cores.free} cores")


def cores_here(with_load: bool = True) -> Cores:
    """Return the processors of this process. With their load, this takes INTERVAL seconds."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    busy = 0.0
    if with_load:
        load, begin = OtherLoad(allowed), time.perf_counter()
        time.sleep(INTERVAL)
        busy = (load.seconds() or 0.0) / (time.perf_counter() - begin)
    return Cores(len(allowed), _quota(), busy)


def _quota() -> float:
    """Return the least limit of this process's cgroup (version 2) and those above it, in processors."""
    try:
        lines = OWN_CGROUP.read_text(encoding="utf-8").splitlines()
    except OSError:
        return math.inf
    own = PurePosixPath(next((line[3:] for line in lines if line.startswith("0::")), "/"))
    limits = []
    for group in (own, *own.parents):
        try:
            quota, _, period = (CGROUPS / str(group).lstrip("/") / "cpu.max").read_text(encoding="utf-8").partition(" ")
        except OSError:
            continue
        if quota.isdecimal():
            limits.append(int(quota) / int(period))
    return min(limits, default=math.inf)


def measured_once(with_load: bool = True) -> Callable[[], Cores]:
    """Return a function that returns `cores_here`, as it was at the first call.

    Without the load, parts of a run that are measured at different times or by different processes have the same number of
    threads on equal machines.
    """
    return cache(lambda: cores_here(with_load))


@dataclass(frozen=True)
class ThreadChoice:
    """Chooses the threads of runs: the user's number (0: none), or by the processors, which runs can share."""

    given: int = 0
    cores: Callable[[], Cores] = field(default_factory=measured_once)

    def threads(self, weights_bytes: int, recorded: Threads | None = None) -> Threads:
        """Return the number of a run: the user's, the number in the records that it already has, or the chosen one.

        The chosen one is at most the number that torch uses, which the program may have set.
        """
        import torch  # slow to import

        if self.given:
            return Threads(self.given, "as requested")
        if os.environ.get(VARIABLE):
            return Threads(torch.get_num_threads(), VARIABLE)
        if recorded:
            return recorded
        chosen, most = choose(weights_bytes, self.cores()), torch.get_num_threads()
        return chosen if chosen.count <= most else Threads(most, "as set in PyTorch")


@contextmanager
def using(count: int) -> Iterator[None]:
    """Use this number of CPU threads within a context (0: unchanged). It changes the last bits of sums."""
    import torch  # slow to import

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
