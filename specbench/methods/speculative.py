"""Speculative decoding with any proposer and any target law: draft, score in parallel, verify."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from specbench.method import End, Method, Proposer, Sessions, Step, speculate
from specbench.sampling import Sampler
from specbench.targets import Target


@dataclass(frozen=True, kw_only=True)
class Speculative(Method, name="speculative"):
    """Leviathan et al. 2023, Algorithm 1, where the target is `last`; naive speculative ensembles where it is an ensemble.

    Lossless for its target. `bonus` says whether a fully accepted draft is followed by one more token from pi. SE's naive
    ensembles take none (Section 3.2), since pi there would cost the proposer a forward; it is never drawn from the last
    model alone, which would bias the output.
    """

    proposer: Proposer
    scorers: tuple[str, ...]
    target: Target
    bonus: Literal["exact", "none"] = "exact"

    def __post_init__(self) -> None:
        self.target.check(len(self.scorers))

    def roles(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.proposer.role, *self.scorers)))

    def verification(self) -> tuple[str, tuple[str, ...], Target]:
        return self.proposer.role, self.scorers, self.target

    def steps(self, models: Sessions, sampler: Sampler, end: End) -> Iterator[Step]:
        ids, scorers = list(models.ids), [models[role] for role in self.scorers]
        propose, by, bonus = self.proposer.open(models, sampler, end), self.proposer.role, self.bonus == "exact"
        while end.room(ids) > 0:
            _, step = speculate(ids, propose, scorers, self.target, sampler, end, by=by, bonus=bonus)
            ids += step.tokens
            yield step
