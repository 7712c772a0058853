"""Expectations of suites: what a paper claims, or this project adds, as comparisons of measured values."""

import hashlib
import json
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from specbench.errors import hint

NUMBERS = ("x", "weight")  # dimensions that are numbers
DIMENSIONS = (  # of a measured point
    "pair", "task", "group", "T", "method", "setting", "variant", "draft_length", "proposer", *NUMBERS,
)  # fmt: skip
Take = Literal["each", "best", "lowest", "lowest best"]
BOUNDS = ("at_least", "at_most", "near", "apart")
COMPARISON = (  # what decides a verdict: changing one of these is recorded (`specbench.features.suites.papers.claims_ledger`)
    "source", "of", "value", *BOUNDS, "factor", "margin", "take", "bound_take", "by", "at_score_of", "score_margin",
)  # fmt: skip


def require_dimensions(*words: str) -> None:
    """Raise ValueError if a word is not in DIMENSIONS."""
    for word in words:
        if word not in DIMENSIONS:
            raise ValueError(f"'{word}' is not a dimension{hint(word, DIMENSIONS)}")


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """An expectation from theory or the paper: a value `of` some points against a bound.

    The value is `at_least` or `at_most` the bound, `near` it, which is inside of +- `margin` as a share of the bound, or
    `apart` from it, which is outside of that. The bound is a number, another value of the same point, or the value of other
    points, times `factor`. Other points are of the same run, or of another pair, task or temperature that the bound names.

    `take` says which points are compared: `each`, the `best`, the `lowest`, or the `lowest best` of the runs, separately for
    each value of the dimensions `by`. `bound_take` is the same for the points of the bound, by default `take`. With
    `at_score_of`, only points are compared that reach the score of the points with these dimensions, less `score_margin`
    as a share of it.

    `id` identifies the expectation in its suite. `where` is the place in the paper that makes the claim, and `source` who
    makes it: the paper or this project. An `identity` holds for every correct implementation, whatever is measured: it checks
    the implementation, and is counted apart. `beside` is another value, such as the speedup on another clock, whose outcomes
    are shown and not counted.
    """

    id: str = ""
    says: str
    where: str = ""
    of: dict[str, Any]
    value: str
    at_least: float | str | dict[str, Any] | None = None
    at_most: float | str | dict[str, Any] | None = None
    near: float | str | dict[str, Any] | None = None
    apart: float | str | dict[str, Any] | None = None
    factor: float = 1.0
    margin: float = 0.0
    take: Take = "each"
    bound_take: Take | None = None
    by: tuple[str, ...] = ()
    at_score_of: dict[str, Any] = field(default_factory=dict)
    score_margin: float = 0.0
    source: Literal["paper", "project", "identity"] = "paper"
    beside: str = ""

    def __post_init__(self) -> None:
        if sum(getattr(self, name) is not None for name in BOUNDS) != 1:
            raise ValueError(f"give one of {', '.join(BOUNDS)}")
        if (self.margin > 0.0) != self.is_two_sided:
            raise ValueError("near and apart need a margin above 0, and at_least and at_most have none")
        if "lowest best" in (self.take, self.bound_take) and not isinstance(self.bound, dict):
            raise ValueError("lowest best compares points of several runs: name their pair, task or T in the bound")
        require_dimensions(*self.of, *self.by, *self.at_score_of, *(self.bound if isinstance(self.bound, dict) else ()))

    @property
    def bound(self) -> float | str | dict[str, Any]:
        """The bound of the values."""
        (bound,) = (bound for name in BOUNDS if (bound := getattr(self, name)) is not None)
        return bound  # type: ignore[no-any-return]  # one of the fields above

    @property
    def selects(self) -> bool:
        """Whether some of several points are chosen by their values."""
        return self.take != "each" or self.bound_take not in (None, "each")

    @property
    def is_two_sided(self) -> bool:
        """Whether a value is compared with the bound on both sides, with a margin."""
        return self.near is not None or self.apart is not None

    @property
    def fingerprint(self) -> str:
        """A hash of the comparison, without its wording, and without keys that have their defaults."""
        plain = {each.name: each.default for each in fields(self)}
        table = {name: value for name in COMPARISON if (value := getattr(self, name)) not in (plain[name], {})}
        return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:16]
