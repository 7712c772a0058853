"""A process that runs a server, and ends it with all its descendants when the process that started it ends, even by SIGKILL.

It runs as a script of its own, with the standard library alone. It is a subreaper (Linux), so a descendant stays below it
also after it has left the server's process group or lost its parent. The pipe to its standard input, unlike
PR_SET_PDEATHSIG, does not depend on the thread that started it. A first line of JSON there holds the command and its
environment. A second line ends the server gently; the end of the pipe without it ends the server at once.

Standard output has a line: `started`, or the error of a command that cannot be started. The output of the server goes to
standard error. The exit code is the server's, 128 + N after signal N.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
POLL_SECONDS = 0.05
GENTLE = ((signal.SIGINT, 15.0), (signal.SIGTERM, 15.0))  # seconds that each signal gets before the next
ORPHAN_SECONDS = 1.0  # of each signal, if the process that started this one is gone
KILL_SECONDS = 10.0


def main() -> None:
    """Run the command from standard input until it ends or is to end."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)  # the pipe says when to end
    is_linux = sys.platform.startswith("linux")
    if is_linux:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with os.fdopen(0, "rb", buffering=0, closefd=False) as pipe:
        order = json.loads(pipe.readline())
    try:
        server = subprocess.Popen(
            order["command"], stdin=subprocess.DEVNULL, stdout=2, stderr=2, env={**os.environ, **order["env"]},
            start_new_session=True, preexec_fn=_as_child if is_linux else _with_signals,
        )  # fmt: skip
    except OSError as error:
        print(error.strerror, flush=True)
        sys.exit(127)
    print("started", flush=True)
    is_to_end = select.poll()
    is_to_end.register(0, select.POLLIN | select.POLLHUP)
    while server.poll() is None and not is_to_end.poll(1000 * POLL_SECONDS):
        pass
    if server.poll() is None:
        _end(server, GENTLE if os.read(0, 1) else GENTLE[1:])
    _kill_descendants(server)
    code = server.returncode
    if code is None:  # it survived SIGKILL, as a process in uninterruptible sleep does
        code = -signal.SIGKILL
    os._exit(code if code >= 0 else 128 - code)


def _as_child() -> None:
    """Let the server itself end with this process, should it be killed."""
    _with_signals()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _with_signals() -> None:
    for restored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(restored, signal.SIG_DFL)


def _end(server: "subprocess.Popen[bytes]", steps: "tuple[tuple[signal.Signals, float], ...]") -> None:
    """End the server's process group with one signal after the other."""
    for sign, seconds in (*steps, (signal.SIGKILL, KILL_SECONDS)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(server.pid, sign)
        begin = time.monotonic()
        while time.monotonic() - begin < (seconds if _is_held() else min(seconds, ORPHAN_SECONDS)):
            if server.poll() is not None:
                return
            time.sleep(POLL_SECONDS)


def _is_held() -> bool:
    """Return whether the process that started this one holds the pipe."""
    hang_up = select.poll()
    hang_up.register(0, 0)  # a hang-up is always reported
    return not any(event & select.POLLHUP for _, event in hang_up.poll(0))


def _kill_descendants(server: "subprocess.Popen[bytes]") -> None:
    """Kill what the server left: its process group, and every process that has come to this one or below it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(server.pid, signal.SIGKILL)
    until = time.monotonic() + KILL_SECONDS
    while (children := _children(os.getpid())) and time.monotonic() < until:
        for child in children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(POLL_SECONDS / 10)


def _children(pid: int) -> list[int]:
    """Return the children of a process, on Linux."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


if __name__ == "__main__":
    main()
