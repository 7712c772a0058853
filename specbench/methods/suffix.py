"""Suffix decoding: drafts from a tree of suffixes of the sequence and of earlier outputs (Oliaro et al. 2025)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from specbench.config.construct import within
from specbench.decoding.drafting import common_prefix
from specbench.decoding.engine_options import Drafting, EngineOptions, vllm
from specbench.decoding.method import Earlier
from specbench.methods.lookups import Index, Lookup

LONGEST = 1e6  # of a draft, in tokens


@dataclass
class Node:
    """A path in a tree of suffixes: how often it occurs, and the paths that continue it by one token."""

    count: int = 0
    children: dict[int, "Node"] = field(default_factory=dict)

    @property
    def likeliest(self) -> tuple[int, "Node"] | None:
        """The token that most often continues the path, the lowest id of several, and its node; None at a leaf."""
        if not self.children:
            return None
        token = min(self.children, key=lambda each: (-self.children[each].count, each))
        return token, self.children[token]


class SuffixTree:
    """All paths of at most `depth` tokens that occur in some sequences, with counts."""

    def __init__(self, depth: int) -> None:
        self.depth, self.root = depth, Node()
        self._open: list[
            list[Node]
        ] = []  # after each token of the last sequence, the nodes of its suffixes, shortest first

    def begin(self) -> None:
        """Begin another sequence."""
        self._open = []

    def append(self, token: int) -> None:
        """Add a token to the last sequence."""
        ends = [self.root, *(self._open[-1] if self._open else ())][: self.depth]
        nodes = []
        for node in ends:
            child = node.children.setdefault(token, Node())
            child.count += 1
            nodes.append(child)
        self._open.append(nodes)

    def remove(self, token: int) -> None:
        """Remove the last token, `token`, of the last sequence."""
        nodes = self._open.pop()
        for node, parent in zip(nodes, [self.root, *(self._open[-1] if self._open else ())], strict=False):
            node.count -= 1
            if not node.count:
                del parent.children[token]

    def discard(self, sequence: Sequence[int]) -> None:
        """Remove a whole sequence that was added before."""
        for start in range(len(sequence)):
            node = self.root
            for token in sequence[start : start + self.depth]:
                child = node.children[token]
                child.count -= 1
                if not child.count:
                    del node.children[token]
                    break
                node = child

    def at(self, tokens: Sequence[int]) -> Node | None:
        """Return the node of a path; None if it does not occur."""
        node = self.root
        for token in tokens:
            child = node.children.get(token)
            if child is None:
                return None
            node = child
        return node


@dataclass(frozen=True, kw_only=True)
class Suffix(Lookup, name="suffix"):
    """Copies what most often follows the end of the sequence, as long as it is likely by its counts.

    For m = 1, 2, .. the newest m tokens are looked up. From their path, the most frequent child is followed while the product
    of the frequencies is at least `least`, for at most m x `factor` + `offset` tokens. Of all m, the draft with the largest
    sum of products is taken, and of equal ones that of the longest match. After `1 2 3 1 2 3 1 2` the newest five tokens
    occur twice, once at the end, so that `3 1 2` follows with frequency 1 / 2, and the sum is 1.5.

    With `remember`, the outputs of earlier prompts are searched too, of which at most `cached` are kept. The draft of the own
    sequence is taken if its sum is at least as large. A sample then depends on what was decoded before it in its repeat.
    """

    draft_kind = "suffix"

    gamma: int = 16
    depth: int = 24
    factor: float = 1.0
    offset: float = 0.0
    least: float = 0.1
    remember: bool = False
    cached: int = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        within("depth", self.depth, 2, math.inf)
        within("factor", self.factor, 0.0, LONGEST)
        within("offset", self.offset, -LONGEST, LONGEST)
        within("least", self.least, 0.0, 1.0)
        within("cached", self.cached, 1, math.inf)

    @property
    def remembers(self) -> bool:
        return self.remember

    def index(self, earlier: Earlier | None = None) -> "SuffixIndex":
        return SuffixIndex(self, earlier)

    def engine_options(self, drafting: Drafting) -> Iterator[EngineOptions]:
        yield vllm({"method": self.name, "num_speculative_tokens": self.gamma})


def _tree_of(earlier: Earlier, rule: Suffix) -> SuffixTree:
    """Return the tree of the newest earlier outputs: new ones are added, and those beyond `cached` are removed."""
    begin, end, known = earlier.derived.get(rule, (0, 0, None))
    tree: SuffixTree = known or SuffixTree(rule.depth)
    for output in earlier.outputs[end:]:
        tree.begin()
        for token in output:
            tree.append(token)
    oldest = max(len(earlier.outputs) - rule.cached, 0)
    for output in earlier.outputs[begin:oldest]:
        tree.discard(output)
    earlier.derived[rule] = oldest, len(earlier.outputs), tree
    return tree


class SuffixIndex(Index):
    """The tree of one sequence, and that of earlier outputs."""

    def __init__(self, rule: Suffix, earlier: Earlier | None) -> None:
        self._rule, self._own, self._ids = rule, SuffixTree(rule.depth), list[int]()
        self._earlier = None if earlier is None else _tree_of(earlier, rule)

    def continuation(self, ids: list[int], most: int) -> list[int]:
        self._read(ids)
        score, tokens = self._best(self._own, ids, most)
        if self._earlier is not None:
            other, others = self._best(self._earlier, ids, most)
            if other > score:
                return others
        return tokens

    def _read(self, ids: list[int]) -> None:
        common = common_prefix(ids, self._ids)
        for token in reversed(self._ids[common:]):
            self._own.remove(token)
        for token in ids[common:]:
            self._own.append(token)
        self._ids = list(ids)

    def _best(self, tree: SuffixTree, ids: list[int], most: int) -> tuple[float, list[int]]:
        """Return the largest sum of products of frequencies, and the tokens that have it."""
        best: tuple[float, list[int]] = (0.0, [])
        for m in range(1, min(tree.depth, len(ids)) + 1):
            node = tree.at(ids[-m:])
            if node is None:
                break
            found = self._follow(node, min(most, math.floor(m * self._rule.factor + self._rule.offset + 1e-6)))
            if found[0] >= best[0]:
                best = found
        return best

    def _follow(self, node: Node, most: int) -> tuple[float, list[int]]:
        product, total, tokens = 1.0, 0.0, list[int]()
        while len(tokens) < most and (found := node.likeliest):
            token, child = found
            product *= child.count / node.count
            if product < self._rule.least:
                break
            total, node = total + product, child
            tokens.append(token)
        return total, tokens
