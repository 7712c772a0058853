"""What a model can read, and sessions of models that lack tokens or positions of the pair."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.decoding.drafting import widened
from specbench.decoding.sampling import Draft, Sampler, Tree, path_to, to_device
from specbench.decoding.session import AuxLayers, Session, Usage
from specbench.decoding.trees import Growth, growth


@dataclass(frozen=True)
class Reach:
    """What the model of a role can read and write.

    It can read token ids below `embedded`, the rows of its embedding, and write token ids below `entries`, the rows of its LM
    head. `window` is the maximum number of tokens of a sequence that it can read; None if unlimited.
    """

    role: str
    embedded: int
    entries: int
    window: int | None

    def covered(self, ids: Sequence[int]) -> int:
        """Return the length of the longest prefix of ids that the model can read."""
        readable = len(ids)
        if ids and max(ids) >= self.embedded:
            readable = next(i for i, token in enumerate(ids) if token >= self.embedded)
        return readable if self.window is None else min(readable, self.window)

    def room(self, ids: Sequence[int]) -> int:
        """Return how many tokens the model can write after ids; 0 if it cannot read ids."""
        if self.covered(ids) < len(ids):
            return 0
        return sys.maxsize if self.window is None else self.window - len(ids) + 1

    def require(self, ids: Sequence[int]) -> None:
        """Raise ValueError, with the reason, if the model cannot read ids."""
        readable = self.covered(ids)
        if readable == len(ids):
            return
        if ids[readable] >= self.embedded:
            raise ValueError(f"model '{self.role}' cannot read token {ids[readable]}: it has {self.embedded} tokens")
        raise ValueError(f"model '{self.role}' cannot read {len(ids)} tokens: its context window is {self.window}")


class LimitedSession:
    """A session of a model that has fewer tokens than the pair's V, cannot read all of them, or has a smaller window.

    Tokens that the model lacks have logits of -inf, and a probability of 0 in its drafts. Raises ValueError, with the reason,
    if the model would have to read ids that it cannot read. A model that only drafts may have to score a token that it
    lacks because another model proposed it. It gives this token probability 0, so the rows after it are not used, and the
    last row is repeated for them. With `strict`, this raises ValueError instead, since such a token may be accepted.
    """

    def __init__(
        self, session: Session, reach: Reach, vocabulary: int, source: Sequence[int] | None, strict: bool
    ) -> None:
        """`source` is what an encoder reads."""
        self._session, self._reach, self._vocabulary, self._strict = session, reach, vocabulary, strict
        self._source = source or []

    @property
    def usage(self) -> Usage:
        return self._session.usage

    def keep_states(self, aux_layers: AuxLayers = ()) -> None:
        self._session.keep_states(aux_layers)

    def growth(self, ids: list[int], room: int, eos: frozenset[int]) -> Growth:
        return growth(self, ids, room, eos)

    def room(self, ids: list[int]) -> int:
        return self._reach.room(ids) if self._reach.room(self._source) else 0

    def score(self, ids: list[int], start: int, tree: Tree | None = None) -> Tensor:
        readable = self._reach.covered(ids)
        if self._strict or readable <= start:
            self._require(ids)
        if tree is not None and tree.tokens:
            return self._score_tree(ids, start, tree)
        rows = self._session.score(ids[:readable], start)
        rows = F.pad(rows, (0, self._vocabulary - rows.shape[-1]), value=-torch.inf)  # (known - start, V)
        return torch.cat([rows, rows[-1:].expand(len(ids) - readable, -1)])

    def _score_tree(self, ids: list[int], start: int, tree: Tree) -> Tensor:
        """Score a tree without the tokens that the model cannot read. Their rows repeat the row of the token before them."""
        self._require(ids)
        readable, row_of, is_read = Tree([], ()), list[int](), list[bool]()  # row -1 belongs to the last id
        for i, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
            above = -1 if parent < 0 else row_of[parent]
            if self._strict:
                self._require([*ids, *(tree.tokens[j] for j in path_to(tree.parents, i))])
            is_read.append(token < self._reach.embedded and (parent < 0 or is_read[parent]))
            row_of.append(len(readable.tokens) if is_read[i] else above)
            if is_read[i]:
                readable = Tree([*readable.tokens, token], (*readable.parents, above))
        rows = self._session.score(ids, start, readable)
        rows = F.pad(rows, (0, self._vocabulary - rows.shape[-1]), value=-torch.inf)
        count = len(ids) - start
        return rows[to_device([*range(count), *(count + i for i in row_of)], rows.device)]

    def roll(self, ids: list[int], k: int, sampler: Sampler, eos: frozenset[int]) -> Draft:
        if k:
            self._require(ids)
        return widened(self._session.roll(ids, min(k, self.room(ids)), sampler, eos), self._vocabulary)

    def hidden(self, ids: list[int], start: int, aux_layers: AuxLayers = ()) -> Tensor:
        self._require(ids)
        return self._session.hidden(ids, start, aux_layers)

    def cached_length(self, ids: list[int]) -> int:
        return self._session.cached_length(ids)

    def logits_of(self, states: Tensor) -> Tensor:
        return self._session.logits_of(states)

    def finish(self) -> None:
        self._session.finish()

    def _require(self, ids: Sequence[int]) -> None:
        self._reach.require(self._source)
        self._reach.require(ids)
