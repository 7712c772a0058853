"""Floor 1: what a decoding method is, and the one round that most of them are made of."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

from torch import Tensor

from specbench.registry import Named
from specbench.sampling import Draft, Sampler, verify
from specbench.session import Concurrent, Session
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
    `noted` holds whatever else a method knows of: `deferrals` among `positions` that a rule was asked about, `fallbacks`
    of a drafter that was not sure, ... Of a round whose tokens the driver cut, it counts all.
    """

    tokens: list[int]
    drafted: int = 0
    tested: int = 0
    accepted: int = 0
    by: tuple[str, ...] = ()
    at: float | None = None  # seconds since the beginning, where the round was told of afterwards
    noted: dict[str, float] = field(default_factory=dict)

    def then(self, other: "Step") -> "Step":
        """Both as one round, where all that this one tested was accepted."""
        if not self.tokens and not self.drafted and not self.noted:
            return other
        assert self.tested == self.accepted == len(self.tokens)
        return Step(
            self.tokens + other.tokens,
            self.drafted + other.drafted,
            self.tested + other.tested,
            self.accepted + other.accepted,
            self.by + other.by,
            noted=self.with_noted(other.noted).noted,
        )

    def with_noted(self, more: dict[str, float]) -> "Step":
        """The step with more counted."""
        return replace(self, noted={key: self.noted.get(key, 0) + more.get(key, 0) for key in {**self.noted, **more}})


class Sessions(Protocol):
    """The open sessions of one prompt by role, and the ids that its sequence starts with."""

    @property
    def ids(self) -> list[int]: ...

    def __getitem__(self, role: str, /) -> Session: ...

    def watched(self, role: str, /) -> Watched:
        """The transformers model itself, for a library that runs it alone."""

    def concurrent(self, roles: Sequence[str], /) -> Sequence[Concurrent]:
        """Sessions that run at the same time."""


class Method(Named):
    """A decoding algorithm whose fields are the paper's hyper-parameters. State lives in the generator's locals."""

    greedy_only: ClassVar[bool] = False  # whether it has no meaning at T > 0

    @abstractmethod
    def roles(self) -> tuple[str, ...]:
        """The models it needs, by role."""

    def law(self) -> tuple[tuple[str, ...], Target] | None:
        """Whose logits make the law that the output follows exactly, and how; None where it follows none that is declared."""
        return None

    def verification(self) -> tuple[str, tuple[str, ...], Target] | None:
        """Who drafts (first), whose logits make the target, and the target; None where no draft is tested."""
        return None

    def piloted(self, pilot: "Pilot") -> "Method":
        """The method with what it leaves to a pilot settled: parameters that are told relative to what models say."""
        return self

    @abstractmethod
    def steps(self, models: Sessions, sampler: Sampler, end: End) -> Iterator[Step]:
        """Rounds, until no room is left. The driver cuts at EOS, stop strings and limits."""


Pilot = Callable[[Method], Iterable[list[Step]]]  # runs a method on every prompt of a run, before anything is timed


class Proposer(Named):
    """Where drafts come from."""

    @property
    @abstractmethod
    def role(self) -> str:
        """The model that a draft's tokens are booked to."""

    @abstractmethod
    def open(self, models: Sessions, sampler: Sampler, end: End) -> Propose:
        """A function from (ids, room) to a draft, for one sequence."""


@dataclass(frozen=True)
class Round:
    """What one round of speculation gave: its step, and pi (rows, V), the laws that the committed tokens follow."""

    step: Step
    pi: Tensor
    # Where scorers read beyond a draft, and it was accepted whole: the last one's logits (1, V) there.
    beyond: Tensor | None

    @property
    def draft(self) -> Draft:
        """What the round committed, which follows pi, and so is again a draft."""
        return Draft(self.step.tokens, self.pi[: len(self.step.tokens)])


def speculate(
    ids: list[int],
    propose: Propose,
    scorers: list[Session],
    target: Target,
    sampler: Sampler,
    end: End,
    *,
    by: str,
    bonus: bool = False,
    beyond: Sequence[Session] = (),
) -> Round:
    """One round: a draft, one parallel pass of the scorers, verification.

    With `bonus`, a token of pi follows a draft that was accepted whole, for models of which none drafts. `beyond` are those
    scorers that read the whole draft although the drafting one, and so pi, does not follow them there. A draft without
    tokens, which a stop rule may leave, gives one token from pi, or where there are scorers beyond nothing. Leviathan et
    al. 2023, Algorithm 1, for any pi (SpecCascade, Algorithm 4).
    """
    room = end.room(ids)
    draft = propose(ids, room - 1 if bonus else room)
    k, going_on = len(draft.tokens), not end.closes(draft.tokens)
    rows = k + 1 if going_on and (bonus or (not k and not beyond)) else k
    read, start = ids + draft.tokens, len(ids) - 1
    going_beyond = going_on and room > k
    if going_beyond:
        for scorer in beyond:
            scorer.score(read, start)
    if not rows:
        return Round(Step([], noted=noted_of(draft)), draft.probs, beyond[-1].score(read, start))
    logits = [scorer.score(read[: start + rows], start) for scorer in scorers]  # n x (rows, V)
    pi, deferred = target.ruled(logits, sampler)  # (rows, V), (rows,) or None
    out = verify(draft, pi, sampler)
    tested = min(out.accepted + 1, k)
    step = Step(out.tokens, k, tested, out.accepted, (by,) * tested, noted=noted_of(draft, deferred, len(out.tokens)))
    whole = out.accepted == k and going_beyond
    after = beyond[-1].score(read, len(read) - 1) if whole and beyond else None
    return Round(step, pi, after)


def noted_of(draft: Draft | None, deferred: Tensor | None = None, positions: int = 0) -> dict[str, float]:
    """What a step notes of a stop rule and of a deferral rule, over as many positions as were committed."""
    noted: dict[str, float] = {"fallbacks": 1} if draft is not None and draft.stopped else {}
    if deferred is not None:
        noted |= {"positions": positions, "deferrals": int(deferred[:positions].sum())}
    return noted
