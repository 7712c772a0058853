"""Figures of several panels, written as SVG, PNG and PDF in the style of `style.mplstyle`."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from specbench.reporting import escaping, labels
from specbench.reporting.labels import Label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from specbench.analysis.intervals import Estimate

WIDTH = 8.6  # inches: 825 pixels of a page
HEIGHT = 3.2  # inches of a panel that does not set its own
MOST_COLUMNS = 2
WIDEST = 18  # characters of a label beside one of several columns
FORMATS = ("svg", "png")  # by default
KNOWN_FORMATS = (*FORMATS, "pdf")
UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}  # so that equal plots are equal files
MARGINS = 1.0  # inches beside a panel, estimated for the width of its legend
ENTRY, LETTER = 32.0, 5.2  # points of a legend's entry without its text, and of a letter


class Panel(NamedTuple):
    """A title, the function that draws the panel and returns the labels to place in it, and its height in inches."""

    title: str
    draw: Callable[["Axes"], Sequence[Label]]
    height: float = HEIGHT


def save(
    path: Path, panels: Sequence[Panel], formats: Sequence[str] = FORMATS, columns: int = MOST_COLUMNS
) -> list[Path]:
    """Write the panels as one figure in each format, in one column if labels beside them are long.

    Returns the files; none if there are no panels. Characters of the name that need quoting in a shell, LaTeX or a URL are
    replaced by `-`.
    """
    if not panels:
        return []
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    columns = min(len(panels), columns)
    rows = [panels[i : i + columns] for i in range(0, len(panels), columns)]
    heights = [max(panel.height for panel in row) for row in rows]
    path = path.with_name(file_name(path.name))
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_name(f"{path.name}.{kind}") for kind in formats]
    with _styled(path.name):
        figure = Figure(figsize=(WIDTH, sum(heights)), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
        grid = figure.subplots(len(rows), columns, squeeze=False, height_ratios=heights)
        placed = []
        for axes, panel in zip(grid.flat, panels, strict=False):
            axes.set_title(escaping.figure(panel.title))
            wanted = panel.draw(axes)
            placed.append((axes, wanted, labels.add(axes, wanted)))
        if columns > 1 and any(label.at_edge and len(label.text) > WIDEST for _, each, _ in placed for label in each):
            return save(path, panels, formats, columns=1)
        for axes in list(grid.flat)[len(panels) :]:
            axes.remove()
        figure.draw_without_rendering()  # computes the layout, which the places of labels depend on
        figure.set_layout_engine("none")
        for axes, wanted, texts in placed:
            labels.separate(axes, wanted, texts)
        for file in files:
            figure.savefig(file, metadata=UNDATED.get(file.suffix[1:]))
    return files


def file_name(name: str) -> str:
    """Return a name of letters, digits, `.`, `_` and `-`."""
    return re.sub(r"[^\w.-]+", "-", name)


@contextmanager
def _styled(salt: str) -> Iterator[None]:
    """Apply the style. A fixed salt makes equal plots equal files."""
    import matplotlib as mpl

    with (
        resources.as_file(resources.files("specbench.reporting") / "style.mplstyle") as style,
        mpl.rc_context(fname=style),
    ):
        mpl.rcParams["svg.hashsalt"] = salt
        yield


def errors(value: "Estimate", scale: float = 1.0) -> list[list[float]] | None:
    """Return the distances to the bounds of an interval, as `errorbar` takes them."""
    if value.low is None or value.high is None:
        return None
    return [[scale * max(value.value - value.low, 0.0)], [scale * max(value.high - value.value, 0.0)]]


def integer_ticks(axes: "Axes") -> None:
    """Put ticks of the x axis at integers only."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def legend_above(axes: "Axes") -> None:
    """Put the legend between the title and the panel, where it covers no data."""
    handles, names = axes.get_legend_handles_labels()
    if not handles:
        return
    spec = axes.get_subplotspec()
    room = 72 * (WIDTH / (spec.get_gridspec().ncols if spec else 1) - MARGINS)
    columns = max(min(int(room / (ENTRY + LETTER * max(map(len, names)))), len(handles)), 1)
    legend = axes.legend(
        loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=columns, borderaxespad=0.2, borderpad=0.2, handlelength=1.4,
        columnspacing=1.4,
    )  # fmt: skip
    legend.set_in_layout(False)
    lines = -(-len(handles) // columns)
    axes.set_title(axes.get_title(loc="left"), loc="left", pad=10 + 15 * lines)


def list_methods(axes: "Axes", labels: Sequence[str], above: float, below: float) -> None:
    """List methods down the y axis, the first one on top, with space `above` and `below` in rows and no grid between them."""
    axes.set_yticks(range(len(labels)), list(labels))
    axes.set_ylim(len(labels) - 1 + below, -above)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
