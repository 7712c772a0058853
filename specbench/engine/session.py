"""Floor 0: a session over a lean model. Cutting back is a position; nothing is allocated a token."""

import torch
from torch import Tensor

from specbench.engine.cache import Cache
from specbench.engine.network import Network
from specbench.sampling import Draft, Sampler, read_tokens
from specbench.session import KEPT_ROWS, CachedSession, encoded


class LeanSession(CachedSession):
    """As EagerSession, over our own forward. `source` holds an encoder's ids."""

    def __init__(self, network: Network, vocabulary: int, source: list[int] | None = None) -> None:
        super().__init__(network.config.name_or_path, network.model.device)
        self._network, self._vocabulary, self._source = network, vocabulary, source
        self._cache: Cache | None = None

    def roll(self, ids: list[int], k: int, sampler: Sampler, eos: frozenset[int]) -> Draft:
        return (super().roll if self._device.type == "cpu" else self.roll_at_once)(ids, k, sampler, eos)

    def roll_at_once(self, ids: list[int], k: int, sampler: Sampler, eos: frozenset[int]) -> Draft:
        """`roll` with one read of the device: every drawn token is fed on before it is looked at.

        For devices that it costs to wait for. What was drafted behind an EOS is dropped, so the draft's law is the same.
        """
        if k == 0:
            return Draft([], torch.empty(0, 0))
        logits = self.score(ids, len(ids) - 1)  # (1, V)
        self._cut(len(ids))
        drawn: list[Tensor] = []
        laws: list[Tensor] = []
        rows: list[Tensor] = []
        for _ in range(k):
            if drawn:
                fed = drawn[-1].clamp_min(0)  # NO_LAW, which is told below, has no embedding
                logits = self._timed(fed, keep=1, known=len(ids) + len(rows))
                rows.append(logits[0])
            token, law = sampler.draw(logits)  # (1,), (1, V)
            drawn.append(token)
            laws.append(law)
        tokens = read_tokens(torch.cat(drawn))
        self._ids, self._rows = ids + tokens[:-1], [*self._rows, *rows][-KEPT_ROWS:]
        length = next((i for i, token in enumerate(tokens, 1) if token in eos), k)
        return Draft(tokens[:length], torch.cat(laws)[:length])

    def logits_of(self, states: Tensor) -> Tensor:
        return self._network.logits(states.to(self._network.head[0].dtype), self._vocabulary)

    def _forget(self, known: int) -> None:
        assert self._cache is not None
        self._cache.length = known

    def _forward(self, tokens: Tensor, keep: int) -> tuple[Tensor, Tensor | None]:
        with torch.inference_mode():
            cache = self._cache or self._open()
            cache.begin(len(tokens))
            hidden = self._network.forward(tokens, cache)
            cache.end()
            return self._network.logits(hidden[-keep:], self._vocabulary), hidden

    def _open(self) -> Cache:
        """The cache, with what the encoder says of the source: once a prompt, in its first forward."""
        source = None
        if self._source is not None:
            source = encoded(self._network.model, self._source, self.calls).last_hidden_state[0]  # (m, hidden)
        self._cache = self._network.new_cache(source)
        return self._cache
