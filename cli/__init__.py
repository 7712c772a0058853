"""The command line. `main`, the console script, catches SIGINT from its first line, and SIGTERM once `signal` is imported.

Only sys is imported at the top: a signal during another import would end in a traceback.
"""

import sys

TYPE_CHECKING = False  # stands for typing.TYPE_CHECKING, which would need an import
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

INTERRUPTED = 130  # `ExitCode.INTERRUPTED`


def main() -> None:
    """Run the command line. SIGINT and SIGTERM end it without a traceback, and leave runs that resume."""
    try:
        _run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _run() -> None:
    import signal

    from specbench.errors import ExitCode

    signal.signal(signal.SIGTERM, terminated)
    sys.unraisablehook = without_signals
    try:
        from specbench.cli import app

        app.main()
    except SystemExit as end:
        if end.code == ExitCode.TERMINATED:
            print("terminated; the same command resumes (a run: without --fresh)", file=sys.stderr)
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


def terminated(number: int, frame: "FrameType | None") -> "NoReturn":
    """Handle SIGTERM: raise Terminated, so that locks are released and children end."""
    from specbench.errors import Terminated

    raise Terminated
