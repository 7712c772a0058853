"""Models that are tables, and the exact output distribution of methods over them, compared with the declared distribution.

On vocabularies of two or three tokens, every choice of a method can be followed (`sampling.exact_distribution`), so the joint
distribution of its first tokens is exact up to rounding. Models are fixed random functions of the whole prefix, so that a row
of logits at a wrong position changes the distribution.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import LlamaConfig, Qwen2Config

from specbench.decoding.checks import checked_rounds
from specbench.decoding.drafting import common_prefix, roll
from specbench.decoding.method import Earlier, Method, Round, StopCriteria, TextDrafter
from specbench.decoding.sampling import Draft, Sampler, Tree, exact_distribution
from specbench.decoding.session import AuxLayers, Concurrent, Counted, Session, TrainedHead, Usage
from specbench.decoding.trees import Growth, growth
from specbench.methods.autoregressive import Autoregressive
from specbench.models.heads import DFlashHead, DSparkHead, Eagle1Head, Eagle3Head, EagleHead, Head, LengthHead, MtpHead
from specbench.models.heads.eagle3_settings import AUX_LAYERS, Eagle3Settings
from specbench.models.heads.head import kind_named
from specbench.models.heads.mtp import LAYOUTS
from specbench.models.transformers_session import InstrumentedSession

WIDTH = 8  # of hidden states
STATE = 1  # gives hidden states other random numbers than logits; hashes of strings would change from run to run
START = 0  # every sequence starts with this token
Distribution = dict[tuple[int, ...], float]
H = TypeVar("H", bound=TrainedHead)
LENGTH = 3  # tokens of a joint distribution; enough for a pending token and what follows it
LONGEST = 8  # tokens of a draft whose positions are all followed
DEEPEST = 2  # depths of a draft tree that are followed
SEEDS = 2  # sets of table models that a method is tried on
ROUNDING = 1e-9  # total variation of float64 sums
FLOAT32_ROUNDING = 1e-6  # of ratios that a method computes in float32
TOP_K = "T = 1, top-k 2"  # no filter on two tokens
SETTINGS: dict[str, dict[str, float]] = {
    "T = 1": {"temperature": 1.0},
    "T = 0.7": {"temperature": 0.7},
    TOP_K: {"temperature": 1.0, "top_k": 2},
    "T = 0.7, top-p 0.75": {"temperature": 0.7, "top_p": 0.75},
    "T = 0": {"temperature": 0.0},
}


class TableSession:
    """A model whose logits are a fixed random function of the whole prefix."""

    def __init__(self, vocabulary: int, seed: int, spread: float = 1.5) -> None:
        self.usage = Usage()
        self._vocabulary, self._seed, self._spread = vocabulary, seed, spread
        self.last_scored: list[int] = []
        self._rows: dict[tuple[int, ...], Tensor] = {}
        self._head = torch.randn(vocabulary, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    def score(self, ids: list[int], start: int, tree: Tree | None = None) -> Tensor:
        self.last_scored = list(ids)
        branches: list[tuple[int, ...]] = []
        for token, parent in zip(*tree, strict=True) if tree is not None else ():
            branches.append((*(branches[parent] if parent >= 0 else ids), token))
        self.usage.decoding(len(ids) - start + len(branches), 0.0)
        return torch.stack(
            [self._row(tuple(ids[: i + 1])) for i in range(start, len(ids))] + [*map(self._row, branches)]
        )

    def roll(self, ids: list[int], k: int, sampler: Sampler, eos: frozenset[int]) -> Draft:
        return roll(self, ids, k, sampler, eos)

    def growth(self, ids: list[int], room: int, eos: frozenset[int]) -> Growth:
        return growth(self, ids, room, eos)

    def room(self, ids: list[int]) -> int:
        return sys.maxsize

    def keep_states(self, aux_layers: AuxLayers = ()) -> None:
        pass

    def hidden(self, ids: list[int], start: int, aux_layers: AuxLayers = ()) -> Tensor:
        if self.cached_length(ids) < len(ids):
            self.score(ids, len(ids) - 1)
        prefixes = [tuple(ids[: i + 1]) for i in range(start, len(ids))]
        return torch.stack(
            [torch.cat([self._state(prefix, layer) for layer in aux_layers or (0,)]) for prefix in prefixes]
        )

    def cached_length(self, ids: list[int]) -> int:
        return common_prefix(ids, self.last_scored)

    def logits_of(self, states: Tensor) -> Tensor:
        return states.double() @ self._head.T

    def finish(self) -> None:
        pass

    def _state(self, prefix: tuple[int, ...], layer: int = 0) -> Tensor:
        """Return hidden states (WIDTH,), float32: random, and independent of the logits."""
        generator = torch.Generator().manual_seed(hash((self._seed, STATE, prefix, layer)) & (2**62 - 1))
        return torch.randn(WIDTH, generator=generator)

    def _row(self, prefix: tuple[int, ...]) -> Tensor:
        """Return logits (V,), float64, from a cache."""
        if prefix not in self._rows:
            generator = torch.Generator().manual_seed(hash((self._seed, prefix)) & (2**62 - 1))
            row = torch.randn(self._vocabulary, generator=generator, dtype=torch.float64) * self._spread
            self._rows[prefix] = row
        return self._rows[prefix]


class TableModels:
    """The sessions of one sequence by role, and its first ids: an implementation of `Sessions` for tests."""

    device = torch.device("cpu")

    def __init__(
        self,
        sessions: Mapping[str, Session],
        ids: list[int] | None = None,
        vocabulary: int = 2,
        heads: Mapping[str, Head] | None = None,
    ) -> None:
        self.sessions: dict[str, Any] = dict(sessions)
        self.vocabulary, self.heads, self.earlier = vocabulary, heads or {}, Earlier()
        self.ids = [START] if ids is None else ids

    def __getitem__(self, role: str) -> Session:
        session: Session = self.sessions[role]
        return session

    def head(self, name: str, kind: type[H]) -> H:
        head = self.heads[name]
        assert isinstance(head, kind)
        return head

    def track(self, name: str, session: Counted) -> None:
        self.sessions[name] = session

    def instrumented(self, role: str) -> InstrumentedSession:
        raise ValueError("table models have no transformers model")

    def through_text(self, role: str) -> TextDrafter:
        session = self.sessions[role]
        drafter: TextDrafter = session if hasattr(session, "draft") else _SameText(session)
        return drafter

    def concurrent(self, roles: Sequence[str]) -> list[Concurrent]:
        return [_SequentialSession(self[role]) for role in roles]


class _SameText:
    """A `TextDrafter` whose text has the same tokens as the target's."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def usage(self) -> Usage:
        return self._session.usage

    def finish(self) -> None:
        self._session.finish()

    def draft(self, ids: list[int], k: int, eos: frozenset[int]) -> list[int]:
        return self._session.roll(ids, k, Sampler(0.0), eos).tokens


