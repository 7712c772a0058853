"""Drafts without a model: tokens that are copied from the sequence, or from earlier outputs of the same method.

A copied token has q = 1, so x is accepted with probability pi(x), and the output is exact whatever is copied. What is copied
depends on committed tokens only.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from specbench.config.construct import within
from specbench.decoding.drafting import certain_draft, common_prefix, until_eos
from specbench.decoding.engine_options import Drafting, EngineOptions, llama_server, vllm
from specbench.decoding.method import Earlier, Propose, Proposer, Sessions, StopCriteria
from specbench.decoding.sampling import Draft, Sampler


class Index(ABC):
    """What a lookup knows of one sequence, updated with the sequence that it is asked about."""

    @abstractmethod
    def continuation(self, ids: list[int], most: int) -> list[int]:
        """Return the tokens that probably follow ids, at most `most`."""

    def proposed(self, tokens: list[int]) -> None:  # noqa: B027  (most lookups do not need it)
        """Learn which of these tokens were proposed after the ids of the last call."""


class Lookup(Proposer):
    """Copies up to gamma tokens.

    A lookup whose rounds take other time outside forwards than those of prompt lookup has a `draft_kind` of its own.
    """

    draft_kind = "lookup"

    gamma: int

    def __post_init__(self) -> None:
        within("gamma", self.gamma, 1, math.inf)

    @property
    def role(self) -> str:
        return self.name

    @property
    def longest(self) -> int:
        return self.gamma

    @property
    def adapts(self) -> bool:
        """Whether drafts depend on how many tokens of earlier drafts of the same output were accepted."""
        return False

    def roles(self) -> tuple[str, ...]:
        return ()

    @abstractmethod
    def index(self, earlier: Earlier | None = None) -> Index:
        """Return a new index for one sequence. `earlier` are the earlier outputs of a lookup that remembers."""

    def copied(self, index: Index, ids: list[int], vocabulary: int, eos: frozenset[int]) -> list[int]:
        """Return the tokens copied after ids: at most gamma, ending at an EOS or before an id of `vocabulary` or above."""
        return until_eos(index.continuation(ids, self.gamma), vocabulary, eos)

    def open(self, models: Sessions, sampler: Sampler, stop: StopCriteria) -> Propose:
        index = self.index(models.earlier if self.remembers else None)

        def propose(ids: list[int], room: int) -> Draft:
            tokens = self.copied(index, ids, models.vocabulary, stop.eos)[:room]
            index.proposed(tokens)
            return certain_draft(tokens, models.vocabulary, stop.eos, models.device)

        return propose


@dataclass(frozen=True, kw_only=True)
class PromptLookup(Lookup, name="pld"):
    """Copies what followed the last earlier occurrence of the sequence's newest tokens.

    Finds the longest n-gram at the end of the sequence, of `ngram` tokens or fewer, that also occurs earlier. The draft is up
    to gamma tokens that follow its newest earlier occurrence; it is empty if there is none. For example, after
    `the cat sat on the cat` the 2-gram `the cat` is found at the beginning, and the draft is `sat on the cat`. Saxena 2023;
    Spec-Bench's PLD takes the first occurrence.
    """

    gamma: int = 10
    ngram: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        within("ngram", self.ngram, 1, math.inf)

    def index(self, earlier: Earlier | None = None) -> "NGramIndex":
        return NGramIndex(self.ngram)

    def engine_options(self, drafting: Drafting) -> Iterator[EngineOptions]:
        yield vllm({"method": "ngram", "num_speculative_tokens": self.gamma, "prompt_lookup_max": self.ngram})
        yield llama_server("ngram-simple", f"--spec-draft-n-max {self.gamma}")


class NGramIndex(Index):
    """The positions at which each n-gram of a sequence ended, updated incrementally."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._ids: list[int] = []
        self._ends: dict[tuple[int, ...], list[int]] = {}  # n-gram -> positions after its occurrences, oldest first

    def continuation(self, ids: list[int], most: int) -> list[int]:
        """Return what follows the newest earlier occurrence of the longest n-gram at the end of ids."""
        self._read(ids)
        for n in range(min(self._longest, len(ids)), 0, -1):
            earlier = self._ends[tuple(ids[-n:])]
            if len(earlier) > 1:
                return ids[earlier[-2] : earlier[-2] + most]
        return []

    def _read(self, ids: list[int]) -> None:
        """Remove the n-grams that end at dropped tokens, and add the n-grams that end at new tokens."""
        common = common_prefix(ids, self._ids)
        for end in range(len(self._ids), common, -1):
            for n in range(1, min(self._longest, end) + 1):
                self._ends[tuple(self._ids[end - n : end])].pop()
        for end in range(common + 1, len(ids) + 1):
            for n in range(1, min(self._longest, end) + 1):
                self._ends.setdefault(tuple(ids[end - n : end]), []).append(end)
        self._ids = list(ids)
