"""SPRINTER (Section 3): a trained verifier predicts whether the target would accept a token.

The target is called only if not.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from specbench.config.construct import within
from specbench.decoding.method import Method, Round, Sessions, StopCriteria
from specbench.decoding.rejection import verify
from specbench.decoding.sampling import Draft, Sampler, read_tokens
from specbench.decoding.targets.deferral import confidence
from specbench.decoding.traits import Positions, Theory
from specbench.models.heads import Verifier
from specbench.models.heads.classifiers import read_probability


@dataclass(frozen=True, kw_only=True)
class Sprinter(Method, name="sprinter"):
    """Drafts until the verifier scores a token below `threshold` (tau_inf), then lets the target test that one token.

    All tokens before it are committed untested, so the output follows neither model's distribution. The exception is a
    verifier that accepts only tokens with q(x) <= p(x), which the target would accept with certainty: then the output follows
    p (Theorem 1). The target reads all unread tokens in one forward per run. As in the authors' code, the `max_run`th token
    of a run is tested regardless of the verifier (with `test_on_cap`; otherwise it is committed and a new run begins), and an
    accepted token is followed by a `bonus` token from the target. The paper specifies neither.
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
    def blocks(self) -> tuple[int, ...]:
        return tuple(range(1, 3 + self.max_run))

    @property
    def draft_length(self) -> str:
        return f"up to {self.max_run}"

    @property
    def flops(self) -> Positions:
        return "tested"

    @property
    def predicts_distance(self) -> bool:
        return self.threshold == 0.5

    def theory(self) -> Theory:
        return Theory(formula="untested run", models=self.roles(), bonus="exact" if self.bonus else "none")

    def rounds(self, models: Sessions, sampler: Sampler, stop: StopCriteria) -> Iterator[Round]:
        ids, draft, target = list(models.ids), models[self.draft], models[self.target]
        verifier = models.head(self.head, Verifier)
        draft.keep_states()
        while stop.room(ids) > 0:
            run: list[int] = []
            verifier_accepts = 0
            while True:
                context = ids + run
                logits = draft.score(context, len(context) - 1)  # (1, V)
                token, q = sampler.draw(logits)  # (1,), (1, V)
                run += read_tokens(token)
                state = draft.hidden(context, len(context) - 1)  # (1, H)
                score = read_probability(verifier.accepts(state, token, confidence(logits)))
                is_accepted, is_capped = score >= self.threshold, len(run) == self.max_run
                verifier_accepts += is_accepted
                is_over = stop.closes(run) or len(run) == stop.room(ids)
                if not is_accepted or is_capped or is_over:
                    break
            counters: dict[str, float] = {"verifier_calls": len(run), "verifier_accepts": verifier_accepts}
            if is_accepted and not (is_capped and self.test_on_cap):
                ids += run
                yield Round(run, len(run), counters=counters, untested=len(run))
                continue
            context = ids + run
            more = self.bonus and not is_over
            rows = target.score(context if more else context[:-1], len(context) - 2)  # (1 or 2, V)
            out = verify(Draft(run[-1:], q), sampler.probs(rows), sampler)
            tokens = run[:-1] + out.tokens
            ids += tokens
            dropped, proposers = () if out.accepted else (run[-1],), (self.draft,)
            yield Round(
                tokens, len(run), 1, out.accepted, proposers, counters=counters, untested=len(run) - 1, rejected=dropped
            )
