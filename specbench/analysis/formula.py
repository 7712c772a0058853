"""Formulas of the papers' theory, registered by name, and the rates that they take, measured or assumed.

    @formula("untested run")
    def untested_run(method: Theory, rates: Rates) -> RoundCounts | None: ...

A method names its formula (`Theory.formula`), and run.toml stores that name. Formulas of bundled methods are in
`specbench/methods/theories/`, which imports no torch. A plugin registers its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from specbench.analysis.acceptance import acceptance_by_model, acceptance_by_rank, acceptance_rate, rule_rate
from specbench.analysis.costs import sizes_of
from specbench.analysis.method_metrics import levels
from specbench.analysis.method_records import Records
from specbench.analysis.theory import RoundCounts
from specbench.config.construct import OURS
from specbench.decoding.traits import Theory
from specbench.errors import ConfigError, PluginError, hint

ASSUMED_DRAFTS = 5  # mean draft length where a stop rule, a lookup or a verifier decides, for an estimate
BUNDLED = "specbench.methods.theories"  # imported by name, since packages import only those below them


class Rates(Protocol):
    """The rates that formulas take. Where there is no rate, no draft token was tested."""

    def overall(self) -> float | None:
        """Return the acceptance rate of all tested draft tokens."""

    def by_model(self) -> Mapping[str, float]:
        """Return the acceptance rate of the drafts of each model, where it differs from the overall rate."""

    def by_rank(self) -> list[float]:
        """Return the acceptance rate of first, second, ... children in a tree, given that the earlier ones were rejected."""

    def levels(self, count: int) -> list[float] | None:
        """Return the acceptance rate of each of `count` tests of a chain, innermost first; None if one is unknown."""

    def deferral(self) -> float:
        """Return the share of positions or answers that a rule defers."""

    def block(self, role: str) -> float:
        """Return the mean number of tokens that a forward of this model reads, in a cascade that defers single tokens."""

    def per_test(self) -> tuple[float, float]:
        """Return the number of tokens drafted for each token that SPRINTER's target tests, and the share that it accepts."""


@dataclass(frozen=True)
class MeasuredRates:
    """The rates of recorded generations."""

    rows: Records

    def overall(self) -> float | None:
        return acceptance_rate(self.rows)

    def by_model(self) -> Mapping[str, float]:
        return acceptance_by_model(self.rows)

    def by_rank(self) -> list[float]:
        return acceptance_by_rank(self.rows)

    def levels(self, count: int) -> list[float] | None:
        rates = [level.acceptance for level in levels(self.rows) if level.acceptance is not None]
        return rates if len(rates) == count else None

    def deferral(self) -> float:
        return rule_rate(self.rows) or 0.0

    def block(self, role: str) -> float:
        sizes = sizes_of(self.rows, role)
        forwards = sum(count for count, _ in sizes.values())
        return sum(size * count for size, (count, _) in sizes.items()) / forwards if forwards else 1.0

    def per_test(self) -> tuple[float, float]:
        """Return the rates over all runs that end with a forward of the target.

        A run is what was drafted since the last such forward.
        """
        rounds = [entry for record in self.rows for entry in record.rounds]
        tested = max(sum(entry.tested for entry in rounds), 1)
        drafted, accepted = sum(entry.drafted for entry in rounds), sum(entry.accepted for entry in rounds)
        return drafted / tested, accepted / tested


@dataclass(frozen=True, kw_only=True)
class AssumedRates:
    """One acceptance rate for every test, and the share of tokens or answers that a cascade defers to its large model.

    Of the children of a token in a tree, only the first is assumed to be accepted.
    """

    acceptance: float
    deferred: float

    def overall(self) -> float | None:
        return self.acceptance

    def by_model(self) -> Mapping[str, float]:
        return {}

    def by_rank(self) -> list[float]:
        return [self.acceptance]

    def levels(self, count: int) -> list[float] | None:
        return [self.acceptance] * count

    def deferral(self) -> float:
        return self.deferred

    def block(self, role: str) -> float:
        return 1.0 / self.deferred if self.deferred else 1.0

    def per_test(self) -> tuple[float, float]:
        return ASSUMED_DRAFTS, self.acceptance


Counting = Callable[[Theory, Rates], RoundCounts | None]
PapersSpeedup = Callable[[Theory, Rates, float], float | None]


@dataclass(frozen=True)
class Formula:
    """A registered formula.

    Args:
        name: The name that `Theory.formula` has.
        counts: Returns the expected tokens and forwards of a method at some rates; None if a rate is not known.
        papers: Returns the speedup that the paper prints, where it differs. Its last argument is the proposer's forward time
            over the target's. None for methods that the printed formula does not cover.
    """

    name: str
    counts: Counting
    papers: PapersSpeedup | None = None

    def __call__(self, method: Theory, rates: Rates) -> RoundCounts | None:
        """Return the expected tokens and forwards of a method at some rates; None if a rate is not known."""
        return self.counts(method, rates)


_FORMULAS: dict[str, Formula] = {}


def formula(name: str, *, papers: PapersSpeedup | None = None) -> Callable[[Counting], Counting]:
    """Register a function as a formula by its name. Methods select it with `Theory.formula`.

    A later formula replaces an earlier one of the same name. Raises ConfigError for the name of a bundled formula.

    Args:
        name: The name, which run.toml stores.
        papers: A function for the speedup that the paper prints, if it is not the one that follows from the counts. See
            `Formula`.
    """

    def register(counts: Counting) -> Counting:
        if not counts.__module__.startswith(OURS):
            earlier = _registered().get(name)
            if earlier is not None and earlier.counts.__module__.startswith(OURS):
                raise ConfigError(f"the formula '{name}' already exists: {earlier.counts.__module__}")
        _FORMULAS[name] = Formula(name, counts, papers)
        return counts

    return register


def _registered() -> Mapping[str, Formula]:
    """Return the formulas by name, the bundled ones among them."""
    import_module(BUNDLED)
    return _FORMULAS


def known_formula(name: str) -> Formula | None:
    """Return the formula of a name; None if it is not registered, for example because its plugin is not loaded."""
    return _FORMULAS.get(name) or _registered().get(name)


def formula_of(method: Theory) -> Formula:
    """Return a method's formula. Raises PluginError, with the nearest name, if there is none of its name."""
    found = known_formula(method.formula)
    if found is None:
        raise PluginError(f"no formula '{method.formula}' is registered{hint(method.formula, _FORMULAS)}")
    return found
