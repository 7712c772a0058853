"""The statistics of tokens that martingale tests compare with their expectations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.features.exactness.tolerance import Allowed

FLOOR = 16.0  # nats; log-probabilities are clamped from below to its negative
TAIL = 1e-4  # probability of the unlikely tokens that one statistic counts
TAIL_WEIGHT = 4.0  # nats; of one such token, at lambda = 1
CLIP = 4.0  # nats; bound of a log-ratio of two distributions
OTHERS = -1  # the id of the category of all other tokens
LOOKUP = (3, 2, 1)  # lengths of the n-grams that a lookup continues, the longest first


@dataclass(frozen=True)
class Categories:
    """The tokens of an output among the categories of their distributions: the vocabulary, or its most likely tokens.

    Args:
        within: The allowed distributions over the categories, (m, K).
        ids: The token of each category, (m, K); OTHERS for the category of all other tokens.
        x: The categories of the output's tokens, (m,).
        drafts: Distributions of drafting models over the categories, by name.
    """

    within: Allowed
    ids: Tensor
    x: Tensor
    drafts: Mapping[str, Tensor]


def categories_of(within: Allowed, tokens: Tensor, drafts: Mapping[str, Tensor], most: int) -> Categories:
    """Return the categories of an output's tokens (m,).

    Of a vocabulary of more than `most` tokens, the others are one category. They are chosen by the reference distribution,
    which is known before the token is.
    """
    rows, size = within.pi.shape
    device = within.pi.device
    ids = torch.arange(size, device=device).expand(rows, size)
    if size <= most:
        return Categories(within, ids, tokens, drafts)
    kept = within.pi.topk(most - 1, dim=-1).indices  # (m, K - 1)
    is_kept = torch.zeros(rows, size, dtype=torch.bool, device=device).scatter_(-1, kept, True)

    def merged(table: Tensor) -> Tensor:
        rest = torch.where(is_kept, 0.0, table).sum(-1, keepdim=True)
        return torch.cat([table.gather(-1, kept), rest], dim=-1)

    where = torch.full((rows, size), most - 1, device=device).scatter_(
        -1, kept, torch.arange(most - 1, device=device).expand(rows, -1)
    )
    pi = merged(within.pi)
    return Categories(
        Allowed.exactly(pi) if within.is_exact else Allowed(pi, merged(within.low), merged(within.high)),
        torch.cat([kept, torch.full((rows, 1), OTHERS, device=device)], dim=-1),
        where.gather(-1, tokens[:, None])[:, 0],
        {name: merged(q) for name, q in drafts.items()},
    )


def statistics(of: Categories, prompt: Sequence[int], tokens: Sequence[int]) -> dict[str, Tensor]:
    """Return the tested statistics of an output by name, (m, K) each: functions of a token and all tokens before it."""
    pi = of.within.pi
    log_pi = pi.clamp_min(1e-300).log().clamp_min(-FLOOR)
    best = torch.zeros_like(pi).scatter_(-1, pi.argmax(-1, keepdim=True), 1.0)
    ids, looked_up = [*prompt, *tokens], torch.zeros_like(pi)
    for i in range(len(pi)):
        if (found := looked_up_token(ids[: len(prompt) + i])) is not None:
            looked_up[i] = (of.ids[i] == found).double()
    return {
        "log-probability": log_pi,
        "most likely token": best,
        "unlikely token": TAIL_WEIGHT * _tail(pi),
        "hash of the token": (of.ids * 0x9E3779B97F4A7C1 // 2**32 % 2).double(),
        "token of an n-gram lookup": looked_up,
        **{
            f"log q/pi of {name}": (q.clamp_min(1e-300).log().clamp_min(-FLOOR) - log_pi).clamp(-CLIP, CLIP)
            for name, q in of.drafts.items()
        },
    }


def looked_up_token(ids: Sequence[int]) -> int | None:
    """Return the token that followed the last earlier occurrence of the last n-gram; None without one."""
    for n in LOOKUP:
        if len(ids) <= n:
            continue
        last = list(ids[-n:])
        for start in range(len(ids) - n - 1, -1, -1):
            if list(ids[start : start + n]) == last:
                return ids[start + n]
    return None


def _tail(pi: Tensor) -> Tensor:
    """Return 1 for the least likely tokens with a total probability of at most TAIL, (m, V)."""
    values, order = pi.sort(dim=-1)
    return (values.cumsum(-1) <= TAIL).double().gather(-1, order.argsort(dim=-1))
