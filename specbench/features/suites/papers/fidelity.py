"""Tables that show how closely the stand-ins of a suite resemble the paper's pairs."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from specbench.analysis.number_format import HUNDREDTHS, NONE, THOUSANDTHS, Format, NumberCell
from specbench.analysis.points import Point, Reference
from specbench.analysis.run_summary import RunSummary
from specbench.features.suites.papers.stand_ins import LENGTHS, PRINTED_SPEED, StandIns, model_bytes, same_task
from specbench.reporting.tables import Table


def fidelity_tables(stand_ins: StandIns, printed: Sequence[Reference]) -> list[Table]:
    """Return the tables of costs and of acceptance of stand-ins; empty without one.

    `printed` are the values that the paper prints in this table, with its own names of pairs.
    """
    runs = {pair: [summary for summary in stand_ins.summaries if summary.pair == pair] for pair in stand_ins.pairs}
    costs = [row for pair in runs for row in _cost_rows(stand_ins, pair, runs[pair])]
    acceptance = [row for pair in runs for row in _acceptance_rows(stand_ins, pair, printed)]
    tables = []
    if costs:
        heads = [
            "pair",
            "stands for",
            "model",
            "in the paper",
            "MB, paper",
            "MB, here",
            "ratio, paper",
            "ratio, here",
            "time ratio, here",
            "time of a block, here",
        ]
        title = "Cost of the stand-ins: weights per forward of one token (paper in bfloat16), and measured times"
        tables.append(Table(title, heads, costs))
    if acceptance:
        heads = ["pair", "task", "T", "method", "value", "paper", "here", "difference"]
        title = "Acceptance: printed, or implied by printed speeds (of all tasks where the task is not printed)"
        tables.append(Table(title, heads, acceptance))
    return tables


def _cost_rows(stand_ins: StandIns, pair: str, summaries: Sequence[RunSummary]) -> Iterator[list[str]]:
    """Yield a row for each model and head whose forwards the methods of some runs use; the target is the last model."""
    original = stand_ins.pairs[pair]
    theirs, ours = model_bytes(original), stand_ins.bytes_here(pair)
    traits = [spec.traits for summary in summaries for spec in summary.spec.methods.values()]
    used = [name for name in dict.fromkeys(n for each in traits for n in (*each.roles, *each.heads)) if name in theirs]
    target = next((role for role in reversed(list(summaries[0].models)) if role in used), "")
    for name in used:
        if name in ours and target in ours:
            block = stand_ins.block_of(pair, name)
            seconds = [stand_ins.seconds_of(pair, role) for role in (name, target)]
            times = seconds[0] / seconds[1] if seconds[0] is not None and seconds[1] else None
            megabytes = [size[name].forward / 1e6 for size in (theirs, ours)]
            yield [
                pair, original, name, theirs[name].source,
                NumberCell(megabytes[0], f"{megabytes[0]:,.0f}"), NumberCell(megabytes[1], f"{megabytes[1]:,.1f}"),
                *(THOUSANDTHS.text(size[name].forward / size[target].forward) for size in (theirs, ours)),
                NONE if times is None else THOUSANDTHS.text(times),
                NONE if block is None else NumberCell(block.cost, f"{block.cost:.2f}", rest=f"({block.size} tokens)"),
            ]  # fmt: skip


def _acceptance_rows(stand_ins: StandIns, pair: str, printed: Sequence[Reference]) -> Iterator[list[str]]:
    """Yield rows for printed accepted lengths, and for the acceptance rates that printed speeds imply."""
    here = [point for point in stand_ins.points if point.pair == pair and not point.group and not point.is_curve]
    for row in printed:
        if row.pair == stand_ins.pairs[pair] and not row.group and row.metric in LENGTHS:
            for best in _best_of(_counterparts(here, row), row.metric):
                theirs, ours = row.value, best.number(row.metric)
                yield _row(best, row.metric.replace("_", " "), HUNDREDTHS, theirs, ours)
    for best in _best_of([point for point in here if stand_ins.theory(point) is not None], PRINTED_SPEED):
        rate = stand_ins.implied(best)
        if rate is not None or stand_ins.printed(best):
            word = "implied" if rate is not None else "no rate gives the printed speed"
            yield _row(best, f"acceptance rate (paper: {word})", THOUSANDTHS, rate, best.number("acceptance_rate"))


def _best_of(points: Sequence[Point], metric: str) -> list[Point]:
    """Return the point with the largest value at each task, temperature and method."""
    groups: dict[tuple[str, float, str], list[Point]] = defaultdict(list)
    for point in points:
        if point.number(metric) is not None:
            groups[point.task, point.T, point.method].append(point)
    return [max(group, key=lambda point: point.number(metric) or 0.0) for group in groups.values()]


def _counterparts(points: Sequence[Point], row: Reference) -> list[Point]:
    """Return the points of a printed value's method, task and temperature."""
    return [
        point
        for point in points
        if point.method == row.method and same_task(point.task, row.task) and row.T in ("", f"{point.T:g}")
    ]


def _row(point: Point, value: str, written: Format, theirs: float | None, ours: float | None) -> list[str]:
    difference = None if theirs is None or ours is None else ours - theirs
    numbers = (NONE if number is None else written.text(number) for number in (theirs, ours, difference))
    return [point.pair, point.task, f"{point.T:g}", point.method, value, *numbers]
