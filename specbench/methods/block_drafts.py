"""Drafts of a head that predicts a block of tokens in one forward."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specbench.config.construct import within
from specbench.config.pair import HeadKind
from specbench.decoding.drafting import widened
from specbench.decoding.engine_options import Drafting, EngineOptions
from specbench.decoding.method import Propose, Proposer, Sessions, StopCriteria
from specbench.decoding.sampling import Draft, Sampler
from specbench.errors import ConfigError
from specbench.methods.proposers import head_in_vllm, require_head
from specbench.models.heads import BlockHead, BlockSession
from specbench.models.heads.block_session import ConfidenceCut


@dataclass(frozen=True, kw_only=True)
class BlockDraft(Proposer, name="dflash"):
    """A DFlash or DSpark head that drafts a chain of gamma tokens in one forward, from its base's states.

    A DSpark head's confidence can end drafts early, by `threshold` or by the `costs` of the target's forwards
    (`ConfidenceCut`). The confidence of a token reads the tokens before it and not the token itself, so the output stays
    exact. With `all_prefixes`, later tokens' confidences decide whether earlier ones are tested, as a scheduler that
    maximizes over all lengths would have it; the output then follows no declared distribution.

    See docs/papers/drafting.md, DFlash and DSpark.
    """

    head_kinds = (HeadKind.dflash, HeadKind.dspark)

    head: str
    base: str
    gamma: int = 7
    threshold: float = 0.0
    costs: tuple[float, ...] = ()
    all_prefixes: bool = False

    def __post_init__(self) -> None:
        within("gamma", self.gamma, 1, math.inf)
        within("threshold", self.threshold, 0.0, 1.0)
        if self.costs and (len(self.costs) < self.gamma or min(self.costs) < 1.0):
            raise ValueError(
                f"costs = {list(self.costs)} must have a value of at least 1 for each of {self.gamma} tokens"
            )
        if self.all_prefixes and not self.costs:
            raise ValueError("all_prefixes applies to costs")

    @property
    def role(self) -> str:
        return self.head

    @property
    def longest(self) -> int:
        return self.gamma

    @property
    def fixed_length(self) -> int | None:
        return None if self.cut.is_set else self.gamma

    @property
    def draft_length(self) -> str:
        return f"up to {self.gamma}" if self.cut.is_set else str(self.gamma)

    @property
    def is_block(self) -> bool:
        return True

    @property
    def exact(self) -> bool:
        return not self.all_prefixes

    @property
    def cut(self) -> ConfidenceCut:
        """What ends drafts early."""
        return ConfidenceCut(threshold=self.threshold, costs=self.costs, all_prefixes=self.all_prefixes)

    def roles(self) -> tuple[str, ...]:
        return (self.base,)

    def require_heads(self, heads: Mapping[str, Any]) -> None:
        require_head(self.head, heads, BlockHead, self.head_kinds)
        if self.gamma > (longest := heads[self.head].block.length):
            raise ConfigError(
                f"gamma = {self.gamma}, and the head '{self.head}' drafts blocks of {longest} tokens (block_size in its"
                f" config.json); help: --gamma {longest}"
            )

    def engine_options(self, drafting: Drafting) -> Iterator[EngineOptions]:
        yield head_in_vllm(drafting, self.gamma)

    def open(self, models: Sessions, sampler: Sampler, stop: StopCriteria) -> Propose:
        base, head = models[self.base], models.head(self.head, BlockHead)
        if self.cut.is_set and head.confidence is None:
            key = "threshold" if self.threshold else "costs"
            raise ConfigError(f"{key} applies to a confidence head, which the head '{self.head}' lacks")
        session = BlockSession(head, base, models.vocabulary)
        models.track(self.head, session)

        def propose(ids: list[int], room: int) -> Draft:
            draft = session.draft(ids, min(self.gamma, room, base.room(ids)), sampler, stop.eos, self.cut)
            return widened(draft, models.vocabulary)

        return propose
