"""Progress on stderr: bars and spinners on a terminal, plain lines elsewhere."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from specbench.errors import ExitCode, Terminated
from specbench.observer import Observer
from specbench.reporting import escaping

PLAIN_SECONDS = 10.0  # between progress lines without a terminal


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


@contextmanager
def status(text: str) -> Iterator[None]:
    """Show a status: a spinner on a terminal, otherwise a line."""
    console = Console(stderr=True)
    if not console.is_terminal:
        print(escaping.terminal(text), file=sys.stderr, flush=True)
        yield
        return
    with console.status(Text(escaping.terminal(text))):
        yield


@contextmanager
def progress(label: str, total: int, done: int = 0) -> Iterator[Callable[[], None]]:
    """Show progress: a bar on a terminal, otherwise a line every ten seconds. Call the yielded function once per item."""
    if done:
        print(f"resuming {escaping.terminal(label)}: {done} of {total} done", file=sys.stderr)
    console = Console(stderr=True)
    if not console.is_terminal:
        start = last = time.monotonic()
        already = done

        def line() -> None:
            nonlocal done, last
            done += 1
            now = time.monotonic()
            if now - last > PLAIN_SECONDS or done == total:
                rate = (done - already) / max(now - start, 1e-9)
                remaining = (
                    f", {duration((total - done) / rate)} left" if done < total else f" in {duration(now - start)}"
                )
                print(
                    f"{escaping.terminal(label)}: {done}/{total}, {rate:.1f}/s{remaining}", file=sys.stderr, flush=True
                )
                last = now

        yield line
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        shown = bar.add_task(escaping.terminal(label), total=total, completed=done)
        yield lambda: bar.advance(shown)


class _Rate(ProgressColumn):
    """Items per second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.1f}/s")


def duration(seconds: float) -> str:
    """Format seconds as `45 s`, `12 min` or `3.4 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours = seconds / 3600
    return f"{seconds / 60:.0f} min" if hours < 1.5 else f"{hours:.{hours < 100:d}f} h"


class TerminalObserver(Observer):
    """Shows progress on stderr. SIGINT and SIGTERM end the work between two items."""

    def __init__(self) -> None:
        self._interrupts = Interrupts()

    @contextmanager
    def status(self, text: str) -> Iterator[None]:
        with status(text):
            yield

    @contextmanager
    def progress(self, label: str, total: int, done: int = 0) -> Iterator[Callable[[], None]]:
        with progress(label, total, done) as advance:

            def step() -> None:
                advance()
                self._interrupts.check()

            yield step

    def message(self, text: str) -> None:
        print(escaping.terminal(text), file=sys.stderr)
