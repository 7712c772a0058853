"""Lossy speculative decoding: the distributions that a lenient acceptance test induces.

A drafted x is accepted with probability min(1, p(x) / ((1 - alpha) q(x))); otherwise its replacement is drawn from
norm((p / beta - q)+). The output follows pi = min(q, p / (1 - alpha)) + R norm((p / beta - q)+), where R, the sum of
(q - p / (1 - alpha))+, is the probability of a rejection. Verifying against this pi performs the same steps. Unlike the
paper's printed max{min{q, p / (1 - alpha)}, p / beta}, it is a distribution for every beta.

See SpecCascade, Table 1; docs/papers/speccascade.md, Lossy verification.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.config.construct import within
from specbench.decoding.rejection import residual
from specbench.decoding.sampling import Sampler
from specbench.decoding.targets.deferral import confidence
from specbench.decoding.targets.target import TwoModels

MOST_LENIENT = 30.0  # upper limit of -log(1 - alpha), where alpha counts as 1
POINTS = 64  # values of alpha per iteration of the search for a budget
ROUNDS = 5  # iterations of the search; each refines one interval of the previous one


@dataclass(frozen=True, kw_only=True)
class Lossy(TwoModels, name="lossy"):
    """Lossy speculation with beta = 1. alpha ranges from 0, speculative decoding, to 1, the small model.

    At T = 0 both distributions are one-hot and alpha has no effect. `greedy_lenience` then keeps q's arg max x where
    pbar(x) >= (1 - alpha) max pbar, a common choice; the paper does not say how its greedy curve is computed.
    """

    alpha: float
    greedy_lenience: bool = False

    def __post_init__(self) -> None:
        within("alpha", self.alpha, 0.0, 1.0)

    def __call__(self, logits: list[Tensor], sampler: Sampler) -> Tensor:
        q, p = (sampler.probs(model_logits) for model_logits in logits)
        if self.greedy_lenience and sampler.temperature == 0.0:
            large = confidence(logits[-1])
            is_accepted = (large * q).sum(-1, keepdim=True) >= (1.0 - self.alpha) * large.amax(-1, keepdim=True)
            return torch.where(is_accepted, q, p)
        return lossy(q, p, self.alpha, 1.0)


@dataclass(frozen=True, kw_only=True)
class LossyStar(TwoModels, name="lossy-star"):
    """beta = beta*, solved at every position, which minimises KL(p || pi) among all distributions that reject as often.

    With `budget` instead of alpha, alpha is, at every position, the largest value whose KL(p || pi) is within that many
    nats.
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
        q, p = (sampler.probs(model_logits) for model_logits in logits)
        if self.budget is None:
            assert self.alpha is not None
            return lossy(q, p, self.alpha, beta_star(q, p, self.alpha))
        wide_q, wide_p = q.double(), p.double()  # float32 would round an alpha within 1e-13 of 1 to 1
        alpha = most_lenient(wide_q, wide_p, self.budget)
        return lossy(wide_q, wide_p, alpha, beta_star(wide_q, wide_p, alpha)).to(p.dtype)


def lossy(q: Tensor, p: Tensor, alpha: float | Tensor, beta: float | Tensor) -> Tensor:
    """Return the output distribution (k, V) of a lenient test; alpha and beta are numbers or (k, 1)."""
    accepted = torch.minimum(q, _lenient(p, alpha))
    rejected = (1.0 - accepted.sum(-1, keepdim=True)).clamp_min(0.0)
    return accepted + rejected * residual(p / beta, q)


def beta_star(q: Tensor, p: Tensor, alpha: float | Tensor) -> Tensor:
    """Return beta* (k, 1), for which the sum of (p / beta - q)+ is R; 1 if nothing is rejected and beta has no effect.

    The sum is the maximum of P(S) / beta - Q(S) over sets S of tokens, attained on a set of largest p / q. So beta* is
    the maximum of P(S) / (Q(S) + R) over those V sets, and no search is needed.
    """
    rejected = (q - _lenient(p, alpha)).clamp_min(0.0).sum(-1, keepdim=True)  # (k, 1)
    order = _ratio(p, q).argsort(-1, descending=True)
    # P(S), Q(S) of the first 1, 2, ... tokens
    above_p, above_q = (probs.gather(-1, order).cumsum(-1) for probs in (p, q))
    best = (above_p / (above_q + rejected)).amax(-1, keepdim=True)
    return torch.where(rejected > 0.0, best, 1.0)


