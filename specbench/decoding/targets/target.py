"""What a target is: pi = T(p_1, ..., p_n), the law that the output must follow, from the models' logits.

A target takes the models' raw logits in the order in which a method names its models (small before large), each (k, V),
and returns (k, V). It is always a distribution.
"""

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor

from specbench.config.construct import Named
from specbench.decoding.sampling import Sampler


class Target(Named):
    """pi from n models' logits."""

    def check(self, n: int) -> None:
        """Raises ValueError where this target cannot combine n models. Methods ask when they are built."""
        if n < 1:
            raise ValueError("a target needs at least one model")

    @abstractmethod
    def __call__(self, logits: list[Tensor], sampler: Sampler) -> Tensor:
        """logits: n tensors (k, V) -> pi (k, V)."""

    def with_deferral(self, logits: list[Tensor], sampler: Sampler) -> tuple[Tensor, Tensor | None]:
        """pi, and where it is one model's law or another's: True (k,) where a rule deferred to the large one."""
        return self(logits, sampler), None


class TwoModels(Target):
    """A target between a small model and a large one."""

    def check(self, n: int) -> None:
        if n != 2:
            raise ValueError(f"target '{self.name}' takes a small and a large model, not {n} models")


@dataclass(frozen=True, kw_only=True)
class Last(Target, name="last"):
    """p_n: the last model's own law, as in speculative decoding."""

    def __call__(self, logits: list[Tensor], sampler: Sampler) -> Tensor:
        return sampler.probs(logits[-1])
