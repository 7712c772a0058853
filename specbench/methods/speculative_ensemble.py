"""Speculative Ensemble (SE, also CoS), Algorithm 2 for n models; Algorithm 1 is the case n = 2."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.method import End, Method, Sessions, Step
from specbench.sampling import Draft, Sampler, read_tokens, verify
from specbench.targets import Target


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
    def most_fed(self) -> int:
        return 1 + sum(self.gamma)

    def law(self) -> tuple[tuple[str, ...], Target]:
        return self.models, self.target

    def verification(self) -> tuple[str, tuple[str, ...], Target]:
        return self.models[0], self.models, self.target

    def steps(self, models: Sessions, sampler: Sampler, end: End) -> Iterator[Step]:
        ids, n, drafted = list(models.ids), len(self.models), 0
        pending: deque[Proposal] = deque()  # B
        scored: list[deque[Tensor]] = [deque() for _ in range(n)]  # C_i: model i's logits (1, V), from B's head on

        def full() -> bool:
            tokens = [proposal.token for proposal in pending]
            return len(tokens) >= end.room(ids) or end.closes(tokens)

        def score_and_draw(i: int) -> int:
            """Model i scores what it has not scored of B, and draws one more token; returns how many it drew."""
            closed = full()
            tokens = [proposal.token for proposal in pending]
            read = ids + (tokens[:-1] if closed else tokens)
            rows = models[self.models[i]].score(read, len(ids) - 1 + len(scored[i]))
            scored[i].extend(row.unsqueeze(0) for row in rows)
            if closed:
                return 0
            token, law = sampler.draw(rows[-1:])  # (1,), (1, V)
            pending.append(Proposal(read_tokens(token)[0], law, self.models[i]))
            return 1

        while end.room(ids) > 0:
            i = min(range(n), key=lambda j: len(scored[j]))  # the model furthest behind; M_1 when B is empty
            drafted += score_and_draw(i)
            refused = False
            if heads := [pending.popleft() for _ in range(min(map(len, scored)))]:  # those that all have scored
                draft = Draft([head.token for head in heads], torch.cat([head.law for head in heads]))
                logits = [torch.cat([rows.popleft() for _ in heads]) for rows in scored]  # n x (heads, V)
                out = verify(draft, self.target(logits, sampler), sampler)
                tested = heads[: out.accepted + 1]
                ids += out.tokens
                refused = out.accepted < len(heads)
                lost = [*heads[out.accepted :], *pending] if refused else []
                by = tuple(head.owner for head in tested)
                yield Step(out.tokens, drafted, len(tested), out.accepted, by, refused=tuple(p.token for p in lost))
                drafted = 0
            if refused:
                pending.clear()
                for rows in scored:
                    rows.clear()
                continue
            for _ in range(self.gamma[i] - 1):
                if full():
                    break
                drafted += score_and_draw(i)