def most_lenient(q: Tensor, p: Tensor, budget: float) -> Tensor:
    """Return the largest alpha (k, 1) for which KL(p || pi) at beta* is at most `budget` nats; q and p are float64 (k, V).

    pi is p / beta* on the set S of tokens whose p / q exceeds beta*, p / (1 - alpha) on the set C of tokens whose p / q is
    below 1 - alpha, and q on the tokens between them, so

        KL(p || pi) = P(S) log beta* + sum of p log(p / q) between them + P(C) log(1 - alpha).

    With tokens sorted by p / q, S is a prefix, C a suffix, and every sum a difference of cumulative sums, so each alpha
    costs a binary search. KL grows with alpha; `POINTS` values are tried at once.
    """
    ratio, order = _ratio(p, q).sort(-1, descending=True)  # (k, V)
    sorted_p, sorted_q = (probs.gather(-1, order) for probs in (p, q))  # (k, V)
    # A token with q = 0 is in S whenever anything is rejected; otherwise p has no mass there or KL is infinite.
    terms = torch.where((sorted_p > 0.0) & (sorted_q > 0.0), sorted_p * ratio.log(), 0.0)  # (k, V)
    sum_p, sum_q, sum_terms = (F.pad(column.cumsum(-1), (1, 0)) for column in (sorted_p, sorted_q, terms))  # (k, V + 1)
    # (k, V + 1): sums over a token and all tokens after it
    rest_p, rest_q = (F.pad(column.flip(-1).cumsum(-1).flip(-1), (0, 1)) for column in (sorted_p, sorted_q))
    uncovered = torch.where(sorted_q == 0.0, sorted_p, 0.0).sum(-1, keepdim=True)  # (k, 1)
    # (k, V): a token is in S if R exceeds this; ascending
    enters = (sum_p[:, 1:] / ratio - sum_q[:, 1:]).clamp_min(0.0)
    steps = torch.arange(1, POINTS + 1, dtype=ratio.dtype, device=p.device) / POINTS  # (POINTS,)
    least, width = ratio.new_zeros(len(q), 1), MOST_LENIENT  # (k, 1), of -log(1 - alpha)
    for _ in range(ROUNDS):
        lenience = least + width * steps  # (k, POINTS), as all below
        ceiling = torch.where(lenience < MOST_LENIENT, (-lenience).exp(), 0.0)  # 1 - alpha
        outside = torch.searchsorted(-ratio, -ceiling, right=True)  # tokens that are not in C
        capped_p, capped_q = rest_p.gather(-1, outside), rest_q.gather(-1, outside)
        rejected = (capped_q - capped_p / ceiling.clamp_min(torch.finfo(ratio.dtype).tiny)).clamp_min(0.0)  # R
        size = torch.minimum(torch.searchsorted(enters, rejected), outside)  # of S
        mass = sum_p.gather(-1, size)
        beta = torch.where(rejected > 0.0, mass / (sum_q.gather(-1, size) + rejected), 1.0)
        between = sum_terms.gather(-1, outside) - sum_terms.gather(-1, size)
        spent = torch.xlogy(mass, beta) + between + torch.xlogy(capped_p, ceiling)
        spent = torch.where((rejected == 0.0) & (uncovered > 0.0), torch.inf, spent)
        within_budget = (spent <= budget).sum(-1, keepdim=True)  # (k, 1)
        least = torch.cat([least, lenience], -1).gather(-1, within_budget)
        width /= POINTS
    return torch.where(least < MOST_LENIENT, -torch.expm1(-least), 1.0)


def _lenient(p: Tensor, alpha: float | Tensor) -> Tensor:
    """Return p / (1 - alpha); at alpha = 1, inf for every token, so that the limit is q."""
    if isinstance(alpha, Tensor):
        return torch.where(alpha < 1.0, p / (1.0 - alpha), torch.inf)
    return p / (1.0 - alpha) if alpha < 1.0 else torch.full_like(p, torch.inf)


def _ratio(p: Tensor, q: Tensor) -> Tensor:
    """Return p / q (k, V); 0 where both are 0."""
    return (p / q).nan_to_num(nan=0.0, posinf=torch.inf)
