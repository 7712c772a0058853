"""Drafts of a head that predicts a block of tokens in one forward."""

import math
from dataclasses import dataclass

from specbench.config.construct import within
from specbench.decoding.drafting import widened
from specbench.decoding.method import Propose, Proposer, Sessions, StopCriteria
from specbench.decoding.sampling import Draft, Sampler
from specbench.errors import ConfigError
from specbench.models.heads.block import BlockHead, BlockSession


@dataclass(frozen=True, kw_only=True)
class BlockDraft(Proposer, name="dflash"):
    """A DFlash or DSpark head that drafts a chain of gamma tokens in one forward, from its base's states.

    With `threshold`, the draft of a DSpark head ends before the first token whose confidence is lower. The confidence of a
    token reads the tokens before it and not the token itself, so the output stays exact.

    See docs/papers/drafting.md, DFlash and DSpark.
    """

    head: str
    base: str
    gamma: int = 7
    threshold: float = 0.0

    def __post_init__(self) -> None:
        within("gamma", self.gamma, 1, math.inf)
        within("threshold", self.threshold, 0.0, 1.0)

    @property
    def role(self) -> str:
        return self.head

    @property
    def longest(self) -> int:
        return self.gamma

    @property
    def fixed_length(self) -> int | None:
        return None if self.threshold else self.gamma

    @property
    def draft_length(self) -> str:
        return f"up to {self.gamma}" if self.threshold else str(self.gamma)

    def roles(self) -> tuple[str, ...]:
        return (self.base,)

    def open(self, models: Sessions, sampler: Sampler, stop: StopCriteria) -> Propose:
        base, head = models[self.base], models.head(self.head, BlockHead)
        if self.gamma > head.block.length:
            raise ConfigError(f"gamma = {self.gamma}, and the head '{self.head}' drafts {head.block.length} tokens")
        if self.threshold and head.confidence is None:
            raise ConfigError(f"threshold = {self.threshold:g}, and the head '{self.head}' has no confidence head")
        session = BlockSession(head, base, models.vocabulary)
        models.track(self.head, session)

        def propose(ids: list[int], room: int) -> Draft:
            draft = session.draft(ids, min(self.gamma, room, base.room(ids)), sampler, stop.eos, self.threshold)
            return widened(draft, models.vocabulary)

        return propose
