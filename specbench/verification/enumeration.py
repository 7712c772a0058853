"""Comparison of a method's exact output distribution, over models that are tables, with the one that it declares.

On vocabularies of two or three tokens every choice of a method can be followed (`sampling.exact_distribution`), so the joint
distribution of its first tokens is exact up to rounding. Models are fixed random functions of the whole prefix, so that any
misplaced row shows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from transformers import LlamaConfig

from specbench.decoding.drafting import common_prefix, roll
from specbench.decoding.method import Method, Round, StopCriteria
from specbench.decoding.sampling import Draft, Sampler, exact_distribution
from specbench.decoding.session import Concurrent, Session, TrainedHead
from specbench.decoding.usage import Usage
from specbench.methods.autoregressive import Autoregressive
from specbench.models.heads import EagleHead, Head, LengthHead
from specbench.models.heads.head import kind_named
from specbench.models.instrumented import InstrumentedSession

WIDTH = 8  # of hidden states
STATE = 1  # tells their random numbers from those of logits; a number, since Python's hash of a word changes from run to run
START = 0  # every sequence starts with this token
LENGTH = 3  # tokens of a joint law: behind drafts of one token, a pending token and what follows it are among them
SEEDS = 2  # worlds that a method is tried in
ROUNDING = 1e-9
SETTINGS: dict[str, dict[str, float]] = {
    "T = 1": {"temperature": 1.0},
    "T = 0.7": {"temperature": 0.7},
    "T = 1, top-k 2": {"temperature": 1.0, "top_k": 2},
    "T = 0.7, top-p 0.75": {"temperature": 0.7, "top_p": 0.75},
    "T = 0": {"temperature": 0.0},
}
Law = dict[tuple[int, ...], float]
H = TypeVar("H", bound=TrainedHead)


class TableSession:
    """A model whose logits are a fixed random function of the whole prefix."""

    def __init__(self, vocabulary: int, seed: int, spread: float = 1.5) -> None:
        self.usage = Usage()
        self.keeps_hidden = False
        self._vocabulary, self._seed, self._spread = vocabulary, seed, spread
        self.asked: list[int] = []  # the sequence last scored
        self._rows: dict[tuple[int, ...], Tensor] = {}
        self._head = torch.randn(vocabulary, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    def score(self, ids: list[int], start: int) -> Tensor:
        self.asked = list(ids)
        self.usage.decoding(len(ids) - start, 0.0)
        return torch.stack([self._row(tuple(ids[: i + 1])) for i in range(start, len(ids))])

    def roll(self, ids: list[int], k: int, sampler: Sampler, eos: frozenset[int]) -> Draft:
        return roll(self, ids, k, sampler, eos)

    def hidden(self, ids: list[int], start: int) -> Tensor:
        assert self.keeps_hidden
        if self.known(ids) < len(ids):
            self.score(ids, len(ids) - 1)
        return torch.stack([self._state(tuple(ids[: i + 1])) for i in range(start, len(ids))])

    def known(self, ids: list[int]) -> int:
        return common_prefix(ids, self.asked)

    def logits_of(self, states: Tensor) -> Tensor:
        return states.double() @ self._head.T

    def settle(self) -> None:
        pass

    def _state(self, prefix: tuple[int, ...]) -> Tensor:
        """Hidden states, (WIDTH,) float32: as random as the logits, and not what they come from."""
        generator = torch.Generator().manual_seed(hash((self._seed, STATE, prefix)) & (2**62 - 1))
        return torch.randn(WIDTH, generator=generator)

    def _row(self, prefix: tuple[int, ...]) -> Tensor:
        if prefix not in self._rows:
            generator = torch.Generator().manual_seed(hash((self._seed, prefix)) & (2**62 - 1))
            row = torch.randn(self._vocabulary, generator=generator, dtype=torch.float64) * self._spread
            self._rows[prefix] = row
        return self._rows[prefix]


class Opened:
    """The sessions of one sequence by role, and the ids that it starts with, as methods and the driver want them."""

    device = torch.device("cpu")

    def __init__(
        self,
        sessions: Mapping[str, Session],
        ids: list[int] | None = None,
        vocabulary: int = 2,
        heads: Mapping[str, Head] | None = None,
    ) -> None:
        self.sessions, self.vocabulary, self.heads = dict(sessions), vocabulary, heads or {}
        self.ids = [START] if ids is None else ids

    def __getitem__(self, role: str) -> Session:
        return self.sessions[role]

    def head(self, name: str, kind: type[H]) -> H:
        head = self.heads[name]
        assert isinstance(head, kind)
        return head

    def track(self, name: str, session: Session) -> None:
        self.sessions[name] = session

    def instrumented(self, role: str) -> InstrumentedSession:
        raise ValueError("there is no transformers model here to run alone")

    def concurrent(self, roles: Sequence[str]) -> list[Concurrent]:
        return [_InTurn(self[role]) for role in roles]


class _InTurn:
    """A session that answers when it is asked: the contract of concurrent ones, without concurrency."""

    def __init__(self, session: Session) -> None:
        self._session, self._asked = session, ([0], 0)
        self.busy, self.moved = 0.0, 0

    @property
    def usage(self) -> Usage:
        return self._session.usage

    def ask(self, ids: list[int], start: int) -> None:
        self._asked = ids, start

    def answer(self) -> Tensor:
        return self._session.score(*self._asked)

    def settle(self) -> None:
        self._session.settle()


def tables(
    roles: tuple[str, ...], vocabulary: int, seed: int = 0, spread: float = 1.5, heads: Mapping[str, str] | None = None
) -> Opened:
    """A world of table models, with untrained heads of the kinds that are named."""
    sessions = {role: TableSession(vocabulary, 10 * seed + i, spread) for i, role in enumerate(roles)}
    made = {name: untrained(kind, vocabulary, seed) for name, kind in (heads or {}).items()}
    return Opened(sessions, vocabulary=vocabulary, heads=made)


def untrained(kind: str, vocabulary: int, seed: int = 0) -> Head:
    """A head with random weights that goes with table models."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        if kind == EagleHead.kind:
            shape = {
                "hidden_size": WIDTH,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "intermediate_size": WIDTH,
            }
            head: Head = EagleHead.of(LlamaConfig(vocab_size=vocabulary, max_position_embeddings=64, **shape))
        else:
            head = kind_named(kind)(**({} if kind == LengthHead.kind else {"hidden": WIDTH}))
    return head.placed(torch.device("cpu"))


