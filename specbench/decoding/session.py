"""Interfaces between decoding and models: sessions, concurrent sessions, and models that a library runs itself."""

from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol

from torch import Tensor

from specbench.decoding.sampling import Draft, Sampler
from specbench.decoding.usage import Usage


class Session(Protocol):
    """What a method sees of a model: next-token logits after any prefix, drafts that follow them, and usage.

    Logits are over the V tokens of the pair; a token that the model lacks has -inf. Setting `keeps_hidden` before the
    first forward makes the session keep its hidden states.
    """

    keeps_hidden: bool

    @property
    def usage(self) -> Usage:
        """What the forwards have cost so far."""

    def score(self, ids: list[int], start: int) -> Tensor:
        """Return logits (len(ids) - start, V); row j is for the token after ids[: start + j + 1]."""

    def roll(self, ids: list[int], k: int, sampler: Sampler, eos: frozenset[int]) -> Draft:
        """Draft up to k tokens after ids, one forward each, ending at an EOS. The first forward also reads the ids not
        yet read.
        """

    def room(self, ids: list[int]) -> int:
        """Return how many tokens the model can draft after ids: 0 if it cannot read ids, because of a token
        outside its vocabulary or a full context window. A proposer drafts no more than this.
        """

    def hidden(self, ids: list[int], start: int) -> Tensor:
        """Return the last layer's states of ids[start:], as the LM head reads them, (len(ids) - start, H). Reads ids
        first if needed.
        """

    def known(self, ids: list[int]) -> int:
        """Return how many of ids, counted from the first, the session has read."""

    def logits_of(self, states: Tensor) -> Tensor:
        """Return the LM head's logits of states (n, H), which may be another module's predictions: (n, W), where W <= V is
        the number of tokens that the model has.
        """

    def settle(self) -> None:
        """Record timings still pending on the device. Raises FloatingPointError if any logits were not finite."""


class Concurrent(Protocol):
    """A session that works while others do: `submit` starts a forward, `result` returns its logits."""

    @property
    def usage(self) -> Usage:
        """What it has cost so far; replaced by a new object with every result."""

    @property
    def busy(self) -> float:
        """Seconds that the last result took to compute; 0 if unknown."""

    @property
    def moved(self) -> int:
        """Bytes sent and received so far."""

    def submit(self, ids: list[int], start: int) -> None:
        """Start what `Session.score` computes."""

    def result(self) -> Tensor:
        """Return what `Session.score` would have returned."""

    def settle(self) -> None:
        """Finish as `Session.settle` does."""


class TrainedHead(Protocol):
    """A trained module of a pair that some methods read."""

    kind: ClassVar[str]


class InstrumentedModel(Protocol):
    """A transformers model that a library runs itself. Its forwards are counted and timed like a session's."""

    @property
    def model(self) -> Any:
        """The loaded model."""

    @property
    def prompt(self) -> list[int]:
        """The ids that it reads first: the prompt, or the encoder's input."""

    @property
    def usage(self) -> Usage:
        """What its forwards have cost so far."""

    @property
    def fed(self) -> list[int]:
        """The number of tokens in each forward so far, including the first."""

    def instrument(self) -> AbstractContextManager[None]:
        """Return a context manager within which every forward is counted and timed."""
