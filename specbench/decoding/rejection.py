"""Verification of a draft against the distribution that the output must follow, and the rejection rules.

Drafts are tested token by token, as trees, or as whole blocks.
"""

import itertools
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.config.construct import Named
from specbench.decoding.sampling import (
    INVALID,
    ROUNDING,
    Draft,
    Sampler,
    certain_tokens,
    children_of,
    depths,
    path_to,
    read_tokens,
    to_device,
)


@dataclass(frozen=True)
class Verified:
    """The result of `verify`: accepted drafted tokens, then at most one replacement or bonus. The tokens follow pi.

    `extra_values` holds the values of `unread`, which `verify` reads from the device together with its own. If the draft
    is a tree, `path` holds the indices of the accepted tokens in it.
    """

    tokens: list[int]
    accepted: int
    extra_values: list[int] = field(default_factory=list)
    path: tuple[int, ...] = ()


def verify(draft: Draft, pi: Tensor, sampler: Sampler, unread: Tensor | None = None) -> Verified:
    """Turn a draft into tokens that follow pi, for any distributions that the draft was sampled from.

    Each drafted x is accepted with probability min(1, pi(x) / q(x)). The first rejected token is replaced by one drawn
    from the residual, and the rest of the draft is dropped. pi is (k, V), or (k + 1, V) for a bonus token after a fully
    accepted draft. Instead of k successive tests, the number of accepted tokens is drawn once, from the distribution that
    the tests would give it. Leviathan et al. 2023, Algorithm 1, whose proof holds for any pi. If q(x) = 0, which only
    rounding can cause, x is accepted by definition, unless pi allows only one other token.
    """
    if pi.device.type == "cuda":
        return verify_at_once(draft, pi, sampler, unread)
    k, tokens, accepted = len(draft.tokens), draft.tokens, 0
    extra_values = [] if unread is None else read_tokens(unread)
    assert k <= len(pi) <= k + 1 and len(draft.probs) == k
    require_distributions(pi)
    if sampler.temperature == 0.0 and (certain := certain_tokens(pi)) is not None:
        # Each row of pi allows one token: a test accepts it and replaces any other token by it, whatever q is
        accepted = next((i for i, token in enumerate(tokens) if token != certain[i]), k)
        return Verified(tokens[:accepted] + certain[accepted : accepted + 1], accepted, extra_values)
    if k:
        x = torch.tensor(tokens, device=pi.device).unsqueeze(-1)  # (k, 1)
        accepted = int(sampler.choose(accepted_count_distribution(x, pi[:k], draft.probs)))
    if accepted < k:
        probs = residual(pi[accepted], draft.probs[accepted])  # (V,)
    elif len(pi) > k:
        probs = pi[k]  # (V,)
    else:
        return Verified(tokens, k, extra_values)
    return Verified([*tokens[:accepted], int(sampler.choose(probs))], accepted, extra_values)


def verify_at_once(draft: Draft, pi: Tensor, sampler: Sampler, unread: Tensor | None = None) -> Verified:
    """Verify as `verify` does, with one read of the device: both choices are made before either is read.

    For devices that are expensive to wait for. The output distribution is the same. The second choice (the replacement or
    bonus) is discarded if all tokens were accepted and pi has no row for a bonus.
    """
    k = len(draft.tokens)
    assert k <= len(pi) <= k + 1 and len(draft.probs) == k
    more = [] if unread is None else [unread.reshape(-1)]
    if not k:
        token, *extra_values = read_tokens(torch.cat([sampler.choose(pi), *more]))
        return Verified([token], 0, extra_values)
    x = to_device(draft.tokens, pi.device).unsqueeze(-1)  # (k, 1)
    accepted = sampler.choose(accepted_count_distribution(x, pi[:k], draft.probs))  # ()
    valid = ((pi.sum(-1) - 1.0).abs() < ROUNDING).all()
    accepted = torch.where(valid, accepted, INVALID)
    # A row of zeros is added to q for the bonus: its residual is norm(max(0, pi - 0)) = pi
    q = F.pad(draft.probs, (0, 0, 0, 1))  # (k + 1, V)
    last = accepted.clamp(0, len(pi) - 1)
    probs = residual(pi.index_select(0, last.view(1)), q.index_select(0, last.view(1)))  # (1, V)
    accepted_count, following, *extra_values = read_tokens(torch.cat([accepted.view(1), sampler.choose(probs), *more]))
    return Verified(
        draft.tokens[:accepted_count] + ([following] if accepted_count < len(pi) else []), accepted_count, extra_values
    )


