"""The interfaces of decoding methods and proposers."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from specbench.config.construct import Named
from specbench.decoding.engine_options import Drafting, EngineOptions
from specbench.decoding.rejection import BY_TOKEN, Rejection
from specbench.decoding.round import Round as Round  # what a method yields
from specbench.decoding.sampling import Draft, Sampler
from specbench.decoding.session import Concurrent, Counted, InstrumentedModel, Session, TrainedHead
from specbench.decoding.targets import Last, Target
from specbench.decoding.traits import Positions, Theory, Traits

H = TypeVar("H", bound=TrainedHead)
Propose = Callable[[list[int], int], Draft]  # (ids, room) -> a draft of at most room tokens


@dataclass(frozen=True)
class StopCriteria:
    """What ends a sequence: EOS ids, and the maximum length of prompt and output together.

    `stopped` tests for stop strings, in methods that decode without the driver.
    """

    eos: frozenset[int]
    length: int
    stopped: Callable[[list[int]], bool] | None = None  # whether the new tokens end with a stop string

    def room(self, ids: list[int]) -> int:
        """Return how many more tokens may be committed.

        The room depends only on the number of committed tokens, so limiting a draft by it does not bias the output.
        """
        return self.length - len(ids)

    def closes(self, tokens: list[int]) -> bool:
        """Return whether the last of these tokens is an EOS."""
        return bool(tokens) and tokens[-1] in self.eos


@dataclass(frozen=True)
class Earlier:
    """The outputs that a method wrote before, oldest first. `derived` keeps what each proposer computes from them."""

    outputs: list[list[int]] = field(default_factory=list)
    derived: dict[object, Any] = field(default_factory=dict)


class TextDrafter(Counted, Protocol):
    """A model that drafts text for a model with another tokenizer."""

    def draft(self, ids: list[int], k: int, eos: frozenset[int]) -> list[int]:
        """Return the tokens of the text that it writes after ids, in k tokens of its own. `eos` are the target's."""


class Sessions(Protocol):
    """The open sessions of one prompt by role, and the ids that its sequence starts with."""

    @property
    def ids(self) -> list[int]:
        """The ids that the sequence starts with: the prompt, or an encoder-decoder's decoder start token."""

    @property
    def vocabulary(self) -> int:
        """V, the number of tokens that the models can write."""

    @property
    def device(self) -> torch.device:
        """The device of the models."""

    def __getitem__(self, role: str, /) -> Session:
        """Return the session of a role."""

    @property
    def earlier(self) -> "Earlier":
        """What the method wrote before in this repeat of a run; empty in checks."""

    def head(self, name: str, kind: type[H], /) -> H:
        """Return a trained head of the pair."""

    def track(self, name: str, session: Counted, /) -> None:
        """Record the usage of another session under its own name."""

    def instrumented(self, role: str, /) -> InstrumentedModel:
        """Return the transformers model itself, for a library that runs its own decoding loop."""

    def concurrent(self, roles: Sequence[str], /) -> Sequence[Concurrent]:
        """Return sessions that run at the same time."""

    def through_text(self, role: str, /) -> "TextDrafter":
        """Return a model that drafts text, whatever its tokenizer."""


@dataclass(frozen=True)
class Verification:
    """A test of drafts: the drafting role, the scorers and target that define pi, and the rejection rule.

    `tree` says whether the drafts are trees.
    """

    proposer: str
    scorers: tuple[str, ...]
    target: Target
    rejection: Rejection = BY_TOKEN
    tree: bool = False

    def expected(self, q: Tensor, pi: Tensor) -> Tensor | None:
        """Return `Rejection.expected`; None for trees, whose tests have no closed form."""
        return None if self.tree else self.rejection.expected(q, pi)

    def token_acceptance(self, q: float, pi: float) -> float | None:
        """Return `Rejection.token_acceptance`; None for trees."""
        return None if self.tree else self.rejection.token_acceptance(q, pi)

    @property
    def why_no_rate(self) -> str:
        """Why `expected` is None, for messages."""
        tested = "tests of draft trees have" if self.tree else f"the rejection rule '{self.rejection.name}' has"
        return f"{tested} no acceptance rate in closed form"


