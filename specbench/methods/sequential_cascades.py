"""Cascades without drafts: TokenCascade [Chow] (SpecCascade, Section 3) and SeqCascade [Chow] (Section 2, equation 1).

In a token cascade, the small model writes the tokens that it is confident of, and the large model the rest. In a sequence
cascade, the small model answers; if it was not confident, the large model answers instead.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from specbench.decoding.method import Method, Pilot, Round, Sessions, StopCriteria
from specbench.decoding.sampling import Sampler, read_tokens
from specbench.decoding.session import Session
from specbench.decoding.targets import Target, Unaided
from specbench.decoding.traits import Theory


@dataclass(frozen=True, kw_only=True)
class TokenCascade(Method, name="token-cascade"):
    """Exact samples of the rule's pi. The small model reads every token, the large one only if it is deferred to.

    The large model then reads all unread tokens in one forward; its encoder, if any, runs at the first deferral. The rule
    must be computable without the large model: `chow` or `chow-log`.
    """

    small: str
    large: str
    target: Target

    def __post_init__(self) -> None:
        if not isinstance(self.target, Unaided):
            raise ValueError(
                f"target '{self.target.name}' needs the large model at every position; use chow or chow-log"
            )

    def roles(self) -> tuple[str, ...]:
        return self.small, self.large

    def theory(self) -> Theory:
        return Theory(formula="token cascade", models=self.roles())

    def declared_distribution(self) -> tuple[tuple[str, ...], Target]:
        return self.roles(), self.target

    def rounds(self, models: Sessions, sampler: Sampler, stop: StopCriteria) -> Iterator[Round]:
        assert isinstance(self.target, Unaided)
        ids = list(models.ids)
        while stop.room(ids) > 0:
            logits = models[self.small].score(ids, len(ids) - 1)  # (1, V)
            deferred = self.target.defers_from_small(logits, sampler)
            if deferred:
                logits = models[self.large].score(ids, len(ids) - 1)
            tokens = read_tokens(sampler.draw(logits)[0])
            ids += tokens
            yield Round(tokens, counters={"positions": 1, "deferrals": int(deferred)})


@dataclass(frozen=True, kw_only=True)
class SequenceCascade(Method, name="sequence-cascade"):
    """Keeps the small model's sequence if its score is at least `threshold`, otherwise returns the large model's.

    A score is computed from the unscaled probabilities qbar of the sequence's tokens, in nats: the logarithm of their
    product (as in the paper), of their geometric mean, or of their minimum. The paper's rule s < 1 - alpha corresponds to
    the threshold log(1 - alpha). As the product over a long text is tiny regardless of quality, the threshold can instead be
    a `quantile` of the scores on the run's prompts. A pilot decodes the prompts as in the first repeat, before anything is
    timed, and sets the threshold, so about this share of sequences is deferred. Later turns of a conversation are not part
    of the pilot. The output has no distribution over single tokens that could be verified.
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
        scores = [rounds[0].counters["score"] for rounds in pilot(keeping)]
        if not scores:  # every prompt failed and will fail again in the run
            return keeping
        below = math.inf if self.quantile == 1.0 else float(np.quantile(scores, self.quantile, method="higher"))
        # A share `quantile` of the scores is below the threshold
        return replace(self, quantile=None, threshold=below)

    def rounds(self, models: Sessions, sampler: Sampler, stop: StopCriteria) -> Iterator[Round]:
        assert self.threshold is not None
        tokens, log_probs = _sequence(models[self.small], list(models.ids), sampler, stop)
        score = self._score(log_probs)
        deferred = score < self.threshold
        if deferred:
            tokens, _ = _sequence(models[self.large], list(models.ids), sampler, stop)
        counters = {"score": score, "threshold": self.threshold, "positions": 1, "deferrals": int(deferred)}
        yield Round(tokens[:1], counters={key: value for key, value in counters.items() if math.isfinite(value)})
        yield from (Round([token]) for token in tokens[1:])

    def _score(self, log_probs: list[float]) -> float:
        """Return the score in nats, from the logarithms of the tokens' probabilities."""
        if self.score == "min":
            return min(log_probs)
        return sum(log_probs) if self.score == "product" else sum(log_probs) / len(log_probs)


def _sequence(session: Session, ids: list[int], sampler: Sampler, stop: StopCriteria) -> tuple[list[int], list[float]]:
    """Return a model's whole answer, up to an EOS, a stop string or the length limit, and log qbar of each token."""
    tokens: list[int] = []
    log_probs: list[float] = []
    while stop.room(ids + tokens) > 0 and not stop.closes(tokens) and not _stopped(session, tokens, stop):
        context = ids + tokens
        logits = session.score(context, len(context) - 1)  # (1, V)
        token, _ = sampler.draw(logits)
        tokens += read_tokens(token)
        log_probs.append(logits[0].log_softmax(-1)[tokens[-1]].item())
    return tokens, log_probs


def _stopped(session: Session, tokens: list[int], stop: StopCriteria) -> bool:
    """Return whether a stop string is complete. The search is excluded from all timings."""
    begin = time.perf_counter()
    stopped = stop.stopped is not None and bool(tokens) and stop.stopped(tokens)
    session.usage.excluded_seconds += time.perf_counter() - begin
    return stopped
