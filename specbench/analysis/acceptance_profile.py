"""An acceptance profile: how many drafted tokens of each round were accepted, in one definition.

A round is one verification step. Its length is the number of accepted drafted tokens plus one, the target's own token, also
where an EOS or the limit cut the output within the round. Rounds without a draft have length 1. The first token of an output
that comes from the prompt's forward is no round. The survival at position i is the share of rounds whose drafted tokens up to
the i-th were accepted, so that the mean length is 1 plus the sum of the survival.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from specbench.errors import ConfigError

TOLERANCE = 0.02  # of a mean length, between what a file states and what follows from its rates
ROUNDING = 1e-4  # of a rate
MOST_POSITIONS = 1024  # drafted tokens of a round; a file that states more is an error
MOST_ROUNDS = 2**53  # in one count of a file, the largest number that a float holds exactly


class Drafts(StrEnum):
    """The numbers of tokens that rounds draft: unknown, different, equal, or equal and one token after the other.

    In a chain, a shorter draft is the beginning of a longer one.
    """

    unknown = "unknown"
    adaptive = "adaptive"
    fixed = "fixed"
    chain = "chain"


@dataclass(frozen=True, kw_only=True)
class AcceptanceProfile:
    """The acceptance of the drafts of one method.

    Args:
        source: Where it was measured: a run, a server, or a file.
        survival: The share of rounds in which the first, second, ... drafted token was accepted; it never increases.
        rounds: The number of rounds; 0 if it is unknown.
        method: The drafting method.
        target: The target model.
        draft: The drafting model or head.
        drafts: Whether rounds draft equal numbers of tokens.
        verification: How drafts are tested: `longest_prefix` or `block`.
        conditions: What else the numbers depend on, such as the task and the temperature.
    """

    source: str
    survival: tuple[float, ...]
    rounds: int = 0
    method: str = ""
    target: str = ""
    draft: str = ""
    drafts: Drafts = Drafts.unknown
    verification: str = "longest_prefix"
    conditions: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_positions(len(self.survival), self.source)
        if not 0 <= self.rounds <= MOST_ROUNDS:
            raise ConfigError(f"{self.source}: {self.rounds} rounds; the number is from 0 to {MOST_ROUNDS}")
        for i, rate in enumerate(self.survival, 1):
            if not 0.0 <= rate <= 1.0:
                raise ConfigError(f"{self.source}: the survival at position {i} is {rate:g}, not a share")
        for i, (one, two) in enumerate(pairwise(self.survival), 2):
            if two > one + ROUNDING:
                raise ConfigError(f"{self.source}: the survival rises from {one:g} to {two:g} at position {i}")

    @property
    def mean_length(self) -> float:
        """Tokens per round, with the target's own token."""
        return 1.0 + sum(self.survival)

    @property
    def acceptance_rate(self) -> float:
        """Accepted / tested drafted tokens: of every round, the accepted ones and the first rejected one are tested.

        Raises ConfigError if rounds draft different numbers of tokens, since the number of tested ones is then unknown.
        """
        if self.drafts not in (Drafts.fixed, Drafts.chain) or not self.survival:
            raise ConfigError(
                f"{self.source}: rounds may draft different numbers of tokens, so tested tokens are not known"
            )
        return sum(self.survival) / sum((1.0, *self.survival[:-1]))

    @property
    def conditional(self) -> tuple[float, ...]:
        """The share of drafted tokens at each position that were accepted if all before them were; 0 after a 0."""
        before = (1.0, *self.survival[:-1])
        return tuple(one / two if two else 0.0 for one, two in zip(self.survival, before, strict=True))

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of rounds of each length, from 1 on."""
        whole = (1.0, *self.survival, 0.0)
        return tuple(one - two for one, two in pairwise(whole))

    @property
    def deviation(self) -> float:
        """The standard deviation of the length of a round."""
        mean = self.mean_length
        return math.sqrt(sum(share * (length - mean) ** 2 for length, share in enumerate(self.shares, 1)))


def require_positions(count: int, source: str) -> None:
    """Raise ConfigError unless a draft length is from 1 to MOST_POSITIONS."""
    if not 1 <= count <= MOST_POSITIONS:
        raise ConfigError(f"{source}: drafts of {count} tokens; a profile has from 1 to {MOST_POSITIONS}")


def of_lengths(lengths: Mapping[int, int], positions: int, source: str, **identity: object) -> AcceptanceProfile:
    """Return the profile of rounds, given how often each length occurred. `positions` is the draft length."""
    require_positions(positions, source)
    for length, count in lengths.items():
        if not 0 <= count <= MOST_ROUNDS:
            raise ConfigError(f"{source}: {count} rounds have {length} tokens; the number is from 0 to {MOST_ROUNDS}")
    rounds = sum(lengths.values())
    if not rounds:
        raise ConfigError(f"{source}: there are no rounds")
    if (shortest := min(lengths)) < 1:
        raise ConfigError(f"{source}: a round has {shortest} tokens; it always has the target's own one")
    if (longest := max(lengths)) > positions + 1:
        raise ConfigError(f"{source}: a round has {longest} tokens, more than {positions} drafted ones and its own")
    survival = tuple(
        sum(count for length, count in lengths.items() if length >= i + 2) / rounds for i in range(positions)
    )
    return AcceptanceProfile(source=source, survival=survival, rounds=rounds, **identity)  # type: ignore[arg-type]  # values by name


def lengths_of(profile: AcceptanceProfile) -> Counter[int]:
    """Return how many rounds had each length, from the shares; empty if the number of rounds is unknown."""
    counts = [round(share * profile.rounds) for share in profile.shares]
    return Counter({length: count for length, count in enumerate(counts, 1) if count})


def require_consistent(profile: AcceptanceProfile, mean: float | None, conditional: Sequence[float]) -> None:
    """Raise ConfigError if a stated mean length or stated conditional rates do not follow from the survival."""
    if mean is not None and abs(mean - profile.mean_length) > TOLERANCE:
        raise ConfigError(
            f"{profile.source}: the mean length is {mean:g}, and its rates imply {profile.mean_length:.4f}"
        )
    before = (1.0, *profile.survival)
    for i, (stated, implied) in enumerate(zip(conditional, profile.conditional, strict=False), 1):
        if abs(stated - implied) > ROUNDING + ROUNDING / max(before[i - 1], ROUNDING):
            raise ConfigError(
                f"{profile.source}: the conditional rate at position {i} is {stated:g}, and the marginal rates imply"
                f" {implied:.4f}"
            )
