"""Progress of long work, shown by the caller."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Observer:
    """Receives progress. This one ignores it; the command line draws bars, and a test may count."""

    @contextmanager
    def status(self, text: str) -> Iterator[None]:
        """Say what is being waited for while this is open."""
        yield

    @contextmanager
    def progress(self, label: str, total: int, done: int = 0) -> Iterator[Callable[[], None]]:
        """Count finished pieces of work: call the function once for each.

        The function raises KeyboardInterrupt or SystemExit where the user has asked to stop.
        """
        yield lambda: None

    def message(self, text: str) -> None:
        """Pass on one line about what is going on."""
