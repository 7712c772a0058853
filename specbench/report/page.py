"""A suite as a page of Markdown: the paper's table, plots, what was expected, and what a reader must know to believe it."""

import os
from pathlib import Path

from specbench.report.collect import Collected
from specbench.report.curves import choices
from specbench.report.index import DONE
from specbench.report.notes import common_notes
from specbench.report.suites import SELECTED
from specbench.report.tables import markdown_table


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
        (s["environment"].get("gpu", {}).get("name"), s["environment"]["cpu"], s["environment"]["git"]["revision"])
        for s in collected.summaries
    }
    last = f", the first of {len(others)} machines or revisions" if len(others) > 1 else ""
    parts = [
        f"# {whose}: {suite.description}",
        f"{twin if suite.is_tiny else ''}`specbench run --suite {suite.asked or suite.name}` measured"
        f" {len(collected.folders)} cells in {collected.index.minutes:.1f} minutes"
        f" on {machine.get('gpu', {}).get('name') or machine['cpu']},"
        f" {machine['threads']} threads, at revision {machine['git']['revision'][:9]}{last}.",
        *map(markdown_table, collected.tables),
        *(f"![{plot.stem}]({os.path.relpath(plot, beside)})" for plot in plots),
        "\n".join(f"- {line}" for line in said(collected)),
    ]
    return "\n\n".join(parts) + "\n"