def verify_tree(draft: Draft, pi: Tensor, sampler: Sampler, unread: Tensor | None = None) -> Verified:
    """Turn a draft that is a tree into tokens that follow pi, with one read of the device.

    The tests walk down from the root. At a token whose children are x_1, x_2, ... with distributions d_1, d_2, ..., let
    t = pi after that token. Child x_1 is accepted with probability min(1, t(x_1) / d_1(x_1)), and the walk goes on there.
    Otherwise t becomes norm((t - d_1)+), and x_2 is tested against the new t. If all children are rejected, one token is
    drawn from the last t and the walk ends. Multi-round rejection sampling: Miao et al. 2024, SpecInfer.

    Whether a child is accepted depends only on its parent's t, not on how the walk got there. So the probability of ending
    at each token is computed for the whole tree, and one draw chooses the end.

    pi is (1 + k, V): one row after the sequence, then one after each token. If no bonus token is wanted, the rows of the
    leaves are missing.
    """
    assert draft.parents is not None and len(draft.probs) == len(draft.tokens)
    if pi.device.type != "cuda":
        require_distributions(pi)
    device, parents, groups = pi.device, draft.parents, children_of(draft.parents)
    rows = rows_of_tree(groups, len(pi))  # rows of pi for the root, then for each token; -1 for none
    x = to_device(draft.tokens, device).unsqueeze(-1)  # (k, 1)
    residuals = pi[to_device([max(row, 0) for row in rows], device)]  # (1 + k, V): t at the root, then at each token
    ends = residuals.new_ones(len(groups))  # P(no child is accepted)
    steps = residuals.new_zeros(len(parents))  # P(accepted | the walk is at the parent)
    for rank in range(max(map(len, groups))):
        at = to_device([group for group, children in enumerate(groups) if len(children) > rank], device)  # (n,)
        tested = to_device([children[rank] for children in groups if len(children) > rank], device)  # (n,)
        t, d = residuals[at], draft.probs[tested]  # (n, V) each
        stay = (
            (t.gather(-1, x[tested]) / d.gather(-1, x[tested])).nan_to_num(nan=1.0).clamp(max=1.0).squeeze(-1)
        )  # (n,)
        steps = steps.index_copy(0, tested, ends[at] * stay)
        ends = ends.index_copy(0, at, ends[at] * (1.0 - stay))
        residuals = residuals.index_copy(0, at, residual(t, d))
    last = sampler.choose(_visits(parents, steps) * ends)  # ()
    if device.type == "cuda":
        last = torch.where(((pi.sum(-1) - 1.0).abs() < ROUNDING).all(), last, INVALID)
    following = sampler.choose(residuals.index_select(0, last.clamp_min(0).view(1)))  # (1,)
    more = [] if unread is None else [unread.reshape(-1)]
    end, token, *extra_values = read_tokens(torch.cat([last.view(1), following, *more]))
    path = path_to(parents, end - 1)
    accepted = [draft.tokens[i] for i in path]
    return Verified(accepted + ([token] if rows[end] >= 0 else []), len(path), extra_values, tuple(path))


def _visits(parents: Sequence[int], steps: Tensor) -> Tensor:
    """Return the probability (1 + k,) that the walk visits the root and each token.

    `steps` (k,) are the probabilities that each token is accepted if the walk is at its parent.
    """
    reached, depth = steps.new_ones(1 + len(parents)), depths(parents)
    for level in range(max(depth, default=-1) + 1):
        tokens = [i for i, token_depth in enumerate(depth) if token_depth == level]
        above = to_device([parents[i] + 1 for i in tokens], steps.device)
        at = to_device(tokens, steps.device)
        reached = reached.index_copy(0, at + 1, reached[above] * steps[at])
    return reached


def rows_of_tree(children: Sequence[Sequence[int]], count: int) -> list[int]:
    """Return the row of pi for the root and for each token of a tree, or -1 if there is none.

    `children` lists the children of the root, then of each token. pi has `count` rows: either one for the root and each
    token, or one for each of them that has children.
    """
    if count == len(children):
        return list(range(count))
    inner = itertools.count()
    return [next(inner) if below else -1 for below in children]


