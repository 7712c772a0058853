"""Floor 1: proposers, the sources of drafts."""

from dataclasses import dataclass

from specbench.method import End, Propose, Proposer, Sessions
from specbench.sampling import Sampler
from specbench.session import roll
from specbench.stops import Stop


@dataclass(frozen=True, kw_only=True)
class DraftModel(Proposer, name="model"):
    """A model that drafts gamma tokens, or up to its EOS, or until a stop rule ends the draft."""

    model: str
    gamma: int
    stop: Stop | None = None

    def __post_init__(self) -> None:
        if self.gamma < 1:
            raise ValueError(f"gamma = {self.gamma} must be at least 1")

    @property
    def role(self) -> str:
        return self.model

    def open(self, models: Sessions, sampler: Sampler, end: End) -> Propose:
        session, stop = models[self.model], self.stop
        if stop is None:
            return lambda ids, room: session.roll(ids, min(self.gamma, room), sampler, end.eos)
        return lambda ids, room: roll(
            session, ids, min(self.gamma, room), sampler, end.eos, lambda logits: stop.before(logits, sampler)
        )
