"""Speculative decoding with any proposer and any target law: draft, score in parallel, verify."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from specbench.decoding.method import End, Method, Proposer, Sessions, Step, drawn, noted_of, speculate
from specbench.decoding.sampling import Draft, Sampler, read_tokens, verify
from specbench.decoding.targets import Target
from specbench.decoding.traits import Theory
from specbench.methods.proposers import DraftModel

Bonus = Literal["deferred", "exact", "none", "paper"]


@dataclass(frozen=True, kw_only=True)
class Speculative(Method, name="speculative"):
    """Leviathan et al. 2023, Algorithm 1, where the target is `last`; SpecCascade's Algorithm 4 where it is a cascade.

    `bonus` says what follows a draft that was accepted whole. Where the drafting model is a scorer, pi is not known there
    until it has read the end of the draft (docs/papers/speccascade.md, Bonus token):

    - deferred: a token t of the last other scorer's law, kept as a proposal. The drafter's next forward reads t together
      with the draft's end, which gives its law at t's place and behind t; t is tested at once, and drafting goes on behind
      it.
    - exact: the drafter reads the draft's end, a forward of its own, and a token of pi follows.
    - none: nothing, as in SE's naive ensembles (Section 3.2).
    - paper: a token of the last other scorer's law, committed untested, as printed. This biases the output; all others
      follow pi.

    Where the drafting model is no scorer, pi is known at once, and deferred is exact.
    """

    proposer: Proposer
    scorers: tuple[str, ...]
    target: Target
    bonus: Bonus = "deferred"

    def __post_init__(self) -> None:
        self.target.check(len(self.scorers))

    def roles(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.proposer.roles(), *self.scorers)))

    @property
    def max_block(self) -> int:
        return 1 + self.proposer.longest

    @property
    def draft_length(self) -> str:
        return self.proposer.draft_length

    @property
    def adaptive(self) -> bool:
        return isinstance(self.proposer, DraftModel) and self.proposer.stop is not None

    @property
    def flops(self) -> Literal["", "speculation"]:
        return "speculation" if isinstance(self.proposer, DraftModel) else ""

    def theory(self) -> Theory | None:
        drafting, levels = self.proposer.innermost, self.proposer.levels
        if drafting.fixed_length is None:
            return None  # no theory here of drafts whose length varies
        others = tuple(role for role in self.scorers if role != drafting.role)
        return Theory(
            formula="chain" if levels else "speculation",
            models=(drafting.role, *(level.model for level in levels), *others),
            gamma=(drafting.fixed_length,),
            thresholds=tuple(level.threshold for level in levels),
            bonus=self.bonus,
            drafter_scores=drafting.role in self.scorers,
        )

    def verification(self) -> tuple[str, tuple[str, ...], Target]:
        return self.proposer.role, self.scorers, self.target

    def law(self) -> tuple[tuple[str, ...], Target] | None:
        return None if self.bonus == "paper" and self.proposer.role in self.scorers else (self.scorers, self.target)

    def steps(self, models: Sessions, sampler: Sampler, end: End) -> Iterator[Step]:
        ids, drafter, others = (
            list(models.ids),
            self.proposer.role,
            [r for r in self.scorers if r != self.proposer.role],
        )
        propose, scorers = self.proposer.open(models, sampler, end), [models[role] for role in self.scorers]
        known = drafter not in self.scorers  # pi behind a draft
        beyond = [] if known or self.bonus == "none" else [models[role] for role in others]
        bonus = known and self.bonus != "none"

        def pi() -> tuple[Tensor, Tensor | None]:
            """The law of the next token, and where a rule deferred."""
            return self.target.ruled([scorer.score(ids, len(ids) - 1) for scorer in scorers], sampler)

        pending: Draft | None = None  # t, and the law that the last other scorer had drawn it from
        told = Step([])  # what a round did that committed nothing yet
        while end.room(ids) > 0:
            if pending is not None:
                if end.room(ids) > 1 and not end.closes(pending.tokens):  # t is read too, for what follows it
                    models[drafter].score(ids + pending.tokens, len(ids) - 1)
                law, deferred = pi()
                out = verify(pending, law, sampler, unread=deferred)
                ids += out.tokens
                (proposed,) = pending.tokens
                pending, noted = None, noted_of(None, out.read)
                lost = () if out.accepted else (proposed,)
                by = (others[-1],)
                told = told.then(Step(out.tokens, tested=1, accepted=out.accepted, by=by, noted=noted, refused=lost))
                if not out.accepted or end.closes(out.tokens) or not end.room(ids):
                    yield told
                    told = Step([])
                    continue
            round_ = speculate(ids, propose, scorers, self.target, sampler, end, by=drafter, bonus=bonus, beyond=beyond)
            ids += round_.step.tokens
            told = told.then(round_.step)
            if round_.beyond is not None:
                if self.bonus == "exact":
                    tokens, noted = drawn(*pi(), sampler)
                    told = told.with_noted(noted)
                else:
                    token, law = sampler.draw(round_.beyond)  # (1,), (1, V)
                    tokens = read_tokens(token)
                if self.bonus == "deferred":
                    pending, told = Draft(tokens, law), replace(told, drafted=told.drafted + 1)
                else:
                    ids += tokens
                    told = replace(told, tokens=told.tokens + tokens)
            if told.tokens:
                yield told
                told = Step([])
