"""Widths of texts and tables in LaTeX's default font, Computer Modern, estimated without running LaTeX."""

from collections.abc import Sequence
from textwrap import wrap
from typing import NamedTuple

TEXT_WIDTH = 345.0  # points: of the class article at 10 pt, on letter paper
MARGIN = 0.98  # share of it that an estimate may fill
GAP = 4.0  # points between a number and what follows it, 0.4 em
BOLD = 1.15  # width of bold digits beside others
GROUPS = {  # points at 10 pt, by character
    2.8: "il.,:;'![]|", 3.3: " -`", 3.9: "rsfjt()/", 4.5: "cez", 5.0: "ago0123456789*", 5.6: "bdhnpuvkqxyI",
    7.3: "wABCEFLPRSTJZY_",
    8.4: "m%DGHKNOQUVX±×+=<>−&#@", 10.3: "MW",
}  # fmt: skip
WIDTHS = {letter: width for width, letters in GROUPS.items() for letter in letters}
UNKNOWN = 7.5  # points of another character


class Size(NamedTuple):
    """A font size of a table, and that of what follows a number, each with its width relative to 10 pt."""

    command: str
    scale: float
    small_command: str
    small_scale: float
    separation: float  # points at each side of a column


SIZES = (
    Size("", 1.0, r"\footnotesize", 0.85, 6.0),
    Size(r"\small", 0.925, r"\footnotesize", 0.85, 4.0),
    Size(r"\footnotesize", 0.85, r"\scriptsize", 0.8, 3.0),
)


def text_width(text: str) -> float:
    """Return the width of a text at 10 pt, in points."""
    return sum(WIDTHS.get(letter, UNKNOWN) for letter in text)


def lines_of(heading: str, width: float) -> list[str]:
    """Return a heading in the fewest lines that are no wider than this many points, or than its longest word."""
    least = max(width, *map(text_width, heading.split()), 0.0) if heading.split() else width
    for length in range(len(heading), 0, -1):
        lines = wrap(heading, length, break_long_words=False, break_on_hyphens=False)
        if max(map(text_width, lines), default=0.0) <= least:
            return lines
    return heading.split()


def fits(widths: Sequence[float], size: Size) -> bool:
    """Return whether columns of these widths fit the width of a page's text."""
    return sum(each + 2 * size.separation for each in widths) <= MARGIN * TEXT_WIDTH
