"""Speculative Ensemble (SE, also CoS), Algorithm 2 for n models; Algorithm 1 is the case n = 2."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.decoding.method import Method, Round, Sessions, StopCriteria
from specbench.decoding.sampling import Draft, Sampler, verify
from specbench.decoding.targets import Target
from specbench.decoding.traits import Theory


class Proposal(NamedTuple):
    """A drafted token that not every model has scored yet, its law q (1, V), and the model that drew it."""

    token: int
    law: Tensor
    owner: str


@dataclass(frozen=True, kw_only=True)
class SpeculativeEnsemble(Method, name="speculative-ensemble"):
    """Lossless for E(p_1, ..., p_n). The models take turns: each scores what is pending, and its bonus is a proposal.

    `models` in the target's order; the first is the default proposer, who starts afresh after a rejection (the paper's
    text; its pseudo-code forgets it). `gamma` gives each model's draft length, its bonus included. Where the length limit
    or an EOS makes a bonus useless, it is not drawn.
    """

    models: tuple[str, ...]
    gamma: tuple[int, ...]
    target: Target

    def __post_init__(self) -> None:
        self.target.check(len(self.models))
        if len(self.models) < 2:
            raise ValueError(f"models = {list(self.models)}: an ensemble needs at least two")
        if len(self.gamma) != len(self.models) or min(self.gamma) < 1:
            raise ValueError(f"gamma = {list(self.gamma)} must give each of {list(self.models)} a length of at least 1")

    def roles(self) -> tuple[str, ...]:
        return self.models

    @property
    def max_block(self) -> int:
        return 1 + sum(self.gamma)

    @property
    def draft_length(self) -> str:
        return ", ".join(map(str, self.gamma))

    def theory(self) -> Theory:
        return Theory(formula="ensemble", models=self.models, gamma=self.gamma)

    def declared_distribution(self) -> tuple[tuple[str, ...], Target]:
        return self.models, self.target

    def verification(self) -> tuple[str, tuple[str, ...], Target]:
        return self.models[0], self.models, self.target

    def rounds(self, models: Sessions, sampler: Sampler, end: StopCriteria) -> Iterator[Round]:
        ids, n, drafted = list(models.ids), len(self.models), 0
        pending: deque[Proposal] = deque()  # B
        scored: list[deque[Tensor]] = [deque() for _ in range(n)]  # C_i: model i's logits (1, V), from B's head on

        def room() -> int:
            """How many more proposals B may hold."""
            tokens = [proposal.token for proposal in pending]
            return 0 if end.closes(tokens) else end.room(ids) - len(tokens)

        def score(i: int) -> None:
            """Model i scores what it has not scored of B, and the position after B if another proposal may follow."""
            tokens = [proposal.token for proposal in pending]
            read = ids + (tokens if room() else tokens[:-1])
            rows = models[self.models[i]].score(read, len(ids) - 1 + len(scored[i]))
            scored[i].extend(row.unsqueeze(0) for row in rows)

        def propose(i: int, k: int) -> int:
            """Model i drafts up to k proposals. Returns how many it drew."""
            if min(k, room()) < 1:
                return 0
            session, read = models[self.models[i]], ids + [proposal.token for proposal in pending]
            draft = session.roll(read, min(k, room()), sampler, end.eos)
            laws = [law.unsqueeze(0) for law in draft.probs]  # k x (1, V)
            pending.extend(Proposal(x, q, self.models[i]) for x, q in zip(draft.tokens, laws, strict=True))
            read, start = read + draft.tokens[:-1], len(ids) - 1 + len(scored[i])
            if start < len(read):  # the logits that it drew from, which the session still has
                scored[i].extend(row.unsqueeze(0) for row in session.score(read, start))
            return len(draft.tokens)

        while end.room(ids) > 0:
            i = min(range(n), key=lambda j: len(scored[j]))  # the model furthest behind; M_1 when B is empty
            more = room() > 0
            score(i)
            ready = min(map(len, scored))  # proposals that all have scored
            if not ready:
                drafted += propose(i, self.gamma[i])
                continue
            token, law = sampler.draw(scored[i][-1]) if more else (None, None)  # (1,), (1, V): the bonus
            heads = [pending.popleft() for _ in range(ready)]
            draft = Draft([head.token for head in heads], torch.cat([head.law for head in heads]))
            logits = [torch.cat([rows.popleft() for _ in heads]) for rows in scored]  # n x (heads, V)
            out = verify(draft, self.target(logits, sampler), sampler, unread=token)
            if law is not None:
                pending.append(Proposal(out.read[0], law, self.models[i]))
                drafted += 1
            ids += out.tokens
            rejected = out.accepted < len(heads)
            lost = [*heads[out.accepted :], *pending] if rejected else []
            by = tuple(head.owner for head in heads[: out.accepted + 1])
            yield Round(out.tokens, drafted, len(by), out.accepted, by, rejected=tuple(p.token for p in lost))
            drafted = 0
            if rejected:
                pending.clear()
                for rows in scored:
                    rows.clear()
            else:
                drafted += propose(i, self.gamma[i] - 1)
