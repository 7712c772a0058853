"""The layout of a suite's results: its tables, plots and expectations."""

from dataclasses import dataclass, field
from typing import Any, Literal

from specbench.errors import hint

NUMBERS = ("x", "weight")  # dimensions that are numbers
DIMENSIONS = (  # of a measured point
    "pair", "task", "group", "T", "method", "setting", "variant", "draft_length", "proposer", *NUMBERS,
)  # fmt: skip
PROMPT = "prompt"  # as the x of a plot: a point for each prompt
Axis = Literal["linear", "log"]


def require_dimensions(*words: str) -> None:
    """Raise ValueError for a word that is not in DIMENSIONS."""
    for word in words:
        if word not in DIMENSIONS:
            raise ValueError(f"'{word}' is not a dimension{hint(word, DIMENSIONS)}")


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """A table in the paper's layout: the DIMENSIONS of its rows and columns, and the values of each cell.

    `only` selects points by their dimensions. `best` adds, where the rows differ in their setting or variant alone, a row
    with the best by this value.
    """

    title: str = ""
    rows: tuple[str, ...]
    columns: tuple[str, ...] = ()
    values: tuple[str, ...]
    only: dict[str, Any] = field(default_factory=dict)
    best: str = ""

    def __post_init__(self) -> None:
        require_dimensions(*self.rows, *self.columns, *self.only)
        if self.best and not {"setting", "variant"} & set(self.rows):
            raise ValueError("best compares settings: put 'setting' or 'variant' into rows")


DEFAULT_TABLE = TableSpec(
    title="Speed and quality",
    rows=("pair", "task", "T", "method"),
    values=("speedup", "acceptance_rate", "score"),
)  # of a suite without tables


@dataclass(frozen=True, kw_only=True)
class PlotSpec:
    """A plot of `y` over `x`, which is a value, one of the dimensions NUMBERS, or PROMPT for `y = "accepted_length"`.

    There is a line per value of the dimensions `lines`, and a panel per value of `panels`. `flat` are methods drawn as
    horizontal lines. `only` selects points by their dimensions. `best` draws only the best point of a line at each x, and the
    best of all lines. `diagonal` draws points and the line y = x.
    """

    title: str = ""
    x: str
    y: str
    lines: tuple[str, ...] = ("method",)
    panels: tuple[str, ...] = ("task",)
    flat: tuple[str, ...] = ()
    only: dict[str, Any] = field(default_factory=dict)
    x_axis: Axis = "linear"
    best: bool = False
    diagonal: bool = False

    def __post_init__(self) -> None:
        require_dimensions(*self.lines, *self.panels, *self.only)
        if self.x == PROMPT and self.y != "accepted_length":
            raise ValueError(f'x = "{PROMPT}" plots accepted_length only, not {self.y}')
        if self.best and self.x not in NUMBERS:
            raise ValueError(f"best compares points at the same x: use one of {', '.join(NUMBERS)} as x")

    @property
    def is_swept(self) -> bool:
        """Whether x is a dimension, such as a swept parameter, and not a measured value."""
        return self.x in NUMBERS


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """An expectation from theory or the paper: a value `of` some points is `at_least`, `at_most` or `equals` a bound.

    The bound is a number, another value of the same point, or the value of other points of the run that agree in the
    dimensions `by`. Values are equal if they cannot be distinguished. `best` compares the best settings, separately for each
    value of the dimensions `by`. `source` says who compares: the paper, or this project. `beside` is another value, such as
    the speedup on another clock, whose outcomes are shown as well and not counted. Points at which a value of
    `cannot_fail_from` is at least the given number do not test the claim, so they are not counted. The bound is multiplied by
    `factor`: 0.9 expects at least 90 % of it. `because` explains a deviation.
    """

    says: str
    of: dict[str, Any]
    value: str
    at_least: float | str | dict[str, Any] | None = None
    at_most: float | str | dict[str, Any] | None = None
    equals: float | str | dict[str, Any] | None = None
    best: bool = False
    by: tuple[str, ...] = ()
    source: Literal["paper", "project"] = "paper"
    beside: str = ""
    cannot_fail_from: dict[str, float] = field(default_factory=dict)
    factor: float = 1.0
    because: str = ""

    def __post_init__(self) -> None:
        if sum(each is not None for each in (self.at_least, self.at_most, self.equals)) != 1:
            raise ValueError("give one of at_least, at_most and equals")
        require_dimensions(*self.of, *self.by, *(self.bound if isinstance(self.bound, dict) else ()))

    @property
    def bound(self) -> float | str | dict[str, Any]:
        """The bound of the values."""
        (bound,) = (each for each in (self.at_least, self.at_most, self.equals) if each is not None)
        return bound
