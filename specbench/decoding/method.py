"""What a decoding method is, and the one round that most methods are made of."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from specbench.config.construct import Named
from specbench.decoding.round import Round as Round  # what a method yields
from specbench.decoding.sampling import Draft, Sampler, read_tokens, verify
from specbench.decoding.session import Concurrent, InstrumentedModel, Session, TrainedHead
from specbench.decoding.targets import Target
from specbench.decoding.traits import Theory, Traits

H = TypeVar("H", bound=TrainedHead)
Propose = Callable[[list[int], int], Draft]  # (ids, room) -> a draft of at most room tokens


@dataclass(frozen=True)
class StopCriteria:
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


class Sessions(Protocol):
    """The open sessions of one prompt by role, and the ids that its sequence starts with."""

    @property
    def ids(self) -> list[int]: ...

    @property
    def vocabulary(self) -> int:
        """V, which all models share."""

    @property
    def device(self) -> torch.device: ...

    def __getitem__(self, role: str, /) -> Session: ...

    def head(self, name: str, kind: type[H], /) -> H:
        """A trained head of the pair's."""

    def track(self, name: str, session: Session, /) -> None:
        """Count what another session costs under a name of its own."""

    def instrumented(self, role: str, /) -> InstrumentedModel:
        """The transformers model itself, for a library that runs it alone."""

    def concurrent(self, roles: Sequence[str], /) -> Sequence[Concurrent]:
        """Sessions that run at the same time."""


class Method(Named):
    """A decoding algorithm whose fields are the paper's hyper-parameters. State lives in the generator's locals."""

    greedy_only: ClassVar[bool] = False  # whether it is undefined at T > 0

    @abstractmethod
    def roles(self) -> tuple[str, ...]:
        """The models it needs, by role."""

    @property
    def max_block(self) -> int:
        """The largest number of tokens that one forward reads, prompts excepted."""
        return 1

    @property
    def heads(self) -> tuple[str, ...]:
        """The trained heads that it reads: every field named `head`, here and in the parts that it is made of."""
        return _heads_in(self)

    @property
    def draft_length(self) -> str:
        """How many tokens it drafts per round, as text for a table; empty for a method that does not draft."""
        return ""

    @property
    def adaptive(self) -> bool:
        """Whether a stop rule decides how long a draft is."""
        return False

    def theory(self) -> Theory | None:
        """The formula that predicts its speed from the measured acceptance; None where there is none."""
        return None

    @property
    def flops(self) -> Literal["", "speculation", "sprinter"]:
        """Which of SPRINTER's formulas counts its work; empty where neither does."""
        return ""

    def traits(self) -> Traits:
        """All answers that reports need, as plain data."""
        return Traits(
            roles=self.roles(),
            heads=self.heads,
            draft_length=self.draft_length,
            adaptive=self.adaptive,
            theory=self.theory(),
            flops=self.flops,
        )

    def declared_distribution(self) -> tuple[tuple[str, ...], Target] | None:
        """Whose logits make the law that the output follows exactly, and how; None where it follows none that is declared."""
        return None

    def verification(self) -> tuple[str, tuple[str, ...], Target] | None:
        """Who drafts (first), whose logits make the target, and the target; None where no draft is tested."""
        return None

    def calibrated(self, pilot: "Pilot") -> "Method":
        """The method with what it leaves to a pilot settled: parameters that are told relative to what models say."""
        return self

    @abstractmethod
    def rounds(self, models: Sessions, sampler: Sampler, end: StopCriteria) -> Iterator[Round]:
        """Rounds, until no room is left. The driver cuts at EOS, stop strings and limits."""


Pilot = Callable[[Method], Iterable[list[Round]]]  # runs a method on every prompt of a run, before anything is timed


class Level(NamedTuple):
    """A model in the middle of a chain, and how many verified tokens it collects before it hands them up."""

    model: str
    threshold: int


