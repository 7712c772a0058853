"""TokenCascade [Chow] (SpecCascade, Section 3).

The small model writes the tokens that it is confident of, the large one the rest.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from specbench.decoding.method import Method, Round, Sessions, StopCriteria
from specbench.decoding.sampling import Sampler, read_tokens
from specbench.decoding.targets import Target, Unaided
from specbench.decoding.traits import Theory


@dataclass(frozen=True, kw_only=True)
class TokenCascade(Method, name="token-cascade"):
    """Exact samples of the rule's pi. The small model reads every token, the large one only if it is deferred to.

    The large model then reads all that it has not seen in one forward; its encoder, if any, runs at the first deferral.
    The rule must not need the large model: `chow` or `chow-log`.
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
