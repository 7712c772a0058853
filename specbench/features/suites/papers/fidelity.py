"""Tables that show how closely the stand-ins of a suite resemble the paper's pairs."""

from collections.abc import Iterator, Sequence
from functools import partial

from specbench.analysis.points import Point, Reference
from specbench.analysis.run_summary import RunSummary
from specbench.features.suites.papers.stand_ins import PRINTED_SPEEDS, StandIns, model_bytes, same_task
from specbench.reporting.column import HUNDREDTHS, NONE, THOUSANDTHS, NumberCell
from specbench.reporting.tables import Table

LENGTHS = ("accepted_length", "average_tokens")  # printed values that measure acceptance themselves


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
            "block, here",
        ]
        title = (
            "Weights that a forward of one token reads, of the paper's models in bfloat16 and of these in the precision of"
            " the runs, their ratio to the target's, and the time of a block over that of one token"
        )
        tables.append(Table(title, heads, costs))
    if acceptance:
        heads = ["pair", "task", "T", "method", "value", "paper", "here", "difference"]
        title = "Acceptance that the paper prints, or that its printed speed implies by theory, and acceptance here"
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
            megabytes = [size[name].forward / 1e6 for size in (theirs, ours)]
            yield [
                pair, original, name, theirs[name].source,
                NumberCell(megabytes[0], f"{megabytes[0]:,.0f}"), NumberCell(megabytes[1], f"{megabytes[1]:,.1f}"),
                *(THOUSANDTHS.text(size[name].forward / size[target].forward) for size in (theirs, ours)),
                NONE if block is None else NumberCell(block.cost, f"{block.cost:.2f}", rest=f"({block.size} tokens)"),
            ]  # fmt: skip


def _acceptance_rows(stand_ins: StandIns, pair: str, printed: Sequence[Reference]) -> Iterator[list[str]]:
    """Yield a row for each printed value that measures or implies acceptance and has a counterpart here."""
    for row in printed:
        if row.pair != stand_ins.pairs[pair] or row.group or row.metric not in (*PRINTED_SPEEDS, *LENGTHS):
            continue
        here = [point for point in stand_ins.points if _is_counterpart(point, pair, row)]
        for temperature in dict.fromkeys(point.T for point in here):
            of_temperature = [point for point in here if temperature == point.T]
            best = max(of_temperature, key=partial(_value, row.metric))
            words = [pair, best.task, f"{temperature:g}", row.method]
            is_length = row.metric in LENGTHS
            words.append(row.metric.replace("_", " ") if is_length else "acceptance rate, implied")
            written, theirs = (HUNDREDTHS, row.value) if is_length else (THOUSANDTHS, stand_ins.implied_by(row, best))
            ours = best.number(row.metric if is_length else "acceptance_rate")
            difference = None if theirs is None or ours is None else ours - theirs
            yield [*words, *(NONE if number is None else written.text(number) for number in (theirs, ours, difference))]


def _value(metric: str, point: Point) -> float:
    return point.number(metric) or 0.0


def _is_counterpart(point: Point, pair: str, row: Reference) -> bool:
    return (
        (point.pair, point.group, point.method) == (pair, "", row.method)
        and same_task(point.task, row.task)
        and row.T in ("", f"{point.T:g}")
        and point.number(row.metric) is not None
    )
