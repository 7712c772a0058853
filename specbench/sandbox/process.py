"""One sandboxed process of a check, from its parent's side: frames over a socket, deadlines, and a complete clean-up.

A busy machine extends deadlines: the time that tasks waited for a CPU does not count.
"""

import json
import os
import select
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

STRETCH = 10  # a deadline is extended to at most this many times its seconds
SCHEDSTAT_PATH = "/proc/thread-self/schedstat"
STARTUP = 30.0  # seconds until a sandbox must have started: generous, for a busy machine
DYING = 10.0  # seconds
CLEANUP = 2.0  # seconds that a supervisor without a PID namespace gets to end its descendants
LARGEST_COMPLAINT = 2000  # bytes of the error output of a sandbox that failed to start


class Deadline:
    """A deadline `seconds` from now on the wall clock, extended by the growth of `waits`; at most STRETCH * `seconds`.

    Each of `waits` returns the seconds that one task has waited for a CPU so far. This includes waiting for the program's own
    processes and threads, so STRETCH bounds the extension.
    """

    def __init__(self, seconds: float, waits: Iterable[Callable[[], float]] = ()) -> None:
        self._seconds, self._waits = seconds, tuple(waits)
        self._start = time.monotonic()
        self._waited_before = self._waited()
        self._end = self._start + seconds

    def remaining(self) -> float:
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

    The file stays open, so that it never refers to another task that got the same id.
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
        """Close the file; `waited` still returns the last known value."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def kernel_reports_waits() -> bool:
    """Return whether this kernel reports how long tasks wait for a CPU."""
    try:
        with open(SCHEDSTAT_PATH) as file:
            return any(int(field) for field in file.read().split())  # zeros: sched_info is off
    except OSError:
        return False


# The process


class ProcessGone(Exception):
    """Raised with the name of a process that has ended or closed its socket."""


class FrameTooLong(Exception):
    """Raised with the name of a process that announced a frame above the limit."""


class Cell:
    """A supervisor and its worker, started with an empty environment and a socket as their only way to communicate.

    The supervisor ends the cell when this end of the socket closes, by `kill` or because this process died. If it is
    `namespaced`, the supervisor is process 1 of a PID namespace, whose death kills all other processes in it. Otherwise it
    leads a process group, and a program that kills the supervisor and leaves its group survives.
    """

    def __init__(self, name: str, command: list[str], longest: int, namespaced: bool) -> None:
        self._socket, theirs = socket.socketpair()
        self._name, self._longest, self._namespaced = name, longest, namespaced
        self._first: int | None = None  # a pidfd of process 1
        self._queue: RunQueue | None = None
        self._process: subprocess.Popen[bytes]
        try:
            self._process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={}, cwd="/",
                start_new_session=True,
            )  # fmt: skip
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()

    def wait_ready(self) -> list[str]:
        """Return the protections that the sandbox lacks. Raises RuntimeError, with the error output, if it does not start."""
        try:
            missing: list[str] = json.loads(self.receive(Deadline(STARTUP)))
            supervisor = self._find_supervisor()
            if self._namespaced:
                self._first = os.pidfd_open(supervisor)
            self._queue = RunQueue(f"/proc/{_first_child(supervisor)}/schedstat")
            return missing
        except (ProcessGone, FrameTooLong, OSError, ValueError, IndexError) as error:  # TimeoutError is an OSError
            complaint = " ".join(self._complaint().split())
            raise RuntimeError(f"the sandbox did not start: {complaint or type(error).__name__}") from None

    def waited(self) -> float:
        """Return the seconds that the worker's main thread has been waiting for a CPU."""
        return self._queue.waited() if self._queue else 0.0

    def send(self, data: bytes, deadline: Deadline) -> None:
        """Send a frame. Raises TimeoutError, and ProcessGone."""
        view = memoryview(struct.pack(">I", len(data)) + data)
        while view:
            try:
                self._socket.settimeout(deadline.remaining())
                view = view[self._socket.send(view) :]
            except TimeoutError:
                deadline.remaining()  # raises, unless the deadline was extended
            except (BrokenPipeError, ConnectionResetError):
                raise ProcessGone(self._name) from None

    def receive(self, deadline: Deadline) -> bytes:
        """Return the next frame. Raises TimeoutError, ProcessGone, and FrameTooLong."""
        (size,) = struct.unpack(">I", self._read(4, deadline))
        if size > self._longest:
            raise FrameTooLong(self._name)
        return self._read(size, deadline)

    def kill(self) -> None:
        """Kill all processes of the sandbox and wait for them. Raises RuntimeError if that fails."""
        try:
            if self._namespaced:
                self._kill_first()
            else:
                self._socket.close()  # the supervisor kills its descendants and removes its directory
                _wait_readable(os.pidfd_open(self._process.pid), CLEANUP)
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(DYING)
        except subprocess.TimeoutExpired:
            raise RuntimeError("a sandbox did not end after SIGKILL") from None
        finally:
            self._socket.close()
            if self._queue:
                self._queue.close()
            if self._process.stderr:
                self._process.stderr.close()

    def _kill_first(self) -> None:
        """Kill process 1 of the PID namespace. Its descriptor becomes readable only after all others in it are gone."""
        first, self._first = self._first, None
        if first is None:
            with suppress(OSError, IndexError):  # ended already, or not started yet
                first = os.pidfd_open(self._find_supervisor())
        if first is None:
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(first, signal.SIGKILL)
        if not _wait_readable(first, DYING):
            raise RuntimeError("a sandbox did not end after SIGKILL")

    def _find_supervisor(self) -> int:
        return _first_child(self._process.pid) if self._namespaced else self._process.pid

    def _read(self, size: int, deadline: Deadline) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                self._socket.settimeout(deadline.remaining())
                part = self._socket.recv(min(size - len(data), 1 << 20))
            except TimeoutError:
                deadline.remaining()  # raises, unless the deadline was extended
                continue
            except ConnectionResetError:
                part = b""
            if not part:
                raise ProcessGone(self._name)
            data += part
        return bytes(data)

    def _complaint(self) -> str:
        assert self._process.stderr is not None
        os.set_blocking(self._process.stderr.fileno(), False)
        return (self._process.stderr.read(LARGEST_COMPLAINT) or b"").decode(errors="replace")


def _first_child(pid: int) -> int:
    """Return the oldest child of a process. Raises IndexError if it has none."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _wait_readable(pidfd: int, seconds: float) -> bool:
    """Return whether the process of a descriptor ended in time, and close the descriptor."""
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(seconds * 1000))
    finally:
        os.close(pidfd)
