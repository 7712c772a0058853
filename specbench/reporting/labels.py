"""Labels in figures, moved apart so that no text covers another: at the ends of lines, and beside points."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specbench.reporting import escaping
from specbench.reporting.styles import text_color

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

LONGEST = 34  # characters of a label
GAP = 1.08  # distance of labels, in heights of a label
MARGIN = 1.025  # of the labels at line ends, in widths of the panel
REACH = (7.0, 14.0, 24.0, 36.0, 50.0)  # points between a point and its label, tried in this order
DIRECTIONS = ((1, 1), (1, -1), (-1, 1), (-1, -1), (1, 0), (0, 1), (0, -1), (-1, 0))


@dataclass(frozen=True)
class Label:
    """A text for a place in data coordinates: at the right edge of the panel for a line, beside the point otherwise.

    `bars` are lines that no label should cover, such as the point's intervals, by their ends (x0, y0, x1, y1).
    """

    text: str
    x: float
    y: float
    color: str
    at_edge: bool = True
    bars: tuple[tuple[float, float, float, float], ...] = ()


def short(text: str) -> str:
    """Return a text for a figure, without quotation marks, and cut if it is long."""
    text = text.replace("'", "")
    return escaping.figure(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…")


def add(axes: "Axes", labels: Sequence[Label]) -> list["Annotation"]:
    """Add labels to a panel, before its layout is computed. `separate` moves them apart after it."""
    return [_added(axes, label) for label in labels]


def _added(axes: "Axes", label: Label) -> "Annotation":
    line = {"arrowstyle": "-", "color": label.color, "linewidth": 0.7, "alpha": 0.7, "shrinkA": 0, "shrinkB": 3}
    at = (
        {"xytext": (MARGIN, 0.5), "textcoords": "axes fraction"}
        if label.at_edge
        else {"xytext": (7, 0), "textcoords": "offset points"}
    )
    found = axes.annotate(
        short(label.text), (label.x, label.y), color=text_color(label.color), va="center", ha="left", fontsize=8.5,
        annotation_clip=False, arrowprops=line, **at,
    )  # fmt: skip
    found.set_in_layout(label.at_edge)
    return found


def separate(axes: "Axes", labels: Sequence[Label], texts: Sequence["Annotation"]) -> None:
    """Move the labels of a panel apart, after its layout is computed."""
    pairs = list(zip(labels, texts, strict=True))
    _spread(axes, [text for label, text in pairs if label.at_edge])
    _place(axes, [(label, text) for label, text in pairs if not label.at_edge])


def _spread(axes: "Axes", texts: Sequence["Annotation"]) -> None:
    """Move the labels at the edge up and down, as little as possible."""
    if not texts:
        return
    panel = axes.get_window_extent()
    size = max(_extent(text).height for text in texts) * GAP / panel.height
    inverted = axes.transAxes.inverted()
    wanted = {text: float(inverted.transform(axes.transData.transform(text.xy))[1]) for text in texts}
    ordered = sorted(texts, key=lambda text: wanted[text])
    heights = spread([wanted[text] for text in ordered], size)
    for text, height in zip(ordered, heights, strict=True):
        text.set_position((MARGIN, height))


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Return ascending positions at least `gap` apart, close to the ascending ones that are wanted.

    Positions that are too close form a group around the mean of what its members want.
    """
    groups: list[list[float]] = []
    for each in wanted:
        groups.append([each])
        while len(groups) > 1 and _start(groups[-1], gap) - _end(groups[-2], gap) < gap:
            groups[-2:] = [groups[-2] + groups[-1]]
    return [_start(group, gap) + gap * i for group in groups for i in range(len(group))]


def _start(group: Sequence[float], gap: float) -> float:
    return sum(group) / len(group) - gap * (len(group) - 1) / 2


def _end(group: Sequence[float], gap: float) -> float:
    return sum(group) / len(group) + gap * (len(group) - 1) / 2


def _place(axes: "Axes", labels: Sequence[tuple[Label, "Annotation"]]) -> None:
    """Put each label beside its point, where it covers neither a label nor a point."""
    import numpy as np
    from matplotlib.transforms import Bbox

    panel = axes.get_window_extent()
    scale = axes.figure.dpi / 72  # pixels of a point
    centers = [axes.transData.transform((label.x, label.y)) for label, _ in labels]
    taken = [Bbox.from_bounds(x - 5 * scale, y - 5 * scale, 10 * scale, 10 * scale) for x, y in centers]
    for x0, y0, x1, y1 in (
        axes.transData.transform(np.reshape(bar, (2, 2))).ravel() for label, _ in labels for bar in label.bars
    ):
        taken.append(Bbox.from_extents(min(x0, x1) - 3, min(y0, y1) - 3, max(x0, x1) + 3, max(y0, y1) + 3))
    for (_, text), (x, y) in zip(labels, centers, strict=True):
        size = _extent(text)
        found: list[tuple[float, tuple[float, float], Bbox]] = []
        for reach in REACH:
            for right, up in DIRECTIONS:
                shift = (reach * right * (0.75 if up else 1.0), reach * up)
                box = _box(size, x + shift[0] * scale, y + shift[1] * scale, right, up)
                found.append((_cost(box, taken, panel) + 0.4 * reach, shift, box))
        _, shift, box = min(found, key=lambda each: each[0])
        taken.append(box)
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
    """Return the box of a text of this size whose near edge is at a place."""
    from matplotlib.transforms import Bbox

    left = x - size.width * (1 - right) / 2
    low = y - size.height * (1 - up) / 2
    return Bbox.from_bounds(left, low, size.width, size.height)


def _cost(box: "Bbox", taken: Sequence["Bbox"], panel: "Bbox") -> float:
    """Return how bad a place is: the area over other labels and points, and outside the panel."""
    from matplotlib.transforms import Bbox

    covered = sum(_area(common) for each in taken if (common := Bbox.intersection(box, each)))
    inside = Bbox.intersection(box, panel)
    return 3.0 * covered + 10.0 * (_area(box) - (_area(inside) if inside else 0.0))


def _area(box: "Bbox") -> float:
    return float(box.width * box.height)
