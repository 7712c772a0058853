"""Speculative Ensemble (SE, also CoS), Algorithm 2 for n models, of which Algorithm 1 is n = 2."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.decoding.checks import checked_rejection
from specbench.decoding.method import Method, Round, Sessions, StopCriteria, Verification
from specbench.decoding.rejection import BY_TOKEN, Rejection, without_default
from specbench.decoding.sampling import Draft, Sampler
from specbench.decoding.targets import Target
from specbench.decoding.traits import Theory


class Proposal(NamedTuple):
    """A drafted token that not every model has scored yet, its distribution q (1, V), and the model that drew it."""

    token: int
    probs: Tensor
    owner: str


@dataclass(frozen=True, kw_only=True)
class SpeculativeEnsemble(Method, name="speculative-ensemble"):
    """Lossless for E(p_1, ..., p_n).

    The models take turns: each scores the pending tokens, and its bonus token is a proposal.

    `models` are in the target's order. The first is the default proposer, which starts over after a rejection (as in the
    paper's text; its pseudo-code omits this). `gamma` is the draft length of each model, including its bonus. No bonus is
    drawn if the length limit is reached or the last proposal is an EOS.
    """

    models: tuple[str, ...]
    gamma: tuple[int, ...]
    target: Target
    rejection: Rejection | None = None  # None: token by token

    def __post_init__(self) -> None:
        object.__setattr__(self, "rejection", without_default(self.rejection))
        self.target.check(len(self.models))
        if len(self.models) < 2:
            raise ValueError(f"models = {list(self.models)}: an ensemble needs at least two")
        if len(self.gamma) != len(self.models) or min(self.gamma) < 1:
            raise ValueError(f"gamma = {list(self.gamma)} must give each of {list(self.models)} a length of at least 1")

    def roles(self) -> tuple[str, ...]:
        return self.models

    @property
    def blocks(self) -> tuple[int, ...]:
        return tuple(range(1, 2 + sum(self.gamma)))

    @property
    def draft_length(self) -> str:
        return ", ".join(map(str, self.gamma))

    def theory(self) -> Theory | None:
        if not (self.rejection or BY_TOKEN).independent:
            return None
        return Theory(formula="ensemble", models=self.models, gamma=self.gamma)

    def declared_distribution(self) -> tuple[tuple[str, ...], Target] | None:
        return (self.models, self.target) if (self.rejection or BY_TOKEN).exact else None

    def verifications(self) -> tuple[Verification, ...]:
        return (Verification(self.models[0], self.models, self.target, self.rejection or BY_TOKEN),)

    def rounds(self, models: Sessions, sampler: Sampler, stop: StopCriteria) -> Iterator[Round]:
        ids, n, drafted, rejection = list(models.ids), len(self.models), 0, checked_rejection(self.rejection)
        pending: deque[Proposal] = deque()  # B
        scored: list[deque[Tensor]] = [
            deque() for _ in range(n)
        ]  # C_i: model i's logits (1, V), starting at the front of B

        def room() -> int:
            """Return how many more proposals B may hold."""
            tokens = [proposal.token for proposal in pending]
            return 0 if stop.closes(tokens) else stop.room(ids) - len(tokens)

        def score(i: int) -> None:
            """Score, with model i, the part of B that it has not scored.

            The position after B is scored too if another proposal may follow.
            """
            tokens = [proposal.token for proposal in pending]
            read = ids + (tokens if room() else tokens[:-1])
            rows = models[self.models[i]].score(read, len(ids) - 1 + len(scored[i]))
            scored[i].extend(row.unsqueeze(0) for row in rows)

        def propose(i: int, k: int) -> int:
            """Draft up to k proposals with model i. Returns how many were drawn."""
            if min(k, room()) < 1:
                return 0
            session, read = models[self.models[i]], ids + [proposal.token for proposal in pending]
            draft = session.roll(read, min(k, room()), sampler, stop.eos)
            rows = [row.unsqueeze(0) for row in draft.probs]  # k x (1, V)
            pending.extend(Proposal(x, q, self.models[i]) for x, q in zip(draft.tokens, rows, strict=True))
            read, start = read + draft.tokens[:-1], len(ids) - 1 + len(scored[i])
            if start < len(read):  # the logits that the proposals were drawn from, which are cached
                scored[i].extend(row.unsqueeze(0) for row in session.score(read, start))
            return len(draft.tokens)

        while stop.room(ids) > 0:
            i = min(range(n), key=lambda j: len(scored[j]))  # the model that has scored the least; M_1 if B is empty
            more = room() > 0
            score(i)
            ready = min(map(len, scored))  # proposals that all models have scored
            if not ready:
                drafted += propose(i, self.gamma[i])
                continue
            token, probs = sampler.draw(scored[i][-1]) if more else (None, None)  # (1,), (1, V): the bonus
            heads = [pending.popleft() for _ in range(ready)]
            draft = Draft([head.token for head in heads], torch.cat([head.probs for head in heads]))
            logits = [torch.cat([rows.popleft() for _ in heads]) for rows in scored]  # n x (heads, V)
            out = rejection.after(ids)(draft, self.target(logits, sampler), sampler, unread=token)
            if probs is not None:
                pending.append(Proposal(out.extra_values[0], probs, self.models[i]))
                drafted += 1
            ids += out.tokens
            rejected = out.accepted < len(heads)
            dropped = [*heads[out.accepted :], *pending] if rejected else []
            owners = tuple(head.owner for head in heads[: out.accepted + 1])
            yield Round(
                out.tokens, drafted, len(owners), out.accepted, owners, rejected=tuple(p.token for p in dropped)
            )
            drafted = 0
            if rejected:
                pending.clear()
                for rows in scored:
                    rows.clear()
            else:
                drafted += propose(i, self.gamma[i] - 1)
