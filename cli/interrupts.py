"""Ctrl-C and SIGTERM: the exceptions that they raise, and the message and exit code of a command that they end."""

import signal
import sys
import threading
from types import FrameType
from typing import NoReturn

from specbench.errors import ExitCode, Terminated


class Interrupts:
    """Raises on SIGINT and SIGTERM, and again at `check`, since Python drops exceptions raised in a finalizer."""

    def __init__(self) -> None:
        self._seen: BaseException | None = None
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._note)
            signal.signal(signal.SIGTERM, self._note)

    def check(self) -> None:
        """Raise KeyboardInterrupt after SIGINT, Terminated after SIGTERM."""
        if self._seen is not None:
            raise self._seen

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._seen = KeyboardInterrupt() if number == signal.SIGINT else Terminated()
        raise self._seen


def interrupted(fresh: bool = False) -> NoReturn:
    """Print how to resume after SIGINT, and exit with code 130."""
    print(f"interrupted; the same command{' without --fresh' if fresh else ''} resumes", file=sys.stderr)
    sys.exit(ExitCode.INTERRUPTED)
