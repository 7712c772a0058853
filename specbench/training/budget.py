"""The time that the training of a head may take."""

import math
import time
from collections.abc import Callable

COLLECTING = 0.5  # share of the budget for the models' outputs


class Budget:
    """A time limit in minutes, 0 for none, counted from construction.

    Half of it is for collecting the models' outputs. `clock` returns seconds.
    """

    def __init__(self, minutes: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = 60.0 * minutes if minutes else math.inf
        self._clock, self._start = clock, clock()

    @property
    def is_limited(self) -> bool:
        return self._seconds < math.inf

    @property
    def left(self) -> float:
        """The seconds that are left, at least 0."""
        return max(self._seconds - self.spent, 0.0)

    @property
    def spent(self) -> float:
        """The seconds since the start."""
        return self._clock() - self._start

    def ends_collecting(self) -> bool:
        """Return whether the share for collecting is used up."""
        return self.spent >= COLLECTING * self._seconds
