"""Plots as PNG and SVG: what a suite's figure shows, and what explains a run."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, TypedDict

from specbench.analysis.differences import places
from specbench.analysis.points import Point, bounds_of, number_of
from specbench.config.pair import folder
from specbench.config.suite import PlotSpec
from specbench.errors import ConfigError
from specbench.files import read_json
from specbench.report import escaping
from specbench.report.suite_report import Collected
from specbench.report.suite_tables import HEADS, dimension, is_at

WIDE, HIGH = 4.2, 3.1  # inches of a panel
MOST_COLUMNS = 4
FORMATS = ("svg", "png")
SCALES = {"score": 100.0}  # values that are told times 100
CURVE = PlotSpec(x="relative_latency", y="score", panels=("task", "T"), flat=("ar",))
Drawing = Callable[[Any], None]


def of_suite(collected: Collected, into: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """The suite's plots, or speedups as bars where it names none; and what explains the first run of each pair."""
    specs = collected.suite.plots
    name = collected.suite.name
    drawn: list[Path] = []
    for i, spec in enumerate(specs):
        panels = [(title, _lines(spec, points)) for title, points in _panels(spec, collected.points)]
        drawn += _save(into / (f"{name}-{i + 1}" if len(specs) > 1 else name), panels, formats)
    if not specs and any(_bar_points(collected.points)):
        drawn += _save(into / name, [(title, _bars(points)) for title, points in _by_cell(collected.points)], formats)
    seen: set[str] = set()
    for summary in collected.summaries:
        if summary["pair"] not in seen:
            seen.add(summary["pair"])
            drawn += _save(into / f"{name}-explained-{summary['pair']}", _explained(summary), formats)
    return drawn


def of_runs(summaries: Sequence[dict[str, Any]], into: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """What explains each run: acceptance by position, tokens a round, where the time goes."""
    titles = places(summaries) if len(summaries) > 1 else [""]
    named = Counter[str]()
    drawn: list[Path] = []
    for summary, title in zip(summaries, titles, strict=True):
        named[summary["run"]] += 1
        again = f"-{named[summary['run']]}" if named[summary["run"]] > 1 else ""  # of another folder
        drawn += _save(into / f"{summary['run']}{again}", _explained(summary, title), formats)
    return drawn


def of_curve(name: str, found: Sequence[Point], into: Path) -> list[Path]:
    """Quality against relative latency of one run's curves."""
    return _save(into / f"{name}-curve", [(title, _lines(CURVE, points)) for title, points in _panels(CURVE, found)])


def _panels(spec: PlotSpec, found: Sequence[Point]) -> list[tuple[str, list[Point]]]:
    """The points of each panel under its title; summaries of whole curves and groups of prompts are left out."""
    kept = [p for p in found if "curve" not in p["values"] and not p["group"]]

    def place(point: Point) -> tuple[Any, ...]:
        return tuple(point[key] for key in spec.panels)

    order = list(dict.fromkeys(map(place, kept)))
    kept.sort(key=lambda point: order.index(place(point)))
    panels = [(words, list(points)) for words, points in groupby(kept, place)]
    return [
        (_title([dimension(key, word) for key, word in zip(spec.panels, words, strict=True)], points), points)
        for words, points in panels
    ]


def _title(words: list[str], points: list[Point]) -> str:
    made_up = dict.fromkeys(word for point in points for word in point["made_up"].split())
    return ", ".join(words) + "".join(f" ({word})" for word in made_up)


def _lines(spec: PlotSpec, points: list[Point]) -> Drawing:
    """A line with its band for each of the spec's lines; methods of `flat` are horizontal, or single points."""

    def draw(axes: Any) -> None:
        families: dict[tuple[Any, ...], list[Point]] = {}
        for point in points:
            known = _x(spec, point) is not None and _y(spec, point) is not None
            if known and point["method"] not in spec.flat and not (spec.x == "x" and point["baseline"]):
                families.setdefault(tuple(point[key] for key in spec.lines), []).append(point)
        for words, family in families.items():
            family.sort(key=lambda point: _x(spec, point) or 0.0)
            label = ", ".join(dimension(key, word) for key, word in zip(spec.lines, words, strict=True))
            xs, ys = [_x(spec, p) or 0.0 for p in family], [_y(spec, p) or 0.0 for p in family]
            (line,) = axes.plot(xs, ys, marker="o", markersize=3, linewidth=1.2, label=escaping.figure(label))
            bands = [bounds_of(p["values"][spec.y]) or (y, y) for p, y in zip(family, ys, strict=True)]
            scale = SCALES.get(spec.y, 1.0)
            low, high = ([scale * each[side] for each in bands] for side in (0, 1))
            axes.fill_between(xs, low, high, color=line.get_color(), alpha=0.3 / len(families), linewidth=0)
        for point in points:
            if is_at(point, {"method": list(spec.flat)}) and _y(spec, point) is not None:
                _flat(axes, spec, point)
        if spec.y in ("speedup", "end_to_end_speedup"):
            axes.axhline(1.0, color="0.6", linewidth=0.8, zorder=0)
        axes.set_xscale(spec.x_axis)
        swept = dict.fromkeys(p["setting"].partition("=")[0] for p in points if p["setting"])
        axes.set_xlabel(escaping.figure(", ".join(swept)) if spec.x == "x" else HEADS.get(spec.x, spec.x))
        axes.set_ylabel(HEADS.get(spec.y, spec.y))
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=6, frameon=False)

    return draw


