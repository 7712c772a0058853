"""How numbers are written: patterns with units, and cells of tables that keep the number."""

from collections.abc import Mapping
from dataclasses import dataclass

from specbench.analysis.curve_choice import CurveChoice
from specbench.analysis.intervals import Estimate, Spread

NONE = "–"  # in place of a missing value
NOT_REACHED = "not reached"  # for the summary of a curve that never meets its condition
CellValue = float | int | str | Estimate | Spread | CurveChoice | list[float] | Mapping[str, float] | None


class NumberCell(str):
    """The text of a table's cell that shows a number, in parts: `1.52x [1.49, 1.55]` is `1.52`, `x` and `[1.49, 1.55]`.

    `value` is the number itself, and `rest` an interval, a deviation or the paper's value. Cells without a number are plain
    strings.
    """

    __slots__ = ("number", "rest", "unit", "value")
    value: float
    number: str
    unit: str
    rest: str

    def __new__(cls, value: float, number: str, unit: str = "", rest: str = "") -> "NumberCell":
        """Return the cell of a number, written as `number`."""
        cell = super().__new__(cls, f"{number}{unit}{' ' if rest else ''}{rest}")
        cell.value, cell.number, cell.unit, cell.rest = value, number, unit, rest
        return cell

    def __getnewargs__(self) -> tuple[float, str, str, str]:  # type: ignore[override]  # of str: its text alone
        """Return the arguments of `__new__`, for copies."""
        return self.value, self.number, self.unit, self.rest

    def followed_by(self, text: str) -> "NumberCell":
        """Return the cell with more text after the number."""
        return NumberCell(self.value, self.number, self.unit, f"{self.rest} {text}".strip())


@dataclass(frozen=True)
class Format:
    """A pattern for numbers, applied after scaling. The suffix follows the value, but not the bounds of its interval."""

    pattern: str = "{:.2f}"
    scale: float = 1.0
    suffix: str = ""

    @property
    def unit(self) -> str:
        """The unit that the text itself shows."""
        return "%" if self.pattern.endswith("%}") else self.suffix

    def number(self, value: float, signed: bool = False) -> str:
        """Return a number without suffix, on request with its sign."""
        pattern = self.pattern.replace("{:", "{:+") if signed and "+" not in self.pattern else self.pattern
        return pattern.format(self.scale * value)

    def cell(self, value: float, rest: str = "") -> NumberCell:
        """Return the cell of a number, with its unit."""
        text = self.number(value)
        if text.endswith("%"):
            return NumberCell(value, text[:-1], "%", rest)
        return NumberCell(value, text, self.suffix, rest)

    def text(self, value: CellValue) -> str:
        """Return a value with its interval or deviation, as a `NumberCell` if it is one number.

        Several values are separated by spaces and follow their names.
        """
        if value is None:
            return NONE
        if isinstance(value, str):
            return value
        if isinstance(value, Estimate | CurveChoice):
            return self._interval(value)
        if isinstance(value, Spread):
            return NumberCell(value.mean, self.number(value.mean), "", f"± {self.number(value.deviation)}")
        if isinstance(value, Mapping):
            return " ".join(f"{name} {self.number(number)}" for name, number in value.items()) or NONE
        if isinstance(value, list):
            return " ".join(map(self.number, value)) or NONE
        return self.cell(value)

    def _interval(self, value: Estimate | CurveChoice) -> str:
        if value.value is None:
            return NOT_REACHED
        if value.low is None or value.high is None:
            return self.cell(value.value)
        return self.cell(value.value, f"[{self.number(value.low)}, {self.number(value.high)}]")


COUNT = Format("{:.0f}")
TENTHS, HUNDREDTHS, THOUSANDTHS = Format("{:.1f}"), Format("{:.2f}"), Format("{:.3f}")
TIMES = Format("{:.2f}", suffix="x")
PERCENT, TENTHS_OF_PERCENT, CHANGE = Format("{:.0%}"), Format("{:.1%}"), Format("{:+.1%}")
SCORE = Format("{:.1f}", scale=100.0)  # as papers print scores
SIGNED_SCORE = Format("{:+.1f}", scale=100.0)
THREE_DIGITS = Format("{:.3g}")
MILLISECONDS = Format("{:.0f}", scale=1e3)  # of seconds
HUNDREDTHS_OF_MS, THOUSANDTHS_OF_MS = Format("{:.2f}", scale=1e3), Format("{:.3f}", scale=1e3)
TEXT = Format()
