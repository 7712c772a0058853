"""A report as one self-contained HTML file: conclusion, interactive chart, samples, tables, plots and conditions.

The page fetches nothing. Its Content-Security-Policy allows only its own script and style, by their hashes, and images in
data URLs.
"""

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypedDict

from specbench.analysis.run_summary import RunSummary
from specbench.reporting import conditions, escaping
from specbench.reporting.columns import BY_KEY
from specbench.reporting.conclusion import conclusion
from specbench.reporting.html_chart import chart_rows
from specbench.reporting.html_samples import SEPARATOR, browsed
from specbench.reporting.markdown_page import suite_notes
from specbench.reporting.notes import counted, notes_of, warnings_of, without_warnings
from specbench.reporting.plots.runs import of_runs as plots_of_runs
from specbench.reporting.plots.styles import dark
from specbench.reporting.plots.suites import of_suite as plots_of_suite
from specbench.reporting.suite_report import Collected
from specbench.reporting.tables import Table, across
from specbench.reporting.tables import of_runs as tables_of_runs
from specbench.runs.run_folder import CONFIG, ENVIRONMENT

SCRIPTS = ("page.js", "chart.js", "tables.js", "samples.js", "start.js")  # in the order in which they run
MOST_CONDITIONS = 12  # runs whose config and environment the page contains
POLICY = (
    "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; img-src data:; base-uri 'none';"
    " form-action 'none'"
)


class _Table(TypedDict):
    """A table of the page. `tips` are the definitions of its columns, `texts` which of them are aligned to the left.

    `task` limits it to one task of the filter.
    """

    title: str
    heads: list[str]
    tips: list[str]
    texts: list[bool]
    rows: list[list[str]]
    task: str


class _Image(TypedDict):
    """A plot as data URLs, for a light and for a dark page."""

    name: str
    source: str
    dark: str


@dataclass(frozen=True, kw_only=True)
class _Content:
    """The content of a page before escaping. Each table has its task, which is empty for a table of several tasks."""

    title: str
    verdict: Sequence[str]
    tables: Sequence[tuple[str, Table]]
    notes: Sequence[str]
    summaries: Sequence[RunSummary]
    images: Sequence[_Image] = field(default_factory=list)


def of_suite(collected: Collected) -> str:
    """Return the page of a suite."""
    suite = collected.suite
    with TemporaryDirectory() as folder:
        images = _images(plots_of_suite(collected, Path(folder), ("svg",)))
    return _page(
        _Content(
            title=f"{suite.paper}, {suite.shows}: {suite.description}",
            verdict=collected.conclusion,
            tables=[("", table) for table in collected.tables],
            notes=suite_notes(collected),
            summaries=collected.summaries,
            images=images,
        )
    )


def of_runs(summaries: Sequence[RunSummary]) -> str:
    """Return the page of some runs."""
    with TemporaryDirectory() as folder:
        images = _images(plots_of_runs(summaries, Path(folder), ("svg",)))
    merged = [("", across(summaries))] if len(summaries) > 1 else []
    return _page(
        _Content(
            title=conditions.title(summaries),
            verdict=conclusion(summaries),
            tables=[*merged, *((s.task, table) for s, each in tables_of_runs(summaries) for table in each)],
            notes=notes_of(summaries),
            summaries=summaries,
            images=images,
        )
    )


def _page(content: _Content) -> str:
    runs, left_out = browsed(content.summaries)
    data = {
        "about": _plain(conditions.about(content.summaries)),
        "methods": list(map(_plain, conditions.methods(content.summaries))),
        "verdict": list(map(_plain, content.verdict)),
        "chart": chart_rows(content.summaries),
        "tables": [_shown(table, task) for task, table in content.tables],
        "warnings": [_plain(line.removeprefix("! ")) for line in warnings_of(content.notes)],
        "notes": list(map(_plain, [*without_warnings(content.notes), *_omitted(content.summaries)])),
        "images": content.images,
        "runs": runs,
        "leftOut": left_out,
        "separator": SEPARATOR,
        "conditions": _conditions(content.summaries),
    }
    script, style = "\n".join(map(_part, SCRIPTS)), _part("page.css")
    parts = {
        "policy": POLICY.format(script=_digest(script), style=_digest(style)),
        "title": escaping.html_text(content.title),
        "style": style,
        "script": script,
        "data": escaping.json_script(data),
    }
    # all at once, since a title may contain {{data}}
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _part("page.html"))


def _part(name: str) -> str:
    return (resources.files("specbench.reporting") / "page" / name).read_text(encoding="utf-8")


def _plain(text: str) -> str:
    """Return a sentence for a text node, which shows no code spans."""
    return escaping.terminal(text).replace("`", "")


def _digest(text: str) -> str:
    """Return the hash of an inline script or style, as a Content-Security-Policy writes it."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _shown(table: Table, task: str) -> _Table:
    """Return a table for the page's script, which draws text nodes, so that no cell can be markup."""
    table = table.compact()
    keys = table.keys or ("",) * len(table.heads)
    return {
        "title": escaping.terminal(table.title),
        "heads": list(map(escaping.terminal, table.heads)),
        "tips": [_definition(key) for key in keys],
        "texts": [table.is_text(i) for i in range(len(table.heads))],
        "rows": [list(map(escaping.terminal, row)) for row in table.rows],
        "task": task,
    }


def _definition(key: str) -> str:
    """Return the definition of a column with its unit; empty for a column that is not in the registry."""
    if key not in BY_KEY:
        return ""
    unit = BY_KEY[key].documented_unit
    return _plain(BY_KEY[key].documentation) + (f"\nUnit: {unit}" if unit else "")


def _images(paths: Sequence[Path]) -> list[_Image]:
    """Return SVGs as data URLs, so that the page makes no request."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in paths}
    return [{"name": name, "source": _data_url(text), "dark": _data_url(dark(text))} for name, text in texts.items()]


def _data_url(svg: str) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def _omitted(summaries: Sequence[RunSummary]) -> list[str]:
    """Return a note if the page contains the conditions of only some runs."""
    more = len(summaries) - MOST_CONDITIONS
    text = f"The page leaves out the configs of {counted(more, 'run')} after the first {MOST_CONDITIONS}."
    return [text] if more > 0 else []


def _conditions(summaries: Sequence[RunSummary]) -> list[dict[str, str]]:
    """Return the config and the environment of each run as text."""
    files = [Path(summary.folder) / name for summary in summaries[:MOST_CONDITIONS] for name in (CONFIG, ENVIRONMENT)]
    return [
        {
            "name": escaping.terminal(f"{path.parent.name}/{path.name}"),
            "text": escaping.terminal_lines(path.read_text(encoding="utf-8", errors="replace")),
        }
        for path in files
        if path.exists()
    ]
