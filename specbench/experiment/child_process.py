"""Child processes: `python -m specbench` with arguments, ended when the process that started them ends."""

import ctypes
import os
import signal
import sys

from specbench.errors import ExitCode

BATCH, JOB = "--batch", "--job"  # arguments of `python -m specbench` before the files of requests
PARENT = "SPECBENCH_PARENT"  # environment variable: the process whose end also ends the child
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def command_line(*arguments: str, module: str = "specbench") -> list[str]:
    """Return the command line that runs a module with this interpreter, and without modules of the current directory."""
    return [sys.executable, "-P", "-m", module, *arguments]


def child_environment() -> dict[str, str]:
    """Return the environment of a child that calls `end_with_parent`."""
    return os.environ | {PARENT: str(os.getpid())}


def end_with_parent() -> None:
    """Have Linux send SIGTERM to this process when the one that started it ends, even by SIGKILL."""
    parent = os.environ.get(PARENT)
    if parent is None or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent):  # the parent ended before the call
        sys.exit(ExitCode.TERMINATED)
