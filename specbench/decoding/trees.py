"""Trees of drafted tokens: their shapes, and how they grow from a model's logits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from specbench.decoding.sampling import Draft, Sampler, Tree, children_of, read_tokens

Children = Literal["auto", "sampled", "chosen"]
ScoreNodes = Callable[[Tree, int], Tensor]  # (tree, n) -> logits (n, V) after its last n tokens


class Place(NamedTuple):
    """A token of a growing draft: its place in the shape, in the draft, and in the tree that the model reads."""

    shape: int
    draft: int
    read: int


ROOT = Place(-1, -1, -1)  # the end of the sequence


@dataclass(frozen=True)
class Growth:
    """What a tree grows from: the logits of its first tokens, and the logits after tokens of the tree.

    `first` is (1, V). A tree is at most `room` deep, and has no token after an EOS.
    """

    first: Tensor
    score: ScoreNodes
    room: int
    eos: frozenset[int]

    def grow(self, shape: Sequence[int], sampler: Sampler, children: Children) -> Draft:
        """Return a draft of this shape, given by the parent of every token.

        `sampled` children are drawn without replacement, in order; where no mass is left there are fewer. `chosen` children
        are those with the largest logits, whatever the temperature, and their rows are one-hot. `auto` samples unless the
        temperature is 0, where a sampled tree would be a chain.
        """
        sampled = children == "sampled" or (children == "auto" and sampler.temperature > 0.0)
        below = children_of(shape)
        tokens: list[int] = []
        parents: list[int] = []
        rows: list[Tensor] = []
        read, level, logits = Tree([], ()), [ROOT], self.first
        for depth in range(1, self.room + 1):
            counts = [len(below[place.shape + 1]) for place in level]
            open_places: list[Place] = []
            for rank, (at, drawn, probs) in enumerate(
                sampled_children(logits, counts, sampler) if sampled else chosen_children(logits, counts)
            ):
                rows.append(probs)
                for i, token in zip(at, drawn, strict=True):
                    shape_place = below[level[i].shape + 1][rank]
                    if below[shape_place + 1] and token not in self.eos:
                        open_places.append(Place(shape_place, len(tokens), level[i].read))
                    tokens.append(token)
                    parents.append(level[i].draft)
            if not open_places or depth == self.room:
                break
            read, level = extended(read, open_places, tokens)
            logits = self.score(read, len(level))
        return Draft(tokens, torch.cat(rows), parents=tuple(parents))

    def grow_by_confidence(self, width: int, depth: int, nodes: int) -> Draft:
        """Return the `nodes` most probable tokens of a tree that grows `width` tokens per depth. Li et al. 2024, EAGLE-2.

        The confidence in a token is the product of the model's probabilities on its path, at temperature 1. At each depth the
        `width` best tokens get `width` children each, the most probable ones. All rows are one-hot.
        """
        tokens: list[int] = []
        parents: list[int] = []
        confidence: list[float] = []  # logarithms
        read, level, logits = Tree([], ()), [ROOT], self.first
        for reached in range(1, min(depth, self.room) + 1):
            best = logits.log_softmax(-1).topk(min(width, logits.shape[-1]))  # (n, width) each
            new: list[Place] = []
            for place, words, values in zip(level, best.indices.tolist(), best.values.tolist(), strict=True):
                so_far = confidence[place.draft] if place.draft >= 0 else 0.0
                for token, value in zip(words, values, strict=True):
                    if value == -torch.inf:
                        continue
                    new.append(Place(0, len(tokens), place.read))
                    tokens.append(token)
                    parents.append(place.draft)
                    confidence.append(so_far + value)
            new.sort(key=lambda place: -confidence[place.draft])
            open_places = [place for place in new[:width] if tokens[place.draft] not in self.eos]
            if not open_places or reached == min(depth, self.room):
                break
            read, level = extended(read, open_places, tokens)
            logits = self.score(read, len(level))
        # A token is never more probable than its parent, which comes first
        kept = sorted(sorted(range(len(tokens)), key=lambda i: -confidence[i])[:nodes])
        index = {-1: -1} | {old: new for new, old in enumerate(kept)}
        chosen = torch.tensor([tokens[i] for i in kept], device=self.first.device)
        probs = self.first.new_zeros(len(kept), self.first.shape[-1]).scatter_(1, chosen.unsqueeze(1), 1.0)  # (k, V)
        return Draft([tokens[i] for i in kept], probs, parents=tuple(index[parents[i]] for i in kept))


Rank = tuple[
    list[int], list[int], Tensor
]  # parents by number, their children of this rank, and the children's rows (n, V)


def sampled_children(logits: Tensor, counts: Sequence[int], sampler: Sampler) -> list[Rank]:
    """Return children drawn without replacement after logits (n, V), by rank; fewer than `counts` where no mass is left."""
    left = sampler.probs(logits)  # (n, V)
    ranks: list[Rank] = []
    at = [i for i, count in enumerate(counts) if count]
    while at:
        rows = left[at]  # (m, V)
        drawn = sampler.choose(rows)  # (m,)
        ranks.append((at, read_tokens(drawn), rows))
        left[at] = rows.scatter(-1, drawn.unsqueeze(-1), 0.0)
        mass = left.sum(-1, keepdim=True)  # (n, 1)
        left = torch.where(mass > 0.0, left / mass, left)
        totals = mass.squeeze(-1).tolist()
        at = [i for i in at if counts[i] > len(ranks) and totals[i] > 0.0]
    return ranks


def chosen_children(logits: Tensor, counts: Sequence[int]) -> list[Rank]:
    """Return the tokens with the largest logits (n, V), by rank."""
    best = logits.topk(min(max(counts), logits.shape[-1]))  # (n, width) each
    tokens, values = best.indices.tolist(), best.values.tolist()
    ranks: list[Rank] = []
    for rank in range(best.indices.shape[-1]):
        at = [i for i, count in enumerate(counts) if count > rank and values[i][rank] > -torch.inf]
        if at:
            rows = torch.zeros(len(at), logits.shape[-1], device=logits.device)
            rows.scatter_(1, best.indices[at, rank].unsqueeze(1), 1.0)
            ranks.append((at, [tokens[i][rank] for i in at], rows))
    return ranks


def extended(read: Tree, places: Sequence[Place], tokens: Sequence[int]) -> tuple[Tree, list[Place]]:
    """Return the tree that the model reads with these places of the draft, and the places in it."""
    size = len(read.tokens)
    tree = Tree(
        read.tokens + [tokens[place.draft] for place in places], read.parents + tuple(place.read for place in places)
    )
    return tree, [place._replace(read=size + i) for i, place in enumerate(places)]


def shape_of_widths(widths: Sequence[int]) -> tuple[int, ...]:
    """Return the parents in a tree in which every token of a depth has as many children as `widths` gives for it."""
    parents: list[int] = []
    level = [-1]
    for width in widths:
        below = range(len(parents), len(parents) + len(level) * width)
        parents += [parent for parent in level for _ in range(width)]
        level = list(below)
    return tuple(parents)


def shape_of_paths(paths: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the parents in a tree of paths: (0, 2) is the third child of the first token's.

    Raises ValueError for a path whose parent or whose earlier sibling is not in the tree.
    """
    index: dict[tuple[int, ...], int] = {(): -1}
    for path in sorted({tuple(path) for path in paths}, key=lambda path: (len(path), path)):
        before = path[:-1] if not path or not path[-1] else (*path[:-1], path[-1] - 1)
        if not path or path[:-1] not in index or before not in index:
            raise ValueError(f"path {list(path)} needs {list(before)}")
        index[path] = len(index) - 1
    return tuple(index[path[:-1]] for path in index if path)
