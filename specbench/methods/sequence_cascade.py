"""SeqCascade [Chow] (SpecCascade, Section 3): the small model answers; where it was not sure, the large one does anew."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from specbench.decoding.method import Method, Pilot, Round, Sessions, StopCriteria
from specbench.decoding.sampling import Sampler, read_tokens
from specbench.decoding.session import Session
from specbench.decoding.traits import Theory


@dataclass(frozen=True, kw_only=True)
class SequenceCascade(Method, name="sequence-cascade"):
    """Keeps the small model's sequence where its score is at least `threshold`, else gives the large model's.

    Scores are of the unscaled probabilities qbar of its tokens, in nats: the logarithm of their product (the paper's), of
    their geometric mean, or of the least of them; so the paper's rule s < 1 - alpha has the threshold log(1 - alpha). But a
    product over a long text is tiny whatever the text is worth, so by default the threshold is a `quantile` of the scores on
    the run's own prompts, as its first repeat decodes them: a pilot finds it before any clock starts, and about this share of
    sequences is deferred. Later turns of a conversation take no part in the pilot. Not lossless for any law of single tokens.
    """

    small: str
    large: str
    score: Literal["product", "mean", "min"] = "product"
    quantile: float | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        if (self.quantile is None) == (self.threshold is None):
            raise ValueError("give either a quantile of the scores, or a threshold for them")
        if self.quantile is not None and not 0.0 <= self.quantile <= 1.0:
            raise ValueError(f"quantile = {self.quantile} must be in [0, 1]")

    def roles(self) -> tuple[str, ...]:
        return self.small, self.large

    def theory(self) -> Theory:
        return Theory(formula="sequence cascade", models=self.roles())

    def calibrated(self, pilot: Pilot) -> Method:
        if self.quantile is None:
            return self
        keeping = replace(self, quantile=None, threshold=-math.inf)
        scores = [steps[0].counters["score"] for steps in pilot(keeping)]
        if not scores:  # every prompt failed, and will again in its turn
            return keeping
        below = math.inf if self.quantile == 1.0 else float(np.quantile(scores, self.quantile, method="higher"))
        return replace(self, quantile=None, threshold=below)  # this share of the scores is below it

    def rounds(self, models: Sessions, sampler: Sampler, end: StopCriteria) -> Iterator[Round]:
        assert self.threshold is not None
        tokens, chances = _sequence(models[self.small], list(models.ids), sampler, end)
        score = self._score(chances)
        deferred = score < self.threshold
        if deferred:
            tokens, _ = _sequence(models[self.large], list(models.ids), sampler, end)
        counters = {"score": score, "threshold": self.threshold, "positions": 1, "deferrals": int(deferred)}
        yield Round(tokens[:1], counters={key: value for key, value in counters.items() if math.isfinite(value)})
        yield from (Round([token]) for token in tokens[1:])

    def _score(self, chances: list[float]) -> float:
        """In nats, from the logarithms of the tokens' probabilities."""
        if self.score == "min":
            return min(chances)
        return sum(chances) if self.score == "product" else sum(chances) / len(chances)


def _sequence(session: Session, ids: list[int], sampler: Sampler, end: StopCriteria) -> tuple[list[int], list[float]]:
    """A model's whole answer, up to EOS, stop string or limit, and each token's log qbar."""
    tokens: list[int] = []
    chances: list[float] = []
    while end.room(ids + tokens) > 0 and not end.closes(tokens) and not _stopped(session, tokens, end):
        read = ids + tokens
        logits = session.score(read, len(read) - 1)  # (1, V)
        token, _ = sampler.draw(logits)
        tokens += read_tokens(token)
        chances.append(logits[0].log_softmax(-1)[tokens[-1]].item())
    return tokens, chances


def _stopped(session: Session, tokens: list[int], end: StopCriteria) -> bool:
    """Whether a stop string is complete; looking for it is on no clock."""
    begin = time.perf_counter()
    stopped = end.stopped is not None and bool(tokens) and end.stopped(tokens)
    session.usage.off_clock += time.perf_counter() - begin
    return stopped
