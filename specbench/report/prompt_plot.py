"""Accepted lengths by prompt, sampled and greedy (Polybasic, Figure 4)."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specbench.analysis.acceptance import lengths_of_prompts
from specbench.analysis.rows import complete
from specbench.analysis.run_summary import RunSummary
from specbench.report.figures import Panel, integer_ticks, legend_above
from specbench.report.formats import HUNDREDTHS
from specbench.report.labels import Label
from specbench.report.styles import COLORS, MARKERS
from specbench.runs.run_folder import read

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHIFT = 0.35  # between the points of two temperatures on one prompt
Lengths = dict[str, list[float]]  # by the label of a line: the accepted length of each prompt


def prompt_panels(summaries: Sequence[RunSummary]) -> list[Panel]:
    """Return a panel for each method that drafts, on each pair and task, with a line for each temperature."""
    panels: dict[tuple[str, str, str], Lengths] = {}
    for summary in summaries:
        records = list(read(Path(summary.folder)))
        for row in summary.measured:
            if row.acceptance_by_position:
                lengths = list(lengths_of_prompts(complete(records, row.method)).values())
                place = (summary.pair, summary.spec.task.name, row.label)
                panels.setdefault(place, {})[f"T = {summary.decoding.temperature:g}"] = lengths
    return [Panel(", ".join(place), partial(_lengths, lengths=each)) for place, each in panels.items()]


def _lengths(axes: "Axes", lengths: Lengths) -> list[Label]:
    for i, (label, values) in enumerate(lengths.items()):
        color, mean, deviation = COLORS[i % len(COLORS)], float(np.mean(values)), float(np.std(values))
        text = f"{label}: {HUNDREDTHS.number(mean)} ± {HUNDREDTHS.number(deviation)}"
        places = [number + SHIFT * i for number in range(1, len(values) + 1)]
        axes.plot(places, values, MARKERS[i % len(MARKERS)], color=color, linestyle="", label=text)
        axes.axhspan(mean - deviation, mean + deviation, color=color, alpha=0.12, linewidth=0)
    axes.set(xlabel="prompt", ylabel="accepted length")
    most = max(max(values) for values in lengths.values())
    axes.set_ylim(0.0, 1.06 * most)  # room for the markers
    integer_ticks(axes)
    legend_above(axes)
    return []
