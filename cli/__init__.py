"""The command line. `main`, the console script, installs the handler of SIGTERM before it imports the table of commands."""

import signal
import sys
from types import FrameType
from typing import NoReturn

from specbench.errors import ExitCode, Terminated


def main() -> None:
    """Run the command line. SIGINT and SIGTERM end it without a traceback, and leave runs that resume."""
    signal.signal(signal.SIGTERM, terminated)
    sys.unraisablehook = without_signals
    try:
        from specbench.cli import app

        app.main()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(ExitCode.INTERRUPTED)
    except SystemExit as end:
        if end.code == ExitCode.TERMINATED:
            print("terminated; the same command, without --fresh, resumes a run", file=sys.stderr)
        raise
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):  # all work is done; only the interpreter's shutdown is left
            signal.signal(number, signal.SIG_IGN)


def without_signals(unraisable: "sys.UnraisableHookArgs") -> None:
    """Report an exception that Python cannot raise, unless a signal's handler raised it in a finalizer: that is no error.

    The command ends at its next check for signals.
    """
    if not issubclass(unraisable.exc_type, (KeyboardInterrupt, SystemExit)):
        sys.__unraisablehook__(unraisable)


def terminated(number: int, frame: FrameType | None) -> NoReturn:
    """Handle SIGTERM: raise Terminated, so that locks are released and children end."""
    raise Terminated