class Proposer(Named):
    """Where drafts come from."""

    @property
    @abstractmethod
    def role(self) -> str:
        """Whom a draft's tokens are booked to: a model, a head, or what else drafts."""

    @property
    @abstractmethod
    def longest(self) -> int:
        """The most tokens of a draft."""

    @property
    def draft_length(self) -> str:
        """The length of a draft as text for a table."""
        return f"up to {self.longest}"

    @property
    def fixed_length(self) -> int | None:
        """The length of every draft, if it does not vary and theory knows the proposer; otherwise None."""
        return None

    @property
    def levels(self) -> tuple["Level", ...]:
        """The models of a chain that verify within the draft, the innermost first; empty for a plain proposer."""
        return ()

    @property
    def innermost(self) -> "Proposer":
        """The proposer at the bottom of a chain; of a plain proposer, itself."""
        return self

    def roles(self) -> tuple[str, ...]:
        """The models it needs."""
        return (self.role,)

    @abstractmethod
    def open(self, models: Sessions, sampler: Sampler, end: StopCriteria) -> Propose:
        """A function from (ids, room) to a draft, for one sequence."""


@dataclass(frozen=True)
class VerifiedRound:
    """One verified round, and pi (rows, V), the distributions that the committed tokens follow.

    `beyond` has the logits (1, V) of the last scorer beyond the draft, where there is one and it accepted the whole draft.
    """

    round: Round
    pi: Tensor
    beyond: Tensor | None

    @property
    def draft(self) -> Draft:
        """What the round committed, which follows pi, and so is again a draft."""
        return Draft(self.round.tokens, self.pi[: len(self.round.tokens)])


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """Draft, score in parallel, verify: Leviathan et al. 2023, Algorithm 1, for any pi (SpecCascade, Algorithm 4).

    `proposer` is the role that drafted tokens are attributed to. With `bonus`, a token of pi follows a draft that was
    accepted whole, for models of which none drafts. `beyond` are those scorers that read the whole draft although the
    drafting one, and so pi, does not follow them there.
    """

    proposer: str
    propose: Propose
    scorers: Sequence[Session]
    target: Target
    sampler: Sampler
    bonus: bool = False
    beyond: Sequence[Session] = ()

    def round(self, ids: list[int], stop: StopCriteria) -> VerifiedRound:
        """One round after ids.

        A draft without tokens, which a stop rule may leave, gives one token from pi; where scorers are beyond it, nothing.
        """
        room, sampler = stop.room(ids), self.sampler
        draft = self.propose(ids, room - 1 if self.bonus else room)
        k, is_open = len(draft.tokens), not stop.closes(draft.tokens)
        rows = k + 1 if is_open and (self.bonus or (not k and not self.beyond)) else k
        read, start = ids + draft.tokens, len(ids) - 1
        reads_beyond = is_open and room > k
        if reads_beyond:
            for scorer in self.beyond:
                scorer.score(read, start)
        if not rows:
            empty = Round([], counters=counters_of(draft))
            return VerifiedRound(empty, draft.probs, self.beyond[-1].score(read, start))
        logits = [scorer.score(read[: start + rows], start) for scorer in self.scorers]  # n x (rows, V)
        pi, deferred = self.target.with_deferral(logits, sampler)  # (rows, V), (rows,) or None
        out = verify(draft, pi, sampler, unread=deferred)
        tested = min(out.accepted + 1, k)
        made = Round(
            out.tokens,
            k,
            tested,
            out.accepted,
            (self.proposer,) * tested,
            counters=counters_of(draft, out.read[: len(out.tokens)]),
            inner=draft.rounds,
            rejected=tuple(draft.tokens[out.accepted :]),
        )
        whole = out.accepted == k and reads_beyond
        after = self.beyond[-1].score(read, len(read) - 1) if whole and self.beyond else None
        return VerifiedRound(made, pi, after)


def counters_of(draft: Draft | None, deferred: Sequence[int] = ()) -> dict[str, float]:
    """What a step notes of a stop rule, and of a deferral rule at each committed position: 1 where it deferred."""
    counters: dict[str, float] = {"fallbacks": 1} if draft is not None and draft.stopped else {}
    if deferred:
        counters |= {"positions": len(deferred), "deferrals": sum(deferred)}
    return counters


def drawn(pi: Tensor, deferred: Tensor | None, sampler: Sampler) -> tuple[list[int], dict[str, float]]:
    """A token drawn from pi (1, V), and what a step notes of whether the rule deferred there; one read of the device."""
    picked = sampler.choose(pi)  # (1,)
    token, *flags = read_tokens(picked if deferred is None else torch.cat([picked, deferred]))
    return [token], counters_of(None, flags)


def _heads_in(part: object) -> tuple[str, ...]:
    if not is_dataclass(part):
        return ()
    found: list[str] = []
    for each in fields(part):
        value = getattr(part, each.name)
        found += [value] if each.name == "head" else _heads_in(value)
    return tuple(dict.fromkeys(found))
