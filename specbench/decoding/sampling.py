"""Floor 0: drafts, laws, and the only source of chance.

Notation of the whole project: q is the law a drafted token was drawn from, p a scoring model's law, pi the law that the
output must follow. V is the shared vocabulary, k a number of drafted tokens.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.decoding.round import Round

NO_LAW = -1  # what is drawn from a row that is no law, where nobody could be told yet
ROUNDING = 1e-2  # how far from 1 a law's sum may be, by rounding in half precision over a large vocabulary


@dataclass(frozen=True)
class Draft:
    """Tokens, and the law that each was drawn from given all before it: THE invariant, tokens[i] ~ probs[i]."""

    tokens: list[int]  # (k,)
    probs: Tensor  # (k, V)
    stopped: bool = False  # whether a stop rule ended it
    rounds: tuple[Round, ...] = ()  # the rounds that made it, where it was verified itself


@dataclass(frozen=True)
class Verified:
    """What `verify` returns: `accepted` drafted tokens, then at most one replacement or bonus. Their law is pi.

    `read` holds the numbers of `unread`, which `verify` reads from the device together with its own.
    """

    tokens: list[int]
    accepted: int
    read: list[int] = field(default_factory=list)


@dataclass
class Sampler:
    """From logits to laws, and from laws to tokens. The generator's state is the only state there is."""

    temperature: float = 1.0
    top_k: int = 0  # 0 is off
    top_p: float = 1.0  # 1 is off
    generator: torch.Generator | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.temperature >= 0.0 or not math.isfinite(self.temperature):
            raise ValueError(f"temperature = {self.temperature} must be a number of at least 0")
        if self.top_k < 0:
            raise ValueError(f"top_k = {self.top_k} must be at least 0 (0 is off)")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p = {self.top_p} must be above 0 and at most 1 (1 is off)")

    @property
    def plain(self) -> bool:
        """Whether laws are the models' own: T = 1 and no filter."""
        return self.temperature == 1.0 and self.top_k == 0 and self.top_p == 1.0

    def probs(self, logits: Tensor) -> Tensor:
        """The law of the next token: divide by T, keep the top_k largest, then the smallest set that reaches top_p.

        logits (..., V) -> (..., V), float32 or better. At temperature 0 rows are one-hot at the arg max, ties to the
        lowest token id, so that greedy decoding is not a case anywhere else.
        """
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if self.temperature == 0.0:
            return _one_hot(logits, logits.argmax(-1, keepdim=True))  # torch returns the first of equals
        probs = (logits / self.temperature).softmax(-1)
        if (self.top_k == 0 or self.top_k >= logits.shape[-1]) and self.top_p == 1.0:
            return probs
        ranked, order = probs.sort(dim=-1, descending=True, stable=True)  # (..., V), ties to the lowest token id
        if self.top_k:
            ranked[..., self.top_k :] = 0.0
            ranked /= ranked.sum(-1, keepdim=True)
        before = ranked.cumsum(-1) - ranked  # mass of the tokens ranked above
        ranked = ranked.where(before < self.top_p, 0.0)
        ranked[..., 0] = ranked[..., 0].clamp_min(torch.finfo(ranked.dtype).tiny)  # the best one stays, however rounded
        return torch.zeros_like(probs).scatter_(-1, order, ranked / ranked.sum(-1, keepdim=True))

    def uniforms(self, n: int, device: torch.device) -> Tensor | None:
        """Numbers (n,) from [0, 1) for n later draws; None at temperature 0, where nothing is left to chance."""
        if self.temperature == 0.0:
            return None
        return torch.rand(n, dtype=torch.float64, device=device, generator=self.generator)

    def choose(self, probs: Tensor, uniform: Tensor | None = None) -> Tensor:
        """One index a row, drawn from that row: (..., V) -> (...). Tokens and accepted counts both come from here.

        `uniform` gives each row its number from [0, 1); without it, the generator does.

        By inversion in float64, a quarter of what torch.multinomial takes on a CPU. An index of probability 0 is never drawn.
        Raises FloatingPointError for a row that is no law; on a CUDA device, which is not waited for, such a row gives
        NO_LAW, and `read_tokens` raises it.
        """
        waits = probs.device.type != "cuda"
        if waits and self.temperature == 0.0:  # most laws leave no choice then, which is quicker seen than drawn
            most, likeliest = probs.max(-1)  # (...)
            if min(most.reshape(-1).tolist()) == 1.0:
                return likeliest
        below = probs.cumsum(-1, dtype=torch.float64)  # (..., V)
        mass = below[..., -1:]
        if uniform is None:
            uniform = torch.rand(mass.shape, dtype=torch.float64, device=probs.device, generator=self.generator)
        u = uniform.view(mass.shape)
        picked = torch.searchsorted(below, u * mass, right=True)  # (..., 1)
        picked = torch.where((mass - 1.0).abs() < ROUNDING, picked, NO_LAW).squeeze(-1)  # NO_LAW for NaN too
        if waits:
            read_tokens(picked)
        return picked

    def draw(self, logits: Tensor, uniform: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The next token and the law that it was drawn from: logits (..., V) -> (...), (..., V).

        `choose` of `probs`; but at temperature 0, where there is nothing to choose, no chance is spent.
        """
        if self.temperature == 0.0:
            best = logits.argmax(-1, keepdim=True)  # (..., 1)
            return best.squeeze(-1), _one_hot(logits, best)
        law = self.probs(logits)
        return self.choose(law, uniform), law


def verify(draft: Draft, pi: Tensor, sampler: Sampler, unread: Tensor | None = None) -> Verified:
    """Tokens that follow pi, whatever the draft's laws were: each drafted x stays with probability min(1, pi(x)/q(x)).

    pi is (k, V), or (k + 1, V) for one more token when all were accepted. How many stay is one choice among k + 1, with
    the law that k tests in a row have. The first refused token is replaced by one drawn from the residual, and the rest of
    the draft is dropped. Leviathan et al. 2023, Algorithm 1, whose proof holds for any pi. Where q(x) = 0, which only
    rounding can bring about, x is accepted by definition.
    """
    if pi.device.type == "cuda":
        return verify_at_once(draft, pi, sampler, unread)
    k, tokens, accepted = len(draft.tokens), draft.tokens, 0
    read = [] if unread is None else read_tokens(unread)
    assert k <= len(pi) <= k + 1 and len(draft.probs) == k
    require_laws(pi)
    if k:
        x = torch.tensor(tokens, device=pi.device).unsqueeze(-1)  # (k, 1)
        accepted = int(sampler.choose(_accepted(x, pi[:k], draft.probs)))
    if accepted < k:
        law = residual(pi[accepted], draft.probs[accepted])
    elif len(pi) > k:
        law = pi[k]
    else:
        return Verified(tokens, k, read)
    return Verified([*tokens[:accepted], int(sampler.choose(law))], accepted, read)


def verify_at_once(draft: Draft, pi: Tensor, sampler: Sampler, unread: Tensor | None = None) -> Verified:
    """`verify` with one read of the device: its law is the same, but both choices are made before either is looked at.

    For devices that it costs to wait for. Where no bonus is wanted and all were accepted, the second choice is for nothing.
    """
    k = len(draft.tokens)
    assert k <= len(pi) <= k + 1 and len(draft.probs) == k
    more = [] if unread is None else [unread.reshape(-1)]
    if not k:
        token, *read = read_tokens(torch.cat([sampler.choose(pi), *more]))
        return Verified([token], 0, read)
    x = to_device(draft.tokens, pi.device).unsqueeze(-1)  # (k, 1)
    accepted = sampler.choose(_accepted(x, pi[:k], draft.probs))  # ()
    lawful = ((pi.sum(-1) - 1.0).abs() < ROUNDING).all()
    accepted = torch.where(lawful, accepted, NO_LAW)
    # Nothing was drafted behind the draft, so the bonus is drawn from pi:
    q = F.pad(draft.probs, (0, 0, 0, 1))  # (k + 1, V)
    last = accepted.clamp(0, len(pi) - 1)
    law = residual(pi.index_select(0, last.view(1)), q.index_select(0, last.view(1)))  # (1, V)
    stayed, following, *read = read_tokens(torch.cat([accepted.view(1), sampler.choose(law), *more]))
    return Verified(draft.tokens[:stayed] + ([following] if stayed < len(pi) else []), stayed, read)


def _accepted(x: Tensor, pi: Tensor, q: Tensor) -> Tensor:
    """The law (k + 1,) of how many of the drafted tokens x (k, 1) stay: that of k tests in a row."""
    stay = (pi.gather(-1, x) / q.gather(-1, x)).nan_to_num(nan=1.0).clamp(max=1.0)  # pi has no NaN: that was looked at
    ends = stay.new_ones(1, 1), stay.new_zeros(1, 1)
    through = torch.cat([ends[0], stay.cumprod(0), ends[1]]).squeeze(-1)  # (k + 2,): that token and all before it stay
    return through[:-1] - through[1:]


def _one_hot(logits: Tensor, best: Tensor) -> Tensor:
    """Rows like logits (..., V), all mass on `best` (..., 1)."""
    return torch.zeros_like(logits).scatter_(-1, best, 1.0)


def to_device(numbers: Sequence[int], device: torch.device) -> Tensor:
    """Integers as a tensor (n,) on a device. A CUDA device copies from pinned memory, so that the host does not wait."""
    if device.type != "cuda":
        return torch.tensor(numbers, dtype=torch.long, device=device)
    return torch.tensor(numbers, dtype=torch.long, pin_memory=True).to(device, non_blocking=True)


def read_tokens(picked: Tensor) -> list[int]:
    """What was chosen, as numbers: this waits for the device. Raises FloatingPointError where a row was no law."""
    tokens: list[int] = picked.reshape(-1).tolist()
    if tokens and min(tokens) < 0:
        raise FloatingPointError("a law with NaN, or that does not sum to 1")
    return tokens


def require_laws(rows: Tensor) -> None:
    """Raises FloatingPointError where a row of (k, V) does not sum to 1, as one with NaN does not either."""
    if abs(rows.sum().item() - len(rows)) < ROUNDING:  # all at once, which is quicker
        return
    for total in rows.sum(-1).tolist():
        if not abs(total - 1.0) < ROUNDING:
            raise FloatingPointError(f"a law that sums to {total:g}, not to 1")


def residual(pi: Tensor, q: Tensor) -> Tensor:
    """norm(max(0, pi - q)), (..., V): the law of a replacement. Where it sums to zero there is nothing to mend: pi."""
    excess = (pi - q).clamp_min(0.0)
    mass = excess.sum(-1, keepdim=True)
    return torch.where(mass > 0.0, excess / mass, pi)


def tv(p: Tensor, q: Tensor) -> Tensor:
    """Total variation, sum of max(0, p - q) over the last axis: in [0, 1], (..., V) -> (...)."""
    return (p - q).clamp_min(0.0).sum(-1)


class EnumeratingSampler(Sampler):
    """The sampler's twin without chance: it follows one branch of the tree of choices and notes where others fork off.

    `weight` is the branch's probability. A choice with one possible outcome forks nothing off.
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
            raise FloatingPointError(f"a law that sums to {sum(row):g}, not to 1")
        at = len(self._taken)
        if at < len(self.branch):
            pick = self.branch[at]
        else:
            pick = possible[0]
            self.forks += [[*self._taken, other] for other in possible[1:]]
        self._taken.append(pick)
        self.weight *= row[pick]
        return pick


Outcome = TypeVar("Outcome", bound=Hashable)


def exact_distribution(
    run: Callable[[Sampler], Outcome], temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> dict[Outcome, float]:
    """The exact law of `run(sampler)`: every branch of its choices, weighted. Feasible for table models only."""
    law: dict[Outcome, float] = {}
    branches: list[list[int]] = [[]]
    while branches:
        sampler = EnumeratingSampler(branches.pop(), temperature, top_k, top_p)
        outcome = run(sampler)
        law[outcome] = law.get(outcome, 0.0) + sampler.weight
        branches += sampler.forks
    return law
