"""Reports of runs and suites as text, by the name of the format: Markdown, LaTeX, CSV, JSON, HTML, passports."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from specbench.analysis.run_summary import RunSummary
from specbench.errors import ConfigError
from specbench.reporting.formats import export, html, latex, markdown
from specbench.reporting.suites import Collected
from specbench.reporting.tables import chosen_table

CHOOSING = ("md", "latex")  # formats whose columns can be chosen
RUN_WRITERS: Mapping[str, Callable[[Sequence[RunSummary]], str]] = {
    "md": markdown.of_runs,
    "csv": export.runs_csv,
    "json": export.runs_json,
    "latex": latex.of_runs,
    "html": html.of_runs,
    "passport": export.passports,
}
SUITE_WRITERS: Mapping[str, Callable[[Collected], str]] = {
    "csv": lambda collected: export.as_csv(collected.points),
    "json": lambda collected: export.as_json(collected.points),
    "html": html.of_suite,
}


def suite_text(collected: Collected, form: str, drawn: Sequence[Path], page_folder: Path, full: bool = False) -> str:
    """Return a suite in a format, in LaTeX with every table if `full`.

    A Markdown page links the drawn SVGs, or else PNGs, relative to `page_folder`.
    """
    if form == "md":
        shown = [path for path in drawn if path.suffix == ".svg"] or [path for path in drawn if path.suffix == ".png"]
        return markdown.of_suite(collected, shown, page_folder)
    if form == "latex":
        return latex.of_suite(collected, full)
    if form not in SUITE_WRITERS:
        raise ConfigError(
            f"format = {form!r} applies to run folders; a suite has {', '.join(SUITE_WRITERS)}, md and latex"
        )
    return SUITE_WRITERS[form](collected)


def runs_text(summaries: Sequence[RunSummary], form: str, columns: Sequence[str] = (), full: bool = False) -> str:
    """Return runs in a format, in `md` and `latex` with every table if `full`, or as one table of the named columns.

    Raises:
        ConfigError: The format or a column is unknown, or the format is neither `md` nor `latex` and columns are named.
    """
    if form not in RUN_WRITERS:
        raise ConfigError(f"format = {form!r}: use one of {', '.join(RUN_WRITERS)}")
    if not columns:
        if form == "md":
            return markdown.of_runs(summaries, full)
        return latex.of_runs(summaries, full) if form == "latex" else RUN_WRITERS[form](summaries)
    if form not in CHOOSING:
        raise ConfigError(f"columns can be chosen for {' and '.join(CHOOSING)}; {form} contains every value")
    table = chosen_table(summaries, columns)
    return latex.of_chosen(table, summaries) if form == "latex" else markdown.of_chosen(table, summaries)
