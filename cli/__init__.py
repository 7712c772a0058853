"""Floor 6: the command line. `main`, the console script, installs the handler of SIGTERM before it imports the commands."""

import signal
import sys
from types import FrameType
from typing import NoReturn

INTERRUPTED, TERMINATED = 130, 143  # exit codes of SIGINT and SIGTERM, as a shell has them


def main() -> None:
    """Run the command line. SIGINT and SIGTERM end it without a traceback, and leave runs that resume."""
    signal.signal(signal.SIGTERM, terminated)
    try:
        from specbench.cli import app

        app.main()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing is left to interrupt but the interpreter's own end


def terminated(number: int, frame: FrameType | None) -> NoReturn:
    """Handle SIGTERM: raise SystemExit, so that locks are released and children end."""
    raise SystemExit(TERMINATED)
