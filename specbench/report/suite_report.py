"""A suite's runs, read together: summaries, points, tables and verdicts, for whatever format they are told in."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.analysis.frontier import frontier_points
from specbench.analysis.points import Point, points, reference_of
from specbench.analysis.summary import summaries_of
from specbench.analysis.win_rate import judged_points
from specbench.config.suite import Suite
from specbench.errors import ConfigError
from specbench.report.chain_profile import Profile, forwards_table, kinds_of, pairs_table, verdicts
from specbench.report.suite_tables import expectations, papers_tables, suite_tables, unknown_values
from specbench.report.tables import Table
from specbench.runs.suite_index import Index


@dataclass(frozen=True)
class Collected:
    """What is known of a suite."""

    suite: Suite
    index: Index
    folders: list[Path]
    gone: list[str]  # run folders that were there once
    summaries: list[dict[str, Any]]
    points: list[Point]
    tables: list[Table]
    verdicts: list[str]


def collect(suite: Suite, results: Path, changed: bool = False) -> Collected:
    """Everything that was measured of a suite, or, where they are asked for or there is nothing else, of its runs with
    options that were `changed`. Raises ConfigError where nothing was."""
    index = Index.of(suite.name, results, changed=True) if changed else Index.any_of(suite.name, results)
    cells = [cell for cell in index.done if "folder" in cell and (results / cell["folder"] / "run.toml").exists()]
    if not cells:
        once = f", though {len(index.done)} cells were measured once" if index.done else ""
        raise ConfigError(
            f"nothing of {suite.name} is in {results}{once}; help: specbench run --suite {suite.asked or suite.name}"
        )
    folders = [results / cell["folder"] for cell in cells]
    summaries = summaries_of(folders)
    found = points(summaries, reference_of(suite.name))
    for folder in folders:
        found += judged_points(folder, found)
        if suite.frontier:
            found += frontier_points(folder, found)
    tables = suite_tables(suite, found)
    if not any(point["paper"] for point in found):  # else they stand beside ours
        tables += papers_tables(reference_of(suite.of))
    told = [*expectations(suite, found), *unknown_values(suite, found)]
    if suite.kind == "profile":
        for cell, summary in zip(cells, summaries, strict=True):
            profiled = Profile(Path(summary["folder"]), cell["levels"], summary["baseline"], kinds_of(summary))
            tables += [forwards_table(profiled), pairs_table(profiled)]
            told += [f"{summary['pair']}, {summary['task']}: {line}" for line in verdicts(profiled)]
    gone = [cell.get("folder", cell["key"]) for cell in index.done if cell not in cells]
    return Collected(suite, index, folders, gone, summaries, found, tables, told)
