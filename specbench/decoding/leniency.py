"""Lenient acceptance rules of serving engines: which drafted tokens they accept, and what follows a rejection.

A rule reads p, the distribution of the verifying model, and accepts a drafted x with a probability a(x). Two kinds of
classes use it:

- A target (`decoding/targets/relaxed.py`) is the distribution that a rule induces, at every position. It can be verified.
- A rejection (`decoding/relaxed_rejection.py`) is the rule as published. There, the rule does not
  apply to a token after a whole draft, nor to a token without a draft: it is the most likely one (`typical`, `relaxed`) or
  drawn from p (`thresholds`). So the output has no distribution that can be declared.

Typical acceptance is Medusa's (Cai et al. 2024), `relaxed` TensorRT-LLM's, and `thresholds` SGLang's.
"""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.config.construct import within

MEDUSA_EPSILON = 1e-5  # added to p inside the logarithm of the entropy


class Leniency:
    """An acceptance rule. `draws`: whether the replacement of a rejected token is sampled; otherwise it is the arg max."""

    draws = False

    @abstractmethod
    def acceptance(self, p: Tensor) -> Tensor:
        """Return a(x) of every token, in [0, 1]: (..., V) -> (..., V)."""


@dataclass(frozen=True, kw_only=True)
class TypicalRule(Leniency):
    """Accept x if p(x) > min(epsilon, alpha e^-H(p)), where H is the entropy in nats. A flat p accepts less likely tokens."""

    epsilon: float = 0.09
    alpha: float = 0.3

    def __post_init__(self) -> None:
        within("epsilon", self.epsilon, 0.0, 1.0)
        within("alpha", self.alpha, 0.0, 1.0)

    def acceptance(self, p: Tensor) -> Tensor:
        entropy = -(p * (p + MEDUSA_EPSILON).log()).sum(-1, keepdim=True)
        return (p > (self.alpha * (-entropy).exp()).clamp(max=self.epsilon)).to(p.dtype)


@dataclass(frozen=True, kw_only=True)
class RelaxedRule(Leniency):
    """Accept x if it is among the `top` most likely tokens and p(x) is at least the largest p minus delta."""

    top: int = 10
    delta: float = 0.6

    def __post_init__(self) -> None:
        if self.top < 1:
            raise ValueError(f"top = {self.top} must be at least 1")
        within("delta", self.delta, 0.0, 1.0)

    def acceptance(self, p: Tensor) -> Tensor:
        largest, tokens = p.topk(min(self.top, p.shape[-1]), -1)
        near = (largest >= largest[..., :1] - self.delta).to(p.dtype)
        return torch.zeros_like(p).scatter_(-1, tokens, near)


@dataclass(frozen=True, kw_only=True)
class ThresholdsRule(Leniency):
    """Accept x with probability min(1, p(x) / accumulated), and always if p(x) is at least `single`.

    With 1 and 1 this is the exact rule for a drafted token that was chosen rather than drawn.
    """

    single: float = 1.0
    accumulated: float = 1.0

    draws = True

    def __post_init__(self) -> None:
        for key in ("single", "accumulated"):
            within(key, getattr(self, key), 0.0, 1.0)
            if not getattr(self, key):
                raise ValueError(f"{key} = 0 must be above 0")

    def acceptance(self, p: Tensor) -> Tensor:
        return torch.where(p >= self.single, 1.0, (p / self.accumulated).clamp(max=1.0))
