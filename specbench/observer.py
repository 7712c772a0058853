"""The interface through which long operations report progress to their caller."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Observer:
    """Receives progress, and ignores it. Subclasses show it, as the command line does."""

    @contextmanager
    def status(self, text: str) -> Iterator[None]:
        """Report an operation without countable progress for the length of a block."""
        yield

    @contextmanager
    def progress(self, label: str, total: int, done: int = 0) -> Iterator[Callable[[], None]]:
        """Report countable progress for the length of a block. Call the yielded function once per finished item.

        The function raises KeyboardInterrupt or Terminated if the user has interrupted the command.
        """
        yield lambda: None

    def message(self, text: str) -> None:
        """Report a one-line message."""
