"""The interface of target distributions: pi = T(p_1, ..., p_n), computed from the models' logits.

A target takes the models' raw logits in the order in which a method names its models (small before large), each (k, V),
and returns a distribution (k, V).
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from specbench.config.construct import Named
from specbench.decoding.sampling import Sampler
from specbench.errors import PluginError, shown


class Target(Named):
    """Computes pi from n models' logits, which are -inf for tokens that a model lacks.

    A target that combines logits is undefined for such tokens, so it is computed over those that all models have.
    """

    combines_logits: ClassVar[bool] = False

    def check(self, n: int) -> None:
        """Raise ValueError if this target cannot combine n models. Methods call it when they are constructed."""
        if n < 1:
            raise ValueError("a target needs at least one model")

    @abstractmethod
    def __call__(self, logits: list[Tensor], sampler: Sampler) -> Tensor:
        """Return pi (k, V) from n logits (k, V)."""

    def with_deferral(self, logits: list[Tensor], sampler: Sampler) -> tuple[Tensor, Tensor | None]:
        """Return pi (k, V), and where a rule deferred to the large model: (k,), bool, or None for a target that is no
        such rule.
        """
        return self(logits, sampler), None

    def distributions(self, logits: list[Tensor], sampler: Sampler) -> tuple[Tensor, Tensor | None]:
        """Return what `with_deferral` returns. Raises PluginError if pi does not have the shape of the logits."""
        pi, deferred = self.with_deferral(logits, sampler)
        if getattr(pi, "shape", None) != logits[-1].shape:
            shape = tuple(logits[-1].shape)
            raise PluginError(f"target '{self.name}' returned {shown(pi)}, which is not a tensor of shape {shape}")
        return pi, deferred


class TwoModels(Target):
    """A target of a small and a large model."""

    def check(self, n: int) -> None:
        if n != 2:
            raise ValueError(f"target '{self.name}' takes a small and a large model, not {n} models")


@dataclass(frozen=True, kw_only=True)
class Last(Target, name="last"):
    """p_n: the last model's own distribution, as in speculative decoding."""

    def __call__(self, logits: list[Tensor], sampler: Sampler) -> Tensor:
        return sampler.probs(logits[-1])
