"""Trees of drafted tokens: their shapes, and how they grow from a model's logits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.decoding.sampling import Draft, Sampler, Tree, children_of, read_tokens, to_device

Children = Literal["auto", "sampled", "chosen"]
ScoreNodes = Callable[[Tensor, tuple[int, ...]], Tensor]  # (newest tokens (n,), parents of all so far) -> logits (n, V)


class Scoring(Protocol):
    """The part of a session that growing a tree needs."""

    def score(self, ids: list[int], start: int, tree: Tree | None = None) -> Tensor:
        """Score as `Session.score` does."""


class Place(NamedTuple):
    """A token of a draft.

    `draft` is its index in the draft, and `read` its index in the tree that the drafter has read. Until the token itself is
    read, `read` is the index of its parent.
    """

    draft: int
    read: int


ROOT = Place(-1, -1)  # the end of the sequence


@dataclass(frozen=True)
class Growth:
    """The logits that a tree is built from.

    `first` (1, V) gives the children of the root, and `score` returns the logits after tokens of the tree. A tree is at most
    `room` deep, and has no token after an EOS. `learn` is called with the tokens that were scored, once they have been read
    from the device; -1 is a placeholder.
    """

    first: Tensor
    score: ScoreNodes
    room: int
    eos: frozenset[int]
    learn: Callable[[list[int]], None] = lambda tokens: None

    def grow(self, shape: Sequence[int], sampler: Sampler, children: Children) -> Draft:
        """Return a draft of this shape, given by the parent of every token. Reads the device once, at the end.

        `sampled` children are drawn without replacement, in order; once no mass is left, no further child is drawn. `chosen`
        children have the largest logits at any temperature, and their rows are one-hot. `auto` samples unless the
        temperature is 0, where a sampled tree would be a chain. Below an EOS, and where no mass is left, the tree has
        placeholders, which are removed at the end.
        """
        assert self.room > 0
        device = self.first.device
        sampled = children == "sampled" or (children == "auto" and sampler.temperature > 0.0)
        below, eos = children_of(shape), to_device(sorted(self.eos), device)
        logits, is_open = self.first, torch.ones(1, dtype=torch.bool, device=device)  # (n, V), (n,)
        level = {-1: -1}  # tokens that get children: index in the shape -> index in the tree that the drafter reads
        places, parents = list[int](), list[int]()  # of all tokens so far; of tokens that the drafter reads
        scored: list[int] = []  # the tokens that the drafter reads, as indices into `places`
        drawn: list[ChildTokens] = []
        draw = partial(sampled_children, sampler=sampler) if sampled else chosen_children
        for depth in range(1, self.room + 1):
            counts = [len(below[place + 1]) for place in level]
            new = draw(logits, counts, is_open)
            drawn.append(new)
            ranks = range(max(counts))
            order = [below[place + 1][rank] for rank in ranks for place in level if len(below[place + 1]) > rank]
            places += order
            inner = [i for i, place in enumerate(order) if below[place + 1]]
            if not inner or depth == self.room:
                break
            scored += [len(places) - len(order) + i for i in inner]
            read = range(len(parents), len(parents) + len(inner))
            parents += [level[shape[order[i]]] for i in inner]
            level = {order[i]: at for i, at in zip(inner, read, strict=True)}
            at = to_device(inner, device)
            tokens = new.tokens[at]  # (m,)
            is_open = new.exists[at] & ~torch.isin(tokens, eos)
            logits = self.score(tokens, tuple(parents))
        tokens, probs, exists = (torch.cat(part) for part in zip(*drawn, strict=True))
        flags, token_ids = torch.tensor_split(torch.tensor(read_tokens(torch.cat([exists.long(), tokens]))), 2)
        self.learn(torch.where(flags == 1, token_ids, -1)[scored].tolist())
        existing = flags.nonzero().flatten().tolist()
        if len(existing) < len(places):
            probs = probs[to_device(existing, device)]
        index = {-1: -1} | {places[i]: new for new, i in enumerate(existing)}
        return Draft(token_ids[existing].tolist(), probs, parents=tuple(index[shape[places[i]]] for i in existing))

    def grow_by_confidence(self, width: int, depth: int, nodes: int) -> Draft:
        """Return the `nodes` most probable tokens of a tree that grows `width` tokens per depth. Li et al. 2024, EAGLE-2.

        The confidence of a token is the product of the model's probabilities along its path, at temperature 1. At each depth,
        the `width` most confident tokens get their `width` most probable children. All rows are one-hot. Reads the device
        once per depth.
        """
        tokens: list[int] = []
        parents: list[int] = []
        confidence: list[float] = []  # logarithms
        read, scored = list[int](), list[int]()  # parents and ids of the tokens that the drafter reads
        level, logits = [ROOT], self.first
        for reached in range(1, min(depth, self.room) + 1):
            best = logits.log_softmax(-1).topk(min(width, logits.shape[-1]))  # (n, width) each
            new: list[Place] = []
            both = torch.stack([best.indices.double(), best.values.double()]).tolist()  # one read
            for place, words, values in zip(level, *both, strict=True):
                so_far = confidence[place.draft] if place.draft >= 0 else 0.0
                for token, value in zip(words, values, strict=True):
                    if value == -torch.inf:
                        continue
                    new.append(Place(len(tokens), place.read))
                    tokens.append(int(token))
                    parents.append(place.draft)
                    confidence.append(so_far + value)
            new.sort(key=lambda place: -confidence[place.draft])
            open_places = [place for place in new[:width] if tokens[place.draft] not in self.eos]
            if not open_places or reached == min(depth, self.room):
                break
            level = [Place(place.draft, len(read) + i) for i, place in enumerate(open_places)]
            read += [place.read for place in open_places]
            scored += [tokens[place.draft] for place in open_places]
            logits = self.score(to_device(scored[-len(level) :], self.first.device), tuple(read))
        self.learn(scored)
        # A token is never more confident than its parent, and parents come first: so parents of kept tokens are kept
        kept = sorted(sorted(range(len(tokens)), key=lambda i: -confidence[i])[:nodes])
        index = {-1: -1} | {old: new for new, old in enumerate(kept)}
        chosen = [tokens[i] for i in kept]
        at = to_device(chosen, self.first.device).unsqueeze(1)
        probs = self.first.new_zeros(len(kept), self.first.shape[-1]).scatter_(1, at, 1.0)  # (k, V)
        return Draft(chosen, probs, parents=tuple(index[parents[i]] for i in kept))


def growth(session: Scoring, ids: list[int], room: int, eos: frozenset[int]) -> Growth:
    """Return the start of a tree after ids, for any session. Reads the tokens of each level from the device."""
    read: list[int] = []

    def score(tokens: Tensor, parents: tuple[int, ...]) -> Tensor:
        read.extend(read_tokens(tokens))
        return session.score(ids, len(ids) - 1, Tree(list(read), parents))[-len(tokens) :]

    return Growth(session.score(ids, len(ids) - 1), score, room, eos)


class ChildTokens(NamedTuple):
    """Children of several tokens: all first children, then all second ones, ... `exists` is False for placeholders."""

    tokens: Tensor  # (m,)
    probs: Tensor  # (m, V)
    exists: Tensor  # (m,)


def sampled_children(logits: Tensor, counts: Sequence[int], is_open: Tensor, sampler: Sampler) -> ChildTokens:
    """Draw `counts[i]` children without replacement from row i of logits (n, V), if `is_open` (n,) and mass is left."""
    remaining_probs, parts = sampler.probs(logits), list[ChildTokens]()  # (n, V)
    certain = torch.zeros_like(remaining_probs[:1]).index_fill_(
        -1, to_device([0], remaining_probs.device), 1.0
    )  # (1, V)
    for rank in range(max(counts)):
        at = to_device([i for i, count in enumerate(counts) if count > rank], remaining_probs.device)  # (m,)
        exists = is_open[at]
        rows = torch.where(exists.unsqueeze(-1), remaining_probs[at], certain)  # (m, V)
        tokens = sampler.choose(rows)  # (m,)
        parts.append(ChildTokens(tokens, rows, exists))
        remaining_probs = remaining_probs.index_copy(0, at, rows.scatter(-1, tokens.clamp_min(0).unsqueeze(-1), 0.0))
        mass = remaining_probs.sum(-1, keepdim=True)  # (n, 1)
        remaining_probs = torch.where(mass > 0.0, remaining_probs / mass, remaining_probs)
        is_open = is_open & (mass.squeeze(-1) > 0.0)
    return ChildTokens(*(torch.cat(part) for part in zip(*parts, strict=True)))


def chosen_children(logits: Tensor, counts: Sequence[int], is_open: Tensor) -> ChildTokens:
    """Choose the `counts[i]` tokens with the largest logits as children in row i of (n, V), if `is_open` (n,)."""
    width = max(counts)
    padded = F.pad(logits, (0, max(width - logits.shape[-1], 0)), value=-torch.inf)
    best = padded.topk(width)  # (n, width) each
    parts: list[ChildTokens] = []
    for rank in range(width):
        at = to_device([i for i, count in enumerate(counts) if count > rank], logits.device)  # (m,)
        exists = is_open[at] & (best.values[at, rank] > -torch.inf)
        tokens = torch.where(exists, best.indices[at, rank], 0)
        rows = torch.zeros(len(at), logits.shape[-1], device=logits.device).scatter_(1, tokens.unsqueeze(1), 1.0)
        parts.append(ChildTokens(tokens, rows, exists))
    return ChildTokens(*(torch.cat(part) for part in zip(*parts, strict=True)))


def shape_of_widths(widths: Sequence[int]) -> tuple[int, ...]:
    """Return the parents of a tree in which each token at depth d has widths[d] children, the root being at depth 0."""
    parents: list[int] = []
    level = [-1]
    for width in widths:
        below = range(len(parents), len(parents) + len(level) * width)
        parents += [parent for parent in level for _ in range(width)]
        level = list(below)
    return tuple(parents)


def shape_of_paths(paths: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the parents of a tree that is given by paths: (0, 2) is the third child of the root's first child.

    Raises ValueError if the parent or the previous sibling of a path is not in the tree.
    """
    index: dict[tuple[int, ...], int] = {(): -1}
    for path in sorted({tuple(path) for path in paths}, key=lambda path: (len(path), path)):
        before = path[:-1] if not path or not path[-1] else (*path[:-1], path[-1] - 1)
        if not path or path[:-1] not in index or before not in index:
            raise ValueError(f"path {list(path)}: its parent or previous sibling {list(before)} is missing")
        index[path] = len(index) - 1
    return tuple(index[path[:-1]] for path in index if path)
