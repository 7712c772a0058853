"""Sessions with a key-value cache: cached pure functions of the token sequence.

The caller owns the sequence and always passes all of it. The session finds the longest cached prefix. The model runner
truncates the cache to it and runs one forward over the remaining tokens. Methods never roll back explicitly. After a tree
was scored, it stays in the cache. If the next sequence continues along a path of it, the path is kept without a forward.
"""

import sys

import torch
from torch import Tensor

from specbench.decoding.drafting import common_prefix, roll
from specbench.decoding.sampling import Draft, Sampler, Tree, read_tokens, to_device
from specbench.decoding.session import AuxLayers, Usage
from specbench.decoding.trees import Growth, growth
from specbench.errors import ConfigError
from specbench.models.model_runner import DraftInputs, Feed, ModelRunner, Output, TimedModelRunner, UnreadDraft, columns

NO_TREES = "its engine cannot score draft trees; help: --engine lean, or a method that drafts chains"
MAX_CACHED_ROWS = 64  # newest positions whose logits are kept; an older one costs a forward


class CachedSession:
    """A session over a model runner. Keeps cached tokens, logits of the newest positions, and hidden states on request."""

    def __init__(self, model_runner: ModelRunner) -> None:
        self.model_runner, self.timed = model_runner, TimedModelRunner(model_runner)
        self._states, self._tapped = States(), States()
        self._ids: list[int] = []  # the cached tokens
        self._rows: list[Tensor] = []  # logits (V,) of the newest positions of _ids
        self._branches: Branches | None = None  # the tree that is cached after _ids

    @property
    def usage(self) -> Usage:
        return self.timed.usage

    def keep_states(self, aux_layers: AuxLayers = ()) -> None:
        if not aux_layers:
            self.model_runner.keeps_states = True
            return
        self.model_runner.require_aux_layers(aux_layers)
        self.model_runner.aux_layers = tuple(sorted({*self.model_runner.aux_layers, *aux_layers}))

    def score(self, ids: list[int], start: int, tree: Tree | None = None) -> Tensor:
        assert 0 <= start < len(ids)
        if self._branches is not None:
            self._select(ids)
        cached = common_prefix(ids, self._ids)
        first = len(self._ids) - len(self._rows)  # the oldest position whose logits are kept
        if start < first:
            cached = min(cached, start)
        if tree is not None and tree.tokens:
            return self._score_tree(ids, start, tree, cached)
        if cached < len(ids):
            self._cut(cached)
            tokens = to_device(ids[cached:], self.model_runner.device)
            out = self.timed.feed(Feed(tokens, cached), len(ids) - max(cached, start))
            self._keep(out)
            new = out.logits
            rows = [*self._rows, *new.unbind()] if start <= cached else [*new.unbind()]
            self._rows, self._ids = rows[-MAX_CACHED_ROWS:], list(ids)
            if new.shape[0] == len(ids) - start:
                return new
        else:
            rows = self._rows[: len(self._rows) - (len(self._ids) - len(ids))]
        return torch.stack(rows[len(rows) - (len(ids) - start) :])

    def _score_tree(self, ids: list[int], start: int, tree: Tree, cached: int) -> Tensor:
        """Score ids and a tree after them in one forward over the tokens that are not cached.

        The first `cached` ids are in the cache. Say ids are `the cat`, `cat` is not cached, and the tree has the tokens
        `sat ran down` with the parents (-1, -1, 0), so `down` follows `sat`. The unread ids are prepended as a chain: one
        forward reads `cat sat ran down` with the parents (-1, 0, 0, 1). Its four rows of logits score what follows `the cat`,
        `the cat sat`, `the cat ran` and `the cat sat down`.

        If the next sequence is `the cat sat up`, `_select` moves the entries of `sat` to the end of `the cat` and drops `ran`
        and `down`, so the next forward begins at `up`. If instead a larger tree is scored after the same ids, as when a
        drafter grows a tree level by level, `Branches.add` finds the tokens that were read before, and only new ones are fed.
        """
        self._require_branches()
        if cached < len(self._ids) or cached < len(ids):
            self._cut(cached)
        branches = self._branches or Branches()
        cached_branch_count = len(branches.tokens)
        index = branches.add(tree)
        new, unread = len(branches.tokens) - cached_branch_count, ids[cached:]
        if new or unread:
            tokens = to_device(unread + branches.tokens[cached_branch_count:], self.model_runner.device)
            above = [-1, *range(len(unread))]  # parents of the unread ids, a chain; its last token is the tree's root
            parents = (*above[:-1], *(above[-1] if p < 0 else p + len(unread) for p in branches.parents))
            count = len(ids) - max(cached, start)  # rows for ids, before the rows for new tokens of the tree
            out = self.timed.feed(Feed(tokens, cached, parents), count + new)
            self._keep(out)
            read = [*out.logits.unbind()]
            rows = [*self._rows, *read[:count]] if start <= cached else read[:count]
            branches.rows += read[count:]
            self._rows, self._ids = rows[-MAX_CACHED_ROWS:], list(ids)
        else:
            rows = self._rows
        self._branches = branches
        return torch.stack(rows[len(rows) - (len(ids) - start) :] + [branches.rows[i] for i in index])

    def _require_branches(self) -> None:
        if not self.model_runner.branches:
            raise ConfigError(f"{self.model_runner.name}: {NO_TREES}")

    def _select(self, ids: list[int]) -> None:
        """If ids go beyond the cached ones, append the path of the tree that they follow, and drop the rest of it."""
        at = len(self._ids)
        if self._branches is None or len(ids) <= at or ids[:at] != self._ids:
            return
        path = self._branches.path(ids[at:])
        self._states.keep(at, path)
        self._tapped.keep(at, path)
        if path:
            self.model_runner.keep(at, path)
            self._ids = ids[: at + len(path)]
            self._rows = [*self._rows, *(self._branches.rows[i] for i in path)][-MAX_CACHED_ROWS:]
        self._branches = None

    def roll(self, ids: list[int], k: int, sampler: Sampler, eos: frozenset[int]) -> Draft:
        if self.model_runner.device.type == "cpu":
            return roll(self, ids, k, sampler, eos)
        return self.roll_at_once(ids, k, sampler, eos)

    def roll_at_once(self, ids: list[int], k: int, sampler: Sampler, eos: frozenset[int]) -> Draft:
        """Draft as `roll` does with one read of the device: each token is fed before it is read.

        For devices that are expensive to wait for. Tokens drafted after an EOS are dropped, so drafts have the same
        distribution.
        """
        if k == 0:
            return Draft([], torch.empty(0, 0))
        self._select(ids)
        out = self._next(ids, sampler) if k == 1 else None
        if out is None:
            logits = self.score(ids, len(ids) - 1)  # (1, V)
            self._cut(len(ids))
            out = self.timed.draft(DraftInputs(logits), k, sampler, len(ids))
        for each in out.outputs:
            self._keep(each)
        tokens = read_tokens(out.tokens)
        rows = [row for each in out.outputs for row in each.logits.unbind()]
        self._ids, self._rows = ids + tokens[:-1], [*self._rows, *rows][-MAX_CACHED_ROWS:]
        length = next((i for i, token in enumerate(tokens, 1) if token in eos), k)
        return Draft(tokens[:length], out.probs[:length])

    def _next(self, ids: list[int], sampler: Sampler) -> UnreadDraft | None:
        """Feed the last of ids and draw the next token in one graph; None without such a graph, or if more must be fed."""
        cached = len(ids) - 1
        if not self._rows or not 0 < self.cached_length(ids) == cached:
            return None
        token = to_device(ids[-1:], self.model_runner.device)
        out = self.timed.draw_next(token, cached, self._rows[-1].shape[-1], sampler)
        if out is not None:
            self._cut(cached)
        return out

    def growth(self, ids: list[int], room: int, eos: frozenset[int]) -> Growth:
        if self.model_runner.device.type == "cpu":
            return growth(self, ids, room, eos)
        return self.growth_at_once(ids, room, eos)

    def growth_at_once(self, ids: list[int], room: int, eos: frozenset[int]) -> Growth:
        """Return the start of a tree, for devices that are expensive to wait for: each token is fed before it is read."""
        first = self.score(ids, len(ids) - 1)  # (1, V)
        self._cut(len(ids))

        def score(tokens: Tensor, parents: tuple[int, ...]) -> Tensor:
            self._require_branches()
            self._branches = self._branches or Branches()
            # INVALID, for which `read_tokens` raises, has no embedding
            out = self.timed.feed(Feed(tokens.clamp_min(0), len(ids), parents), len(tokens))
            self._keep(out)
            self._branches.reserve(parents, out.logits)
            return out.logits

        def learn(tokens: list[int]) -> None:
            if self._branches is not None:
                self._branches.learn(tokens)

        return Growth(first, score, room, eos, learn)

    def hidden(self, ids: list[int], start: int, aux_layers: AuxLayers = ()) -> Tensor:
        if self.cached_length(ids) < len(ids):
            self.score(ids, len(ids) - 1)
        self._select(ids)
        if not aux_layers:
            return self._states.rows(start, len(ids))
        return columns(self._tapped.rows(start, len(ids)), self.model_runner.aux_layers, aux_layers)

    def room(self, ids: list[int]) -> int:
        return sys.maxsize  # `LimitedSession` wraps a session that has a limit

    def cached_length(self, ids: list[int]) -> int:
        cached = common_prefix(ids, self._ids)
        if self._branches is not None and cached == len(self._ids):
            cached += len(self._branches.path(ids[cached:]))
        return cached

    def logits_of(self, states: Tensor) -> Tensor:
        return self.model_runner.logits_of(states)

    def finish(self) -> None:
        self.timed.finish()

    def _cut(self, cached: int) -> None:
        """Discard cached entries after the first `cached` positions."""
        extra = len(self._ids) - cached
        if extra or self._branches is not None:
            self._states.cut(cached)
            self._tapped.cut(cached)
            self._branches = None
        if extra:
            self._rows, self._ids = self._rows[:-extra], self._ids[:cached]

    def _keep(self, out: Output) -> None:
        """Store the states of a forward that are kept."""
        if self.model_runner.keeps_states:
            assert out.states is not None
            self._states.append(out.states)
        if self.model_runner.aux_layers:
            assert out.tapped is not None
            self._tapped.append(out.tapped)


