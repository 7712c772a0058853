"""Cascades: at every position a rule chooses pi, the small model's distribution q or the large model's p.

SpecCascade (Narasimhan et al. 2024), Table 1 and Section 4: pi = (1 - delta) q + delta p, where delta = 1 if the rule
defers. Tokens are drawn from q and p. qbar and pbar are the same models' unscaled distributions: at T = 1 and unfiltered.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from specbench.config.construct import within
from specbench.decoding.rejection import tv
from specbench.decoding.sampling import Sampler
from specbench.decoding.targets.target import TwoModels


@dataclass(frozen=True, kw_only=True)
class Deferral(TwoModels):
    """pi is q, or p where the rule defers. `scaled` takes confidences from q and p instead of qbar and pbar."""

    scaled: bool = False

    @abstractmethod
    def defers(self, small: Tensor, large: Tensor, q: Tensor, p: Tensor) -> Tensor:
        """Return delta (k,), bool, where the rule defers.

        `small` and `large` are the confidences qbar and pbar. They, q and p are (k, V).
        """

    def __call__(self, logits: list[Tensor], sampler: Sampler) -> Tensor:
        return self.with_deferral(logits, sampler)[0]

    def with_deferral(self, logits: list[Tensor], sampler: Sampler) -> tuple[Tensor, Tensor]:
        q, p = (sampler.probs(model_logits) for model_logits in logits)
        small, large = (q, p) if self.scaled or sampler.plain else (confidence(model_logits) for model_logits in logits)
        deferred = self.defers(small, large, q, p)  # (k,)
        return torch.where(deferred.unsqueeze(-1), p, q), deferred


class Unaided(Deferral):
    """A rule that reads only the small model, so that it can be evaluated before the large one has read the position."""

    @abstractmethod
    def doubts(self, small: Tensor) -> Tensor:
        """Return delta (k,), bool, from the small model's confidences (k, V)."""

    def defers(self, small: Tensor, large: Tensor, q: Tensor, p: Tensor) -> Tensor:
        return self.doubts(small)

    def defers_from_small(self, logits: Tensor, sampler: Sampler) -> bool:
        """Return whether the rule defers, given only the small model's logits (1, V)."""
        return bool(self.doubts(sampler.probs(logits) if self.scaled else confidence(logits)))


@dataclass(frozen=True, kw_only=True)
class Chow(Unaided, name="chow"):
    """Defers where max qbar < 1 - alpha: always at alpha = 0 (unless q is one-hot), never at 1."""

    alpha: float

    def __post_init__(self) -> None:
        within("alpha", self.alpha, 0.0, 1.0)

    def doubts(self, small: Tensor) -> Tensor:
        return small.amax(-1) < 1.0 - self.alpha


@dataclass(frozen=True, kw_only=True)
class ChowLog(Unaided, name="chow-log"):
    """Chow's rule for the log loss: defers if the entropy H(qbar) exceeds h0, in nats. h0 ranges from 0 to log V."""

    h0: float

    def __post_init__(self) -> None:
        within("h0", self.h0, 0.0, math.inf)

    def doubts(self, small: Tensor) -> Tensor:
        return entropy(small) > self.h0


@dataclass(frozen=True, kw_only=True)
class Diff(Deferral, name="diff"):
    """Defers where max qbar < max pbar - alpha: always at alpha = -1 (unless q is one-hot and p uniform), never at 1."""

    alpha: float

    def __post_init__(self) -> None:
        within("alpha", self.alpha, -1.0, 1.0)

    def defers(self, small: Tensor, large: Tensor, q: Tensor, p: Tensor) -> Tensor:
        return small.amax(-1) < large.amax(-1) - self.alpha


@dataclass(frozen=True, kw_only=True)
class Opt(Deferral, name="opt"):
    """Defers where max qbar < max pbar - alpha TV(q, p), the optimal rule's plug-in estimate (Lemma 4, equation 10).

    alpha ranges from -inf to inf. In theory it is a cost, so at least 0; negative values extend the curve to the large
    model. At T = 0 and for any alpha in [0, 1), the output distribution is the same as Diff's (Remark 4).
    """

    alpha: float

    def defers(self, small: Tensor, large: Tensor, q: Tensor, p: Tensor) -> Tensor:
        return small.amax(-1) < large.amax(-1) - self.alpha * tv(q, p)


