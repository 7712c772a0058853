"""Rejection rules: how a draft is tested against the distribution that the output must follow."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from specbench.config.construct import Named
from specbench.decoding.sampling import Draft, Sampler
from specbench.decoding.verify import Verified, tv, verify


class Rejection(Named):
    """A rule that turns a draft into tokens that follow pi, for any distributions that the draft was sampled from.

    `independent` says whether every token is accepted at the rate of `expected`, independently of the others, as the formulas
    of speedups assume.
    """

    independent: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, draft: Draft, pi: Tensor, sampler: Sampler, unread: Tensor | None = None) -> Verified:
        """Test a draft of k tokens. pi is (k, V), or (k + 1, V) for one more token if all are accepted.

        The values of `unread` are read from the device together with the rule's own.
        """

    def expected(self, q: Tensor, pi: Tensor) -> Tensor | None:
        """Return the probability that a first token from q (..., V) is accepted: (...). None if it has no closed form."""
        return None

    def token_acceptance(self, q: float, pi: float) -> float | None:
        """Return the probability that a drafted token is accepted, given its probabilities. None if it has no closed form."""
        return None

    def distance(self, q: Tensor, pi: Tensor) -> Tensor | None:
        """Return the probability that a first token from q is rejected, at least 0: (...). None where `expected` is None."""
        accepted = self.expected(q, pi)
        return None if accepted is None else (1.0 - accepted).clamp_min(0.0)


@dataclass(frozen=True, kw_only=True)
class TokenRejection(Rejection, name="token"):
    """Token by token: accept x with probability min(1, pi(x) / q(x)). Leviathan et al. 2023, Algorithm 1."""

    independent = True

    def __call__(self, draft: Draft, pi: Tensor, sampler: Sampler, unread: Tensor | None = None) -> Verified:
        return verify(draft, pi, sampler, unread)

    def expected(self, q: Tensor, pi: Tensor) -> Tensor:
        return torch.minimum(q, pi).sum(-1)

    def token_acceptance(self, q: float, pi: float) -> float:
        return min(pi / q, 1.0)

    def distance(self, q: Tensor, pi: Tensor) -> Tensor:
        return tv(q, pi)  # accurate where it is small


BY_TOKEN = TokenRejection()


def without_default(rejection: Rejection | None) -> Rejection | None:
    """Return None for the default rule, so that a method that names it equals one that does not."""
    return None if rejection == BY_TOKEN else rejection
