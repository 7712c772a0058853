"""Interfaces between decoding and models: sessions, their cost, and models that another library runs."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

from torch import Tensor

from specbench.decoding.sampling import Draft, Sampler, Tree
from specbench.decoding.trees import Growth


@dataclass
class Usage:
    """The cost of a session.

    The first forward, including the encoder's, counts as prefill; all others count as decoding.
    """

    prefill_fed: int = 0  # tokens of the first forward, and of the encoder's
    prefill_seconds: float = 0.0
    encodes: int = 0  # encoder forwards, at most one per prompt
    forwards: int = 0
    fed: int = 0
    seconds: float = 0.0
    by_fed: dict[int, list[float]] = field(default_factory=dict)  # tokens fed -> [forwards, seconds]
    read: int = 0  # cached positions that the decoding forwards attended to, summed
    excluded_seconds: float = 0.0  # counted nowhere else: synthetic logits, stop strings in transformers' loop
    overlapped_seconds: float = 0.0  # part of `seconds` during which a slower model was running
    prefill_overlapped_seconds: float = 0.0  # part of `prefill_seconds`, likewise

    @property
    def own_seconds(self) -> float:
        """The seconds of decoding forwards during which no slower model was running."""
        return self.seconds - self.overlapped_seconds

    def prefill(self, fed: int, seconds: float) -> None:
        """Record a prefill forward of `fed` tokens."""
        self.prefill_fed += fed
        self.prefill_seconds += seconds

    def decoding(self, fed: int, seconds: float, read: int = 0) -> None:
        """Record a decoding forward of `fed` tokens that attended to `read` cached positions."""
        self.forwards += 1
        self.fed += fed
        self.seconds += seconds
        self.read += read
        size = self.by_fed.setdefault(fed, [0, 0.0])
        size[0] += 1
        size[1] += seconds

    def add_overlap(self, before: "Usage") -> None:
        """Count the time since `before` as time during which a slower model was running."""
        self.overlapped_seconds += self.seconds - before.seconds
        self.prefill_overlapped_seconds += self.prefill_seconds - before.prefill_seconds


class Ends(NamedTuple):
    """What ends a sequence: EOS ids (none if its length is fixed), and the maximum number of new tokens if known."""

    eos: frozenset[int] = frozenset()
    new_tokens: int | None = None


UNENDING = Ends()

# Which states of a model are read: the inputs of these layers, numbered from 0, each the residual stream before the layer's
# norm, concatenated in this order. Empty: what the LM head reads, the normalized output of the last layer.
AuxLayers = tuple[int, ...]


class Counted(Protocol):
    """Work whose cost is counted."""

    @property
    def usage(self) -> Usage:
        """The cost of the forwards so far."""

    def finish(self) -> None:
        """Record timings still pending on the device. Raises FloatingPointError if any logits were not finite."""


class Session(Counted, Protocol):
    """The interface of a model to methods: next-token logits after any prefix, drafts, and usage.

    Logits are over the V tokens of the pair; a token that the model lacks has -inf.
    """

    def score(self, ids: list[int], start: int, tree: Tree | None = None) -> Tensor:
        """Return logits (len(ids) - start + m, V); row j is for the token after ids[: start + j + 1].

        The last m rows belong to a tree of m tokens that follows ids: each scores what comes after one token of the tree.
        Raises ValueError, with the reason, if the session cannot score trees.
        """

    def roll(self, ids: list[int], k: int, sampler: Sampler, eos: frozenset[int]) -> Draft:
        """Draft up to k tokens after ids, one forward each, ending at an EOS.

        The first forward also reads the ids that are not cached yet.
        """

    def growth(self, ids: list[int], room: int, eos: frozenset[int]) -> Growth:
        """Return the start of a tree after ids, at most `room` deep. Reads ids if needed."""

    def room(self, ids: list[int]) -> int:
        """Return the maximum number of tokens that the model can draft after ids.

        0 if the model cannot read ids, because of a token outside its vocabulary or a full context window.
        """

    def keep_states(self, aux_layers: AuxLayers = ()) -> None:
        """Keep the states that `hidden` returns for these aux_layers. To be called before the first forward.

        Raises ValueError, with the reason, if the model has no such states.
        """

    def hidden(self, ids: list[int], start: int, aux_layers: AuxLayers = ()) -> Tensor:
        """Return the states of ids[start:]: (len(ids) - start, H), or (len(ids) - start, m H) of m aux_layers.

        Reads ids first if needed.
        """

    def cached_length(self, ids: list[int]) -> int:
        """Return the length of the longest prefix of ids that the session has read."""

    def logits_of(self, states: Tensor) -> Tensor:
        """Return the LM head's logits (n, W) for states (n, H), where W <= V is the size of the model's vocabulary.

        The states may be another module's predictions.
        """


class Concurrent(Protocol):
    """A session that works while others do: `submit` starts a forward, `result` returns its logits."""

    @property
    def usage(self) -> Usage:
        """The cost so far. Every result replaces the object."""

    @property
    def busy(self) -> float:
        """Seconds that the last result took to compute; 0 if unknown."""

    @property
    def moved(self) -> int:
        """Bytes sent and received so far."""

    def submit(self, ids: list[int], start: int) -> None:
        """Start the forward of `Session.score`."""

    def result(self) -> Tensor:
        """Wait for the submitted forward and return its logits, as `Session.score` does."""

    def finish(self) -> None:
        """Finish as `Session.finish` does."""


class TrainedHead(Protocol):
    """A trained module of a pair that some methods read."""

    kind: ClassVar[str]


class InstrumentedModel(Protocol):
    """A model whose decoding loop is run by transformers. Its forwards are counted and timed like a session's."""

    @property
    def model(self) -> Any:
        """The loaded model."""

    @property
    def prompt(self) -> list[int]:
        """The ids of the first forward: the prompt, or the encoder's input."""

    @property
    def rules(self) -> Mapping[str, Any]:
        """The rules of its generation config that apply to its logits, by key."""

    @property
    def usage(self) -> Usage:
        """The cost of its forwards so far."""

    @property
    def fed(self) -> list[int]:
        """The number of tokens in each forward so far, including the first."""

    def instrument(self) -> AbstractContextManager[None]:
        """Return a context manager within which every forward is counted and timed."""
