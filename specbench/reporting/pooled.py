"""Speedups over the prompts of several runs together, such as all tasks of a pair or the shards of a run."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from specbench.analysis.points import PointValue
from specbench.analysis.rows import Rows, complete
from specbench.analysis.run_summary import RunSummary
from specbench.analysis.speed import end_to_end_speedup, papers_speedup, speedup
from specbench.errors import NotComparable
from specbench.machine.hardware import conditions, incomparable
from specbench.reporting.columns import column_of
from specbench.reporting.formats import HUNDREDTHS
from specbench.reporting.tables import Table
from specbench.runs.run_folder import read

COLUMNS: dict[str, Callable[[Rows, Rows], PointValue]] = {
    "speedup": speedup, "end_to_end_speedup": end_to_end_speedup, "papers_speedup": papers_speedup
}  # fmt: skip


def pooled_table(summaries: Sequence[RunSummary]) -> Table:
    """Return the speedup of each method over the prompts of all its runs with one pair, baseline and temperature.

    Every token and second counts once, so long answers weigh more than short ones. Raises NotComparable if the runs differ in
    their models, their methods or their machine, are untimed, or contain a prompt twice.
    """
    groups: dict[tuple[str, str, float], list[RunSummary]] = defaultdict(list)
    for summary in summaries:
        groups[summary.pair, summary.baseline, summary.decoding.temperature].append(summary)
    heads = ["method", "pair", "T", "tasks", "prompts", *(column_of(key).title for key in COLUMNS)]
    rows = [row for group in groups.values() for row in _rows(group)]
    return Table("All runs together", heads, rows, ("method", *[""] * 4, *COLUMNS), places=5)


def _rows(group: Sequence[RunSummary]) -> Iterable[list[str]]:
    """Return a row for each method that all runs of a group have."""
    _require_poolable(group)
    first = group[0]
    records = {summary.folder: list(read(Path(summary.folder))) for summary in group}
    names = [name for name in first.spec.methods if all(name in summary.spec.methods for summary in group)]
    baseline = _together(records, first.baseline)
    for name in names:
        rows = _together(records, name)
        tasks, prompts = len({summary.task for summary in group}), len({row.prompt for row in rows})
        place = [name, first.pair, f"{first.decoding.temperature:g}", str(tasks), str(prompts)]
        if name == first.baseline:
            yield [*place, *(column_of(key).format.text(1.0) for key in COLUMNS)]
        elif rows:
            values: list[PointValue] = [compute(rows, baseline) for compute in COLUMNS.values()]
            yield [*place, *(column_of(key).format.text(value) for key, value in zip(COLUMNS, values, strict=True))]
        else:
            yield [*place, *(HUNDREDTHS.text(None) for _ in COLUMNS)]


def _together(records: Mapping[str, Rows], method: str) -> Rows:
    """Return the completed generations of a method in all runs. Ids of samples are unique within a run only."""
    return [
        replace(row, sample=f"{folder}/{row.sample}", same_as=f"{folder}/{row.prompt}")
        for folder, rows in records.items()
        for row in complete(rows, method)
    ]


def _settings(summary: RunSummary) -> tuple[object, ...]:
    """Return what has to be equal, besides the machine: models with engine and placement, methods, sampling."""
    spec, decoding = summary.spec, replace(summary.decoding, max_new_tokens=0, repeats=0)  # these differ by task
    methods = {label: each.options for label, each in spec.methods.items()}
    return spec.pair.models, spec.pair.heads, methods, decoding, spec.device


def _require_poolable(group: Sequence[RunSummary]) -> None:
    """Raise NotComparable unless the times of all runs can be added up."""
    first = group[0]
    seen: dict[tuple[str, str], str] = {}
    for summary in group:
        if not summary.timed:
            raise NotComparable(f"{summary.run} is untimed; help: measure it again without other jobs on the device")
        if different := incomparable(conditions(first.environment), conditions(summary.environment)):
            raise NotComparable(
                f"{summary.run} and {first.run} were measured under different conditions, and their times are not pooled"
                f" ({'; '.join(different)}); help: report them without --pooled"
            )
        if _settings(summary) != _settings(first):
            raise NotComparable(
                f"{summary.run} and {first.run} have different models, methods or sampling; help: report them without"
                " --pooled"
            )
        for sample in {row.sample for row in read(Path(summary.folder))}:
            other = seen.setdefault((summary.data.sha256, sample), summary.folder)
            if other != summary.folder:
                raise NotComparable(
                    f"{summary.folder} and {other} contain the same prompt, {sample}; help: pass only one of them"
                )