def generate(method: Method, models: Opened, sampler: Sampler, length: int) -> tuple[list[int], list[Round]]:
    """Exactly `length` tokens, and the steps they came in."""
    steps = list(method.rounds(models, sampler, StopCriteria(frozenset(), len(models.ids) + length)))
    return [token for step in steps for token in step.tokens], steps


def law(method: Method, models: Opened, length: int, **sampling: float) -> Law:
    """The exact joint law of a method's first `length` tokens."""
    return exact_distribution(lambda sampler: tuple(generate(method, models, sampler, length)[0]), **sampling)  # type: ignore[arg-type]  # top_k is an int


def distance(one: Law, two: Law) -> float:
    """Total variation between two laws of sequences."""
    return sum(abs(one.get(key, 0.0) - two.get(key, 0.0)) for key in one.keys() | two.keys()) / 2


@dataclass(frozen=True)
class Finding:
    """How far a method's law is from the one that it declares, at a sampling setting: the worst of some worlds.

    `why` says what was found instead of a law.
    """

    setting: str
    distance: float
    why: str = ""

    @property
    def exact(self) -> bool:
        return self.distance < ROUNDING


def examine(method: Method, heads: Mapping[str, str] | None = None) -> list[Finding]:
    """The method's law against its declared one, which there must be, at every setting.

    `heads` names the kinds of the heads that it reads: untrained ones do, since no law may depend on them. Its draft lengths
    must be small: the number of branches grows with V to their power.
    """
    declared = method.declared_distribution()
    assert declared is not None
    scorers, target = declared
    plain = Autoregressive(scorers=scorers, target=target)
    roles = method.roles()
    worlds = [tables(roles, 3 if len(roles) < 3 else 2, seed, heads=heads) for seed in range(SEEDS)]
    findings = []
    for name, setting in SETTINGS.items():
        try:
            apart = max(distance(law(method, w, LENGTH, **setting), law(plain, w, LENGTH, **setting)) for w in worlds)
            findings.append(Finding(name, apart))
        except FloatingPointError as error:
            findings.append(Finding(name, 1.0, str(error)))
    return findings
