"""Comparison of a method's exact output distribution, over models that are tables, with the one that it declares."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from specbench.decoding.checks import checked_rounds
from specbench.decoding.method import Method, StopCriteria
from specbench.decoding.sampling import Sampler, exact_distribution
from specbench.methods.autoregressive import Autoregressive
from specbench.verification.enumeration import Distribution, Opened, distance, joint_distribution, tables

LENGTH = 3  # tokens of a joint distribution; enough for a pending token and what follows it
LONGEST = 8  # tokens of a draft whose positions are all followed
SEEDS = 2  # sets of table models that a method is tried on
ROUNDING = 1e-9
TOP_K = "T = 1, top-k 2"  # no filter on two tokens
SETTINGS: dict[str, dict[str, float]] = {
    "T = 1": {"temperature": 1.0},
    "T = 0.7": {"temperature": 0.7},
    TOP_K: {"temperature": 1.0, "top_k": 2},
    "T = 0.7, top-p 0.75": {"temperature": 0.7, "top_p": 0.75},
    "T = 0": {"temperature": 0.0},
}


@dataclass(frozen=True)
class Finding:
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
        return self.distance < ROUNDING


def examine(method: Method, heads: Mapping[str, str] | None = None) -> list[Finding]:
    """Compare the method's distribution with the one that it must declare, at every setting.

    `heads` names the kinds of the heads that the method reads. Untrained heads suffice, since no distribution may
    depend on them. Draft lengths must be small: the number of branches grows exponentially with them.
    """
    declared = method.declared_distribution()
    assert declared is not None
    scorers, target = declared
    plain = Autoregressive(scorers=scorers, target=target)
    roles = method.roles()
    worlds = [tables(roles, 3 if len(roles) < 3 else 2, seed, heads=heads) for seed in range(SEEDS)]
    return [_compared(method, plain, worlds, name, LENGTH) for name in SETTINGS]


def examine_drafts(method: Method, heads: Mapping[str, str] | None = None) -> list[Finding]:
    """Compare the distribution of the first round with the declared one, for drafts of up to LONGEST tokens.

    Every position of a draft is covered, which `examine` does not do for drafts that are longer than its outputs. The tokens
    that the round does not write are taken from the declared distribution. Empty for a method that does not draft.
    """
    declared = method.declared_distribution()
    assert declared is not None
    scorers, target = declared
    if method.max_block == 1:
        return []
    plain, roles = Autoregressive(scorers=scorers, target=target), method.roles()
    length = min(method.max_block - 1, LONGEST) + 1
    worlds = [tables(roles, 2, heads=heads)]
    return [_compared(method, plain, worlds, name, length, first=1) for name in SETTINGS if name != TOP_K]


def _compared(
    method: Method, plain: Method, worlds: Sequence[Opened], name: str, length: int, first: int | None = None
) -> Finding:
    """Compare the joint distribution of `length` tokens at a setting. With `first`, only so many rounds are the method's."""
    apart, drafted, setting = 0.0, 0, SETTINGS[name]
    try:
        for world in worlds:
            exact = joint_distribution(plain, world, length, **setting)
            found, longest = _joint_distribution(method, world, setting, length, first)
            apart, drafted = max(apart, distance(_completed(found, exact), exact)), max(drafted, longest)
    except FloatingPointError as error:
        return Finding(name, 1.0, str(error))
    return Finding(name, apart, drafted=drafted)


def _joint_distribution(
    method: Method, models: Opened, setting: Mapping[str, float], length: int, first: int | None
) -> tuple[Distribution, int]:
    """Return the joint distribution of the first tokens, and the number of tokens in the longest draft."""
    longest = 0

    def run(sampler: Sampler) -> tuple[int, ...]:
        nonlocal longest
        stop = StopCriteria(frozenset(), len(models.ids) + length)
        rounds = list(islice(checked_rounds(method, models, sampler, stop), first))
        longest = max([longest, *(each.drafted for each in rounds)])
        return tuple(token for each in rounds for token in each.tokens)

    return exact_distribution(run, **setting), longest  # type: ignore[arg-type]  # top_k is an int


def _completed(found: Distribution, exact: Distribution) -> Distribution:
    """Return a distribution of prefixes, each continued as in `exact`."""
    out: Distribution = {}
    for prefix, weight in found.items():
        rest = {key: mass for key, mass in exact.items() if key[: len(prefix)] == prefix}
        total = sum(rest.values()) or 1.0
        for key, mass in (rest or {prefix: 1.0}).items():
            out[key] = out.get(key, 0.0) + weight * mass / total
    return out