class Method(Named):
    """A decoding algorithm.

    Its fields are the paper's hyperparameters; state per sequence lives in the generator's locals.
    """

    concurrent: ClassVar[bool] = False  # whether the forwards of its models run at the same time
    needs_transformers: ClassVar[bool] = False  # whether it runs the models of transformers itself

    @abstractmethod
    def roles(self) -> tuple[str, ...]:
        """Return the roles of the models that the method needs."""

    @classmethod
    def undefined_at(cls, temperature: float) -> str:
        """Return why the method is not defined at a temperature; empty if it is."""
        return ""

    @property
    def remembers(self) -> bool:
        """Whether drafts depend on the outputs of earlier prompts."""
        return False

    def conflict_at(self, temperature: float) -> str:
        """Return which of the method's parts do not fit together at a temperature; empty if they do."""
        return ""

    @property
    def blocks(self) -> tuple[int, ...]:
        """The possible sizes of a forward in tokens, ascending, without prompts and the levels of a growing tree."""
        return (1,)

    @property
    def depth(self) -> int:
        """The maximum number of drafted tokens that can be accepted per round."""
        return max(self.blocks) - 1

    @property
    def heads(self) -> tuple[str, ...]:
        """The trained heads that the method reads: every field named `head`, of the method and of its parts."""
        return _heads_in(self)

    @property
    def draft_length(self) -> str:
        """The number of tokens drafted per round, as text for a table; empty for a method that does not draft."""
        return ""

    @property
    def adaptive(self) -> bool:
        """Whether a stop rule decides how long a draft is."""
        return False

    def theory(self) -> Theory | None:
        """Return the formula that predicts the speed from the measured acceptance rate, or None if there is none."""
        return None

    def assumed_theory(self, length: int) -> Theory | None:
        """Return the formula for an estimate without measurements: `theory()`, or that of drafts of `length` tokens.

        None for a method that has no formula and that tests no drafts, or tests them at several levels.
        """
        theory, tests = self.theory(), self.verifications()
        if theory or len(tests) != 1:
            return theory
        proposer, scorers = tests[0].proposer, tests[0].scorers
        return Theory(
            formula="speculation",
            models=(proposer, *(role for role in scorers if role != proposer)),
            gamma=(min(length, max(self.depth, 1)),),
            bonus="exact",
            drafter_scores=proposer in scorers,
        )

    @property
    def flops(self) -> Positions:
        """The positions of a round that SPRINTER's count of FLOPs has for the target; empty if the count does not apply."""
        return ""

    @property
    def predicts_distance(self) -> bool:
        """Whether Theorem 1 of SPRINTER gives the distance of the output from the target's distribution."""
        return False

    def traits(self) -> Traits:
        """Return everything that reports need from the method, as plain data."""
        return Traits(
            roles=self.roles(),
            heads=self.heads,
            draft_length=self.draft_length,
            adaptive=self.adaptive,
            theory=self.theory(),
            flops=self.flops,
            longest_draft=self.depth if self.draft_length else None,
            predicts_distance=self.predicts_distance,
            published_rule=self.published_rule,
        )

    def declared_distribution(self) -> tuple[tuple[str, ...], Target] | None:
        """Return the scorers and the target that define the distribution of the output, or None.

        None means that the distribution of the output cannot be declared.
        """
        return None

    def declared_when_greedy(self) -> tuple[tuple[str, ...], Target] | None:
        """Return the declared distribution at T = 0. Some rules that are inexact at T > 0 are exact there."""
        declared = self.declared_distribution()
        return when_greedy(declared) if declared else None

    @property
    def published_rule(self) -> str | None:
        """The name of a rule of the method, as published, whose tokens follow no declared distribution."""
        return next((test.rejection.name for test in self.verifications() if not test.rejection.exact), None)

    @property
    def deciding(self) -> tuple[str, ...]:
        """The models that define the output's distribution, or all if it is unknown. Their limits bound the output."""
        if declared := self.declared_distribution():
            return declared[0]
        tests = self.verifications()
        return tests[0].scorers if tests else self.roles()

    def only_drafts_chains(self, role: str) -> bool:
        """Return whether a model only drafts chains, which it can do with another tokenizer."""
        trees = any(test.tree for test in self.verifications() if role in (test.proposer, *test.scorers))
        return not (trees or role in self.deciding or self.needs_transformers or self.concurrent)

    @property
    def combines_logits(self) -> bool:
        """Whether the output's distribution is defined only over tokens that all deciding models share."""
        declared = self.declared_distribution()
        return declared is not None and declared[1].combines_logits

    def require_heads(self, heads: Mapping[str, Any]) -> None:
        """Raise ConfigError if one of the loaded heads, by name, cannot draft as the settings say."""

    def verifications(self) -> tuple[Verification, ...]:
        """Return all tests of drafts, the outermost first. In a chain, each middle model tests drafts too."""
        return ()

    def calibrated(self, pilot: "Pilot") -> "Method":
        """Return the method with those parameters set that must be calibrated on the run's own prompts."""
        return self

    @abstractmethod
    def rounds(self, models: Sessions, sampler: Sampler, stop: StopCriteria) -> Iterator[Round]:
        """Yield rounds until no room is left. The driver cuts the output at EOS, stop strings and limits."""


