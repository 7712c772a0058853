"""Deadlines that a busy machine extends: the time that tasks waited for a CPU does not count."""

import os
import time
from collections.abc import Callable, Iterable

STRETCH = 10  # a deadline never lies further away than this many times its seconds
OWN_QUEUE = "/proc/thread-self/schedstat"


class Deadline:
    """Ends `seconds` from now on the wall clock, plus what `waits` have grown by until then; at most STRETCH * `seconds`.

    Each of `waits` returns the seconds that one task has waited for a CPU so far. What a program's own processes and threads
    take from its main thread counts as well, which the bound limits.
    """

    def __init__(self, seconds: float, waits: Iterable[Callable[[], float]] = ()) -> None:
        self._seconds, self._waits = seconds, tuple(waits)
        self._start = time.monotonic()
        self._waited_before = self._waited()
        self._end = self._start + seconds

    def left(self) -> float:
        """Return the seconds that are left, more than 0. Raises TimeoutError if the deadline has passed."""
        now = time.monotonic()
        if now >= self._end:  # /proc is read only when it could matter
            granted = self._waited() - self._waited_before
            self._end = self._start + min(self._seconds + granted, STRETCH * self._seconds)
        if now >= self._end:
            raise TimeoutError
        return self._end - now

    def _waited(self) -> float:
        return sum(wait() for wait in self._waits)


class RunQueue:
    """The time that one task has waited for a CPU, from the second field of a schedstat file of /proc.

    The file stays open, so that it is never that of another task which got the same id.
    """

    def __init__(self, path: str) -> None:
        self._last = 0.0
        self._descriptor: int | None
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # a kernel without CONFIG_SCHED_INFO, or the task has ended
            self._descriptor = None

    def waited(self) -> float:
        """Return seconds: the last known value if the task has ended, and 0 if the kernel does not record waits."""
        if self._descriptor is not None:
            try:
                self._last = int(os.pread(self._descriptor, 100, 0).split()[1]) / 1e9
            except (OSError, IndexError, ValueError):
                self.close()
        return self._last

    def close(self) -> None:
        """Close the file; `waited` goes on returning the last known value."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def is_known() -> bool:
    """Return whether this kernel reports how long tasks wait for a CPU."""
    try:
        with open(OWN_QUEUE) as file:
            return any(int(field) for field in file.read().split())  # zeros: sched_info is off
    except OSError:
        return False
