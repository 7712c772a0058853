"""BiLD as published (Kim et al. 2023): greedy; the small model drafts while it is confident, the large one corrects."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from specbench.config.construct import within
from specbench.decoding.method import Method, Round, Sessions, StopCriteria
from specbench.decoding.sampling import Draft, Sampler, read_tokens
from specbench.decoding.speculation import Speculation, counters_of
from specbench.decoding.targets import Bild
from specbench.methods.proposers import DraftModel
from specbench.methods.stopping import Unsure


@dataclass(frozen=True, kw_only=True)
class OriginalBild(Method, name="bild"):
    """Greedy decoding only; the output is close to the large model's arg max, not equal to it.

    The large model writes the first token. The small model then drafts up to `gamma` tokens, and stops before a token if
    its largest probability is below `fallback`. The large model reads the draft in one forward. It looks for the first
    token whose -log pbar exceeds `rollback` nats and which is not its own choice. It replaces this token and drops the rest
    (a rollback); if there is no such token, it appends a token of its own. (The authors' code rolls back at the first token
    that exceeds the threshold, even if the large model would choose it too. This can only happen if every token's
    probability is below e^-rollback.) With `check_eos = False` the output ends at a small model's EOS that the large one has
    not read, as in the authors' code.
    """

    small: str
    large: str
    fallback: float = 0.6
    rollback: float = 5.0
    gamma: int = 10
    check_eos: bool = True

    def __post_init__(self) -> None:
        for key, least in (("fallback", 0.0), ("rollback", 0.0), ("gamma", 1)):
            within(key, getattr(self, key), least, math.inf)

    @classmethod
    def undefined_at(cls, temperature: float) -> str:
        return "it is a greedy heuristic of two models" if temperature > 0.0 else ""

    def roles(self) -> tuple[str, ...]:
        return self.small, self.large

    @property
    def deciding(self) -> tuple[str, ...]:
        return (self.large,)  # it continues alone where the small model cannot

    @property
    def blocks(self) -> tuple[int, ...]:
        return tuple(range(1, 2 + self.gamma))

    @property
    def draft_length(self) -> str:
        return f"up to {self.gamma}"

    def rounds(self, models: Sessions, sampler: Sampler, stop: StopCriteria) -> Iterator[Round]:
        ids, small, large = list(models.ids), models[self.small], models[self.large]
        proposer = DraftModel(model=self.small, gamma=self.gamma, stop=Unsure(threshold=self.fallback))
        propose = proposer.open(models, sampler, stop)
        speculation = Speculation(
            proposer=self.small,
            propose=propose,
            scorers=[small, large],
            target=Bild(alpha=self.rollback, discrepancy="cross-entropy"),
            sampler=sampler,
            beyond=[large],
        )
        current = Round(read_tokens(sampler.draw(large.score(ids, len(ids) - 1))[0]))
        while True:
            ids += current.tokens
            yield current
            if not stop.room(ids):
                return
            draft = propose(ids, stop.room(ids))
            if not self.check_eos and stop.closes(draft.tokens):
                current = Round(draft.tokens, len(draft.tokens), counters=counters_of(draft))
                continue
            verified = replace(speculation, propose=partial(_reuse, draft)).round(ids, stop)
            current = verified.round
            current.counters["rollbacks"] = current.tested - current.accepted
            if verified.beyond is not None:
                bonus = read_tokens(sampler.draw(verified.beyond)[0])
                current = replace(current, tokens=current.tokens + bonus)


def _reuse(draft: Draft, ids: list[int], room: int) -> Draft:
    """Return a given draft: a proposer for `Speculation`."""
    return draft