@dataclass(frozen=True, kw_only=True)
class DiffLog(Deferral, name="diff-log"):
    """Diff's rule for the log loss: defers where H(qbar) > H(pbar) + alpha, in nats; alpha from -log V to log V."""

    alpha: float

    def defers(self, small: Tensor, large: Tensor, q: Tensor, p: Tensor) -> Tensor:
        return entropy(small) > entropy(large) + self.alpha


@dataclass(frozen=True, kw_only=True)
class OptLog(Deferral, name="opt-log"):
    """Opt's rule for the log loss: defers where H(qbar) > H(pbar) + alpha TV(q, p)."""

    alpha: float

    def defers(self, small: Tensor, large: Tensor, q: Tensor, p: Tensor) -> Tensor:
        return entropy(small) > entropy(large) + self.alpha * tv(q, p)


@dataclass(frozen=True, kw_only=True)
class Bild(Deferral, name="bild"):
    """BiLD*: keeps q where it is close to p, defers where D(q, p) > alpha. The paper does not specify D.

    tv, kl = KL(p || q) and reverse-kl = KL(q || p) compare q and p; cross-entropy is -log pbar of q's likeliest token,
    which the original BiLD (Kim et al. 2023) compares with its rollback threshold.
    """

    alpha: float
    discrepancy: Literal["tv", "kl", "reverse-kl", "cross-entropy"] = "tv"

    def __post_init__(self) -> None:
        within("alpha", self.alpha, 0.0, math.inf)

    def defers(self, small: Tensor, large: Tensor, q: Tensor, p: Tensor) -> Tensor:
        if self.discrepancy == "tv":
            return tv(q, p) > self.alpha
        if self.discrepancy == "cross-entropy":
            return -large.gather(-1, small.argmax(-1, keepdim=True)).log().squeeze(-1) > self.alpha
        one, two = (p, q) if self.discrepancy == "kl" else (q, p)
        return kl(one, two) > self.alpha


@dataclass(frozen=True, kw_only=True)
class TokenSpecific(TwoModels, name="token-specific"):
    """The later, token-specific rules: q on the acceptable tokens A, p for the rest; pi(v) = q(v) 1[v in A] + q(not A) p(v).

    `accepts` defines A: "difference", pbar(v) >= max pbar - alpha; "ratio", pbar(v) >= (1 - alpha) max pbar; "draft",
    qbar(v) >= max pbar - alpha. At alpha = 1 all tokens are acceptable; where A is empty, pi is p.
    """

    alpha: float
    accepts: Literal["difference", "ratio", "draft"] = "ratio"

    def __post_init__(self) -> None:
        within("alpha", self.alpha, -1.0, 1.0)

    def __call__(self, logits: list[Tensor], sampler: Sampler) -> Tensor:
        q, p = (sampler.probs(model_logits) for model_logits in logits)
        small, large = (confidence(model_logits) for model_logits in logits)
        top = large.amax(-1, keepdim=True)
        if self.accepts == "ratio":
            acceptable = large >= (1.0 - self.alpha) * top
        else:
            acceptable = (small if self.accepts == "draft" else large) >= top - self.alpha
        accepted = q.where(acceptable, 0.0)  # (k, V)
        return accepted + (1.0 - accepted.sum(-1, keepdim=True)).clamp_min(0.0) * p


def confidence(logits: Tensor) -> Tensor:
    """Return the unscaled distribution (..., V), at T = 1 and without filters."""
    return (logits if logits.dtype == torch.float64 else logits.float()).softmax(-1)


def entropy(probs: Tensor) -> Tensor:
    """Return the Shannon entropy in nats, (..., V) -> (...)."""
    return -torch.xlogy(probs, probs).sum(-1)


def kl(p: Tensor, q: Tensor) -> Tensor:
    """Return KL(p || q) in nats, (..., V) -> (...); infinite where q is 0 at a token of p."""
    return torch.where(p > 0.0, p * (p / q).log(), 0.0).sum(-1)
