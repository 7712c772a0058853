"""Autoregressive decoding with one or more models, including the standard (sequential) ensemble (SE, Section 3.2)."""

from collections.abc import Iterator
from dataclasses import dataclass

from specbench.decoding.method import Method, Round, Sessions, StopCriteria
from specbench.decoding.sampling import Sampler
from specbench.decoding.speculation import draw_token
from specbench.decoding.targets import Last, Target


@dataclass(frozen=True, kw_only=True)
class Autoregressive(Method, name="autoregressive"):
    """x ~ E(p_1, ..., p_n), with one forward of every scorer per token. With one scorer and target `last`: plain decoding.

    With a deferral rule as target: the oracle of the cascades paper (Oracle [Diff], its Figure 1).
    """

    scorers: tuple[str, ...]
    target: Target

    def __post_init__(self) -> None:
        self.target.check(len(self.scorers))

    def roles(self) -> tuple[str, ...]:
        return self.scorers

    def declared_distribution(self) -> tuple[tuple[str, ...], Target]:
        return self.scorers, self.target

    def rounds(self, models: Sessions, sampler: Sampler, stop: StopCriteria) -> Iterator[Round]:
        sessions, ids = [models[role] for role in self.scorers], list(models.ids)
        while stop.room(ids) > 0:
            if isinstance(self.target, Last):
                for session in sessions[:-1]:
                    session.score(ids, len(ids) - 1)
                current = Round(sessions[-1].roll(ids, 1, sampler, frozenset()).tokens)
            else:
                logits = [session.score(ids, len(ids) - 1) for session in sessions]  # n x (1, V)
                tokens, counters = draw_token(*self.target.distributions(logits, sampler), sampler)
                current = Round(tokens, counters=counters)
            ids += current.tokens
            yield current
