"""Colors, markers and line styles: the same for a method in every plot and on every page."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from zlib import crc32

from specbench.config.presets import preset
from specbench.errors import ConfigError

# Okabe and Ito's palette, readable with color vision deficiencies, without black and yellow, and with Tol's olive. All are
# readable on white and on a dark page.
BLUE, SKY, GREEN, ORANGE, RED, PURPLE, OLIVE = (
    "#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#cc79a7", "#999933",
)  # fmt: skip
NEUTRAL = "#7d8590"
INK, MUTED, RULE = "#1f2328", "#8c959f", "#d8dee4"  # text, axes and grid, as in style.mplstyle
COLORS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY, OLIVE)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "d")
DASHES = ("-", "--", "-.", ":")
DARK = {
    "#ffffff": "#0d1117",
    INK: "#e6edf3",
    MUTED: "#9198a1",
    RULE: "#3d444d",
}  # the page's dark colors, as in page.css
TEXT_SHADE = 0.72  # of a label relative to the color of its line
LINE_STEP = 0.16  # share of white from one shade to the next


@dataclass(frozen=True)
class Style:
    """How a method is drawn: a color, a marker, and a line style that distinguishes its settings."""

    color: str
    marker: str
    dashes: str = "-"


NAMED = {
    "blue": BLUE, "sky": SKY, "green": GREEN, "orange": ORANGE, "red": RED, "purple": PURPLE, "olive": OLIVE,
    "gray": NEUTRAL,
}  # fmt: skip
PARTS = {"draft": SKY, "middle": GREEN, "target": BLUE, "host": NEUTRAL}


def text_color(color: str) -> str:
    """Return a darker shade of a color, in which text is readable on white."""
    return "#" + "".join(f"{round(TEXT_SHADE * int(color[i : i + 2], 16)):02x}" for i in (1, 3, 5))


def dark(svg: str) -> str:
    """Return an SVG of `svg.compact` in colors for a dark page. Lines and markers keep their colors, labels are lighter."""
    svg = re.sub(r"(\.t\d+{[^}]*fill: )(#[0-9a-f]{6})", lambda match: match[1] + _on_dark(match[2]), svg)
    return re.sub("|".join(DARK), lambda match: DARK[match[0]], svg)


def _on_dark(color: str) -> str:
    """Return the color of a label on a dark page: the original of `text_color`, and lighter."""
    if color in DARK:
        return color
    parts = (min(int(color[i : i + 2], 16) / TEXT_SHADE, 255) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * 0.3):02x}" for part in parts)


def style_of(method: str, setting: int = 0) -> Style:
    """Return the style of a method. `setting` counts its settings in one plot.

    A method whose preset has no style, such as a plugin's, gets a color and a marker by a checksum of its name.
    """
    number = crc32(method.encode("utf-8", "replace"))
    by_name = Style(COLORS[number % len(COLORS)], MARKERS[number // len(COLORS) % len(MARKERS)])
    plain = preset_style(method) or by_name
    return Style(shade(plain.color, setting), plain.marker, DASHES[setting % len(DASHES)])


def preset_style(method: str) -> Style | None:
    """Return the style that the preset of a method has; None without one, or if the preset no longer exists.

    Raises ConfigError for an unknown color.
    """
    try:
        table = preset("method", method).table.get("style")
    except ConfigError:
        return None
    if table is None:
        return None
    if table.get("color") not in NAMED:
        raise ConfigError(f"{method}: style.color = {table.get('color')!r} is one of {', '.join(NAMED)}")
    return Style(NAMED[table["color"]], str(table.get("marker", MARKERS[0])))


def styles_of(presets: Mapping[str, str]) -> dict[str, Style]:
    """Return the styles of all methods of a run, by label. `presets` are their names without settings.

    A method keeps its own color unless an earlier one has it. It then gets the first unused color, or a lighter shade if all
    are used. Neutral colors are kept. No two methods have both the same color and the same marker, as long as there are
    enough.
    """
    styles: dict[str, Style] = {}
    for method, number in setting_numbers(presets).items():
        style = style_of(presets[method])
        used = {other.color for other in styles.values()} - {NEUTRAL}
        free = [color for color in COLORS if color not in used] or [shade(style.color, number)]
        color = free[0] if style.color in used else style.color
        pairs = {(other.color, other.marker) for other in styles.values()}
        marker = next((mark for mark in (style.marker, *MARKERS) if (color, mark) not in pairs), style.marker)
        styles[method] = Style(color, marker, DASHES[number % len(DASHES)])
    return styles


def part_colors(parts: list[str]) -> dict[str, str]:
    """Return the color of each model, and of the host, in a stacked bar. No two have the same as long as there are enough."""
    colors = {part: PARTS[part] for part in parts if part in PARTS}
    for part in parts:
        if part not in colors:
            free = [color for color in COLORS if color not in colors.values()]
            colors[part] = (free or COLORS)[0]
    return colors


def shade(color: str, step: int) -> str:
    """Return a lighter shade of a color for each step, three at most."""
    weight = LINE_STEP * (step % 4)
    parts = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * weight):02x}" for part in parts)


def setting_numbers(presets: Mapping[str, str]) -> dict[str, int]:
    """Return the position of each method among the settings of the same preset, in the order given."""
    counts: dict[str, int] = {}
    numbers = {}
    for method, name in presets.items():
        numbers[method] = counts.get(name, 0)
        counts[name] = numbers[method] + 1
    return numbers
