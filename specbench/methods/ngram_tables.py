"""Llama.cpp's drafts from tables of n-grams: `ngram-mod` and `ngram-cache`, without its static tables of other texts."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specbench.config.construct import within
from specbench.decoding.drafting import common_prefix
from specbench.decoding.engine_options import Drafting, EngineOptions, llama_server
from specbench.decoding.method import Earlier
from specbench.methods.lookups import Index, Lookup

FACTOR = 6364136223846793005  # of the hash of an n-gram
WORD = 2**64
FULLEST = 0.25  # share of the table's slots, above which it is cleared
LOW, ROUNDS = 0.5, 3  # the table is cleared after ROUNDS successive drafts of which less than LOW was accepted
SIZES = range(4, 0, -1)  # n-grams that the cache looks up, longest first
LAX = {1: (2, 66), 2: (2, 50), 3: (1, 50), 4: (1, 50)}  # by n: fewest occurrences, and percent of the commonest token
STRICT = {1: (4, 75), 2: (3, 66), 3: (2, 66), 4: (2, 66)}


@dataclass(frozen=True, kw_only=True)
class NgramMod(Lookup, name="ngram-mod"):
    """Follows a table with one continuation for each n-gram, the newest one, until an n-gram has none.

    Tokens are added `chunk` at a time; those after the last whole chunk are not in the table. Drafts of fewer than `shortest`
    tokens, or gamma if that is less, are discarded. With `remember`, earlier prompts and outputs stay in the table, as in
    llama.cpp, where all slots share it. It is cleared after ROUNDS successive drafts of which less than LOW was accepted.
    """

    draft_kind = ""  # drafts depend on what was accepted before, which recordings do not have

    gamma: int = 64
    ngram: int = 24
    shortest: int = 48
    chunk: int = 32
    slots: int = 2**22
    remember: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        within("ngram", self.ngram, 1, math.inf)
        within("shortest", self.shortest, 1, math.inf)
        within("chunk", self.chunk, 1, math.inf)
        within("slots", self.slots, 1, math.inf)

    @property
    def remembers(self) -> bool:
        return self.remember

    @property
    def adapts(self) -> bool:
        return self.remember  # a cleared table gets the sequence itself back at once

    def index(self, earlier: Earlier | None = None) -> "ModIndex":
        return ModIndex(self, earlier)

    def engine_options(self, drafting: Drafting) -> Iterator[EngineOptions]:
        yield llama_server(self.name)


class ModIndex(Index):
    """A table from the hash of an n-gram to the token after it. Sequences of a rule that remembers share it."""

    def __init__(self, rule: NgramMod, earlier: Earlier | None) -> None:
        self._rule = rule
        is_new = earlier is None or rule not in earlier.derived
        self._next: dict[int, int] = {} if earlier is None else earlier.derived.setdefault(rule, {})
        self._added, self._ids = 0, list[int]()
        self._draft: list[int] = []
        self._low = 0
        for output in earlier.outputs if earlier is not None and is_new else ():  # of a run that is resumed
            self._add(output, 0, len(output))
        self._clear_if_full()

    def continuation(self, ids: list[int], most: int) -> list[int]:
        rule = self._rule
        self._judge(ids)
        self._added = min(self._added, common_prefix(ids, self._ids))
        while len(ids) - self._added >= rule.chunk:
            self._add(ids, self._added, self._added + rule.chunk)
            self._added += rule.chunk
        self._ids = list(ids)
        text = ids[-rule.ngram :]
        found: list[int] = []
        while len(text) >= rule.ngram and len(found) < min(most, rule.gamma):
            token = self._next.get(self._slot(text[-rule.ngram :]))
            if token is None:
                break
            found.append(token)
            text.append(token)
        return found if len(found) >= min(rule.shortest, rule.gamma) else []

    def proposed(self, tokens: list[int]) -> None:
        self._draft = tokens

    def _add(self, ids: list[int], begin: int, end: int) -> None:
        for at in range(max(begin, self._rule.ngram), end):
            self._next[self._slot(ids[at - self._rule.ngram : at])] = ids[at]

    def _slot(self, tokens: Sequence[int]) -> int:
        value = 0
        for token in tokens:
            value = (value * FACTOR + token) % WORD
        return value % self._rule.slots

    def _judge(self, ids: list[int]) -> None:
        """Clear the table after several drafts in succession of which little was accepted."""
        draft, self._draft, known = self._draft, [], len(self._ids)
        if not draft or len(ids) <= known or ids[:known] != self._ids:
            return
        accepted = common_prefix(draft, ids[known:])
        self._low = self._low + 1 if accepted < LOW * len(draft) else 0
        if self._low >= ROUNDS:
            self._next.clear()
            self._low = self._added = 0

    def _clear_if_full(self) -> None:
        if len(self._next) > FULLEST * self._rule.slots:
            self._next.clear()


@dataclass(frozen=True, kw_only=True)
class NgramCache(Lookup, name="ngram-cache"):
    """Drafts the commonest continuation of the newest 4, 3, 2 or 1 tokens, if it is common enough.

    The sequence itself is looked up first, with lax thresholds. With `remember`, earlier outputs follow, with strict ones.
    """

    draft_kind = "ngram-cache"

    gamma: int = 8
    remember: bool = False

    @property
    def remembers(self) -> bool:
        return self.remember

    def index(self, earlier: Earlier | None = None) -> "CacheIndex":
        return CacheIndex(earlier)

    def engine_options(self, drafting: Drafting) -> Iterator[EngineOptions]:
        yield llama_server(self.name)


Table = dict[tuple[int, ...], Counter[int]]


class CacheIndex(Index):
    """How often each token follows each n-gram, in the sequence and in earlier outputs."""

    def __init__(self, earlier: Earlier | None) -> None:
        self._own: Table = defaultdict(Counter)
        self._ids: list[int] = []
        count, self._earlier = (earlier or Earlier()).derived.get(NgramCache.name, (0, defaultdict(Counter)))
        for output in earlier.outputs[count:] if earlier is not None else ():
            self._count(self._earlier, output, 0, 1)
        if earlier is not None:
            earlier.derived[NgramCache.name] = len(earlier.outputs), self._earlier

    def continuation(self, ids: list[int], most: int) -> list[int]:
        common = common_prefix(ids, self._ids)
        self._count(self._own, self._ids, common, -1)
        self._count(self._own, ids, common, 1)
        self._ids = list(ids)
        text, found = ids[-max(SIZES) :], list[int]()
        while len(found) < most:
            token = _commonest(self._own, text, LAX)
            if token is None:
                token = _commonest(self._earlier, text, STRICT)
            if token is None:
                break
            found.append(token)
            text.append(token)
        return found

    def _count(self, table: Table, ids: list[int], begin: int, change: int) -> None:
        """Count the tokens of ids from `begin` on after each n-gram before them."""
        for at in range(begin, len(ids)):
            for n in SIZES:
                if n <= at:
                    table[tuple(ids[at - n : at])][ids[at]] += change


def _commonest(table: Table, text: list[int], thresholds: dict[int, tuple[int, int]]) -> int | None:
    """Return the commonest token after the longest n-gram whose thresholds hold; None if there is none."""
    for n in SIZES:
        counts = table.get(tuple(text[-n:])) if n <= len(text) else None
        if not counts:
            continue
        fewest, percent = thresholds[n]
        token, count = max(counts.items(), key=lambda each: (each[1], -each[0]))
        total = sum(counts.values())
        if count and total >= fewest and 100 * count >= percent * total:
            return token
    return None