class _SequentialSession:
    """A `Concurrent` session that computes when its result is requested, without concurrency."""

    def __init__(self, session: Session) -> None:
        self._session, self._submitted = session, ([0], 0)
        self.busy, self.moved = 0.0, 0

    @property
    def usage(self) -> Usage:
        return self._session.usage

    def submit(self, ids: list[int], start: int) -> None:
        self._submitted = ids, start

    def result(self) -> Tensor:
        return self._session.score(*self._submitted)

    def finish(self) -> None:
        self._session.finish()


def tables(
    roles: tuple[str, ...], vocabulary: int, seed: int = 0, spread: float = 1.5, heads: Mapping[str, str] | None = None
) -> TableModels:
    """Return table models by role, with untrained heads of the given kinds."""
    sessions = {role: TableSession(vocabulary, 10 * seed + i, spread) for i, role in enumerate(roles)}
    made = {name: untrained(kind, vocabulary, seed) for name, kind in (heads or {}).items()}
    return TableModels(sessions, vocabulary=vocabulary, heads=made)


def untrained(kind: str, vocabulary: int, seed: int = 0) -> Head:
    """Return a head with random weights that fits table models."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=vocabulary, max_position_embeddings=64, hidden_size=WIDTH, num_attention_heads=2,
            num_key_value_heads=2, intermediate_size=WIDTH, num_hidden_layers=3,
        )  # fmt: skip
        if kind == EagleHead.kind:
            head: Head = Eagle1Head.of(config)
        elif kind == Eagle3Head.kind:  # without the last token
            settings = Eagle3Settings(
                layer=config, states=2, state_width=WIDTH, layers=(1, 2), key=AUX_LAYERS, vocabulary=vocabulary - 1
            )
            eagle3 = Eagle3Head(settings, vocabulary)
            eagle3.tokens = torch.arange(vocabulary - 1)
            return eagle3.goes_with(torch.zeros(vocabulary, WIDTH), config).double()  # its own LM head gives q
        elif kind == MtpHead.kind:
            mtp = MtpHead(Qwen2Config.from_dict(config.to_dict()), LAYOUTS["mimo"]).double()
            mtp.goes_with(torch.randn(vocabulary, WIDTH, dtype=torch.float64), mtp.config)
            return mtp
        elif kind in (DFlashHead.kind, DSparkHead.kind):
            block = DFlashHead.of(config, 1, 3) if kind == DFlashHead.kind else DSparkHead.of(config, 1, 3, rank=2)
            if block.markov is not None:
                torch.nn.init.normal_(block.markov.markov_w2.weight)
            block.embed_tokens = torch.nn.Embedding(vocabulary, WIDTH)
            block.lm_head = torch.nn.Linear(WIDTH, vocabulary)
            return block.goes_with(torch.zeros(vocabulary, WIDTH), config).double()
        else:
            head = kind_named(kind)(**({} if kind == LengthHead.kind else {"hidden": WIDTH}))
    return head.placed(torch.device("cpu"))


def generate(method: Method, models: TableModels, sampler: Sampler, length: int) -> tuple[list[int], list[Round]]:
    """Return exactly `length` tokens, and the rounds that committed them."""
    rounds = list(checked_rounds(method, models, sampler, StopCriteria(frozenset(), len(models.ids) + length)))
    return [token for entry in rounds for token in entry.tokens], rounds


def joint_distribution(method: Method, models: TableModels, length: int, **sampling: float) -> Distribution:
    """Return the exact joint distribution of a method's first `length` tokens."""
    return exact_distribution(lambda sampler: tuple(generate(method, models, sampler, length)[0]), **sampling)  # type: ignore[arg-type]  # top_k is an int