Pilot = Callable[[Method], Iterable[list[Round]]]  # runs a method on every prompt of a run, before timing starts


class Level(NamedTuple):
    """A middle model of a chain, its rejection rule, and how many tokens it collects before the next model's test."""

    model: str
    threshold: int
    rejection: Rejection | None = None


def when_greedy(declared: tuple[tuple[str, ...], Target]) -> tuple[tuple[str, ...], Target]:
    """Return a declared distribution at T = 0, where that of some targets is the last model's."""
    scorers, target = declared
    return (scorers[-1:], Last()) if target.is_last_when_greedy else declared


class Proposer(Named):
    """A source of drafts.

    `draft_kind` says which drafts have the same costs: `model` (a forward per token), `head`, `tree` (a forward per depth of
    a model), `chain`, or any other word for drafts without forwards. If it is empty, `advise` measures the proposer and does
    not predict its speed. `head_kinds` are the kinds of the trained heads that it drafts with.
    """

    draft_kind: ClassVar[str] = ""
    head_kinds: ClassVar[tuple[str, ...]] = ()

    @property
    @abstractmethod
    def role(self) -> str:
        """The name that drafted tokens are attributed to: a model, a head, or the proposer itself."""

    @property
    @abstractmethod
    def longest(self) -> int:
        """The maximum number of tokens of a draft that can be accepted; the depth, if drafts are trees."""

    @property
    def nodes(self) -> int:
        """The maximum number of tokens in a draft."""
        return self.longest

    @property
    def tree(self) -> bool:
        """Whether drafts are trees."""
        return False

    @property
    def is_block(self) -> bool:
        """Whether one forward drafts all tokens of a draft."""
        return False

    def require_heads(self, heads: Mapping[str, Any]) -> None:
        """Raise ConfigError if one of the loaded heads, by name, cannot draft as the settings say."""

    @property
    def remembers(self) -> bool:
        """Whether drafts depend on earlier outputs, so that a sample depends on what was decoded before it."""
        return False

    @property
    def exact(self) -> bool:
        """Whether each drafted token, and that it is tested at all, depends only on the tokens before it."""
        return True

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The parents of the tokens, if every draft is a tree of the same shape, else None."""
        return None

    @property
    def draft_length(self) -> str:
        """The length of a draft as text for a table."""
        return f"up to {self.longest}"

    @property
    def fixed_length(self) -> int | None:
        """The length of every draft if it is constant and theory covers the proposer, else None."""
        return None

    @property
    def levels(self) -> tuple["Level", ...]:
        """The models of a chain that verify within the draft, innermost first; empty for a simple proposer."""
        return ()

    @property
    def innermost(self) -> "Proposer":
        """The proposer at the bottom of a chain; a simple proposer returns itself."""
        return self

    def roles(self) -> tuple[str, ...]:
        """Return the roles of the models that the proposer needs."""
        return (self.role,)

    def engine_options(self, drafting: Drafting) -> Iterator[EngineOptions]:
        """Yield the options of other engines that draft in the same way; none by default."""
        yield from ()

    @abstractmethod
    def open(self, models: Sessions, sampler: Sampler, stop: StopCriteria) -> Propose:
        """Return a function from (ids, room) to a draft, for one sequence."""


def _heads_in(part: object) -> tuple[str, ...]:
    """Return the values of all fields named `head` in a dataclass and its parts, without duplicates."""
    if not is_dataclass(part):
        return ()
    heads: list[str] = []
    for each in fields(part):
        value = getattr(part, each.name)
        heads += [value] if each.name == "head" else _heads_in(value)
    return tuple(dict.fromkeys(heads))
