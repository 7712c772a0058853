"""The summary of a quality-latency curve: the value at the chosen point, with its interval."""

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class CurveChoice:
    """A summary of a quality-latency curve, with its 95 % interval over resamples of prompts.

    `value` is None if the curve does not reach the condition. `setting` is the chosen point's. `holdout_value` is what the
    choices of the resamples were worth on the prompts that they left out, `holdout_rate` how often they still met the
    condition there, `reach_rate` how often a resample met it. They are None for too few prompts. `resamples` are the values
    of the resamples, 0 where the condition is not met. All curves of a run have the same resamples of prompts.
    """

    value: float | None
    low: float | None
    high: float | None
    setting: str | None = None
    holdout_value: float | None = None
    holdout_rate: float | None = None
    reach_rate: float | None = None
    resamples: tuple[float, ...] = field(default=(), repr=False)

    def minus(self, other: "CurveChoice", factor: float = 1.0) -> "CurveChoice | None":
        """Return the difference from `factor` x another curve of the run, with its interval over the same resamples.

        A curve that does not reach the condition counts as 0. None if neither reaches it, or without resamples.
        """
        if (self.value is None and other.value is None) or not self.resamples:
            return None
        differences = np.subtract(self.resamples, np.multiply(factor, other.resamples))
        low, high = np.percentile(differences, [2.5, 97.5])
        return CurveChoice((self.value or 0.0) - factor * (other.value or 0.0), float(low), float(high))
