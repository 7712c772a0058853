"""Tables of timed forwards by the number of tokens that they read, with a line per model: `specbench profile --forwards`."""

from collections.abc import Mapping

from specbench.analysis.costs import ForwardLine, Sizes, line_of
from specbench.analysis.number_format import CHANGE, COUNT, HUNDREDTHS, NONE, THOUSANDTHS_OF_MS
from specbench.note import Note, warning
from specbench.reporting.tables import Table

SLOWER = 0.8  # a block of two or three that takes less than this share of one token's time is suspicious
BLOCK = 6  # tokens that verify a draft of five
NOTE = (
    "Every forward reads the same context; costs at longer contexts differ. Forwards of all sizes take turns, and their"
    " times in a run differ, on small models by up to half. The line is fitted to blocks of two tokens and more, by"
    " least relative squares. A residual is the measured mean over the line, minus one."
    f" T({BLOCK})/T(1) is the cost of a block that verifies a draft of {BLOCK - 1}. Reading the weights once, at the"
    " measured read bandwidth (the copy bandwidth in runs without it), is the least time that a forward can take, unless the"
    " model fits into the processor's caches."
)


def lines_of(timed: Mapping[str, Sizes]) -> dict[str, ForwardLine]:
    """Return the line of each model of which enough sizes were timed."""
    return {role: line for role, sizes in timed.items() if (line := line_of(sizes))}


def lines_table(lines: Mapping[str, ForwardLine], bounds: Mapping[str, float]) -> Table:
    """Return one row per model. `bounds` are the seconds of reading its weights once, at the memory bandwidth."""
    ms = THOUSANDTHS_OF_MS.text
    rows = [
        [
            role,
            ms(line.one),
            THOUSANDTHS_OF_MS.cell(line.fixed, f"{'-' if line.per_token < 0 else '+'} {ms(abs(line.per_token))} n"),
            CHANGE.cell(line.residual(line.worst), f"at n = {line.worst}"),
            HUNDREDTHS.text(cost_of(line)),
            ms(bounds.get(role)),
        ]
        for role, line in lines.items()
    ]
    heads = [
        "model",
        "ms, 1 token",
        "ms, n tokens (n > 1)",
        "largest residual",
        f"T({BLOCK})/T(1)",
        "ms, weights read once",
    ]
    return Table("Forwards by tokens read", heads, rows)


def residuals_table(timed: Mapping[str, Sizes], lines: Mapping[str, ForwardLine]) -> Table:
    """Return one row per number of tokens: each model's mean, and its residual in parentheses."""
    sizes = sorted({size for role in lines for size in timed[role]})
    rows = [[COUNT.text(size), *(_cell(timed[role], line, size) for role, line in lines.items())] for size in sizes]
    return Table("Measured forwards", ["tokens", *(f"{role}, ms (residual)" for role in lines)], rows)


def _cell(sizes: Sizes, line: ForwardLine, size: int) -> str:
    if size not in sizes:
        return NONE
    count, spent = sizes[size]
    rest = f"({CHANGE.text(line.residual(size))})" if size in line.means else ""
    return THOUSANDTHS_OF_MS.cell(spent / count, rest)


def cost_of(line: ForwardLine) -> float:
    """Return the time of a block of BLOCK tokens / the time of one token."""
    return line.seconds(BLOCK) / line.one


def cost_sentences(lines: Mapping[str, ForwardLine]) -> list[Note]:
    """Return a sentence on the cost of a block for each model."""
    text = {role: HUNDREDTHS.text(cost_of(line)) for role, line in lines.items()}
    return [
        Note("cost of a block", f"{role}: a block of {BLOCK} tokens costs {cost} forwards of one token.", subject=role)
        for role, cost in text.items()
    ]


def slow_single_forwards(lines: Mapping[str, ForwardLine]) -> list[Note]:
    """Return a warning for each model whose forwards of one token took longer than forwards of two or three."""
    return [
        warning(
            "slow single forwards",
            f"{role}: a forward of one token took longer than one of {size}",
            help="--fresh on an idle machine",
            subject=role,
        )
        for role, line in lines.items()
        for size in [min((2, 3), key=line.seconds)]
        if line.seconds(size) < SLOWER * line.one
    ]
