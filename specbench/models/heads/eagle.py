"""Heads that draft one token after the other from states of their base, and their sessions.

The versions of EAGLE (Li et al. 2024, 2025) differ in what a head reads and in its layers, not in how it drafts. Each is a
subclass of `EagleHead`, in a file of its own.
"""

import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.decoding.drafting import common_prefix
from specbench.decoding.sampling import Draft, Sampler, read_tokens, to_device
from specbench.decoding.session import Session, Usage
from specbench.decoding.trees import Growth
from specbench.models.heads.draft_head import DraftHead, require_numbers
from specbench.models.lean.cache import Cache
from specbench.models.lean.graphs import Graphs
from specbench.models.lean.network import Network
from specbench.models.model_runner import (
    DraftGraph,
    DraftInputs,
    DraftSettings,
    Feed,
    ModelRunner,
    Output,
    TimedModelRunner,
)


class EagleHead(DraftHead):
    """A head whose entry i is token i + 1 with the feature of token i, from which it predicts token i + 2.

    The feature of a token that the base has read is computed from the base's states (`fuse`). After a drafted token, it is
    what the head itself returned (`advance`).
    """

    kind: ClassVar[str] = "eagle"
    captures: ClassVar[bool] = True  # whether CUDA graphs can capture it

    graphs: Graphs | None = None  # its cache and CUDA graphs, if its base has graphs

    @abstractmethod
    def new_cache(self) -> Cache:
        """Return an empty cache of its entries."""

    @abstractmethod
    def fuse(self, states: Tensor) -> Tensor:
        """Return the features (n, H) of tokens whose base has these states, (n, m H) of m layers, (n, H) without them."""

    @abstractmethod
    def advance(self, tokens: Tensor, features: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        """Read tokens (n,), each with the feature (n, H) of the token before it.

        Returns what the LM head reads, and the features of these tokens, (n, H) each.
        """

    @abstractmethod
    def logits(self, read: Tensor, of_base: Callable[[Tensor], Tensor]) -> Tensor:
        """Return logits (n, V) for what `advance` returned first. `of_base` is the base's LM head."""

    def require_finite_output(self) -> None:
        with torch.no_grad():
            tokens, states = self.made_up(4)
            cache = self.new_cache()
            cache.begin(Feed(tokens, 0, states=states))
            read, made = self.advance(tokens, self.fuse(states), cache)
            cache.begin(Feed(tokens[-1:], len(tokens), features=made[-1:]))
            again, next_made = self.advance(tokens[-1:], made[-1:], cache)
            require_numbers(made, next_made, self.logits(torch.cat([read, again]), self.of_base))

    @abstractmethod
    def tables(self) -> tuple[Tensor, ...]:
        """Return the tensors besides weights that `advance` reads now."""


class EagleNetwork:
    """A head with its base's LM head, in the form that draft graphs need."""

    def __init__(self, head: EagleHead, base: Network) -> None:
        self._head, self._base = head, base

    def new_cache(self, source: Tensor | None) -> Cache:
        return self._head.new_cache()

    def fused(self) -> AbstractContextManager[None]:
        return nullcontext()

    def step(self, token: Tensor, cache: Cache, states: Tensor | None) -> tuple[Tensor, Tensor]:
        """Feed one token (1,) after a feature (1, H).

        Returns logits (1, rows of the LM head) and the next feature (1, H).
        """
        assert states is not None
        read, feature = self._head.advance(token, states, cache)
        return self._head.logits(read, lambda rows: self._base.logits(rows.to(self._base.head.dtype))), feature

    def tables(self) -> tuple[Tensor, ...]:
        return self._head.tables()


class EagleModelRunner(ModelRunner):
    """A head's forwards: each token is read with the feature of the position before it. States are its features (rows, H).

    `vocabulary` is the largest number of tokens of its logits.
    """

    name = "EAGLE head"
    branches = True

    def __init__(self, head: EagleHead, base: Session, vocabulary: int | None = None) -> None:
        self._head, self._base, self._graphs, self._vocabulary = head, base, head.graphs, vocabulary
        self.device, self.is_partial = head.parameter.device, head.is_partial
        self.cache = head.graphs.cache if head.graphs else head.new_cache()
        if head.graphs:
            head.graphs.open(self)

    def feed(self, feed: Feed, rows: int) -> Output:
        with torch.inference_mode():
            features = feed.features if feed.states is None else self._head.fuse(feed.states)
            assert features is not None
            self.cache.begin(feed)
            read, made = self._head.advance(feed.tokens, features, self.cache)
            return Output(self.logits_of(read[-rows:]), made[-rows:])

    def logits_of(self, states: Tensor) -> Tensor:
        return self._head.logits(states, self._base.logits_of)[:, : self._vocabulary]

    def draft_graph(self, drafting: DraftSettings, length: int, start: DraftInputs) -> DraftGraph | None:
        if self._graphs is None:
            return None
        assert self._graphs.is_open_for(self), "another session owns these graphs"
        return self._graphs.find_draft(drafting, length, start)

    def finish(self) -> None:
        if self._graphs and self._graphs.is_open_for(self):
            self._graphs.mark_finite()


class EagleSession:
    """A head's drafts on one sequence, over the session of its base, of at most `vocabulary` tokens.

    As in other sessions, the cache is validated by comparing tokens: entry i holds token i + 1 with the feature of token i,
    and is valid while tokens 0 .. i + 1 are the same. Entries fed while drafting contain the head's own features and are
    dropped.
    """

    def __init__(self, head: EagleHead, base: Session, catch_up: bool = True, vocabulary: int | None = None) -> None:
        base.keep_states(head.aux_layers)
        self.model_runner = EagleModelRunner(head, base, vocabulary)
        self.timed, self._base, self._catch_up = TimedModelRunner(self.model_runner), base, catch_up
        self._dtype, self._aux_layers = head.parameter.dtype, head.aux_layers
        self._ids: list[int] = []  # the tokens whose entries hold features of the base

    @property
    def usage(self) -> Usage:
        return self.timed.usage

    def finish(self) -> None:
        self.timed.finish()

    def draft(self, ids: list[int], k: int, sampler: Sampler, eos: frozenset[int]) -> Draft:
        """Draft up to k tokens after ids, one forward each, ending at an EOS; none if ids is a single token."""
        n = len(ids)
        if n < 2 or not k:
            return Draft([], torch.empty(0, 0))
        out = self._read(ids)
        if self.model_runner.device.type == "cpu":
            drawn, probs = self._drawn_in_turn(out, n - 1, k, sampler, eos)
        else:
            drawn, probs, *_ = self.timed.draft(DraftInputs(out.logits, out.states), k, sampler, n - 1)
        tokens = read_tokens(drawn)
        length = next((i for i, token in enumerate(tokens, 1) if token in eos), len(tokens))
        return Draft(tokens[:length], probs[:length])

    def growth(self, ids: list[int], room: int, eos: frozenset[int]) -> Growth | None:
        """Return the start of a tree after ids; None if ids is a single token. The tree takes one forward per depth."""
        n = len(ids)
        if n < 2 or room < 1:
            return None
        out = self._read(ids)
        assert out.states is not None
        features = [out.states]  # (1, H) before the tree, then of each of its tokens

        def score(tokens: Tensor, parents: tuple[int, ...]) -> Tensor:
            above = torch.cat([features[parent + 1] for parent in parents[-len(tokens) :]])  # (m, H)
            # INVALID, for which `read_tokens` raises, has no embedding
            new = self.timed.feed(Feed(tokens.clamp_min(0), n - 1, parents, above), len(tokens))
            assert new.states is not None
            features.extend(row.unsqueeze(0) for row in new.states)
            return new.logits

        return Growth(out.logits, score, room, eos)

    def score_drafts(self, ids: list[int], tokens: list[int], depth: int) -> Iterator[Tensor]:
        """Yield the logits for the m tokens that follow ids, in drafts that begin at every one of them.

        Yields `depth` tensors (m, V). Row i of the first is for token i as the first token of a draft; row i of the second is
        for token i as the second token of a draft that began one token earlier, and so on. Rows without such a draft are 0.
        All drafts are branches of one tree, whose trunk is the tokens with the base's features; each depth takes a forward.
        """
        n, m = len(ids), len(tokens)
        if n < 2:  # no draft begins after a single token
            nothing = self._base.score(ids, 0)[:0]  # (0, V)
            later = (
                self.score_drafts(ids + tokens[:1], tokens[1:], depth) if m > 1 else itertools.repeat(nothing, depth)
            )
            yield from (F.pad(rows, (0, 0, 1, 0)) for rows in later)
            return
        root = self._read(ids)
        assert root.states is not None
        real = self._base.hidden(ids + tokens[:-1], n - 1, self._aux_layers).to(self._dtype)  # (m, states)
        fed, parents = to_device(tokens, self.model_runner.device), tuple(range(-1, m - 2))  # (m,), of the trunk
        first, above = root.logits, root.states  # (1, V), (1, H)
        if m > 1:
            trunk = self.timed.feed(Feed(fed[:-1], n - 1, parents, states=real[:-1]), m - 1)  # (m - 1, V), (m - 1, H)
            assert trunk.states is not None
            first, above = torch.cat([first, trunk.logits]), torch.cat([above, trunk.states])  # (m, V), (m, H)
        yield first
        last: Sequence[int] = range(-1, m - 1)  # the node after which each draft goes on
        for at in range(1, depth):
            starts = m - at  # drafts that reach this depth: draft i reads token i + at - 1
            if starts < 1:
                yield torch.zeros_like(first)
                continue
            parents += tuple(last[:starts])
            new = self.timed.feed(Feed(fed[at - 1 : m - 1], n - 1, parents, above[:starts]), starts)
            assert new.states is not None
            yield torch.cat([torch.zeros_like(first[:at]), new.logits])  # (m, V)
            above, last = new.states, range(len(parents) - starts, len(parents))

    def _read(self, ids: list[int]) -> Output:
        """Read ids, and return the logits (1, V) and the feature (1, H) of the last one.

        All ids but the last must have features, so the base first reads those that it has not read, in an extra forward. This
        happens with a prompt and when a level above has added a token. Without `catch_up` the head continues from its own
        features instead.
        """
        n = len(ids)
        features = n - 1
        if not self._catch_up:
            features = min(self._base.cached_length(ids), n - 1) or n - 1
        # Entries that stay valid; the last one is recomputed
        entries = min(max(common_prefix(ids, self._ids) - 1, 0), features - 1)
        states = self._base.hidden(ids[:features], entries, self._aux_layers).to(self._dtype)
        read = to_device(ids[entries + 1 : features + 1], self.model_runner.device)
        out = self.timed.feed(Feed(read, entries, states=states), 1)
        self._ids = ids[: features + 1]
        for at in range(features, n - 1):
            out = self._feed(to_device(ids[at + 1 : at + 2], self.model_runner.device), at, out.states)
        return out

    def _drawn_in_turn(
        self, out: Output, entries: int, k: int, sampler: Sampler, eos: frozenset[int]
    ) -> tuple[Tensor, Tensor]:
        """Return up to k tokens and the distributions that they were drawn from, ending at an EOS."""
        drawn: list[Tensor] = []
        probs: list[Tensor] = []
        while True:
            token, row = sampler.draw(out.logits)  # (1,), (1, V)
            drawn.append(token)
            probs.append(row)
            if len(drawn) == k or int(token) in eos:
                return torch.cat(drawn), torch.cat(probs)
            out = self._feed(token, entries + len(drawn) - 1, out.states)

    def _feed(self, tokens: Tensor, entries: int, features: Tensor | None) -> Output:
        return self.timed.feed(Feed(tokens, entries, features=features), 1)
