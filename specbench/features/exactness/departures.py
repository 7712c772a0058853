"""Known ways in which a faulty sampler departs from its distribution, and a test with power against each of them.

A departure is another distribution r of a token than pi, such as the most likely token in 5 % of tokens. The likelihood ratio
r(x) / pi(x) is a test martingale that grows fastest if tokens follow r. The mean of the ratios of all departures is a
martingale too. Its power against each is computed from the same distributions, so a test that rejects nothing also says which
departures it would have missed.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum

import torch
from torch import Tensor

from specbench.features.exactness.evidence import LARGEST_VARIATION, information_needed
from specbench.features.exactness.martingales import bound, log_mean
from specbench.features.exactness.tolerance import Allowed, Ordered

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)  # of tokens that depart
FACTORS = (1.02, 1.05, 1.1, 1.25, 1.5, 2.0)  # of a temperature or of an acceptance probability
HOTTER = 1.5  # multiple of the temperature at which a share of tokens is sampled
CLAMP = 40.0  # nats; bound of a log-ratio


class DepartureKind(StrEnum):
    """The known kinds of departures. A size is a share of tokens, or a factor."""

    most_likely = "most likely token"
    hotter = "higher temperature in some tokens"
    other_model = "tokens of another model"
    temperature = "other temperature"
    lenient = "lenient rule"


@dataclass(frozen=True)
class Departure:
    """A way in which tokens depart from their distribution.

    Args:
        kind: What happens.
        size: The share of tokens, or the factor.
        model: The drafting model whose distribution matters; empty without.
    """

    kind: DepartureKind
    size: float
    model: str = ""

    @property
    def is_reported(self) -> bool:
        """Whether its power is reported. Lower temperatures are found about as easily as higher ones."""
        return self.kind is not DepartureKind.temperature or self.size > 1.0

    def __str__(self) -> str:
        return words_of(self.kind, self.model, self.size)


def words_of(kind: DepartureKind, model: str, size: float, bound: str = "") -> str:
    """Return a departure in words, such as `the most likely token in 5 % of tokens`; `bound` may be `less than `."""
    share = f"in {bound}{100.0 * size:g} % of tokens"
    match kind:
        case DepartureKind.most_likely:
            return f"the most likely token {share}"
        case DepartureKind.hotter:
            return f"{HOTTER:g}x the temperature {share}"
        case DepartureKind.other_model:
            return f"tokens sampled from {model} {share}"
        case DepartureKind.temperature:
            return f"{bound}{size:g}x the temperature"
        case DepartureKind.lenient:
            return f"a rule that accepts tokens of {model} {bound}{size:g}x as often"


RARE, LIKELY = "rare", "likely"  # orders of tokens: by ascending or descending probability


def departures_of(pi: Tensor, drafts: Mapping[str, Tensor]) -> Iterator[tuple[Departure, Tensor, str]]:
    """Yield every departure with its likelihood ratio r / pi, (m, K), and an order of tokens in which it falls.

    The order is RARE, LIKELY, or the name of a drafting model, for its ratio q / pi. The ratio is 0 where pi is 0.

    Args:
        pi: The reference distributions, (m, K), float64.
        drafts: Distributions of drafting models by name, (m, K) each.
    """
    is_possible, safe = pi > 0.0, pi.clamp_min(1e-300)
    best = torch.zeros_like(pi).scatter_(-1, pi.argmax(-1, keepdim=True), 1.0) / safe
    log_pi = safe.log()

    def tempered(factor: float) -> Tensor:
        powers = torch.where(is_possible, (log_pi / factor).exp(), 0.0)
        return powers / powers.sum(-1, keepdim=True) / safe

    ratios = {name: _ratio(q, pi) for name, q in drafts.items()}
    parts = [
        (DepartureKind.most_likely, "", best, LIKELY),
        (DepartureKind.hotter, "", tempered(HOTTER), RARE),
        *((DepartureKind.other_model, name, ratio, name) for name, ratio in ratios.items()),
    ]
    for kind, name, ratio, order in parts:
        for share in SHARES:
            yield Departure(kind, share, name), is_possible * (1.0 - share + share * ratio), order
    for factor in FACTORS:
        yield Departure(DepartureKind.temperature, factor), tempered(factor), RARE
        yield Departure(DepartureKind.temperature, 1.0 / factor), tempered(1.0 / factor), LIKELY
    for name, ratio in ratios.items():
        rest = (1.0 - ratio).clamp_min(0.0) * is_possible  # of the residual distribution, over pi
        mass = (pi * rest).sum(-1, keepdim=True).clamp_min(1e-300)
        for factor in FACTORS:
            accepted = ratio.clamp_max(factor)
            rejected = (1.0 - (pi * accepted).sum(-1, keepdim=True)).clamp_min(0.0)
            yield Departure(DepartureKind.lenient, factor, name), accepted + rejected / mass * rest, name


@dataclass(frozen=True, kw_only=True)
class Detectable:
    """The smallest size of a kind of departure that the tokens would show in 19 of 20 cases.

    Args:
        kind: The kind of departure.
        model: The drafting model, if one matters.
        size: The smallest size; None if no tried size would be found.
        largest: The largest size that was tried.
        variation: The total variation of a token at that size, or at `largest`, averaged over all tokens; None if unknown.
    """

    kind: DepartureKind
    model: str = ""
    size: float | None
    largest: float
    variation: float | None

    @property
    def is_within_limit(self) -> bool:
        """Whether the smallest size that is found has a total variation of at most LARGEST_VARIATION."""
        return self.size is not None and self.variation is not None and self.variation <= LARGEST_VARIATION

    @property
    def missed(self) -> str:
        """What would have been missed, in words."""
        if self.size is None:
            return f"even {words_of(self.kind, self.model, self.largest)}"
        return words_of(self.kind, self.model, self.size, "less than ")


@dataclass
class _Sums:
    """Sums over tokens for one departure.

    Args:
        log_wealth: The logarithm of the martingale.
        information: Its mean under the departure.
        variation: The total variation of the departure.
        excess: The log-likelihood ratio minus its mean under the reference.
        variance: The variance of the log-likelihood ratio under the reference.
    """

    log_wealth: float = 0.0
    information: float = 0.0
    variation: float = 0.0
    excess: float = 0.0
    variance: float = 0.0

    def add(self, other: "_Sums") -> None:
        """Add the sums of other tokens."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


