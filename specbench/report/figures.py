"""Figures of several panels, written as PNG and SVG."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from specbench.report import escaping

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 4.2, 3.1  # inches of a panel
MOST_COLUMNS = 4
FORMATS = ("svg", "png")
LEGEND = 6  # font sizes
TITLE = 8
LABEL = 7
GRAY = "0.6"


class Panel(NamedTuple):
    """A title, and the function that draws the panel."""

    title: str
    draw: Callable[["Axes"], None]


def save(path: Path, panels: Sequence[Panel], formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write the panels as one figure in each format. Returns the files; none if there are no panels."""
    if not panels:
        return []
    import matplotlib as mpl
    from matplotlib.figure import Figure

    columns = min(len(panels), MOST_COLUMNS)
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(WIDTH * columns, HEIGHT * lines), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False)
    for axes, panel in zip(grid.flat, panels, strict=False):
        axes.set_title(escaping.figure(panel.title), fontsize=TITLE)
        axes.tick_params(labelsize=LABEL)
        panel.draw(axes)
        for label in (axes.xaxis.label, axes.yaxis.label):
            label.set_size(LABEL)
    for axes in list(grid.flat)[len(panels) :]:
        axes.remove()
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_name(f"{path.name}.{kind}") for kind in formats]
    # A fixed salt makes equal plots equal files. Text as text, not as outlines, takes a third of the size.
    with mpl.rc_context({"svg.hashsalt": path.name, "svg.fonttype": "none"}):
        for file in files:
            figure.savefig(file, dpi=130, metadata={"Date": None} if file.suffix == ".svg" else None)
    return files
