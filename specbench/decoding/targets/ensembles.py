"""Ensembles: weighted, contrastive, realigned (SE, Section 3.2)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.decoding.sampling import Sampler
from specbench.decoding.targets.target import Target, TwoModels


@dataclass(frozen=True, kw_only=True)
class Mixture(Target, name="mixture"):
    """Weighted ensemble, sum of w_i p_i, where each p_i is tempered and filtered first (SE, Section 3.2).

    Weights are equal by default. The paper does not define T = 0: here it is the arg max of the T = 1 mixture, since
    the literal limit, a mixture of one-hot rows, is not a greedy distribution.
    """

    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.weights and (min(self.weights) < 0.0 or abs(sum(self.weights) - 1.0) > 1e-6):
            raise ValueError(f"weights = {list(self.weights)} must be at least 0 and sum to 1")

    def check(self, n: int) -> None:
        super().check(n)
        if self.weights and len(self.weights) != n:
            raise ValueError(f"weights = {list(self.weights)}: {len(self.weights)} weights for {n} models")

    def weights_of(self, n: int) -> tuple[float, ...]:
        """Return the weights of n models."""
        return self.weights or (1.0 / n,) * n

    def __call__(self, logits: list[Tensor], sampler: Sampler) -> Tensor:
        weights = self.weights_of(len(logits))
        if sampler.temperature == 0.0:
            mixed = sum(w * model_logits.softmax(-1) for w, model_logits in zip(weights, logits, strict=True))
        else:
            mixed = sum(w * sampler.probs(model_logits) for w, model_logits in zip(weights, logits, strict=True))
        assert isinstance(mixed, Tensor)
        return sampler.probs(mixed) if sampler.temperature == 0.0 else mixed


@dataclass(frozen=True, kw_only=True)
class Contrastive(Target, name="contrastive"):
    """softmax((l_n - mu l_amateur) / T): raw logits are combined, then tempered and filtered once (SE, Section 3.2).

    With more than two models, which no paper defines, the amateur's logits are the mean of all but the last model's.
    `plausibility` is the mask of the original contrastive decoding (Li et al. 2023), which SE does not use: it keeps only
    tokens whose unscaled p_n is at least this share of the largest p_n. 0 disables it.
    """

    combines_logits = True

    mu: float = 0.1
    plausibility: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.plausibility <= 1.0:
            raise ValueError(f"plausibility = {self.plausibility} must be in [0, 1] (0 is off)")

    def check(self, n: int) -> None:
        if n < 2:
            raise ValueError("contrastive decoding needs at least two models")

    def __call__(self, logits: list[Tensor], sampler: Sampler) -> Tensor:
        *amateurs, expert = logits
        combined = expert - self.mu * torch.stack(amateurs).mean(0)
        if self.plausibility:
            threshold = expert.amax(-1, keepdim=True) + math.log(self.plausibility)
            combined = combined.where(expert >= threshold, -torch.inf)
        return sampler.probs(combined)


@dataclass(frozen=True, kw_only=True)
class Realigned(TwoModels, name="realigned"):
    """Decoding-time realignment, softmax((lam l_p + (1 - lam) l_q) / T): lam in [0, 1] interpolates, above 1 extrapolates."""

    combines_logits = True

    lam: float = 0.5

    def __call__(self, logits: list[Tensor], sampler: Sampler) -> Tensor:
        base, aligned = logits
        return sampler.probs(self.lam * aligned + (1.0 - self.lam) * base)
