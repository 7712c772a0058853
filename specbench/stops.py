"""Floor 1: stop rules, which decide how long a draft is.

A rule may look at committed and drafted tokens and at laws, to decide whether the *next* token is drawn at all. So the
drafted tokens still follow the laws they are tested with, and what is lossless stays so.
"""

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor

from specbench.registry import Named
from specbench.sampling import Sampler
from specbench.targets.deferral import confidence


class Stop(Named):
    """When to stop drafting."""

    @abstractmethod
    def before(self, logits: Tensor, sampler: Sampler) -> bool:
        """Whether no token is to be drawn from these logits (1, V)."""


@dataclass(frozen=True, kw_only=True)
class Unsure(Stop, name="unsure"):
    """Stops where the likeliest token's unscaled probability is below `threshold`: BiLD's fallback (Kim et al. 2023)."""

    threshold: float

    def before(self, logits: Tensor, sampler: Sampler) -> bool:
        return bool(confidence(logits).max() < self.threshold)
