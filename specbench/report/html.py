"""A report as one self-contained HTML file: sortable tables, plots, and samples whose tokens are coloured by their origin."""

import base64
import re
from collections.abc import Sequence
from importlib import resources
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from specbench.analysis.differences import folders
from specbench.analysis.metrics import seconds
from specbench.analysis.quality import scores_of
from specbench.analysis.token_origin import lost, origins
from specbench.report import escaping, plots
from specbench.report.markdown_page import said
from specbench.report.notes import common_notes, notes
from specbench.report.suite_report import Collected
from specbench.report.tables import Table, all_tables
from specbench.runs.record import Record
from specbench.runs.run_folder import read

MOST_SAMPLES = 1000  # generations that the browser holds
SEPARATOR = "\x1f"  # between the pieces of a text: no tokenizer gives it


def of_suite(collected: Collected) -> str:
    """A suite's page."""
    suite = collected.suite
    with TemporaryDirectory() as folder:
        drawn = _images(plots.of_suite(collected, Path(folder), ("svg",)))
    title = f"{suite.paper}, {suite.shows}: {suite.description}"
    return _page(title, collected.tables, said(collected), drawn, collected.summaries)


def of_runs(summaries: Sequence[dict[str, Any]]) -> str:
    """The page of some runs."""
    with TemporaryDirectory() as folder:
        drawn = _images(plots.of_runs(summaries, Path(folder), ("svg",)))
    told = notes(summaries[0]) if len(summaries) == 1 else common_notes(list(summaries))
    return _page("specbench report", all_tables(list(summaries)), told, drawn, summaries)


def _page(
    title: str, shown: Sequence[Table], told: Sequence[str], images: list[Any], summaries: Sequence[dict[str, Any]]
) -> str:
    runs, left_out = _browsed(summaries)
    data = {
        "tables": [_shown(table) for table in shown],
        "notes": list(map(escaping.terminal, told)),
        "images": images,
        "runs": runs,
        "leftOut": left_out,
        "separator": SEPARATOR,
    }
    template = (resources.files("specbench.report") / "page.html").read_text(encoding="utf-8")
    parts = {"title": escaping.html_text(title), "data": escaping.json_script(data)}
    return re.sub(
        r"\{\{(title|data)\}\}", lambda found: parts[found[1]], template
    )  # at once: a title may hold {{data}}


def _shown(table: Table) -> dict[str, Any]:
    """A table as the page's script draws it, by text nodes, so that no cell can be markup."""
    title, *heads = map(escaping.terminal, [table.title, *table.heads])
    return {"title": title, "heads": heads, "rows": [list(map(escaping.terminal, row)) for row in table.rows]}


def _images(paths: Sequence[Path]) -> list[dict[str, str]]:
    """SVGs as data, so that nothing is fetched."""
    return [
        {"name": path.stem, "source": f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode()}"}
        for path in paths
    ]


def _browsed(summaries: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """The generations of each run that the browser shows, those that were measured first, and how many it leaves out."""
    share = max(MOST_SAMPLES // max(len(summaries), 1), 1)
    runs, left_out = [], 0
    for summary, name in zip(summaries, folders(summaries), strict=True):
        folder = Path(summary["folder"])
        scores, counts = scores_of(folder), {row["method"]: row["generations"] for row in summary["methods"]}
        methods = [name for name, count in counts.items() if count]
        turns = max(share // max(len(methods), 1), 1)  # of all methods on one prompt
        whole = (record for record in read(folder) if record.error is None)
        shown = list(islice(whole, min(turns * len(methods), MOST_SAMPLES)))
        left_out += sum(counts.values()) - len(shown)
        values = {(row["method"], row["sample"], row["repeat"]): row["values"] for row in scores["rows"]}
        runs.append({
            "name": escaping.terminal(name),
            "methods": methods,
            "prompts": {each: scores.get("samples", {}).get(each, {}) for each in dict.fromkeys(r.sample for r in shown)},
            "samples": [_sample(record, values.get(record.key, {}).get(scores["headline"])) for record in shown],
        })  # fmt: skip
    return runs, left_out


def _sample(record: Record, score: Any) -> dict[str, Any]:
    """One generation, as small as can be: its pieces in one string, a letter for the origin of each."""
    known = len(record.pieces) == len(record.tokens)
    return {
        "m": record.method,
        "s": record.sample,
        "r": record.repeat,
        "t": SEPARATOR.join(record.pieces) if known else record.text,
        "k": origins(record) if known else "",
        "x": lost(record) if known else [],
        "n": len(record.tokens),
        "ms": round(1e3 * seconds(record, end_to_end=True), 1),
        "f": record.finish,
        **({"q": round(score, 4)} if isinstance(score, int | float) else {}),
    }
