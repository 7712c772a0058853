"""Figures of several panels, written as SVG, PNG and PDF in the style of `style.mplstyle`.

Labels at the ends of lines and next to points are moved apart, so that no text covers another.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from specbench.reporting import escaping
from specbench.reporting.plots.styles import text_color

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

    from specbench.analysis.intervals import Estimate
    from specbench.analysis.run_summary import MethodSummary

WIDTH = 8.6  # inches: 825 pixels of a page
HEIGHT = 3.2  # inches of a panel that does not set its own
MOST_COLUMNS = 2
WIDEST = 18  # characters of a label next to one of several columns
FORMATS = ("svg", "png")  # by default
SUPPORTED_FORMATS = (*FORMATS, "pdf")
UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}  # so that equal plots are equal files
MARGINS = 1.0  # inches next to a panel, estimated for the width of its legend
ENTRY, LETTER = 32.0, 5.2  # points of a legend's entry without its text, and of a letter
LONGEST = 34  # characters of a label
GAP = 1.08  # distance of labels, in heights of a label
EDGE = 1.025  # of the labels at line ends, in widths of the panel
REACH = (7.0, 14.0, 24.0, 36.0, 50.0)  # points between a point and its label, tried in this order
DIRECTIONS = ((1, 1), (1, -1), (-1, 1), (-1, -1), (1, 0), (0, 1), (0, -1), (-1, 0))


@dataclass(frozen=True)
class Label:
    """A text for a position in data coordinates: at the right edge of the panel for a line, next to the point otherwise.

    `bars` are lines that no label should cover, such as the point's intervals, by their ends (x0, y0, x1, y1).
    """

    text: str
    x: float
    y: float
    color: str
    at_edge: bool = True
    bars: tuple[tuple[float, float, float, float], ...] = ()


class Panel(NamedTuple):
    """A title, the function that draws the panel and returns the labels to place in it, and its height in inches."""

    title: str
    draw: Callable[["Axes"], Sequence[Label]]
    height: float = HEIGHT


def save(
    path: Path, panels: Sequence[Panel], formats: Sequence[str] = FORMATS, columns: int = MOST_COLUMNS
) -> list[Path]:
    """Write the panels as one figure in each format, in one column if labels next to them are long.

    Returns the files; none if there are no panels. Characters of the name that need quoting in a shell, LaTeX or a URL are
    replaced by `-`.
    """
    if not panels:
        return []
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    from specbench.reporting.plots.svg import compact  # with an XML parser, which `list` does not need

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
            labels = panel.draw(axes)
            placed.append((axes, labels, _add_labels(axes, labels)))
        if columns > 1 and any(
            label.at_edge and len(label.text) > WIDEST for _, labels, _ in placed for label in labels
        ):
            return save(path, panels, formats, columns=1)
        for axes in list(grid.flat)[len(panels) :]:
            axes.remove()
        figure.draw_without_rendering()  # computes the layout, which the positions of labels depend on
        figure.set_layout_engine("none")
        for axes, labels, texts in placed:
            _separate_labels(axes, labels, texts)
        for file in files:
            figure.savefig(file, metadata=UNDATED.get(file.suffix[1:]))
            if file.suffix == ".svg":
                file.write_text(compact(file.read_text(encoding="utf-8")), encoding="utf-8")
    return files


def file_name(name: str) -> str:
    """Return a name of letters, digits, `.`, `_` and `-`."""
    return re.sub(r"[^\w.-]+", "-", name)


@contextmanager
def _styled(salt: str) -> Iterator[None]:
    """Apply the style. A fixed salt makes equal plots equal files."""
    import matplotlib as mpl

    with (
        resources.as_file(resources.files("specbench.reporting.plots") / "style.mplstyle") as style,
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


def note_rest(axes: "Axes", count: int, what: str) -> None:
    """Add a line below the label of the x axis that says how many methods are not shown or not labelled."""
    if count > 0:
        axes.set_xlabel(f"{axes.get_xlabel()}\n{count} more {'is' if count == 1 else 'are'} {what}")


def pareto(points: Iterable[tuple[float, float]], lower_x: bool) -> list[tuple[float, float]]:
    """Return the points that no other point dominates, by ascending x. Higher y is better; `lower_x`: lower x is better."""
    sign = 1.0 if lower_x else -1.0
    front: list[tuple[float, float]] = []
    for x, y in sorted(set(points), key=lambda point: (sign * point[0], -point[1])):
        if not front or y > front[-1][1]:
            front.append((x, y))
    return sorted(front)


def short(text: str) -> str:
    """Return a text for a figure, without quotation marks, and cut if it is long."""
    text = text.replace("'", "")
    return escaping.figure(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…")


def _add_labels(axes: "Axes", labels: Sequence[Label]) -> list["Annotation"]:
    """Add labels to a panel, before its layout is computed. `_separate_labels` moves them apart after it."""
    return [_add_label(axes, label) for label in labels]


def _add_label(axes: "Axes", label: Label) -> "Annotation":
    line = {"arrowstyle": "-", "color": label.color, "linewidth": 0.7, "alpha": 0.7, "shrinkA": 0, "shrinkB": 3}
    at = (
        {"xytext": (EDGE, 0.5), "textcoords": "axes fraction"}
        if label.at_edge
        else {"xytext": (7, 0), "textcoords": "offset points"}
    )
    annotation = axes.annotate(
        short(label.text), (label.x, label.y), color=text_color(label.color), va="center", ha="left", fontsize=8.5,
        annotation_clip=False, arrowprops=line, **at,
    )  # fmt: skip
    annotation.set_in_layout(label.at_edge)
    return annotation


def _separate_labels(axes: "Axes", labels: Sequence[Label], texts: Sequence["Annotation"]) -> None:
    """Move the labels of a panel apart, after its layout is computed."""
    pairs = list(zip(labels, texts, strict=True))
    _spread(axes, [text for label, text in pairs if label.at_edge])
    _place_labels(axes, [(label, text) for label, text in pairs if not label.at_edge])


def _spread(axes: "Axes", texts: Sequence["Annotation"]) -> None:
    """Move the labels at the edge up and down, as little as possible."""
    if not texts:
        return
    panel = axes.get_window_extent()
    size = max(_extent(text).height for text in texts) * GAP / panel.height
    inverted = axes.transAxes.inverted()
    targets = {text: float(inverted.transform(axes.transData.transform(text.xy))[1]) for text in texts}
    ordered = sorted(texts, key=lambda text: targets[text])
    heights = spread([targets[text] for text in ordered], size)
    for text, height in zip(ordered, heights, strict=True):
        text.set_position((EDGE, height))


def spread(targets: Sequence[float], gap: float) -> list[float]:
    """Return ascending positions at least `gap` apart, close to ascending targets.

    Positions that are too close form a group around the mean of their targets: with a gap of 2, the targets 0, 1 and 9 give
    -0.5, 1.5 and 9.
    """
    groups: list[list[float]] = []
    for target in targets:
        groups.append([target])
        while len(groups) > 1 and _start(groups[-1], gap) - _end(groups[-2], gap) < gap:
            groups[-2:] = [groups[-2] + groups[-1]]
    return [_start(group, gap) + gap * i for group in groups for i in range(len(group))]


def _start(group: Sequence[float], gap: float) -> float:
    return sum(group) / len(group) - gap * (len(group) - 1) / 2


def _end(group: Sequence[float], gap: float) -> float:
    return sum(group) / len(group) + gap * (len(group) - 1) / 2


def _place_labels(axes: "Axes", labels: Sequence[tuple[Label, "Annotation"]]) -> None:
    """Put each label next to its point, where it covers neither a label nor a point."""
    import numpy as np
    from matplotlib.transforms import Bbox

    panel = axes.get_window_extent()
    scale = axes.figure.dpi / 72  # pixels of a point
    centers = [axes.transData.transform((label.x, label.y)) for label, _ in labels]
    covered = [Bbox.from_bounds(x - 5 * scale, y - 5 * scale, 10 * scale, 10 * scale) for x, y in centers]
    for x0, y0, x1, y1 in (
        axes.transData.transform(np.reshape(bar, (2, 2))).ravel() for label, _ in labels for bar in label.bars
    ):
        covered.append(Bbox.from_extents(min(x0, x1) - 3, min(y0, y1) - 3, max(x0, x1) + 3, max(y0, y1) + 3))
    for (_, text), (x, y) in zip(labels, centers, strict=True):
        size = _extent(text)
        options: list[tuple[float, tuple[float, float], Bbox]] = []
        for reach in REACH:
            for right, up in DIRECTIONS:
                shift = (reach * right * (0.75 if up else 1.0), reach * up)
                box = _box(size, x + shift[0] * scale, y + shift[1] * scale, right, up)
                options.append((_cost(box, covered, panel) + 0.4 * reach, shift, box))
        _, shift, box = min(options, key=lambda option: option[0])
        covered.append(box)
        text.set_position(shift)
        text.set_horizontalalignment("center" if not shift[0] else "left" if shift[0] > 0 else "right")
        text.set_verticalalignment("center" if not shift[1] else "bottom" if shift[1] > 0 else "top")
        if text.arrow_patch is not None and max(map(abs, shift)) < REACH[2]:
            text.arrow_patch.set_visible(False)


def _extent(text: "Annotation") -> "Bbox":
    """Return the box of the text of an annotation, without its line."""
    from matplotlib.text import Text

    return Text.get_window_extent(text)


def _box(size: "Bbox", x: float, y: float, right: int, up: int) -> "Bbox":
    """Return the box of a text of this size whose near edge is at a position."""
    from matplotlib.transforms import Bbox

    left = x - size.width * (1 - right) / 2
    low = y - size.height * (1 - up) / 2
    return Bbox.from_bounds(left, low, size.width, size.height)


def _cost(box: "Bbox", boxes: Sequence["Bbox"], panel: "Bbox") -> float:
    """Return how bad a position is: the area over other labels and points, and outside the panel."""
    from matplotlib.transforms import Bbox

    covered = sum(_area(common) for other in boxes if (common := Bbox.intersection(box, other)))
    inside = Bbox.intersection(box, panel)
    return 3.0 * covered + 10.0 * (_area(box) - (_area(inside) if inside else 0.0))


def _area(box: "Bbox") -> float:
    return float(box.width * box.height)


def selected(rows: Sequence["MethodSummary"], most: int) -> list["MethodSummary"]:
    """Return at most `most` rows: all of them, or else the first setting of each method. Rows are ordered by preference."""
    if len(rows) <= most:
        return list(rows)
    first = {row.preset: row for row in reversed(rows)}
    return [row for row in rows if first[row.preset] is row][:most]
