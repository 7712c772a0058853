"""Rejection rules: how a draft is tested against the distribution that the output must follow."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.config.construct import Named
from specbench.decoding.sampling import INVALID, ROUNDING, Draft, Sampler, read_tokens, to_device
from specbench.decoding.verify import Verified, require_distributions, tv, verify, verify_tree


class Rejection(Named):
    """A rule that turns a draft into tokens that follow pi, for any distributions that the draft was sampled from.

    `independent` says whether every token of a chain is accepted at the rate of `expected`, independently of the others, as
    the formulas of speedups assume. `trees` says whether the rule takes drafts that are trees.
    """

    independent: ClassVar[bool] = False
    trees: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, draft: Draft, pi: Tensor, sampler: Sampler, unread: Tensor | None = None) -> Verified:
        """Test a draft of k tokens. pi is (k, V), or (k + 1, V) for one more token if all are accepted.

        For a tree, pi is as in `verify_tree`.

        The values of `unread` are read from the device together with the rule's own.
        """

    def expected(self, q: Tensor, pi: Tensor) -> Tensor | None:
        """Return the probability that a first token from q (..., V) is accepted: (...). None if it has no closed form.

        It is that of a chain; the tests of a tree have none.
        """
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
    """Token by token: accept x with probability min(1, pi(x) / q(x)). Leviathan et al. 2023, Algorithm 1.

    In a tree, all children of the last accepted token are tested.
    """

    independent = True
    trees = True

    def __call__(self, draft: Draft, pi: Tensor, sampler: Sampler, unread: Tensor | None = None) -> Verified:
        return (verify if draft.parents is None else verify_tree)(draft, pi, sampler, unread)

    def expected(self, q: Tensor, pi: Tensor) -> Tensor:
        return torch.minimum(q, pi).sum(-1)

    def token_acceptance(self, q: float, pi: float) -> float:
        return min(pi / q, 1.0)

    def distance(self, q: Tensor, pi: Tensor) -> Tensor:
        return tv(q, pi)  # accurate where it is small


@dataclass(frozen=True, kw_only=True)
class BlockRejection(Rejection, name="block"):
    """Test a whole draft at once, which accepts at least as many tokens on average. Sun et al. 2024, Algorithm 2.

    With p_0 = 1 and p_i = min(1, p_{i-1} pi(x_i) / q(x_i)), the first i tokens are acceptable with probability h_i, and the
    longest acceptable prefix is committed. h_i = m_i / (m_i + 1 - p_i), where m_i is the mass of (p_i pi - q)+ after them;
    h_0 = 1, and h_k = p_k at the end of the draft, whatever ended it. The token after a shorter prefix is drawn from that
    excess.
    """

    def __call__(self, draft: Draft, pi: Tensor, sampler: Sampler, unread: Tensor | None = None) -> Verified:
        k = len(draft.tokens)
        assert k <= len(pi) <= k + 1 and len(draft.probs) == k
        if not k:
            return verify(draft, pi, sampler, unread)
        if pi.device.type != "cuda":
            require_distributions(pi)
        weights = prefix_weights(to_device(draft.tokens, pi.device).unsqueeze(-1), pi[:k], draft.probs)  # (k + 1,)
        rows, q = F.pad(pi, (0, 0, 0, k + 1 - len(pi))), F.pad(draft.probs, (0, 0, 0, 1))  # (k + 1, V) each
        excess = (weights.unsqueeze(-1) * rows - q).clamp_min(0.0)  # (k + 1, V)
        mass = excess.sum(-1)  # (k + 1,)
        acceptable = (mass / (mass + 1.0 - weights)).nan_to_num(nan=0.0)  # (k + 1,); 0 / 0 where pi is q
        acceptable = torch.cat([weights[:1], acceptable[1:k], weights[k:]])
        rejected_after = torch.cat([(1.0 - acceptable[1:]).flip(0).cumprod(0).flip(0), weights[:1]])  # (k + 1,)
        accepted = sampler.choose(acceptable * rejected_after)  # ()
        if pi.device.type == "cuda":
            accepted = torch.where(((pi.sum(-1) - 1.0).abs() < ROUNDING).all(), accepted, INVALID)
        last = accepted.clamp(0, len(pi) - 1).view(1)
        residual_mass = mass.index_select(0, last).unsqueeze(-1)  # (1, 1)
        probs = torch.where(
            residual_mass > 0.0, excess.index_select(0, last) / residual_mass, rows.index_select(0, last)
        )  # (1, V)
        more = [] if unread is None else [unread.reshape(-1)]
        count, following, *extra_values = read_tokens(torch.cat([accepted.view(1), sampler.choose(probs), *more]))
        return Verified(draft.tokens[:count] + ([following] if count < len(pi) else []), count, extra_values)


def prefix_weights(x: Tensor, pi: Tensor, q: Tensor) -> Tensor:
    """Return p_0 .. p_k (k + 1,) of the tokens x (k, 1), where p_i = min(1, p_{i-1} pi(x_i) / q(x_i))."""
    chance, target = q.gather(-1, x), pi.gather(-1, x)  # (k, 1) each
    ratios = torch.where(chance > 0.0, target / chance, 1.0).squeeze(-1)  # (k,); q = 0 is rounding
    sums = F.pad(ratios.log().cumsum(0), (1, 0))  # (k + 1,)
    return (sums - sums.cummax(0).values).exp()


BY_TOKEN = TokenRejection()


def without_default(rejection: Rejection | None) -> Rejection | None:
    """Return None for the default rule, so that a method that names it equals one that does not."""
    return None if rejection == BY_TOKEN else rejection


def require_trees(rejection: Rejection | None) -> None:
    """Raise ValueError if the rule does not test trees."""
    if rejection is not None and not rejection.trees:
        raise ValueError(f'rejection = "{rejection.name}" tests chains, and the drafts are trees')
