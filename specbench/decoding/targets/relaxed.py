"""The distributions that lenient acceptance rules induce.

A drafted x ~ q is accepted with probability a(x); otherwise a replacement follows. With a replacement r that does not depend
on x, the token follows pi(y) = q(y) a(y) + (1 - sum_x q(x) a(x)) r(y). Verifying against this pi, token by token, gives the
same distribution, and accepts at least as often. The published rules apply at the positions of drafts only
(`decoding/leniency.py`); these targets apply everywhere.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.decoding.leniency import Leniency, RelaxedRule, ThresholdsRule, TypicalRule
from specbench.decoding.sampling import Sampler
from specbench.decoding.targets.deferral import confidence
from specbench.decoding.targets.target import Last, TwoModels


class Induced(Leniency, TwoModels):
    """The distribution of a rule whose drafts are drawn from the small model.

    At T = 0, p is the arg max, so that the output is the target's. If `unscaled`, the rule reads p at T = 1 instead.
    """

    unscaled = False

    def __call__(self, logits: list[Tensor], sampler: Sampler) -> Tensor:
        q = sampler.probs(logits[0])
        greedy = sampler.temperature == 0.0
        p = confidence(logits[1]) if greedy and self.unscaled else sampler.probs(logits[1])
        return (drawn if self.draws else chosen)(q, p, self.acceptance(p))


def chosen(q: Tensor, p: Tensor, a: Tensor) -> Tensor:
    """Return pi (..., V) where the most likely token replaces a rejected one."""
    accepted = q * a
    rest = (1.0 - accepted.sum(-1, keepdim=True)).clamp_min(0.0)
    return accepted.scatter_add(-1, p.argmax(-1, keepdim=True), rest)


def drawn(q: Tensor, p: Tensor, a: Tensor) -> Tensor:
    """Return pi (..., V) where a rejected x is replaced by a token drawn from p without x.

    A rejected x adds q(x) (1 - a(x)) p(y) / (1 - p(x)) to every other token y.
    """
    rejected = torch.where(p < 1.0, q * (1.0 - a) / (1.0 - p), 0.0)
    return q * a + p * (rejected.sum(-1, keepdim=True) - rejected)


@dataclass(frozen=True, kw_only=True)
class Typical(TypicalRule, Induced, name="typical"):
    """Typical acceptance: see `TypicalRule`."""

    is_last_when_greedy = True


@dataclass(frozen=True, kw_only=True)
class Relaxed(RelaxedRule, Induced, name="relaxed"):
    """Relaxed acceptance: see `RelaxedRule`. TensorRT-LLM applies it to greedy decoding too."""

    unscaled = True


@dataclass(frozen=True, kw_only=True)
class Thresholds(ThresholdsRule, Induced, name="thresholds"):
    """Acceptance thresholds: see `ThresholdsRule`."""

    is_last_when_greedy = True


@dataclass(frozen=True, kw_only=True)
class Unscaled(Last, name="unscaled"):
    """The last model's distribution, at T = 0 that of T = 1: for published rules that read probabilities when greedy."""

    is_one_hot_when_greedy = False

    def __call__(self, logits: list[Tensor], sampler: Sampler) -> Tensor:
        return confidence(logits[-1]) if sampler.temperature == 0.0 else super().__call__(logits, sampler)
