"""Drafts, distributions and random choices, drawn or enumerated.

Notation: q is the distribution that a drafted token was drawn from, p a scoring model's, pi the one that the output must
follow. V is the size of the shared vocabulary, k the number of drafted tokens.
"""

import math
import random
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from specbench.decoding.round import Round

INVALID = -1  # drawn on a CUDA device from a row that is not a distribution; `read_tokens` raises for it
LEAST_TEMPERATURE = 1e-6  # above 0: logits divided by less can overflow
ROUNDING = 1e-2  # allowed deviation of a distribution's sum from 1, for half precision over a large vocabulary
Outcome = TypeVar("Outcome", bound=Hashable)


class Tree(NamedTuple):
    """Tokens that may follow a sequence. A parent is an earlier token of the tree, or -1 for the end of the sequence."""

    tokens: list[int]
    parents: tuple[int, ...]


def depths(parents: Sequence[int]) -> list[int]:
    """Return the depth of every token, 0 for the children of the root. Parents come before their children."""
    out: list[int] = []
    for parent in parents:
        out.append(0 if parent < 0 else out[parent] + 1)
    return out


def children_of(parents: Sequence[int]) -> list[list[int]]:
    """Return the children of the root (item 0) and of every token i (item i + 1), in order."""
    children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for token, parent in enumerate(parents):
        children[parent + 1].append(token)
    return children


def path_to(parents: Sequence[int], token: int) -> list[int]:
    """Return the path from the root of a tree to a token, which is included; empty for the root, -1."""
    path: list[int] = []
    while token >= 0:
        path.append(token)
        token = parents[token]
    return path[::-1]


@dataclass(frozen=True)
class Draft:
    """Tokens and the distribution that each was drawn from, given the tokens before it.

    Invariant: tokens[i] ~ probs[i]. With `parents` the draft is a tree, and probs[i] is also conditional on the earlier
    siblings of token i: for children drawn without replacement it is q without the earlier siblings, renormalized; for
    children drawn with replacement it is q; for children that were chosen rather than drawn it is one-hot.
    """

    tokens: list[int]  # (k,)
    probs: Tensor  # (k, V)
    stopped: bool = False  # whether a stop rule ended the draft
    rounds: tuple[Round, ...] = ()  # the rounds that produced the draft, if it was itself verified
    parents: tuple[int, ...] | None = None  # of each token, as in Tree; None for a chain

    @property
    def depth(self) -> int:
        """The number of tokens on the longest path."""
        if self.parents is None:
            return len(self.tokens)
        return max(depths(self.parents), default=-1) + 1


