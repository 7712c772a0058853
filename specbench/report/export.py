"""Measured points as JSON and CSV."""

import csv
import io
from collections.abc import Iterable

from specbench.analysis.points import PLACE, Point, bounds_of, number_of
from specbench.report import escaping


def as_json(found: Iterable[Point]) -> str:
    return escaping.json_text(list(found), indent=1) + "\n"


def as_csv(found: Iterable[Point]) -> str:
    """A line a point and value: what it is, its interval, and the paper's."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*PLACE, "metric", "value", "low", "high", "paper"])
    for point in found:
        for metric, value in point["values"].items():
            number, bounds = number_of(value), bounds_of(value)
            if number is not None and bounds is not None:
                low, high = bounds if bounds != (number, number) else ("", "")
                paper = point["paper"].get(metric, "")
                line = [*(point[key] for key in PLACE), metric, number, low, high, paper]
                writer.writerow(map(escaping.csv_value, line))
    return text.getvalue()
