"""Exact output distributions, by following every branch of the random choices instead of drawing one."""

from collections.abc import Callable, Hashable
from typing import TypeVar

import torch
from torch import Tensor

from specbench.decoding.sampling import ROUNDING, Sampler

Outcome = TypeVar("Outcome", bound=Hashable)


class EnumeratingSampler(Sampler):
    """A sampler that follows one given branch of the tree of choices and records the alternatives.

    `weight` is the probability of the branch. `forks` lists the branches that leave it; a choice with one possible
    outcome adds none.
    """

    def __init__(self, branch: list[int], temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> None:
        super().__init__(temperature, top_k, top_p)
        self.branch = branch
        self.weight = 1.0
        self.forks: list[list[int]] = []
        self._taken: list[int] = []

    def choose(self, probs: Tensor, uniform: Tensor | None = None) -> Tensor:
        rows = probs.reshape(-1, probs.shape[-1]).tolist()
        return torch.tensor([self._pick(row) for row in rows]).reshape(probs.shape[:-1])

    def _pick(self, row: list[float]) -> int:
        possible = [i for i, mass in enumerate(row) if mass > 0.0]
        if not abs(sum(row) - 1.0) < ROUNDING:
            raise FloatingPointError(f"a distribution sums to {sum(row):g}, not to 1")
        at = len(self._taken)
        if at < len(self.branch):
            pick = self.branch[at]
        else:
            pick = possible[0]
            self.forks += [[*self._taken, other] for other in possible[1:]]
        self._taken.append(pick)
        self.weight *= row[pick]
        return pick


def exact_distribution(
    run: Callable[[Sampler], Outcome], temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> dict[Outcome, float]:
    """Return the exact distribution of `run(sampler)`, summed over every branch of its choices. Feasible for table
    models only.
    """
    distribution: dict[Outcome, float] = {}
    branches: list[list[int]] = [[]]
    while branches:
        sampler = EnumeratingSampler(branches.pop(), temperature, top_k, top_p)
        outcome = run(sampler)
        distribution[outcome] = distribution.get(outcome, 0.0) + sampler.weight
        branches += sampler.forks
    return distribution