def _flat(axes: Any, spec: PlotSpec, point: Point) -> None:
    """A method without a parameter: a star where it stands, and a line at its quality."""
    axes.axhline(_y(spec, point), color="0.4", linewidth=0.7, linestyle=":", zorder=0)
    if spec.x != "x" and _x(spec, point) is not None:
        axes.plot(
            [_x(spec, point)],
            [_y(spec, point)],
            marker="*",
            markersize=9,
            linestyle="",
            label=escaping.figure(point["method"]),
        )


def _x(spec: PlotSpec, point: Point) -> float | None:
    return point["x"] if spec.x == "x" else number_of(point["values"].get(spec.x))


def _y(spec: PlotSpec, point: Point) -> float | None:
    number = number_of(point["values"].get(spec.y))
    return None if number is None else SCALES.get(spec.y, 1.0) * number


def _bar_points(found: Iterable[Point]) -> list[Point]:
    return [p for p in found if not p["group"] and isinstance(p["values"].get("speedup"), dict)]


def _by_cell(found: Sequence[Point]) -> list[tuple[str, list[Point]]]:
    spec = PlotSpec(x="x", y="speedup", panels=("pair", "task", "T"))
    return _panels(spec, _bar_points(found))


def _bars(points: list[Point]) -> Drawing:
    """Speedups with their intervals, and what theory gives at measured prices as a mark."""

    def draw(axes: Any) -> None:
        labels = [escaping.figure(" ".join(filter(None, (p["method"], p["setting"])))) for p in points]
        values = [number_of(p["values"]["speedup"]) or 0.0 for p in points]
        bounds = [bounds_of(p["values"]["speedup"]) or (v, v) for p, v in zip(points, values, strict=True)]
        errors = [
            [v - b[0] for v, b in zip(values, bounds, strict=True)],
            [b[1] - v for v, b in zip(values, bounds, strict=True)],
        ]
        axes.barh(labels, values, xerr=errors, color="#4c78a8", height=0.6, error_kw={"linewidth": 0.8})
        theory = [number_of(p["values"].get("corrected")) for p in points]
        marks = [(t, i) for i, t in enumerate(theory) if t is not None]
        if marks:
            axes.plot(*zip(*marks, strict=True), marker="|", markersize=12, linestyle="", color="black", label="theory")
            axes.legend(fontsize=6, frameon=False)
        axes.axvline(1.0, color="0.6", linewidth=0.8)
        axes.invert_yaxis()
        axes.tick_params(axis="y", labelsize=6)
        axes.set_xlabel(HEADS["speedup"])

    return draw


def _explained(summary: dict[str, Any], place: str = "") -> list[tuple[str, Drawing]]:
    rows = [row for row in summary["methods"] if "tokens" in row]
    where = place or f"{summary['pair']}, {summary['task']}"
    drafting = [row for row in rows if row["acceptance_by_position"]]
    curves = {name: told for name, head in summary["heads"].items() if (told := _curve_of(head))}
    return [
        (f"{where}: acceptance by position", lambda axes: _positions(axes, drafting)),
        ("tokens a round", lambda axes: _histogram(axes, drafting)),
        ("where a committed token's time goes", lambda axes: _time(axes, rows)),
        *(("ROC of the verifiers on unseen texts", lambda axes: _roc(axes, curves)) for _ in range(bool(curves))),
    ]


