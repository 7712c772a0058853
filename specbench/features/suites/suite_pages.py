"""Reports of suites as text, by the name of the format: `report --suite NAME -f`."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from specbench.analysis.run_summary import RunSummary
from specbench.errors import ConfigError
from specbench.features.suites.papers.reproduction import counterpart
from specbench.features.suites.suite_plots import of_suite as plots_of_suite
from specbench.features.suites.suite_report import Collected, conditions_of, suite_notes
from specbench.note import Note, warnings_of, without_warnings
from specbench.reporting import escaping
from specbench.reporting.formats import export, html
from specbench.reporting.formats.latex import Captioned, latex
from specbench.reporting.formats.writers import markdown_head, markdown_notes, markdown_table
from specbench.reporting.setup_lines import conditions, counted


def suite_text(collected: Collected, form: str, drawn: Sequence[Path], page_folder: Path, full: bool = False) -> str:
    """Return a suite in a format, in LaTeX with every table if `full`.

    A Markdown page links the drawn SVGs, or else PNGs, relative to `page_folder`. Raises ConfigError for another format.
    """
    if form == "md":
        shown = [path for path in drawn if path.suffix == ".svg"] or [path for path in drawn if path.suffix == ".png"]
        return markdown_page(collected, shown, page_folder)
    if form == "latex":
        return latex_tables(collected, full)
    if form not in SUITE_WRITERS:
        raise ConfigError(
            f"format = {form!r} applies to run folders; a suite has {', '.join(SUITE_WRITERS)}, md and latex"
        )
    return SUITE_WRITERS[form](collected)


def markdown_page(collected: Collected, plots: Sequence[Path], page_folder: Path) -> str:
    """Return the page of a suite as Markdown. It links its plots relative to `page_folder`."""
    suite, first = collected.suite, collected.summaries[0]
    tiny = escaping.markdown(counterpart(suite))
    setups = {(s.machine, s.environment["cpu"], _revision(s)) for s in collected.summaries}
    others = f" (the first run; {len(setups)} machines or revisions in all)" if len(setups) > 1 else ""
    runs = "1 run" if len(collected.folders) == 1 else f"{len(collected.folders)} runs"
    notes = conditions_of(collected)
    command = f"specbench run --suite {suite.requested or suite.name}"
    conclusion, *rest = markdown_head(collected.summaries, collected.conclusion, suite_notes(collected))
    parts = [
        f"# {escaping.markdown(f'{suite.paper}, {suite.shows}: {suite.description}')}",
        f"{tiny}{' ' if tiny else ''}`{escaping.terminal(command).replace('`', '')}` measured"
        f" {runs} in {_duration(collected.index.minutes)} on {escaping.markdown(first.machine)},"
        f" {counted(first.environment['threads'], 'thread')}, at revision {_revision(first)[:9] or 'unknown'}{others}.",
        conclusion,
        *_section("Claims", without_warnings(collected.verdicts)),
        *_section("Contradicted claims: tokens and time per round", collected.mechanisms),
        *rest,
        *map(markdown_table, collected.tables),
        *(f"![{escaping.markdown(plot.stem)}]({quote(os.path.relpath(plot, page_folder))})" for plot in plots),
        markdown_notes(without_warnings(notes)),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _section(title: str, lines: Sequence[Note]) -> list[str]:
    """Return a list after its title; nothing without lines."""
    return [f"**{title}**", markdown_notes(lines)] if lines else []


def latex_tables(collected: Collected, full: bool = False) -> str:
    """Return the first table of a suite, with the conclusion in its caption and warnings as its note; all if `full`."""
    text, name = conditions(collected.summaries), collected.suite.name
    warnings = warnings_of(suite_notes(collected))
    captioned = [Captioned(table, text if table.measured else "", name) for table in collected.tables]
    conclusion = " ".join(map(str, collected.conclusion))
    first = [replace(table, conclusion=conclusion, warnings=warnings) for table in captioned[:1]]
    return latex([*first, *(captioned[1:] if full else [])])


def html_page(collected: Collected) -> str:
    """Return the page of a suite as HTML."""
    suite = collected.suite
    with TemporaryDirectory() as folder:
        images = html.images_of(plots_of_suite(collected, Path(folder), ("svg",)))
    return html.page(
        html.PageContent(
            title=f"{suite.paper}, {suite.shows}: {suite.description}",
            verdict=collected.conclusion,
            tables=[("", table) for table in collected.tables],
            notes=suite_notes(collected),
            summaries=collected.summaries,
            images=images,
        )
    )


def _duration(minutes: float) -> str:
    return f"{minutes:.1f} minutes" if minutes >= 1.0 else counted(round(60.0 * minutes), "second")


def _revision(summary: RunSummary) -> str:
    """Return the commit of a run; empty for an installed package."""
    return summary.environment["git"].get("revision", "")


SUITE_WRITERS: Mapping[str, Callable[[Collected], str]] = {
    "csv": lambda collected: export.as_csv(collected.points),
    "json": lambda collected: export.as_json(collected.points),
    "html": html_page,
}
