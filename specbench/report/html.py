"""A report as one self-contained HTML file: sortable tables, plots, and samples with tokens colored by provenance."""

import base64
import re
from collections.abc import Sequence
from importlib import resources
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypedDict

from specbench.analysis.differences import folders
from specbench.analysis.quality import scores_of
from specbench.analysis.rows import seconds
from specbench.analysis.run_summary import RunSummary
from specbench.analysis.token_origin import provenance, rejected
from specbench.report import escaping, plots
from specbench.report.markdown_page import suite_notes
from specbench.report.notes import common_notes, notes
from specbench.report.suite_report import Collected
from specbench.report.tables import Table, all_tables
from specbench.runs.record import Record
from specbench.runs.run_folder import read

MOST_SAMPLES = 1000  # generations in the sample browser
SEPARATOR = "\x1f"  # between the pieces of a text; no tokenizer produces it


class _Table(TypedDict):
    title: str
    heads: list[str]
    rows: list[list[str]]


class _Image(TypedDict):
    name: str
    source: str


class _Run(TypedDict):
    """A run in the sample browser."""

    name: str
    methods: list[str]
    prompts: dict[str, dict[str, str]]
    samples: list[dict[str, object]]


def of_suite(collected: Collected) -> str:
    """Return the page of a suite."""
    suite = collected.suite
    with TemporaryDirectory() as folder:
        images = _images(plots.of_suite(collected, Path(folder), ("svg",)))
    title = f"{suite.paper}, {suite.shows}: {suite.description}"
    return _page(title, collected.tables, suite_notes(collected), images, collected.summaries)


def of_runs(summaries: Sequence[RunSummary]) -> str:
    """Return the page of some runs."""
    with TemporaryDirectory() as folder:
        images = _images(plots.of_runs(summaries, Path(folder), ("svg",)))
    lines = notes(summaries[0]) if len(summaries) == 1 else common_notes(summaries)
    return _page("specbench report", all_tables(summaries), lines, images, summaries)


def _page(
    title: str, shown: Sequence[Table], lines: Sequence[str], images: Sequence[_Image], summaries: Sequence[RunSummary]
) -> str:
    runs, left_out = _browsed(summaries)
    data = {
        "tables": [_shown(table) for table in shown],
        "notes": list(map(escaping.terminal, lines)),
        "images": images,
        "runs": runs,
        "leftOut": left_out,
        "separator": SEPARATOR,
    }
    template = (resources.files("specbench.report") / "page.html").read_text(encoding="utf-8")
    parts = {"title": escaping.html_text(title), "data": escaping.json_script(data)}
    # both at once, since a title may contain {{data}}
    return re.sub(r"\{\{(title|data)\}\}", lambda found: parts[found[1]], template)


def _shown(table: Table) -> _Table:
    """Return a table for the page's script, which draws text nodes, so that no cell can be markup."""
    title, *heads = map(escaping.terminal, [table.title, *table.heads])
    return {"title": title, "heads": heads, "rows": [list(map(escaping.terminal, row)) for row in table.rows]}


def _images(paths: Sequence[Path]) -> list[_Image]:
    """SVGs as data URLs, so that the page fetches nothing."""
    return [
        {"name": path.stem, "source": f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode()}"}
        for path in paths
    ]


def _browsed(summaries: Sequence[RunSummary]) -> tuple[list[_Run], int]:
    """Return the generations of each run in the sample browser, in the order of measurement, and the number of others."""
    share = max(MOST_SAMPLES // max(len(summaries), 1), 1)
    runs: list[_Run] = []
    left_out = 0
    for summary, name in zip(summaries, folders(summaries), strict=True):
        folder = Path(summary.folder)
        scores, methods = scores_of(folder), [row.method for row in summary.measured]
        turns = max(share // max(len(methods), 1), 1)  # of all methods on one prompt
        complete = (record for record in read(folder) if record.error is None)
        shown = list(islice(complete, min(turns * len(methods), MOST_SAMPLES)))
        left_out += sum(row.generations for row in summary.methods) - len(shown)
        values = {(row["method"], row["sample"], row["repeat"]): row["values"] for row in scores["rows"]}
        prompts = scores.get("samples", {})
        runs.append({
            "name": escaping.terminal(name),
            "methods": methods,
            "prompts": {each: prompts.get(each, {}) for each in dict.fromkeys(r.sample for r in shown)},
            "samples": [_sample(record, values.get(record.key, {}).get(scores["headline"])) for record in shown],
        })  # fmt: skip
    return runs, left_out


def _sample(record: Record, score: float | list[float] | None) -> dict[str, object]:
    """One generation with short keys: its pieces in one string, and a letter of provenance for each piece."""
    known = len(record.pieces) == len(record.tokens)
    return {
        "m": record.method,
        "s": record.sample,
        "r": record.repeat,
        "t": SEPARATOR.join(record.pieces) if known else record.text,
        "k": provenance(record) if known else "",
        "x": rejected(record) if known else [],
        "n": len(record.tokens),
        "ms": round(1e3 * seconds(record, end_to_end=True), 1),
        "f": record.finish,
        **({"q": round(score, 4)} if isinstance(score, int | float) else {}),
    }
