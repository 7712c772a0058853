"""Lenient acceptance rules as engines publish them: rejections whose output follows no declared distribution.

A token after a whole draft, and every token without a draft, is the most likely one or drawn from p, whatever the rule.
`decoding/leniency.py` has the rules.
"""

import itertools
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specbench.config.construct import within
from specbench.decoding.leniency import Leniency, RelaxedRule, ThresholdsRule, TypicalRule
from specbench.decoding.rejection import BY_TOKEN, Rejection, Verified, require_distributions, rows_of_tree
from specbench.decoding.sampling import Draft, Sampler, children_of, path_to, read_tokens, to_device

LARGEST = 3  # probabilities whose entropy FLy reads


class Gated(Leniency, Rejection):
    """A rule that applies in one phase of the output only, for example while a model thinks.

    `phase` are the ids of the tokens that begin and end the phase. Outside of it, `strict` applies. Only committed tokens
    change the phase: a drafted token that ends it changes the rule from the next round on, as in TensorRT-LLM.
    """

    exact = False
    trees = True

    phase: tuple[int, int] | None = None

    def after(self, ids: list[int]) -> Rejection:
        if self.phase is None:
            return self
        begin, end = self.phase
        last = next((token for token in reversed(ids) if token in (begin, end)), end)
        return replace(self, phase=None) if last == begin else self.strict  # type: ignore[type-var]  # a dataclass

    @property
    def strict(self) -> Rejection:
        """The rule outside of the phase."""
        return BY_TOKEN

    def __call__(self, draft: Draft, pi: Tensor, sampler: Sampler, unread: Tensor | None = None) -> Verified:
        require_distributions(pi)
        extra_values = [] if unread is None else read_tokens(unread)
        if draft.parents is not None:
            return self.walk(draft, pi, sampler, extra_values)
        k = len(draft.tokens)
        x = to_device(draft.tokens, pi.device).unsqueeze(-1)  # (k, 1)
        accepted = self._count(self.acceptance(pi[:k]).gather(-1, x).squeeze(-1), sampler)
        row = pi[accepted] if accepted < len(pi) else None
        tested = draft.tokens[accepted : accepted + 1]
        following = [] if row is None else [self._following(row, tested, sampler)]
        return Verified([*draft.tokens[:accepted], *following], accepted, extra_values)

    def walk(self, draft: Draft, pi: Tensor, sampler: Sampler, extra_values: list[int]) -> Verified:
        """Test a draft tree: commit the accepted path with the most tokens, of equal ones the most likely one."""
        assert draft.parents is not None
        rows = rows_of_tree(children_of(draft.parents), len(pi))
        parents = to_device([rows[parent + 1] for parent in draft.parents], pi.device)  # rows before each token
        x = to_device(draft.tokens, pi.device).unsqueeze(-1)  # (k, 1)
        accepts = self.acceptance(pi)[parents].gather(-1, x).squeeze(-1).tolist()
        logs = pi[parents].gather(-1, x).log().squeeze(-1).tolist()
        best, reached = (0, 0.0, -1), {-1: (0, 0.0)}  # depth and log-probability of every accepted token
        for token, parent in enumerate(draft.parents):
            if parent in reached and accepts[token]:
                reached[token] = reached[parent][0] + 1, reached[parent][1] + logs[token]
                best = max(best, (*reached[token], token), key=lambda each: each[:2])
        return self._ended(draft, pi, sampler, extra_values, best[2], [])

    def _ended(
        self, draft: Draft, pi: Tensor, sampler: Sampler, extra_values: list[int], end: int, rejected: list[int]
    ) -> Verified:
        """Return the tokens up to a token of a tree, and the one after it."""
        assert draft.parents is not None
        path = tuple(path_to(draft.parents, end))
        row = rows_of_tree(children_of(draft.parents), len(pi))[end + 1]
        following = [] if row < 0 else [self._following(pi[row], rejected, sampler)]
        return Verified([draft.tokens[token] for token in path] + following, len(path), extra_values, path)

    def _count(self, chances: Tensor, sampler: Sampler) -> int:
        """Return the number of tokens that are accepted one after another, from the probability (k,) of each."""
        survival = torch.cat([chances.new_ones(1), chances.cumprod(0), chances.new_zeros(1)])  # (k + 2,)
        return int(sampler.choose(survival[:-1] - survival[1:]))

    def _following(self, p: Tensor, rejected: list[int], sampler: Sampler) -> int:
        """Return the token after the accepted ones, where p is (V,)."""
        if not self.draws:
            return int(p.argmax())
        rest = p.index_fill(0, to_device(rejected, p.device), 0.0) if rejected else p
        return int(sampler.choose(rest / rest.sum()))


