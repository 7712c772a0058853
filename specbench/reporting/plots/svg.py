"""SVG files of matplotlib, rewritten with a quarter of the bytes. They look the same."""

import re
import xml.etree.ElementTree as ET

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
DIGITS = 2  # decimals of a coordinate in points
UNTURNED = re.compile(r"rotate\(-?0 [^)]*\)")
COORDINATES = ("d", "x", "y", "width", "height")


def compact(text: str) -> str:
    """Return an SVG with rounded coordinates, a class for each style, and neither metadata nor groups that only have a name.

    Classes of texts begin with `t`, all others with `s`.
    """
    ET.register_namespace("", SVG)
    root = ET.fromstring(text)
    if (metadata := root.find(f"{{{SVG}}}metadata")) is not None:
        root.remove(metadata)
    _unwrap(root)
    _number_ids(root)
    classes: dict[str, str] = {}
    for element in root.iter():
        _shorten(element)
        _classify(element, classes)
    sheet = root.find(f".//{{{SVG}}}style")
    assert sheet is not None and sheet.text
    fonts = re.findall(r"font-family: [^;]*; ", "".join(classes))
    common = max(fonts, key=fonts.count, default="")
    rules = [f".{name}{{{style.replace(common, '')}}}" for style, name in classes.items()]
    sheet.text = "\n".join([sheet.text, f"text{{{common}}}", *rules])
    return ET.tostring(root, encoding="unicode").replace(" />", "/>") + "\n"


def _unwrap(parent: ET.Element) -> None:
    """Replace groups without attributes except a name by their children."""
    children = list(parent)
    for child in children:
        _unwrap(child)
    parent[:] = [
        inner
        for child in children
        for inner in (list(child) if child.tag == f"{{{SVG}}}g" and set(child.attrib) <= {"id"} else [child])
    ]


def _number_ids(root: ET.Element) -> None:
    """Replace the names of markers and clip paths by short ones. Names of groups, which nothing refers to, are removed."""
    names: dict[str, str] = {}
    for element in root.iter():
        if (name := element.attrib.pop("id", "")) and element.tag != f"{{{SVG}}}g":
            element.set("id", names.setdefault(name, f"i{len(names)}"))
    for element in root.iter():
        if target := element.attrib.pop(f"{{{XLINK}}}href", ""):
            element.set("href", f"#{names[target[1:]]}")
        if clip := element.get("clip-path"):
            element.set("clip-path", f"url(#{names[clip[5:-1]]})")


def _shorten(element: ET.Element) -> None:
    """Round an element's coordinates and remove its white space. Texts are kept: their white space can be visible."""
    for name in COORDINATES:
        if value := element.get(name):
            element.set(name, re.sub(r"\s*([A-Za-z])\s*", r"\1", NUMBER.sub(_rounded, value)).strip())
    if UNTURNED.fullmatch(element.get("transform", "")):
        del element.attrib["transform"]
    if element.tag not in (f"{{{SVG}}}text", f"{{{SVG}}}tspan", f"{{{SVG}}}style"):
        element.text = "\n" if len(element) else None
        for child in element:
            child.tail = "\n"


def _rounded(number: re.Match[str]) -> str:
    short = f"{float(number[0]):.{DIGITS}f}".rstrip("0").rstrip(".")
    return "0" if short == "-0" else short


def _classify(element: ET.Element, classes: dict[str, str]) -> None:
    """Replace an element's style and clip path by a class."""
    style, clip = element.attrib.pop("style", ""), element.attrib.pop("clip-path", "")
    if not (style or clip):
        return
    both = "; ".join(filter(None, (style, clip and f"clip-path: {clip}")))
    kind = "t" if element.tag in (f"{{{SVG}}}text", f"{{{SVG}}}tspan") else "s"
    element.set("class", classes.setdefault(both, f"{kind}{len(classes)}"))
