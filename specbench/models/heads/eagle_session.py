"""Drafting with an EAGLE-1 head on one sequence."""

import torch
from torch import Tensor

from specbench.decoding.drafting import common_prefix
from specbench.decoding.sampling import Draft, Sampler, read_tokens, to_device
from specbench.decoding.session import Session
from specbench.models.cached_session import CachedSession
from specbench.models.draft_graph import Drafted, DraftGraph, Drafting, Start
from specbench.models.heads.eagle import EagleHead


class EagleSession(CachedSession):
    """A head's session on one sequence, over the session of its base.

    As in other sessions, the cache is validated by comparing tokens: entry i holds token i + 1 with f_i, and is valid
    while tokens 0 .. i + 1 are the same. Entries fed while drafting contain the head's own features and are dropped.
    """

    def __init__(self, head: EagleHead, base: Session, catch_up: bool = True) -> None:
        weight = head.fc.weight
        super().__init__("EAGLE head", weight.device)
        base.keeps_hidden = True
        self._base, self._catch_up, self._head, self._graphs = base, catch_up, head, head.graphs
        self._cache = head.graphs.cache if head.graphs else head.layers.new_cache()
        if head.graphs:
            head.graphs.open(self)
        self._features = weight.new_empty(0, 0)  # (n, H), for the next forward: the base's, or the head's own last one

    def draft(self, ids: list[int], k: int, sampler: Sampler, eos: frozenset[int]) -> Draft:
        """Draft up to k tokens after ids, one forward each, ending at an EOS; none if ids is a single token.

        The base first reads what it lacks of ids except the last token, in an extra forward, which happens with a
        prompt and when a level above has added a token. Without `catch_up` the head continues from its own features
        instead.
        """
        n = len(ids)
        if n < 2 or not k:
            return Draft([], torch.empty(0, 0))
        features = n - 1
        if not self._catch_up:
            features = min(self._base.known(ids), n - 1) or n - 1
        # Entries that stay valid; the last one is recomputed
        entries = min(max(common_prefix(ids, self._ids) - 1, 0), features - 1)
        self._cut(entries)
        self._features = self._base.hidden(ids[:features], entries).to(self._head.fc.weight.dtype)
        logits = self._fed(ids[entries + 1 : features + 1], entries)
        self._ids = ids[: features + 1]
        for at in range(features, n - 1):
            logits = self._fed(ids[at + 1 : at + 2], at)
        if self._device.type == "cpu":
            drawn, probs = self._drawn_in_turn(logits, k, sampler, eos)
        else:
            drawn, probs, _ = self._drafted(logits, k, sampler, n - 1)
        self._cache.length = features
        tokens = read_tokens(drawn)
        length = next((i for i, token in enumerate(tokens, 1) if token in eos), len(tokens))
        return Draft(tokens[:length], probs[:length])

    def _drawn_in_turn(self, logits: Tensor, k: int, sampler: Sampler, eos: frozenset[int]) -> tuple[Tensor, Tensor]:
        """Return up to k tokens and the distributions that they were drawn from, ending at an EOS."""
        drawn: list[Tensor] = []
        probs: list[Tensor] = []
        while True:
            token, row = sampler.draw(logits)  # (1,), (1, V)
            drawn.append(token)
            probs.append(row)
            if len(drawn) == k or int(token) in eos:
                return torch.cat(drawn), torch.cat(probs)
            logits = self._timed(token, keep=1, known=self._cache.length)

    def find_draft(self, drafting: Drafting, length: int, start: Start) -> DraftGraph | None:
        if self._graphs is None:
            return None
        assert self._graphs.is_open_for(self), "another session owns these graphs"
        return self._graphs.find_draft(drafting, length, start)

    def _draft_states(self) -> Tensor:
        return self._features

    def _fed_by_graph(self, out: Drafted) -> None:
        """Do nothing, since entries fed while drafting are dropped."""

    def settle(self) -> None:
        super().settle()
        if self._graphs and self._graphs.is_open_for(self):
            self._graphs.settled()

    def _fed(self, tokens: list[int], known: int) -> Tensor:
        return self._timed(to_device(tokens, self._device), keep=1, known=known)

    def logits_of(self, states: Tensor) -> Tensor:
        return self._base.logits_of(states)

    def _forget(self, known: int) -> None:
        self._cache.length = known

    def _cut(self, known: int) -> None:
        self._cache.length = known

    def _forward(self, tokens: Tensor, keep: int) -> tuple[Tensor, Tensor | None]:
        with torch.inference_mode():
            self._cache.begin(len(tokens))
            out = self._head.advance(tokens, self._features, self._cache)
            self._cache.end()
            self._features = out[-1:]  # (1, H), for the next forward unless the base reads more
            return self._base.logits_of(self._features), None
