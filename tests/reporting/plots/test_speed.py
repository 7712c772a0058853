"""The chart from the theoretical speedup to the measured one."""

from dataclasses import replace

from matplotlib.figure import Figure

from specbench.analysis.intervals import Estimate
from specbench.analysis.run_summary import SpeedupSteps
from specbench.reporting.plots.speed_plots import STEP_NAMES, steps_panel
from tests.fixtures.summaries import method_summary, run_summary

AR = method_summary("ar", values={"tokens_per_second": 100.0})
STEPS = SpeedupSteps(rounds=1.8, drafting=1.7, blocks=1.5, host=1.3, prefill=1.2)
SD = method_summary("sd", values={"speedup": Estimate(1.3, 1.2, 1.4), "tokens_per_second": 130.0, "predicted": 1.9})


def test_a_line_runs_from_theory_through_every_step_to_the_measured_speedup():
    panel = steps_panel(run_summary(AR, replace(SD, steps=STEPS)), "run")
    assert panel is not None
    axes = Figure().subplots()
    (label,) = panel.draw(axes)
    line = axes.get_lines()[-1]
    assert list(line.get_ydata()) == [1.9, 1.8, 1.7, 1.5, 1.3, 1.2] and len(STEP_NAMES) == 6
    assert (label.text, label.y) == ("sd", 1.2)


def test_without_steps_there_is_no_chart():
    assert steps_panel(run_summary(AR, SD), "run") is None
