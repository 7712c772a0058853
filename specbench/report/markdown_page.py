"""A suite as a page of Markdown: the paper's table, plots, what was expected, and what a reader must know to believe it."""

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from specbench.report import escaping
from specbench.report.curves import choices
from specbench.report.notes import common_notes
from specbench.report.suite_report import Collected
from specbench.report.suite_tables import SELECTED
from specbench.report.tables import markdown_list, markdown_table
from specbench.runs.suite_index import DONE


def said(collected: Collected) -> list[str]:
    """What was expected and what came of it, then the conditions and warnings, then the cells that are not there."""
    lines = [*collected.verdicts]
    if any(SELECTED in word for table in collected.tables for row in table.rows for word in row):
        lines.append(f"{SELECTED} the best of several settings, chosen by these very numbers, as the paper does.")
    judges = sorted({p["values"]["judge"] for p in collected.points if "judge" in p["values"]})
    lines += [f"judge: {judge}; a tie counts as half a win in the win rate." for judge in judges]
    lines += choices(collected.points)
    lines += common_notes(collected.summaries)
    lines += [f"! {folder}: measured once, and not here now" for folder in collected.gone]
    if collected.index.changes:
        lines.append(f"! options of the suite were overruled: {', '.join(collected.index.changes)}")
    absent = [cell for cell in collected.index.cells.values() if cell["state"] != DONE]
    return lines + [f"! {cell['state']}: {cell['pair']}, {cell['task']}: {cell['why']}" for cell in absent]


def page(collected: Collected, plots: list[Path], beside: Path) -> str:
    """The whole page, to lie in the folder `beside`, from where its plots are linked."""
    suite = collected.suite
    whose = f"{suite.paper}, {suite.shows}"
    twin = f"A twin of {suite.of} on the bundled tiny models and synthetic data: it mirrors the grid, not the figures. "
    machine = collected.summaries[0]["environment"]
    others = {
        (s["environment"].get("gpu", {}).get("name"), s["environment"]["cpu"], _revision(s["environment"]))
        for s in collected.summaries
    }
    last = f", the first of {len(others)} machines or revisions" if len(others) > 1 else ""
    command = f"specbench run --suite {suite.asked or suite.name}"
    where = machine.get("gpu", {}).get("name") or machine["cpu"]
    parts = [
        f"# {escaping.markdown(f'{whose}: {suite.description}')}",
        f"{twin if suite.is_tiny else ''}`{escaping.terminal(command).replace('`', '')}` measured"
        f" {len(collected.folders)} cells in {collected.index.minutes:.1f} minutes on {escaping.markdown(where)},"
        f" {machine['threads']} threads, at revision {_revision(machine)[:9] or 'unknown'}{last}.",
        *map(markdown_table, collected.tables),
        *(f"![{escaping.markdown(plot.stem)}]({quote(os.path.relpath(plot, beside))})" for plot in plots),
        markdown_list(said(collected)),
    ]
    return "\n\n".join(parts) + "\n"


def _revision(environment: dict[str, Any]) -> str:
    """The commit of a run; empty for an installed package."""
    return str(environment["git"].get("revision", ""))
