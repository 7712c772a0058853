"""Floor 1: what a decoding method is, and the one round that most of them are made of."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from specbench.registry import Named
from specbench.sampling import Draft, Sampler, verify
from specbench.session import Session
from specbench.targets import Target
from specbench.watched import Watched

Propose = Callable[[list[int], int], Draft]  # (ids, room) -> a draft of at most room tokens


@dataclass(frozen=True)
class End:
    """What ends a sequence: EOS ids, the greatest length of prompt and output, and stop strings for whoever runs on alone."""

    eos: frozenset[int]
    length: int
    stopped: Callable[[list[int]], bool] | None = None  # whether new tokens end with a stop string; None without any

    def room(self, ids: list[int]) -> int:
        """How many more tokens may be committed. It depends on committed tokens only, so caps by it bias nothing."""
        return self.length - len(ids)

    def closes(self, tokens: list[int]) -> bool:
        """Whether nothing may follow these tokens."""
        return bool(tokens) and tokens[-1] in self.eos


@dataclass(frozen=True)
class Step:
    """One round: the tokens it committed, and how its draft fared.

    `tokens` holds the accepted ones, then at most one replacement or bonus. `drafted` counts the proposals drawn in this
    round; `tested` those that were verified, `by` naming the model that had proposed each. tested - accepted is 0 or 1.
    """

    tokens: list[int]
    drafted: int = 0
    tested: int = 0
    accepted: int = 0
    by: tuple[str, ...] = ()
    at: float | None = None  # seconds since the beginning, where the round was told of afterwards


class Sessions(Protocol):
    """The open sessions of one prompt by role, and the ids that its sequence starts with."""

    @property
    def ids(self) -> list[int]: ...

    def __getitem__(self, role: str, /) -> Session: ...

    def watched(self, role: str, /) -> Watched:
        """The transformers model itself, for a library that runs it alone."""


class Method(Named):
    """A decoding algorithm whose fields are the paper's hyper-parameters. State lives in the generator's locals."""

    @abstractmethod
    def roles(self) -> tuple[str, ...]:
        """The models it needs, by role."""

    def verification(self) -> tuple[str, tuple[str, ...], Target] | None:
        """Who drafts (first), whose logits make the target, and the target; None where no draft is tested."""
        return None

    @abstractmethod
    def steps(self, models: Sessions, sampler: Sampler, end: End) -> Iterator[Step]:
        """Rounds, until no room is left. The driver cuts at EOS, stop strings and limits."""


class Proposer(Named):
    """Where drafts come from."""

    @property
    @abstractmethod
    def role(self) -> str:
        """The model that a draft's tokens are booked to."""

    @abstractmethod
    def open(self, models: Sessions, sampler: Sampler, end: End) -> Propose:
        """A function from (ids, room) to a draft, for one sequence."""


def speculate(
    ids: list[int],
    propose: Propose,
    scorers: list[Session],
    target: Target,
    sampler: Sampler,
    end: End,
    *,
    by: str,
    bonus: bool,
) -> tuple[Draft, Step]:
    """One round: a draft, one parallel pass of the scorers, verification. What comes out follows pi, so is again a draft.

    With `bonus`, pi is needed one position past the draft: free where the only scorer is the verifier, one more forward
    where the drafting model is a scorer too. Leviathan et al. 2023, Algorithm 1, for any pi (SpecCascade, Algorithm 4).
    """
    room = end.room(ids)
    draft = propose(ids, room - 1 if bonus else room)
    k = len(draft.tokens)
    rows = k + 1 if bonus and not end.closes(draft.tokens) else k
    read = (ids + draft.tokens)[: len(ids) - 1 + rows]
    pi = target([scorer.score(read, len(ids) - 1) for scorer in scorers], sampler)  # (rows, V)
    out = verify(draft, pi, sampler)
    tested = min(out.accepted + 1, k)
    step = Step(out.tokens, drafted=k, tested=tested, accepted=out.accepted, by=(by,) * tested)
    return Draft(out.tokens, pi[: len(out.tokens)]), step