@dataclass(frozen=True, kw_only=True)
class TypicalRejection(TypicalRule, Gated, name="typical"):
    """Medusa's typical acceptance, with the most likely token after the accepted ones (its fast mode).

    The defaults are those of `medusa_generate`; its helper functions have the two defaults swapped.
    """

    is_exact_when_greedy = True

    phase: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class RelaxedRejection(RelaxedRule, Gated, name="relaxed"):
    """TensorRT-LLM's relaxed acceptance. Outside of the phase delta is 0, so ties with the most likely token are accepted."""

    trees = False
    reads_probabilities = True

    phase: tuple[int, int] | None = None

    @property
    def strict(self) -> Rejection:
        return replace(self, delta=0.0, phase=None)


@dataclass(frozen=True, kw_only=True)
class ThresholdsRejection(ThresholdsRule, Gated, name="thresholds"):
    """SGLang's thresholds. The children of a token share one random number u.

    With S_j the sum of p over the first j children, child j is accepted if u <= S_j / accumulated or p(x_j) >= single.
    Without an accepted child, a token is drawn from p without all children.
    """

    is_exact_when_greedy = True

    phase: tuple[int, int] | None = None

    def walk(self, draft: Draft, pi: Tensor, sampler: Sampler, extra_values: list[int]) -> Verified:
        assert draft.parents is not None
        below, end = children_of(draft.parents), -1
        rows = rows_of_tree(below, len(pi))
        while children := below[end + 1]:
            p = pi[rows[end + 1]]
            tokens = to_device([draft.tokens[child] for child in children], pi.device)
            chances = self._first_accepted(p[tokens], bool(p.index_fill(0, tokens, 0.0).any()))
            child = int(sampler.choose(chances))
            if child == len(children):
                return self._ended(draft, pi, sampler, extra_values, end, [draft.tokens[child] for child in children])
            end = children[child]
        return self._ended(draft, pi, sampler, extra_values, end, [])

    def _first_accepted(self, p: Tensor, has_others: bool) -> Tensor:
        """Return the probability of each child, with p (n,), to be the first that is accepted, and that none is: (n + 1,).

        If no other token has a probability, the last child is accepted at the latest.
        """
        reached, left, out = 0.0, 1.0, []
        for total, p_x in zip(itertools.accumulate(p.tolist()), p.tolist(), strict=True):
            now = 1.0 if p_x >= self.single else max(min(total / self.accumulated, 1.0), reached)
            out.append(now - reached)
            reached, left = now, 1.0 - now
        if not has_others:
            out[-1], left = out[-1] + left, 0.0
        return torch.tensor([*out, left], dtype=torch.float64, device=p.device)


@dataclass(frozen=True, kw_only=True)
class FlyRejection(Rejection, name="fly"):
    """FLy (Li et al. 2025, arXiv 2511.22972), for greedy drafts: accept a mismatch if p is flat and what follows matches.

    A token that is not the target's most likely one is accepted if the entropy of the three largest p is at least `entropy`,
    without normalization and in nats, and the next `window` - 1 tokens of the draft match. The first other mismatch ends the
    draft, and the most likely token follows. At T = 0, its target is `unscaled`.
    """

    exact = False
    reads_probabilities = True

    window: int = 6
    entropy: float = 0.3

    def __post_init__(self) -> None:
        within("window", self.window, 1, math.inf)
        within("entropy", self.entropy, 0.0, math.inf)

    @classmethod
    def undefined_at(cls, temperature: float) -> str:
        return "FLy is defined for greedy decoding only" if temperature > 0.0 else ""

    def __call__(self, draft: Draft, pi: Tensor, sampler: Sampler, unread: Tensor | None = None) -> Verified:
        k = len(draft.tokens)
        extra_values = [] if unread is None else read_tokens(unread)
        best: list[int] = pi.argmax(-1).tolist()
        largest = pi[:k].topk(min(LARGEST, pi.shape[-1]), -1).values
        flat = (-torch.xlogy(largest, largest).sum(-1) >= self.entropy).tolist()
        matches = [token == right for token, right in zip(draft.tokens, best, strict=False)]
        accepted = next(
            (
                i
                for i in range(k)
                if not matches[i] and not (flat[i] and i + self.window <= k and all(matches[i + 1 : i + self.window]))
            ),
            k,
        )
        return Verified(draft.tokens[:accepted] + best[accepted : accepted + 1], accepted, extra_values)