def accepted_count_distribution(x: Tensor, pi: Tensor, q: Tensor) -> Tensor:
    """Return the distribution (k + 1,) of the number of accepted tokens when x (k, 1) are tested one after another."""
    stay = (pi.gather(-1, x) / q.gather(-1, x)).nan_to_num(nan=1.0).clamp(max=1.0)  # 0 / 0; callers check pi for NaN
    ends = stay.new_ones(1, 1), stay.new_zeros(1, 1)
    # (k + 2,): P(this token and all before it are accepted)
    survival = torch.cat([ends[0], stay.cumprod(0), ends[1]]).squeeze(-1)
    return survival[:-1] - survival[1:]


def require_distributions(rows: Tensor) -> None:
    """Raise FloatingPointError if a row of (k, V) does not sum to 1 or has NaN."""
    if abs(rows.sum().item() - len(rows)) < ROUNDING:  # one sum is faster than k
        return
    for total in rows.sum(-1).tolist():
        if not abs(total - 1.0) < ROUNDING:
            raise FloatingPointError(f"a distribution sums to {total:g}, not to 1")


def residual(pi: Tensor, q: Tensor) -> Tensor:
    """Return norm(max(0, pi - q)), (..., V), the distribution of a replacement; pi if pi - q has no positive part."""
    excess = (pi - q).clamp_min(0.0)
    mass = excess.sum(-1, keepdim=True)
    return torch.where(mass > 0.0, excess / mass, pi)


def tv(p: Tensor, q: Tensor) -> Tensor:
    """Return the total variation, the sum of max(0, p - q) over the last axis, in [0, 1]: (..., V) -> (...)."""
    return (p - q).clamp_min(0.0).sum(-1)


class Rejection(Named):
    """A rule that turns a draft into tokens that follow pi, for any distributions that the draft was sampled from.

    `independent` says whether every token of a chain is accepted with the probability that `expected` returns,
    independently of the others; the formulas for speedups assume this. `trees` says whether drafts may be trees. The tokens
    of a rule that is not `exact` do not follow pi, except at T = 0 if it `is_exact_when_greedy`.
    """

    exact: ClassVar[bool] = True
    is_exact_when_greedy: ClassVar[bool] = False
    reads_probabilities: ClassVar[bool] = False  # also at T = 0, where most targets have one token of probability 1
    independent: ClassVar[bool] = False
    trees: ClassVar[bool] = False

    @classmethod
    def undefined_at(cls, temperature: float) -> str:
        """Return why the rule is not defined at a temperature; empty if it is."""
        return ""

    def after(self, ids: list[int]) -> "Rejection":
        """Return the rule for a draft after the committed ids. It may depend on nothing else."""
        return self

    @abstractmethod
    def __call__(self, draft: Draft, pi: Tensor, sampler: Sampler, unread: Tensor | None = None) -> Verified:
        """Test a draft of k tokens.

        Args:
            draft: The draft. Its distributions are (k, V).
            pi: The distributions that the output must follow: (k, V), or (k + 1, V) for a bonus token after a fully
                accepted draft. For a tree, see `verify_tree`.
            sampler: The source of random choices.
            unread: Values that are read from the device together with the rule's own.
        """

    def expected(self, q: Tensor, pi: Tensor) -> Tensor | None:
        """Return the probability (...) that the first token of a chain, drawn from q (..., V), is accepted.

        None if it has no closed form, as in trees.
        """
        return None

    def token_acceptance(self, q: float, pi: float) -> float | None:
        """Return the probability that a drafted token is accepted, given its probabilities. None if it has no closed form."""
        return None

    def distance(self, q: Tensor, pi: Tensor) -> Tensor | None:
        """Return the probability (...) that the first token, drawn from q, is rejected; None where `expected` is None."""
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

    Let p_0 = 1 and p_i = min(1, p_{i-1} pi(x_i) / q(x_i)). The prefix of i tokens is acceptable with probability h_i, and the
    longest acceptable prefix is committed. h_i = m_i / (m_i + 1 - p_i), where m_i is the sum of (p_i pi - q)+ over the tokens
    that may follow the prefix; h_0 = 1, and h_k = p_k for the whole draft, whatever ended it. The token after a shorter
    prefix is drawn from norm((p_i pi - q)+).
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