def distance(one: Distribution, two: Distribution) -> float:
    """Return the total variation between two distributions of sequences."""
    return sum(abs(one.get(key, 0.0) - two.get(key, 0.0)) for key in one.keys() | two.keys()) / 2


# Comparison with the declared distribution


@dataclass(frozen=True)
class ExactComparison:
    """The largest distance of a method's distribution from the declared one over several models, at a sampling setting.

    `why` describes the error if no distribution could be computed. `drafted` is the largest number of tokens that a draft
    had: without drafts, nothing about a proposer was tested.
    """

    setting: str
    distance: float
    why: str = ""
    drafted: int = 0

    @property
    def exact(self) -> bool:
        """Whether the distributions are equal up to the rounding of float64."""
        return self.distance < ROUNDING

    @property
    def differs(self) -> bool:
        """Whether no rounding explains the distance."""
        return not self.distance < FLOAT32_ROUNDING

    @property
    def words(self) -> str:
        """The result in a few words."""
        if self.exact:
            return "exact"
        if not self.differs:
            return f"equal up to rounding: below {FLOAT32_ROUNDING:g}, as of ratios in float32"
        return f"differs {self.why}".rstrip() + (
            "" if self.why else f": {FLOAT32_ROUNDING:g} or more, which is no rounding"
        )