class DepartureTest:
    """One martingale test against all known departures."""

    def __init__(self) -> None:
        self.tokens = 0
        self._sums: dict[Departure, _Sums] = {}

    def add(self, within: Allowed, drafts: Mapping[str, Tensor], x: Tensor) -> None:
        """Add tokens x (m,) with their allowed distributions (m, K) and those of drafting models."""
        if not within.is_exact:
            possible = within.high.gather(-1, x.unsqueeze(-1)).squeeze(-1) > 0.0
            within, x = within.part(possible), x[possible]
            drafts = {name: q[possible] for name, q in drafts.items()}
        if not len(x):
            return
        self.tokens += len(x)
        pi = within.pi
        orders: dict[str, Ordered] = {}
        for departure, ratio, order in departures_of(pi, drafts):
            if within.is_exact:
                cost = (pi * ratio).sum(-1).log()  # (m,)
            else:
                if order not in orders:
                    orders[order] = Ordered.of(within, _key(order, pi, drafts))
                cost = orders[order].largest_mean(ratio).log()
            log_ratio = ratio.log().clamp(-CLAMP, CLAMP)  # (m, K)
            of_x = log_ratio.gather(-1, x.unsqueeze(-1)).squeeze(-1)  # (m,)
            r, mean = pi * ratio, (pi * log_ratio).sum(-1)
            sums = _Sums(
                log_wealth=float((of_x - cost).sum()),
                information=float(((r * log_ratio).sum(-1) - cost).sum()),
                variation=float((r - pi).abs().sum()) / 2.0,
                excess=float((of_x - mean).sum()),
                variance=float((pi * log_ratio.square()).sum() - mean.square().sum()),
            )
            self._sums.setdefault(departure, _Sums()).add(sums)

    def merge(self, other: "DepartureTest") -> None:
        """Add the tokens of another test."""
        self.tokens += other.tokens
        for departure, sums in other._sums.items():
            self._sums.setdefault(departure, _Sums()).add(sums)

    @property
    def has_varied(self) -> bool:
        """Whether any departure would differ from the distributions, so that the test could have rejected."""
        return any(sums.variation > 1e-6 for sums in self._sums.values())

    @property
    def worst(self) -> Departure:
        """The departure that the tokens resemble most."""
        return max(self._sums, key=lambda departure: self._sums[departure].log_wealth)

    @property
    def z(self) -> float:
        """The log-likelihood ratio of `worst` minus its mean, in standard deviations."""
        sums = self._sums[self.worst]
        return sums.excess / math.sqrt(sums.variance) if sums.variance > 0.0 else 0.0

    @property
    def log_wealth(self) -> float:
        """The logarithm of the mean over all departures."""
        return log_mean([sums.log_wealth for sums in self._sums.values()])

    @property
    def p(self) -> float:
        """An upper bound for the probability of so large a martingale if tokens follow their distributions."""
        return bound(self.log_wealth)

    def detectable(self, alarm: float) -> list[Detectable]:
        """Return the smallest size of each kind of departure that is found at p = alarm in 19 of 20 cases."""
        need = information_needed(alarm, max(len(self._sums), 1))
        by_kind: dict[tuple[DepartureKind, str], dict[float, _Sums]] = {}
        for departure, sums in self._sums.items():
            if departure.is_reported:
                by_kind.setdefault((departure.kind, departure.model), {})[departure.size] = sums
        return [self._smallest(*kind, sizes, need) for kind, sizes in by_kind.items()]

    def _smallest(self, kind: DepartureKind, model: str, sizes: Mapping[float, _Sums], need: float) -> Detectable:
        ordered = sorted(sizes)
        found = next((size for size in ordered if sizes[size].information >= need), None)
        at = ordered[-1] if found is None else found
        variation = sizes[at].variation / max(self.tokens, 1)
        return Detectable(kind=kind, model=model, size=found, largest=ordered[-1], variation=variation)

    def times_needed(self, alarm: float) -> float:
        """Return how many times as many tokens would find every departure of more than LARGEST_VARIATION."""
        need = information_needed(alarm, max(len(self._sums), 1))
        limit = LARGEST_VARIATION * max(self.tokens, 1)
        wanted = [sums.information for sums in self._sums.values() if sums.variation >= limit]
        return max((need / information for information in wanted if information > 0.0), default=math.inf)


def _ratio(q: Tensor, pi: Tensor) -> Tensor:
    """Return q / pi, (m, K); 0 where pi is 0."""
    return torch.where(pi > 0.0, q / pi.clamp_min(1e-300), 0.0)


def _key(order: str, pi: Tensor, drafts: Mapping[str, Tensor]) -> Tensor:
    """Return the key (m, K) of an order of tokens, which falls in it."""
    if order in drafts:
        return _ratio(drafts[order], pi)
    return pi if order == LIKELY else torch.where(pi > 0.0, -pi, -2.0)  # ratios are 0 where pi is 0, so these come last
