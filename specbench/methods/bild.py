"""BiLD as its authors have it (Kim et al. 2023): greedy; the small model writes while it is sure, the large one corrects."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from specbench.decoding.method import Method, Round, Sessions, Speculation, StopCriteria, counters_of
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

    def rounds(self, models: Sessions, sampler: Sampler, end: StopCriteria) -> Iterator[Round]:
        ids, small, large = list(models.ids), models[self.small], models[self.large]
        proposer = DraftModel(model=self.small, gamma=self.gamma, stop=Unsure(threshold=self.fallback))
        propose = proposer.open(models, sampler, end)
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
            if not end.room(ids):
                return
            draft = propose(ids, end.room(ids))
            if not self.check_eos and end.closes(draft.tokens):
                current = Round(draft.tokens, len(draft.tokens), counters=counters_of(draft))
                continue
            verified = replace(speculation, propose=partial(_given, draft)).round(ids, end)
            current = verified.round
            current.counters["rollbacks"] = current.tested - current.accepted
            if verified.beyond is not None:
                bonus = read_tokens(sampler.draw(verified.beyond)[0])
                current = replace(current, tokens=current.tokens + bonus)


def _given(draft: Draft, ids: list[int], room: int) -> Draft:
    """A proposer that returns a draft that was made before."""
    return draft