def examine(
    method: Method, heads: Mapping[str, str] | None = None, vocabulary: int | None = None
) -> list[ExactComparison]:
    """Compare the method's distribution with the one that it must declare, at every setting at which it is defined.

    `heads` names the kinds of the heads that the method reads. Untrained heads suffice, since no distribution may depend on
    them. By default, the vocabulary has three tokens. It has two for three or more models and for draft trees, which have
    many branches. Draft lengths must be small: the number of branches grows exponentially with them.
    """
    declared = method.declared_distribution()
    assert declared is not None
    scorers, target = declared
    plain = Autoregressive(scorers=scorers, target=target)
    roles = method.roles()
    tokens = vocabulary or (2 if len(roles) > 2 or _drafts_trees(method) else 3)
    worlds = [tables(roles, tokens, seed, heads=heads) for seed in range(SEEDS)]
    return [_compared(method, plain, worlds, name, LENGTH) for name in _settings_of(method)]


def examine_drafts(
    method: Method, heads: Mapping[str, str] | None = None, vocabulary: int = 2
) -> list[ExactComparison]:
    """Compare the distribution of the first round with the declared one, for drafts of up to LONGEST or DEEPEST tokens.

    Every position of a draft is covered, which `examine` does not do for drafts that are longer than its outputs. The tokens
    that the round does not write are taken from the declared distribution. Empty for a method that does not draft.
    """
    declared = method.declared_distribution()
    assert declared is not None
    scorers, target = declared
    if method.blocks == (1,):
        return []
    plain, roles = Autoregressive(scorers=scorers, target=target), method.roles()
    length = min(method.depth, DEEPEST if _drafts_trees(method) else LONGEST) + 1
    worlds = [tables(roles, vocabulary, heads=heads)]
    return [_compared(method, plain, worlds, name, length, first=1) for name in _settings_of(method) if name != TOP_K]


def _settings_of(method: Method) -> list[str]:
    """Return the names of the settings at which a method is defined."""
    return [name for name, setting in SETTINGS.items() if not method.undefined_at(setting["temperature"])]


def _drafts_trees(method: Method) -> bool:
    return any(test.tree for test in method.verifications())


def _compared(
    method: Method, plain: Method, worlds: Sequence[TableModels], name: str, length: int, first: int | None = None
) -> ExactComparison:
    """Compare the joint distribution of `length` tokens at a setting. With `first`, only so many rounds are the method's."""
    largest, drafted, setting = 0.0, 0, SETTINGS[name]
    try:
        for world in worlds:
            exact = joint_distribution(plain, world, length, **setting)
            distribution, longest = _joint_distribution(method, world, setting, length, first)
            largest, drafted = max(largest, distance(_completed(distribution, exact), exact)), max(drafted, longest)
    except FloatingPointError as error:
        return ExactComparison(name, 1.0, str(error))
    return ExactComparison(name, largest, drafted=drafted)


def _joint_distribution(
    method: Method, models: TableModels, setting: Mapping[str, float], length: int, first: int | None
) -> tuple[Distribution, int]:
    """Return the joint distribution of the first tokens, and the length of the longest draft, in depths of a tree."""
    longest = 0

    def run(sampler: Sampler) -> tuple[int, ...]:
        nonlocal longest
        stop = StopCriteria(frozenset(), len(models.ids) + length)
        rounds = list(islice(checked_rounds(method, models, sampler, stop), first))
        longest = max([longest, *(entry.tested if entry.siblings else entry.drafted for entry in rounds)])
        return tuple(token for entry in rounds for token in entry.tokens)

    return exact_distribution(run, **setting), longest  # type: ignore[arg-type]  # top_k is an int


def _completed(prefixes: Distribution, exact: Distribution) -> Distribution:
    """Return a distribution of prefixes, each continued as in `exact`."""
    out: Distribution = {}
    for prefix, weight in prefixes.items():
        rest = {key: mass for key, mass in exact.items() if key[: len(prefix)] == prefix}
        total = sum(rest.values()) or 1.0
        for key, mass in (rest or {prefix: 1.0}).items():
            out[key] = out.get(key, 0.0) + weight * mass / total
    return out
