"""A session in the pair's vocabulary of a model with another tokenizer, which can only draft."""

import torch
from torch import Tensor

from specbench.decoding.drafting import common_prefix, roll
from specbench.decoding.sampling import Draft, Sampler, Tree
from specbench.decoding.session import AuxLayers, Session, Usage
from specbench.decoding.trees import Growth, growth
from specbench.models.vocabulary_map import TAIL, VocabularyMap


class TranslatedSession:
    """A session of a drafting model, in the target's ids.

    Each token of the target is read as the drafter's tokens that stand for it after the tokens before, so a longer sequence
    only adds tokens. The drafter's distribution is that over the tokens that both have: its drafts are drawn from these rows,
    so verifying them is exact whatever is mapped. `outside` sums the probability of its other tokens over `rows` positions.
    `draftable` are the target's tokens that can be drafted.
    """

    def __init__(self, session: Session, mapping: VocabularyMap, vocabulary: int) -> None:
        self._session, self._map, self._vocabulary = session, mapping, vocabulary
        self._ids: list[int] = []
        self._own: list[int] = list(mapping.start)
        self._ends: list[int] = []  # of the drafter's tokens, after each of the target's
        self._pending: list[
            bytes
        ] = []  # what the drafter has not read after each of them: the beginning of a character
        self.draftable = mapping.draftable
        self.outside = 0.0
        self.rows = 0

    @property
    def usage(self) -> Usage:
        return self._session.usage

    def score(self, ids: list[int], start: int, tree: Tree | None = None) -> Tensor:
        if tree is not None and tree.tokens:
            raise ValueError("a draft model with another tokenizer cannot score trees")
        self._read(ids)
        ends = self._ends[start : len(ids)]
        first = ends[0] - 1
        logits = self._session.score(self._own[: ends[-1]], first)
        rows, outside = self._map.rows(logits, self._vocabulary)
        picked = torch.tensor([end - 1 - first for end in ends], device=rows.device)
        self.outside += float(outside[picked].sum())
        self.rows += len(ends)
        return rows[picked]

    def roll(self, ids: list[int], k: int, sampler: Sampler, eos: frozenset[int]) -> Draft:
        return roll(self, ids, k, sampler, eos)

    def growth(self, ids: list[int], room: int, eos: frozenset[int]) -> Growth:
        return growth(self, ids, room, eos)

    def room(self, ids: list[int]) -> int:
        self._read(ids)
        return self._session.room(self._own)

    def keep_states(self, aux_layers: AuxLayers = ()) -> None:
        raise ValueError("a model with another tokenizer has no states for the pair's tokens")

    def hidden(self, ids: list[int], start: int, aux_layers: AuxLayers = ()) -> Tensor:
        raise AssertionError("states were not kept")

    def cached_length(self, ids: list[int]) -> int:
        return common_prefix(ids, self._ids)

    def logits_of(self, states: Tensor) -> Tensor:
        raise ValueError("a model with another tokenizer has no states for the pair's tokens")

    def finish(self) -> None:
        self._session.finish()

    def _read(self, ids: list[int]) -> None:
        """Translate the tokens that differ from those of the last call."""
        known = common_prefix(ids, self._ids)
        del self._ends[known:], self._pending[known:]
        del self._own[self._ends[-1] if self._ends else len(self._map.start) :]
        for position, token in enumerate(ids[known:], known):
            pending = self._pending[-1] if self._pending else b""
            own, pending = self._map.read(token, self._own[-TAIL:], pending)
            is_repeated = not position and own == self._map.start  # a BOS that both begin with
            self._own += [] if is_repeated else own
            self._ends.append(len(self._own))
            self._pending.append(pending)
        self._ids = list(ids)
