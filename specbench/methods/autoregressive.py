"""Every model reads every token: autoregressive decoding, and the standard (sequential) ensemble (SE, Section 3.1)."""

from collections.abc import Iterator
from dataclasses import dataclass

from specbench.method import End, Method, Sessions, Step
from specbench.sampling import Sampler, read_tokens
from specbench.targets import Target


@dataclass(frozen=True, kw_only=True)
class Autoregressive(Method, name="autoregressive"):
    """x ~ E(p_1, ..., p_n), one forward of every scorer a token. With one scorer and target `last`: plain decoding."""

    scorers: tuple[str, ...]
    target: Target

    def __post_init__(self) -> None:
        self.target.check(len(self.scorers))

    def roles(self) -> tuple[str, ...]:
        return self.scorers

    def steps(self, models: Sessions, sampler: Sampler, end: End) -> Iterator[Step]:
        sessions, ids = [models[role] for role in self.scorers], list(models.ids)
        while end.room(ids) > 0:
            pi = self.target([session.score(ids, len(ids) - 1) for session in sessions], sampler)  # (1, V)
            tokens = read_tokens(sampler.choose(pi))
            ids += tokens
            yield Step(tokens)