class Branches:
    """A tree that is cached after a sequence, with the logits (V,) after each token. Equal siblings are stored once."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.rows: list[Tensor] = []
        self._children: dict[tuple[int, int], int] = {}  # parent, token -> child

    def add(self, tree: Tree) -> list[int]:
        """Add missing tokens, without their logits, and return the index of every token of the tree."""
        index: list[int] = []
        for token, parent in zip(tree.tokens, tree.parents, strict=True):
            key = -1 if parent < 0 else index[parent], token
            if key not in self._children:
                self._children[key] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(key[0])
            index.append(self._children[key])
        return index

    def reserve(self, parents: tuple[int, ...], logits: Tensor) -> None:
        """Add tokens that are still on the device, with their logits (n, V). `parents` has all tokens so far."""
        self.parents = list(parents)
        self.rows += logits.unbind()

    def learn(self, tokens: list[int]) -> None:
        """Set the ids of all tokens that `reserve` added; -1 is a placeholder that no sequence contains."""
        self.tokens = tokens
        self._children = {key: i for i, key in enumerate(zip(self.parents, tokens, strict=True)) if key[1] >= 0}

    def path(self, tokens: list[int]) -> list[int]:
        """Return the longest path from the root that agrees with the beginning of `tokens`."""
        path = [-1]
        for token in tokens:
            if (path[-1], token) not in self._children:
                break
            path.append(self._children[path[-1], token])
        return path[1:]


class States:
    """A growable tensor of rows (length, H) that can be truncated in constant time."""

    def __init__(self) -> None:
        self._storage = torch.empty(0, 0)
        self.length = 0

    def append(self, rows: Tensor) -> None:
        """Append rows (n, H). The first call determines H."""
        total = self.length + len(rows)
        if total > len(self._storage):
            larger = rows.new_empty(max(256, 2 * total), rows.shape[-1])
            if self.length:
                larger[: self.length] = self._storage[: self.length]
            self._storage = larger
        self._storage[self.length : total] = rows
        self.length = total

    def cut(self, length: int) -> None:
        """Truncate to `length` rows."""
        self.length = min(self.length, length)

    def keep(self, start: int, path: list[int]) -> None:
        """Keep the rows start + path[0], start + path[1], ..., moved to `start`, and drop all others after `start`."""
        if self.length:
            at = to_device([start + i for i in path], self._storage.device)
            self._storage[start : start + len(path)] = self._storage[at]
            self.length = start + len(path)

    def rows(self, start: int, end: int) -> Tensor:
        """Return a copy (end - start, H), since later rounds overwrite the rows."""
        assert 0 <= start < end <= self.length
        return self._storage[start:end].clone()
