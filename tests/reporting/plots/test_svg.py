"""SVG files of figures: small, and with the same content as matplotlib's."""

import io
import re
import xml.etree.ElementTree as ET

from matplotlib import rc_context
from matplotlib.figure import Figure

from specbench.reporting.plots.styles import dark
from specbench.reporting.plots.svg import SVG, compact


def drawn() -> str:
    """A figure with markers, a clip path, rotated text, a mathematical text and a character that XML escapes."""
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "x"}):
        figure = Figure()
        axes = figure.add_subplot()
        axes.errorbar([0, 1, 2], [1, 3, 2], yerr=0.4, marker="o", label="a < b  &  c />")
        axes.set(ylabel="tokens/s", title="$x^2$ and  two spaces")
        axes.legend()
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def texts(svg: str) -> list[str]:
    return ["".join(element.itertext()) for element in ET.fromstring(svg).iter(f"{{{SVG}}}text")]


def shapes(svg: str) -> list[str]:
    kinds = {f"{{{SVG}}}{name}" for name in ("path", "use", "rect", "text")}
    return [element.tag for element in ET.fromstring(svg).iter() if element.tag in kinds]


def test_every_shape_and_text_is_kept_in_less_than_half_of_the_bytes():
    before = drawn()
    after = compact(before)
    assert shapes(after) == shapes(before)
    assert texts(after) == texts(before)
    assert len(after) < len(before) / 2


def test_every_reference_has_its_definition():
    svg = compact(drawn())
    root = ET.fromstring(svg)
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    used = {element.get("href", "#")[1:] for element in root.iter()} - {""}
    assert used | set(re.findall(r"url\(#(\w+)\)", svg)) == set(ids)
    assert len(ids) == len(set(ids))
    classes = {element.get("class") for element in root.iter()} - {None}
    assert classes == set(re.findall(r"^\.(\w+)\{", svg, re.M))


def test_coordinates_keep_two_decimals():
    number = re.compile(r"-?\d+(?:\.\d+)?")
    for before, after in zip(
        ET.fromstring(drawn()).iter(f"{{{SVG}}}path"),
        ET.fromstring(compact(drawn())).iter(f"{{{SVG}}}path"),
        strict=True,
    ):
        old, new = (list(map(float, number.findall(path.get("d")))) for path in (before, after))
        assert len(old) == len(new) and all(abs(a - b) <= 0.00501 for a, b in zip(old, new, strict=True))


def test_a_dark_page_has_light_texts_and_no_white_background():
    svg = dark(compact(drawn().replace("#000000", "#1f2328")))
    assert "#ffffff" not in svg and "#1f2328" not in svg
    assert all("#e6edf3" in rule for rule in re.findall(r"^\.t\d+\{.*fill: .*\}$", svg, re.M))
