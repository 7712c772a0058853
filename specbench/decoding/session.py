"""What decoding needs of models: sessions, sessions that work at the same time, and models that a library runs itself."""

from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol

from torch import Tensor

from specbench.decoding.sampling import Draft, Sampler
from specbench.decoding.usage import Usage


class Session(Protocol):
    """What a method sees of a model: next-token logits after any prefix, drafts that follow them, and what they cost.

    `keeps_hidden`, set before the first forward, makes it keep its hidden states for those who ask.
    """

    keeps_hidden: bool

    @property
    def usage(self) -> Usage: ...

    def score(self, ids: list[int], start: int) -> Tensor:
        """Logits (len(ids) - start, V): row j is the next token's after ids[: start + j + 1]."""

    def roll(self, ids: list[int], k: int, sampler: Sampler, eos: frozenset[int]) -> Draft:
        """Draft up to k tokens after ids, a forward each, none behind an EOS. The first forward reads what is unread."""

    def hidden(self, ids: list[int], start: int) -> Tensor:
        """The last layer's states of ids[start:], as the head reads them, (len(ids) - start, H); what is unread is read."""

    def known(self, ids: list[int]) -> int:
        """How many of ids, from the first on, it has read."""

    def logits_of(self, states: Tensor) -> Tensor:
        """What the LM head makes of states (n, H), its own or somebody else's guess of them: logits (n, V)."""

    def settle(self) -> None:
        """Book what a device has not told yet. Raises FloatingPointError for logits that were not finite."""


class Concurrent(Protocol):
    """A session that works while others do: asked first, it answers later."""

    @property
    def usage(self) -> Usage:
        """What it has cost so far; a new object with every answer."""

    @property
    def busy(self) -> float:
        """Seconds that it worked on its last answer; 0 where nobody can tell."""

    @property
    def moved(self) -> int:
        """Bytes that went to it and came from it so far."""

    def ask(self, ids: list[int], start: int) -> None:
        """Begin what `Session.score` does."""

    def answer(self) -> Tensor:
        """What `Session.score` would have given."""

    def settle(self) -> None:
        """As `Session.settle`."""


class TrainedHead(Protocol):
    """A trained module of a pair, which some methods read."""

    kind: ClassVar[str]


class InstrumentedModel(Protocol):
    """A transformers model that a library runs itself. Its forwards are counted and timed as a session's are."""

    @property
    def model(self) -> Any:
        """The loaded model."""

    @property
    def prompt(self) -> list[int]:
        """The ids that it reads first: the prompt, or what its encoder reads."""

    @property
    def usage(self) -> Usage:
        """What its forwards have cost so far."""

    @property
    def fed(self) -> list[int]:
        """Tokens of every forward so far, the first one included."""

    def instrument(self) -> AbstractContextManager[None]:
        """Count and time every forward while this is open."""
