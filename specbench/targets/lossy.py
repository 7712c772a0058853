"""Lossy speculative decoding: the laws that a lenient acceptance test really gives (SpecCascade, Table 1; methods 4.5).

A drafted x stays with probability min(1, p(x) / ((1 - alpha) q(x))), and a refused one is replaced from
norm((p / beta - q)+). What comes out follows pi = min(q, p / (1 - alpha)) + R norm((p / beta - q)+), where
R = sum of (q - p / (1 - alpha))+ is the share refused. Verifying against this pi performs the very same steps, and unlike
the paper's printed max{min{q, p / (1 - alpha)}, p / beta} it is a distribution for every beta.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.sampling import Sampler, residual
from specbench.targets.deferral import confidence, kl, within
from specbench.targets.target import TwoModels

HALVINGS, MOST_LENIENT = 30, 30.0  # of the range of -log(1 - alpha), for a budget


@dataclass(frozen=True, kw_only=True)
class Lossy(TwoModels, name="lossy"):
    """beta = 1, the common heuristic. alpha from 0, speculative decoding, to 1, the small model.

    At T = 0 both laws are one-hot and alpha changes nothing. `greedy_lenience` then keeps q's arg max x where pbar(x) >=
    (1 - alpha) max pbar, a usual choice; the paper does not say what its greedy curve is of.
    """

    alpha: float
    greedy_lenience: bool = False

    def __post_init__(self) -> None:
        within("alpha", self.alpha, 0.0, 1.0)

    def __call__(self, logits: list[Tensor], sampler: Sampler) -> Tensor:
        q, p = (sampler.probs(each) for each in logits)
        if self.greedy_lenience and sampler.temperature == 0.0:
            large = confidence(logits[-1])
            kept = (large * q).sum(-1, keepdim=True) >= (1.0 - self.alpha) * large.amax(-1, keepdim=True)
            return torch.where(kept, q, p)
        return lossy(q, p, self.alpha, 1.0)


@dataclass(frozen=True, kw_only=True)
class LossyStar(TwoModels, name="lossy-star"):
    """beta = beta*, solved at every position, which minimises KL(p || pi) among all laws that refuse as often.

    With `budget` instead of alpha, alpha is at every position the greatest one whose KL(p || pi) is within that many nats.
    """

    alpha: float | None = None
    budget: float | None = None

    def __post_init__(self) -> None:
        if (self.alpha is None) == (self.budget is None):
            raise ValueError("give either alpha, or a budget in nats")
        if self.alpha is not None:
            within("alpha", self.alpha, 0.0, 1.0)
        if self.budget is not None:
            within("budget", self.budget, 0.0, math.inf)

    def __call__(self, logits: list[Tensor], sampler: Sampler) -> Tensor:
        q, p = (sampler.probs(each) for each in logits)
        masses = _masses(q, p)
        if self.alpha is not None:
            return lossy(q, p, self.alpha, beta_star(q, p, self.alpha, masses))
        assert self.budget is not None
        low, high = q.new_zeros(len(q), 1), q.new_full((len(q), 1), 2 * MOST_LENIENT)
        for _ in range(HALVINGS):  # KL(p || pi) grows with alpha
            middle = (low + high) / 2
            within = kl(p, self._at(q, p, middle, masses)).unsqueeze(-1) <= self.budget
            low, high = torch.where(within, middle, low), torch.where(within, high, middle)
        return self._at(q, p, low, masses)

    def _at(self, q: Tensor, p: Tensor, lenience: Tensor, masses: tuple[Tensor, Tensor]) -> Tensor:
        """The law at -log(1 - alpha) = lenience (k, 1); from MOST_LENIENT on alpha is 1."""
        alpha = torch.where(lenience < MOST_LENIENT, -torch.expm1(-lenience), 1.0)
        return lossy(q, p, alpha, beta_star(q, p, alpha, masses))


def lossy(q: Tensor, p: Tensor, alpha: float | Tensor, beta: float | Tensor) -> Tensor:
    """The law (k, V) of what a lenient test leaves; alpha and beta are numbers or (k, 1)."""
    kept = torch.minimum(q, _lenient(p, alpha))
    refused = (1.0 - kept.sum(-1, keepdim=True)).clamp_min(0.0)
    return kept + refused * residual(p / beta, q)


def beta_star(q: Tensor, p: Tensor, alpha: float | Tensor, masses: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """beta* (k, 1), for which sum of (p / beta - q)+ = R; 1 where nothing is refused, and then it does not matter.

    The sum is the greatest of P(S) / beta - Q(S) over sets S of tokens, attained on a set of greatest p / q. So beta* is the
    greatest of P(S) / (Q(S) + R) over those V sets, whose `masses` do not depend on alpha: nothing to search.
    """
    refused = (q - _lenient(p, alpha)).clamp_min(0.0).sum(-1, keepdim=True)  # (k, 1)
    above_p, above_q = masses or _masses(q, p)
    best = (above_p / (above_q + refused)).amax(-1, keepdim=True)
    return torch.where(refused > 0.0, best, 1.0)


def _masses(q: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """P(S) and Q(S), (k, V), of the sets S of the 1, 2, ... tokens of greatest p / q."""
    order = (p / q).nan_to_num(nan=0.0, posinf=torch.inf).argsort(-1, descending=True)
    above_p, above_q = (each.gather(-1, order).cumsum(-1) for each in (p, q))
    return above_p, above_q


def _lenient(p: Tensor, alpha: float | Tensor) -> Tensor:
    """p / (1 - alpha); at alpha = 1 no bound for what p can say, and, so that the range ends at q, for anything."""
    if isinstance(alpha, Tensor):
        return torch.where(alpha < 1.0, p / (1.0 - alpha), torch.inf)
    return p / (1.0 - alpha) if alpha < 1.0 else torch.full_like(p, torch.inf)