@dataclass
class Sampler:
    """Turns logits into distributions and distributions into tokens. The generator is the only state."""

    temperature: float = 1.0
    top_k: int = 0  # 0 is off
    top_p: float = 1.0  # 1 is off
    generator: torch.Generator | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.temperature >= 0.0 or not math.isfinite(self.temperature):
            raise ValueError(f"temperature = {self.temperature} must be finite and at least 0")
        if 0.0 < self.temperature < LEAST_TEMPERATURE:
            raise ValueError(
                f"temperature = {self.temperature} must be 0, which is greedy, or at least {LEAST_TEMPERATURE:g}"
            )
        if self.top_k < 0:
            raise ValueError(f"top_k = {self.top_k} must be at least 0 (0 is off)")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p = {self.top_p} must be above 0 and at most 1 (1 is off)")

    @property
    def plain(self) -> bool:
        """Whether distributions are the models' own: T = 1 and no filter."""
        return self.temperature == 1.0 and self.top_k == 0 and self.top_p == 1.0

    def probs(self, logits: Tensor) -> Tensor:
        """Return the next-token distribution: divide by T, keep the top_k largest, then the smallest set that reaches top_p.

        Maps logits (..., V) to (..., V), float32 or better. At temperature 0, rows are one-hot at the arg max, ties resolved
        to the lowest token id, so that greedy decoding needs no special case elsewhere.
        """
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if self.temperature == 0.0:
            return _one_hot(logits, logits.argmax(-1, keepdim=True))  # torch returns the first of equal values
        probs = (logits / self.temperature).softmax(-1)
        if (self.top_k == 0 or self.top_k >= logits.shape[-1]) and self.top_p == 1.0:
            return probs
        ranked, order = probs.sort(dim=-1, descending=True, stable=True)  # (..., V), ties to the lowest token id
        if self.top_k:
            ranked[..., self.top_k :] = 0.0
            ranked /= ranked.sum(-1, keepdim=True)
        before = ranked.cumsum(-1) - ranked  # (..., V), mass of the tokens ranked above
        ranked = ranked.where(before < self.top_p, 0.0)
        # Rounding must not drop the best token
        ranked[..., 0] = ranked[..., 0].clamp_min(torch.finfo(ranked.dtype).tiny)
        return torch.zeros_like(probs).scatter_(-1, order, ranked / ranked.sum(-1, keepdim=True))

    def uniforms(self, n: int, device: torch.device) -> Tensor | None:
        """Return numbers (n,) in [0, 1) for n later draws, or None at temperature 0, where draws are deterministic."""
        if self.temperature == 0.0:
            return None
        return torch.rand(n, dtype=torch.float64, device=device, generator=self.generator)

    def choose(self, probs: Tensor, uniform: Tensor | None = None) -> Tensor:
        """Draw one index per row: (..., V) -> (...). Both tokens and accepted counts are drawn here.

        `uniform` holds a number in [0, 1) for each row; by default the generator draws them.

        Uses inversion in float64, four times as fast as torch.multinomial on a CPU. An index of probability 0 is never
        drawn. Raises FloatingPointError for a row that is not a distribution. A CUDA device is not synchronized here:
        such a row yields INVALID, and `read_tokens` raises.
        """
        waits = probs.device.type != "cuda"
        if waits and self.temperature == 0.0:  # most rows are one-hot, and checking that is faster than drawing
            highest, likeliest = probs.max(-1)  # (...)
            if _are_certain(highest):
                return likeliest
        below = probs.cumsum(-1, dtype=torch.float64)  # (..., V)
        mass = below[..., -1:]
        if uniform is None:
            uniform = torch.rand(mass.shape, dtype=torch.float64, device=probs.device, generator=self.generator)
        u = uniform.view(mass.shape)
        picked = torch.searchsorted(below, u * mass, right=True)  # (..., 1)
        picked = torch.where((mass - 1.0).abs() < ROUNDING, picked, INVALID).squeeze(-1)  # NaN becomes INVALID too
        if waits:
            read_tokens(picked)
        return picked

    def draw(self, logits: Tensor, uniform: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the next token and the distribution that it was drawn from: logits (..., V) -> (...), (..., V).

        Equivalent to `choose` of `probs`, except that no random number is consumed at temperature 0.
        """
        if self.temperature == 0.0:
            best = logits.argmax(-1, keepdim=True)  # (..., 1)
            return best.squeeze(-1), _one_hot(logits, best)
        probs = self.probs(logits)  # (..., V)
        return self.choose(probs, uniform), probs


def certain_tokens(rows: Tensor) -> list[int] | None:
    """Return the token that each row of (k, V), a distribution, gives probability 1; None if a row has no such token."""
    highest, tokens = rows.max(-1)  # (k,)
    return tokens.tolist() if _are_certain(highest) else None


def _are_certain(highest: Tensor) -> bool:
    """Return whether all of these maxima of distributions are 1; False for NaN."""
    return all(value == 1.0 for value in highest.reshape(-1).tolist())


def _one_hot(logits: Tensor, best: Tensor) -> Tensor:
    """Return rows shaped like logits (..., V) with all mass on `best` (..., 1)."""
    return torch.zeros_like(logits).scatter_(-1, best, 1.0)


def to_device(numbers: Sequence[int], device: torch.device) -> Tensor:
    """Return integers as a tensor (n,) on a device.

    A CUDA device copies from pinned memory, so that the host does not wait.
    """
    if device.type != "cuda":
        if len(numbers) == 1:  # once per drafted token; takes half as long as torch.tensor
            return torch.full((1,), numbers[0], dtype=torch.long, device=device)
        return torch.tensor(numbers, dtype=torch.long, device=device)
    return torch.tensor(numbers, dtype=torch.long, pin_memory=True).to(device, non_blocking=True)


def read_tokens(picked: Tensor) -> list[int]:
    """Copy drawn indices to the host as Python ints. Synchronizes with the device.

    Raises FloatingPointError if a row was not a distribution.
    """
    tokens: list[int] = picked.reshape(-1).tolist()
    if tokens and min(tokens) < 0:
        raise FloatingPointError("a distribution has NaN or does not sum to 1")
    return tokens


class EnumeratingSampler(Sampler):
    """A sampler that follows one given branch of the tree of choices and records the alternatives.

    `branch` gives the first choices; after them the first possible outcome is taken. `weight` is the probability of all
    choices. `forks` lists the branches for the other possible outcomes after the given ones.
    """

    def __init__(self, branch: list[int], temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> None:
        super().__init__(temperature, top_k, top_p)
        self.branch = branch
        self.weight = 1.0
        self.forks: list[list[int]] = []
        self._choices: list[int] = []

    def choose(self, probs: Tensor, uniform: Tensor | None = None) -> Tensor:
        rows = probs.reshape(-1, probs.shape[-1]).tolist()
        return torch.tensor([self._pick(row) for row in rows]).reshape(probs.shape[:-1])

    def _pick(self, row: list[float]) -> int:
        possible = [i for i, mass in enumerate(row) if mass > 0.0]
        if not abs(sum(row) - 1.0) < ROUNDING:
            raise FloatingPointError(f"a distribution sums to {sum(row):g}, not to 1")
        at = len(self._choices)
        if at < len(self.branch):
            pick = self.branch[at]
        else:
            pick = possible[0]
            self.forks += [[*self._choices, other] for other in possible[1:]]
        self._choices.append(pick)
        self.weight *= row[pick]
        return pick


class OtherRandomness(Exception):
    """A method draws random numbers that do not come from `Sampler.choose`, so its choices cannot be enumerated."""


REPEATED = 16  # branches that are decoded twice, to find random numbers that do not come from the sampler


def exact_distribution(
    run: Callable[[Sampler], Outcome], temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> dict[Outcome, float]:
    """Return the exact distribution of `run(sampler)`, summed over every branch of its choices.

    Feasible for table models only. Raises OtherRandomness if `run` draws from another source than the sampler: if one of the
    first branches gives two results, with other states of the global generators.
    """
    distribution: dict[Outcome, float] = {}
    branches: list[list[int]] = [[]]
    number = 0
    while branches:
        branch = branches.pop()
        sampler = EnumeratingSampler(branch, temperature, top_k, top_p)
        outcome = run(sampler)
        if number < REPEATED:
            again = EnumeratingSampler(branch, temperature, top_k, top_p)
            with _other_global_states(number):
                repeated = run(again)
            if (repeated, again.forks) != (outcome, sampler.forks):
                raise OtherRandomness("equal choices of the sampler give two outputs")
        number += 1
        distribution[outcome] = distribution.get(outcome, 0.0) + sampler.weight
        branches += sampler.forks
    return distribution


@contextmanager
def _other_global_states(seed: int) -> Iterator[None]:
    """Set the generators that code outside of a sampler would draw from to other states, within this context."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    # torch.manual_seed also queues a call per device, with the traceback of its caller: 40 % of an enumeration's time
    for seeded in (torch.default_generator.manual_seed, random.seed, np.random.seed):
        seeded(seed)
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])