def _positions(axes: Any, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        rates = row["acceptance_by_position"]
        axes.plot(
            range(1, len(rates) + 1), rates, marker="o", markersize=3, linewidth=1, label=escaping.figure(row["label"])
        )
    axes.set_ylim(0, 1.05)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("position in the draft")
    axes.set_ylabel("acceptance, given all before")
    if 0 < len(rows) <= MOST_COLUMNS * 2:
        axes.legend(fontsize=6, frameon=False)


def _histogram(axes: Any, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        counts = {int(length): count for length, count in row["length_counts"].items()}
        total = sum(counts.values())
        lengths = range(min(counts), max(counts) + 1)
        shares = [counts.get(n, 0) / total for n in lengths]
        axes.plot(lengths, shares, marker="o", markersize=3, linewidth=1, label=escaping.figure(row["label"]))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("tokens a round")
    axes.set_ylabel("share of rounds")


def _time(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Milliseconds a committed token, by model and the rest (host), one bar a method."""
    parts = list(dict.fromkeys(part for row in rows for part in row["round_milliseconds"]))
    left = [0.0] * len(rows)
    labels = [escaping.figure(row["label"]) for row in rows]
    for part in parts:
        spent = [row["round_milliseconds"].get(part, 0.0) / row["accepted_length"] for row in rows]
        axes.barh(labels, spent, left=left, height=0.6, label=escaping.figure(part))
        left = [a + b for a, b in zip(left, spent, strict=True)]
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=6)
    axes.set_xlabel("ms a committed token")
    axes.legend(fontsize=6, frameon=False)


class _Roc(TypedDict):
    """What a verifier's training reported (report.json), as far as the plot needs it."""

    curve: list[tuple[float, float]]  # false positive rate, true positive rate
    auc: float
    eta_fp: float
    eta_tp: float


def _curve_of(head: dict[str, Any]) -> _Roc | None:
    """What a verifier's training reported beside it; None where it is another head, not here, or damaged."""
    place = folder(head["source"], Path()) if head["kind"] == "sprinter" else None
    report = place / "report.json" if place else None
    try:
        return read_json(report, _Roc) if report and report.exists() else None
    except ConfigError:
        return None


def _roc(axes: Any, curves: dict[str, _Roc]) -> None:
    for name, told in curves.items():
        axes.plot(
            *zip(*told["curve"], strict=True), linewidth=1, label=escaping.figure(f"{name}: AUC {told['auc']:.3f}")
        )
        axes.plot([told["eta_fp"]], [told["eta_tp"]], "k.", markersize=4)
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=0.8)
    axes.set_xlabel("unacceptable tokens accepted (eta_FP)")
    axes.set_ylabel("acceptable tokens accepted (eta_TP)")
    axes.legend(fontsize=6, frameon=False)


def _save(path: Path, panels: Sequence[tuple[str, Drawing]], formats: Sequence[str] = FORMATS) -> list[Path]:
    """The panels as one figure, in each of the formats; nothing where there are none."""
    if not panels:
        return []
    import matplotlib as mpl
    from matplotlib.figure import Figure

    columns = min(len(panels), MOST_COLUMNS)
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(WIDE * columns, HIGH * lines), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False)
    for axes, (title, draw) in zip(grid.flat, panels, strict=False):
        axes.set_title(escaping.figure(title), fontsize=8)
        axes.tick_params(labelsize=7)
        draw(axes)
        for label in (axes.xaxis.label, axes.yaxis.label):
            label.set_size(7)
    for axes in list(grid.flat)[len(panels) :]:
        axes.remove()
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_name(f"{path.name}.{kind}") for kind in formats]
    # the same plot is the same file; letters, not outlines: a third of the size
    with mpl.rc_context({"svg.hashsalt": path.name, "svg.fonttype": "none"}):
        for file in files:
            figure.savefig(file, dpi=130, metadata={"Date": None} if file.suffix == ".svg" else None)
    return files
