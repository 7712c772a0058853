"""SPRINTER (Section 4): a trained verifier decides token by token whether the target would accept, and calls it when not."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from specbench.decoding.method import Method, Round, Sessions, StopCriteria
from specbench.decoding.sampling import Draft, Sampler, read_tokens, verify
from specbench.decoding.targets.deferral import confidence, within
from specbench.decoding.traits import Theory
from specbench.models.heads import Verifier


@dataclass(frozen=True, kw_only=True)
class Sprinter(Method, name="sprinter"):
    """Drafts until the verifier gives a token less than `threshold` (tau_inf), then lets the target test that one token.

    All before it are committed untested, so the output follows neither model's law, unless the verifier accepts only what the
    target would accept with certainty, q(x) <= p(x): then p (Theorem 1). The target reads what it has not seen in one forward
    a run. As in the authors' code, the `max_run`th token of a run is tested whatever the verifier says (`test_on_cap`;
    without, it is committed and a new run begins), and an accepted one is followed by a `bonus` from the target. Here the
    text is silent.
    """

    draft: str
    target: str
    head: str
    threshold: float = 0.5
    max_run: int = 20
    test_on_cap: bool = True
    bonus: bool = True

    def __post_init__(self) -> None:
        within("threshold", self.threshold, 0.0, 1.0)
        within("max_run", self.max_run, 1, math.inf)

    def roles(self) -> tuple[str, ...]:
        return self.draft, self.target

    @property
    def max_block(self) -> int:
        return 2 + self.max_run

    @property
    def draft_length(self) -> str:
        return f"up to {self.max_run}"

    @property
    def flops(self) -> Literal["sprinter"]:
        return "sprinter"

    def theory(self) -> Theory:
        return Theory(formula="sprinter", models=self.roles(), bonus="exact" if self.bonus else "none")

    def rounds(self, models: Sessions, sampler: Sampler, end: StopCriteria) -> Iterator[Round]:
        ids, draft, target = list(models.ids), models[self.draft], models[self.target]
        verifier = models.head(self.head, Verifier)
        draft.keeps_hidden = True
        while end.room(ids) > 0:
            run: list[int] = []
            judged = 0
            while True:
                read = ids + run
                logits = draft.score(read, len(read) - 1)  # (1, V)
                token, q = sampler.draw(logits)  # (1,), (1, V)
                run += read_tokens(token)
                score = float(verifier.accepts(draft.hidden(read, len(read) - 1), token, confidence(logits))[0])
                sure, capped = score >= self.threshold, len(run) == self.max_run
                judged += sure
                over = end.closes(run) or len(run) == end.room(ids)
                if not sure or capped or over:
                    break
            counters: dict[str, float] = {"verifier_calls": len(run), "verifier_accepts": judged}
            if sure and not (capped and self.test_on_cap):
                ids += run
                yield Round(run, len(run), counters=counters, untested=len(run))
                continue
            read = ids + run
            more = self.bonus and not over
            rows = target.score(read if more else read[:-1], len(read) - 2)  # (1 or 2, V)
            out = verify(Draft(run[-1:], q), sampler.probs(rows), sampler)
            tokens = run[:-1] + out.tokens
            ids += tokens
            lost, by = () if out.accepted else (run[-1],), (self.draft,)
            yield Round(tokens, len(run), 1, out.accepted, by, counters=counters, untested=len(run) - 1, rejected=lost)
