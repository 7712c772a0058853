"""Sessions of models whose rotary angles change for the whole sequence at a length (longrope, as of Phi-3).

In a sequence up to this length, all positions use the short factors; in a longer sequence, all use the long factors, earlier
positions too. transformers' `generate` therefore drops the cache and reads the sequence again when it reaches this length.
A session here has two caches instead, and a block that crosses the length is read into both.
"""

import torch
from torch import Tensor

from specbench.decoding.drafting import roll
from specbench.decoding.sampling import Draft, Sampler, Tree, depths
from specbench.decoding.session import AuxLayers, Usage
from specbench.decoding.trees import Growth, growth
from specbench.models.cached_session import CachedSession


class SwitchingSession:
    """A session over two caches: one for prefixes of at most `boundary` tokens, the other for longer ones.

    The first forward of the second reads the whole sequence, and counts as prefill.
    """

    def __init__(self, short: CachedSession, long: CachedSession, boundary: int) -> None:
        self._short, self._long, self._boundary = short, long, boundary
        long.timed.usage = short.timed.usage

    @property
    def usage(self) -> Usage:
        return self._short.usage

    def keep_states(self, aux_layers: AuxLayers = ()) -> None:
        self._short.keep_states(aux_layers)
        self._long.keep_states(aux_layers)

    def score(self, ids: list[int], start: int, tree: Tree | None = None) -> Tensor:
        tree = tree if tree is not None and tree.tokens else None
        levels = depths(tree.parents) if tree else []
        if len(ids) + max(levels, default=-1) + 1 <= self._boundary:
            return self._short.score(ids, start, tree)
        if start >= self._boundary:
            return self._long.score(ids, start, tree)
        rows = list(self._short.score(ids[: self._boundary], start).unbind())
        if len(ids) > self._boundary:
            return torch.cat([torch.stack(rows), self._long.score(ids, self._boundary, tree)])
        if tree is not None:  # some of its tokens are within the boundary
            rows += self._of_tree(ids, tree, levels)
        return torch.stack(rows)

    def _of_tree(self, ids: list[int], tree: Tree, levels: list[int]) -> list[Tensor]:
        """Return the logits after each token of a tree that crosses the boundary. Its first tokens are within it."""
        within = [i for i, level in enumerate(levels) if len(ids) + level + 1 <= self._boundary]
        index = {-1: -1} | {old: new for new, old in enumerate(within)}
        part = Tree([tree.tokens[i] for i in within], tuple(index[tree.parents[i]] for i in within))
        rows: dict[int, Tensor] = {}
        if within:
            rows |= zip(within, self._short.score(ids, len(ids) - 1, part)[1:].unbind(), strict=True)
        for i, level in enumerate(levels):
            if i not in rows:
                path = [i]
                while (above := tree.parents[path[-1]]) >= 0:
                    path.append(above)
                prefix = [*ids, *(tree.tokens[j] for j in reversed(path))]
                assert len(prefix) == len(ids) + level + 1
                rows[i] = self._long.score(prefix, len(prefix) - 1)[0]
        return [rows[i] for i in range(len(levels))]

    def roll(self, ids: list[int], k: int, sampler: Sampler, eos: frozenset[int]) -> Draft:
        return roll(self, ids, k, sampler, eos)

    def growth(self, ids: list[int], room: int, eos: frozenset[int]) -> Growth:
        return growth(self, ids, room, eos)

    def room(self, ids: list[int]) -> int:
        return self._short.room(ids)

    def hidden(self, ids: list[int], start: int, aux_layers: AuxLayers = ()) -> Tensor:
        return (self._short if len(ids) <= self._boundary else self._long).hidden(ids, start, aux_layers)

    def cached_length(self, ids: list[int]) -> int:
        return (self._short if len(ids) <= self._boundary else self._long).cached_length(ids)

    def logits_of(self, states: Tensor) -> Tensor:
        return self._short.logits_of(states)

    def finish(self) -> None:
        self._short.finish()
        self._long.finish()
