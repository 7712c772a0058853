"""BiLD as its authors have it (Kim et al. 2023): greedy; the small model writes while it is sure, the large one corrects."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from specbench.decoding.method import End, Method, Sessions, Step, noted_of, speculate
from specbench.decoding.sampling import Draft, Sampler, read_tokens
from specbench.decoding.targets import Bild
from specbench.decoding.targets.deferral import within
from specbench.methods.proposers import DraftModel
from specbench.methods.stopping import Unsure


@dataclass(frozen=True, kw_only=True)
class OriginalBild(Method, name="bild"):
    """Greedy decoding only; its output is near the large model's arg max, not equal to it.

    The first token is the large model's. Then the small one goes on while its likeliest token has at least the probability
    `fallback`, for `gamma` tokens at most; the token that it was not sure of is dropped undrawn. The large model reads them
    in one forward: at the first one whose -log pbar exceeds `rollback` nats and which is not its own choice, it takes over
    (a rollback); otherwise it adds a token of its own. (The authors look no further than the first that exceeds it, even
    where that is the large model's choice, which can only be where none has a probability above e^-rollback.) `check_eos =
    False` ends at a small model's EOS unread, as in the authors' code.
    """

    small: str
    large: str
    fallback: float = 0.6
    rollback: float = 5.0
    gamma: int = 10
    check_eos: bool = True

    greedy_only = True

    def __post_init__(self) -> None:
        for key, least in (("fallback", 0.0), ("rollback", 0.0), ("gamma", 1)):
            within(key, getattr(self, key), least, math.inf)

    def roles(self) -> tuple[str, ...]:
        return self.small, self.large

    @property
    def max_block(self) -> int:
        return 1 + self.gamma

    @property
    def draft_length(self) -> str:
        return f"up to {self.gamma}"

    def steps(self, models: Sessions, sampler: Sampler, end: End) -> Iterator[Step]:
        ids, small, large = list(models.ids), models[self.small], models[self.large]
        proposer = DraftModel(model=self.small, gamma=self.gamma, stop=Unsure(threshold=self.fallback))
        propose, target = proposer.open(models, sampler, end), Bild(alpha=self.rollback, discrepancy="cross-entropy")
        step = Step(read_tokens(sampler.draw(large.score(ids, len(ids) - 1))[0]))
        while True:
            ids += step.tokens
            yield step
            if not end.room(ids):
                return
            draft = propose(ids, end.room(ids))
            if not self.check_eos and end.closes(draft.tokens):
                step = Step(draft.tokens, len(draft.tokens), noted=noted_of(draft))
                continue
            given = partial(_given, draft)
            round_ = speculate(ids, given, [small, large], target, sampler, end, by=self.small, beyond=[large])
            step = round_.step
            step.noted["rollbacks"] = step.tested - step.accepted
            if round_.beyond is not None:
                step = replace(step, tokens=step.tokens + read_tokens(sampler.draw(round_.beyond)[0]))


def _given(draft: Draft, ids: list[int], room: int) -> Draft:
    """A proposer of what was drafted already."""
    return draft
