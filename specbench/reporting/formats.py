"""How values are written as text. Every number of a summary in a table, note, page or plot is written by a `Format`."""

from collections.abc import Mapping
from dataclasses import dataclass

from specbench.analysis.chains import NONE
from specbench.analysis.intervals import Estimate
from specbench.analysis.points import Choice, PointValue
from specbench.analysis.run_metrics import Spread

NOT_REACHED = "not reached"  # for the summary of a curve that never meets its condition
CellValue = PointValue | Mapping[str, float]


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

    def text(self, value: CellValue) -> str:
        """Return a value with its interval or deviation. Several values are separated by spaces and follow their names."""
        if value is None:
            return NONE
        if isinstance(value, str):
            return value
        if isinstance(value, Estimate | Choice):
            return self._interval(value)
        if isinstance(value, Spread):
            return f"{self.number(value.mean)} ± {self.number(value.deviation)}"
        if isinstance(value, Mapping):
            return " ".join(f"{name} {self.number(each)}" for name, each in value.items()) or NONE
        if isinstance(value, list):
            return " ".join(map(self.number, value)) or NONE
        return self.number(value) + self.suffix

    def _interval(self, value: Estimate | Choice) -> str:
        if value.value is None:
            return NOT_REACHED
        text = self.number(value.value) + self.suffix
        if value.low is None or value.high is None:
            return text
        return f"{text} [{self.number(value.low)}, {self.number(value.high)}]"


COUNT = Format("{:.0f}")
TENTHS, HUNDREDTHS, THOUSANDTHS = Format("{:.1f}"), Format("{:.2f}"), Format("{:.3f}")
TIMES = Format("{:.2f}", suffix="x")
PERCENT, TENTHS_OF_PERCENT, CHANGE = Format("{:.0%}"), Format("{:.1%}"), Format("{:+.1%}")
SCORE = Format("{:.1f}", scale=100.0)  # as papers print scores
SIGNED_SCORE = Format("{:+.1f}", scale=100.0)
THREE_DIGITS = Format("{:.3g}")
MILLISECONDS = Format("{:.0f}", scale=1e3)  # of seconds
TEXT = Format()
