"""Proposers whose drafts are trees."""

import itertools
import math
import operator
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch

from specbench.config.construct import within
from specbench.decoding.drafting import widened
from specbench.decoding.method import Propose, Proposer, Sessions, StopCriteria
from specbench.decoding.sampling import Draft, Sampler
from specbench.decoding.trees import Children, Growth, shape_of_paths, shape_of_widths
from specbench.methods.proposers import Eagle, require_head
from specbench.models.heads import EagleHead, EagleSession

NOTHING = Draft([], torch.empty(0, 0))
LARGEST = 1024  # maximum tokens of a tree: each takes a row of logits of every model
EAGLE_TREE = (
    *((i,) for i in range(4)),
    (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0),
    (0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0), (0, 1, 1), (0, 2, 0), (0, 2, 1), (1, 0, 0),
    (0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 0, 2),
    (0, 0, 0, 0, 0), (0, 0, 0, 0, 1),
)  # fmt: skip


class TreeProposer(Proposer):
    """A proposer whose drafts are trees."""

    @property
    def tree(self) -> bool:
        return True

    @property
    def draft_length(self) -> str:
        return f"tree {self.nodes}, depth {self.longest}"


@dataclass(frozen=True, kw_only=True)
class ModelTree(TreeProposer, name="model-tree"):
    """A model that drafts a tree in which every token of a depth has as many children as `widths` gives, or fewer.

    See `Growth.grow` for `children`.
    """

    draft_kind = "tree"

    model: str
    widths: tuple[int, ...] = (4, 2, 1, 1)
    children: Children = "auto"

    def __post_init__(self) -> None:
        within("widths", min(self.widths, default=0), 1, math.inf)
        within("the tokens of a tree", self.nodes, 1, LARGEST)

    @property
    def role(self) -> str:
        return self.model

    @property
    def longest(self) -> int:
        return len(self.widths)

    @property
    def nodes(self) -> int:
        return sum(itertools.accumulate(self.widths, operator.mul))

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return shape_of_widths(self.widths)

    def open(self, models: Sessions, sampler: Sampler, stop: StopCriteria) -> Propose:
        session, shape = models[self.model], self.shape

        def propose(ids: list[int], room: int) -> Draft:
            room = min(room, session.room(ids))
            return session.growth(ids, room, stop.eos).grow(shape, sampler, self.children) if room else NOTHING

        return propose


@dataclass(frozen=True, kw_only=True)
class HeadTree(TreeProposer):
    """Trees drafted by an EAGLE-1 head. See `Eagle` for `head`, `base` and `catch_up`."""

    kind: ClassVar[str] = EagleHead.kind
    head_kinds = Eagle.head_kinds

    head: str
    base: str
    catch_up: bool = True

    @property
    def role(self) -> str:
        return self.head

    def roles(self) -> tuple[str, ...]:
        return (self.base,)

    def require_heads(self, heads: Mapping[str, Any]) -> None:
        require_head(self.head, heads, EagleHead, self.head_kinds)

    @abstractmethod
    def draft_from(self, growth: Growth, sampler: Sampler) -> Draft:
        """Return a draft that grows from the head's logits."""

    def open(self, models: Sessions, sampler: Sampler, stop: StopCriteria) -> Propose:
        base = models[self.base]
        session = EagleSession(models.head(self.head, EagleHead), base, self.catch_up, models.vocabulary)
        models.track(self.head, session)

        def propose(ids: list[int], room: int) -> Draft:
            growth = session.growth(ids, min(room, base.room(ids)), stop.eos)
            return NOTHING if growth is None else widened(self.draft_from(growth, sampler), models.vocabulary)

        return propose


@dataclass(frozen=True, kw_only=True)
class EagleTree(HeadTree, name="eagle-tree"):
    """An EAGLE-1 head that drafts a static tree, by default the 25 tokens of Li et al. 2024.

    A path gives the rank of each of its tokens among its siblings; see `Growth.grow` for `children`.
    """

    paths: tuple[tuple[int, ...], ...] = EAGLE_TREE
    children: Children = "auto"

    def __post_init__(self) -> None:
        within("the tokens of a tree", len(self.shape), 1, LARGEST)

    @property
    def longest(self) -> int:
        return max(map(len, self.paths))

    @property
    def nodes(self) -> int:
        return len(set(self.paths))

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return shape_of_paths(self.paths)

    def draft_from(self, growth: Growth, sampler: Sampler) -> Draft:
        return growth.grow(self.shape, sampler, self.children)


@dataclass(frozen=True, kw_only=True)
class Eagle2(HeadTree, name="eagle2"):
    """An EAGLE-1 head that drafts the tree of the `size` most probable tokens. Li et al. 2024, EAGLE-2.

    See `Growth.grow_by_confidence` for `width`, `depth` and `size`. Tokens are chosen, not sampled: if sampled tokens were
    selected by their probabilities, the output would not follow the target's distribution.
    """

    width: int = 10
    depth: int = 6
    size: int = 59

    def __post_init__(self) -> None:
        for key in ("width", "depth", "size"):
            within(key, getattr(self, key), 1, LARGEST)

    @property
    def longest(self) -> int:
        return self.depth

    @property
    def nodes(self) -> int:
        return min(self.size, self.width + self.width**2 * (self.depth - 1))

    def draft_from(self, growth: Growth, sampler: Sampler) -> Draft:
        return growth.grow_by_confidence(self.width, self.depth, self.size)
