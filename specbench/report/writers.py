"""Reports of runs and suites as text, by the name of the format: Markdown, LaTeX, CSV, JSON or HTML."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from specbench.analysis.run_summary import RunSummary
from specbench.report import export, html, latex, markdown_page
from specbench.report.suite_report import Collected
from specbench.report.tables import all_tables, markdown

RUN_WRITERS: Mapping[str, Callable[[Sequence[RunSummary]], str]] = {
    "md": markdown,
    "csv": export.runs_csv,
    "json": export.runs_json,
    "latex": lambda summaries: latex.latex(all_tables(summaries)),
    "html": html.of_runs,
}
SUITE_WRITERS: Mapping[str, Callable[[Collected], str]] = {
    "csv": lambda collected: export.as_csv(collected.points),
    "json": lambda collected: export.as_json(collected.points),
    "latex": lambda collected: latex.latex(collected.tables),
    "html": html.of_suite,
}


def suite_text(collected: Collected, form: str, drawn: Sequence[Path], beside: Path) -> str:
    """Return a suite in a format. A Markdown page links the drawn SVGs relative to the folder `beside`."""
    if form == "md":
        return markdown_page.page(collected, [path for path in drawn if path.suffix == ".svg"], beside)
    return SUITE_WRITERS[form](collected)
