"""A suite as a Markdown page: tables, plots, expectations, and the conditions of the measurements."""

import os
from pathlib import Path
from urllib.parse import quote

from specbench.analysis.run_summary import RunSummary
from specbench.analysis.win_rate import JUDGE
from specbench.reporting import escaping
from specbench.reporting.counterpart import counterpart
from specbench.reporting.notes import common_notes, counted, without_warnings
from specbench.reporting.suite_report import Collected
from specbench.reporting.suite_tables import SELECTED
from specbench.reporting.tables import markdown_head, markdown_list, markdown_table
from specbench.runs.suite_index import DONE


def suite_notes(collected: Collected) -> list[str]:
    """Return the expectations with their outcomes, the conditions, the warnings, and the missing runs, in this order."""
    lines = [*collected.verdicts, *filter(None, [collected.suite.note])]
    if any(SELECTED in text for table in collected.tables for row in table.rows for text in row):
        lines.append(f"{SELECTED} the best of several settings, chosen by these numbers, as in the paper.")
    judges = sorted({str(p.values[JUDGE]) for p in collected.points if JUDGE in p.values})
    lines += [f"judge: {judge}" for judge in judges]
    lines += common_notes(collected.summaries)
    if (machines := len({summary.machine for summary in collected.summaries})) > 1:
        lines.append(
            f"! measured on {machines} kinds of machines (table Hardware): every speedup is a ratio within one run, and no"
            " expectation and no best setting compares machines"
        )
    lines += [f"! {folder}: was measured, and its folder is gone" for folder in collected.missing]
    if collected.index.changes:
        lines.append(f"! options of the suite were overridden: {', '.join(collected.index.changes)}")
    elif collected.index.definition not in ("", collected.suite.definition):
        lines.append("! measured with an earlier definition of the suite; help: measure it again")
    absent = [run for run in collected.index.runs.values() if run.state != DONE]
    return lines + [f"! {run.state}: {run.pair}, {run.task}: {run.why}" for run in absent]


def page(collected: Collected, plots: list[Path], beside: Path) -> str:
    """Return the page as text. It links its plots relative to the folder `beside`."""
    suite, first = collected.suite, collected.summaries[0]
    tiny = escaping.markdown(counterpart(suite))
    setups = {(s.machine, s.environment["cpu"], _revision(s)) for s in collected.summaries}
    others = f", the first of {len(setups)} machines or revisions" if len(setups) > 1 else ""
    runs = "1 run" if len(collected.folders) == 1 else f"{len(collected.folders)} runs"
    lines = suite_notes(collected)
    command = f"specbench run --suite {suite.requested or suite.name}"
    parts = [
        f"# {escaping.markdown(f'{suite.paper}, {suite.shows}: {suite.description}')}",
        f"{tiny}{' ' if tiny else ''}`{escaping.terminal(command).replace('`', '')}` measured"
        f" {runs} in {_time(collected.index.minutes)} on {escaping.markdown(first.machine)},"
        f" {counted(first.environment['threads'], 'thread')}, at revision {_revision(first)[:9] or 'unknown'}{others}.",
        *markdown_head(collected.summaries, collected.conclusion, lines),
        *map(markdown_table, collected.tables),
        *(f"![{escaping.markdown(plot.stem)}]({quote(os.path.relpath(plot, beside))})" for plot in plots),
        markdown_list(without_warnings(lines)),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _time(minutes: float) -> str:
    return f"{minutes:.1f} minutes" if minutes >= 1.0 else counted(round(60.0 * minutes), "second")


def _revision(summary: RunSummary) -> str:
    """Return the commit of a run; empty for an installed package."""
    return summary.environment["git"].get("revision", "")
