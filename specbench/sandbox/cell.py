"""One process of a check as its parent sees it: frames over a socket, a deadline, and a death that takes everything along."""

import os
import select
import signal
import socket
import struct
import subprocess
import time
from contextlib import suppress
from pathlib import Path

STARTUP = 30.0  # seconds until a sandbox must have said that it is there: generous, for a busy machine
DYING = 10.0  # seconds
LARGEST_COMPLAINT = 2000  # bytes of what a sandbox that failed to start said


class Gone(Exception):
    """The process of that name has ended, or closed its socket."""


class TooLong(Exception):
    """The process of that name announced a frame above the limit."""


class Cell:
    """A process started with an empty environment, a socket as its input, and no other way to talk.

    `namespaced` says that its first child is process 1 of a PID namespace, whose death is everybody's. Where it is
    not so the process leads a session, and what leaves its process group survives it.
    """

    def __init__(self, name: str, command: list[str], longest: int, namespaced: bool, directory: str) -> None:
        self._socket, theirs = socket.socketpair()
        self._name, self._longest, self._namespaced = name, longest, namespaced
        self._first: int | None = None  # a pidfd of process 1
        self._process: subprocess.Popen[bytes]
        try:
            self._process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={}, cwd=directory,
                start_new_session=True,
            )  # fmt: skip
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()

    def wait_ready(self) -> None:
        """Raises RuntimeError, with what the tools said, where the sandbox does not come up."""
        try:
            if self.receive(time.monotonic() + STARTUP) != b"ready":
                raise Gone(self._name)
            self._first = self._find_first()
        except (Gone, TooLong, TimeoutError, OSError) as error:
            said = " ".join(self._complaint().split())
            raise RuntimeError(f"the sandbox did not start: {said or type(error).__name__}") from None

    def send(self, data: bytes, until: float) -> None:
        """Raises TimeoutError at `until` (of time.monotonic), and Gone."""
        self._set_timeout(until)
        try:
            self._socket.sendall(struct.pack(">I", len(data)) + data)
        except (BrokenPipeError, ConnectionResetError):
            raise Gone(self._name) from None

    def receive(self, until: float) -> bytes:
        """The next frame. Raises TimeoutError at `until`, Gone, and TooLong."""
        (size,) = struct.unpack(">I", self._read(4, until))
        if size > self._longest:
            raise TooLong(self._name)
        return self._read(size, until)

    def kill(self) -> None:
        """Everything in the cell is dead when this returns. Raises RuntimeError where that cannot be brought about."""
        try:
            if self._namespaced:
                first = self._first
                with suppress(OSError):  # gone already
                    first = self._find_first() if first is None else first
                if first is not None:
                    _kill_and_wait(first)
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(DYING)
        except subprocess.TimeoutExpired:
            raise RuntimeError("a sandbox outlives its kill") from None
        finally:
            self._socket.close()
            if self._process.stderr:
                self._process.stderr.close()

    def _find_first(self) -> int | None:
        if not self._namespaced:
            return None
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return os.pidfd_open(int(children[0])) if children else None

    def _read(self, size: int, until: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._set_timeout(until)
            try:
                part = self._socket.recv(min(size - len(data), 1 << 20))
            except ConnectionResetError:
                part = b""
            if not part:
                raise Gone(self._name)
            data += part
        return bytes(data)

    def _set_timeout(self, until: float) -> None:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)

    def _complaint(self) -> str:
        assert self._process.stderr is not None
        os.set_blocking(self._process.stderr.fileno(), False)
        said = self._process.stderr.read(LARGEST_COMPLAINT) or b""
        return said.decode(errors="replace")


def _kill_and_wait(pidfd: int) -> None:
    """Kill process 1 of a PID namespace. Its descriptor turns readable only after all others in there are gone."""
    try:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        if not poll.poll(DYING * 1000):
            raise RuntimeError("a sandbox outlives its kill")
    finally:
        os.close(pidfd)
