"""The style, the labels and the files of plots."""

import itertools

import pytest

from specbench.analysis.draft_lengths import LengthPrediction
from specbench.analysis.intervals import Estimate
from specbench.config.presets import names, preset
from specbench.reporting.plots import styles
from specbench.reporting.plots.figures import pareto
from specbench.reporting.plots.runs import of_runs, run_plots, selected
from specbench.reporting.plots.styles import METHODS, style_of
from tests.fixtures.summaries import method_summary, run_summary

AR = method_summary("ar", values={"tokens_per_second": 100.0}, round_milliseconds={"target": 9.0, "host": 1.0})


def drafting(name="sd"):
    return method_summary(
        name,
        values={"speedup": Estimate(1.3, 1.2, 1.4), "tokens_per_second": 130.0, "accepted_length": 2.6, "corrected": 1.4,
                "predicted": 1.9},
        acceptance_by_position=[0.8, 0.7],
        length_counts={1: 3, 2: 2, 3: 5},
        round_milliseconds={"draft": 3.0, "target": 12.0, "host": 1.0},
        predicted_lengths=[
            LengthPrediction(k, Estimate(1.0 + k / 10, 0.9, 1.6), Estimate(1.0, 0.9, 1.1)) for k in range(1, 6)
        ],
    )  # fmt: skip


def test_every_preset_has_a_style_of_its_own():
    presets = [preset("method", name) for name in names("method")]
    methods = {each.name for each in presets if each.path.parent.name == "methods"}  # without those of plugins
    assert methods <= METHODS.keys()
    styles = [(style_of(name).color, style_of(name).marker) for name in methods]
    assert len(set(styles)) == len(styles)


def test_a_methods_color_does_not_depend_on_the_other_methods_of_a_plot():
    assert style_of("sd") == style_of("sd (dummy)") == METHODS["sd"]
    assert style_of("a-plugins-method") == style_of("a-plugins-method")
    assert {style_of(f"sd(gamma={k})").marker for k in (1, 3)} == {METHODS["sd"].marker}


def test_a_run_has_a_picture_of_each_kind_that_it_has_data_for():
    found = run_plots(run_summary(AR, drafting()))
    assert {"speedup", "acceptance", "tokens-per-round", "time"} <= found.keys()
    assert "quality" not in found, "nothing is scored"
    assert "roc" not in found, "the run has no verifier"


def test_a_run_of_a_baseline_alone_has_no_empty_pictures():
    found = run_plots(run_summary(AR))
    assert not {"speedup", "acceptance", "quality", "draft-lengths", "roc"} & found.keys()


def test_the_files_of_a_run_are_named_after_their_kinds(tmp_path):
    drawn = of_runs([run_summary(AR, drafting())], tmp_path, ("svg",))
    kinds = {path.name.removeprefix("run-") for path in drawn}
    assert {"speedup.svg", "acceptance.svg", "tokens-per-round.svg", "time.svg"} <= kinds
    assert all(path.exists() for path in drawn)


def test_the_speedup_chart_shows_the_number_and_hostile_names_as_text(tmp_path):
    of_runs([run_summary(AR, drafting("sd(gamma=$x^2$)"))], tmp_path, ("svg",))
    text = (tmp_path / "run-speedup.svg").read_text()
    assert "1.30x" in text and "gamma=" in text


def test_a_plot_shows_a_setting_of_each_method_if_there_are_too_many():
    rows = [drafting(f"{name}(gamma={k})") for name, k in itertools.product(("sd", "eagle"), range(1, 6))]
    assert [row.method for row in selected(rows, 8)] == ["sd(gamma=1)", "eagle(gamma=1)"]
    assert selected(rows, 10) == rows


@pytest.mark.parametrize(
    ("lower_x", "front"),
    [(True, [(1.0, 2.0), (2.0, 5.0)]), (False, [(2.0, 5.0), (3.0, 4.0)])],
)
def test_the_pareto_front_has_the_points_that_no_other_dominates(lower_x, front):
    assert pareto([(1.0, 2.0), (2.0, 5.0), (3.0, 4.0), (1.5, 1.0)], lower_x) == front


def test_models_in_a_stacked_bar_have_different_colors():
    """Those of the table keep theirs; the others get what is left."""
    colors = styles.part_colors(["eagle-target", "target", "middle", "eagle", "draft", "host"])
    assert len(set(colors.values())) == 6
    assert {part: colors[part] for part in styles.PARTS if part in colors} == {
        part: color for part, color in styles.PARTS.items() if part in colors
    }


def test_many_methods_of_a_run_have_distinct_pairs_of_color_and_marker():
    found = styles.styles_of([*METHODS, "a-plugins-method", "another-plugins-method"])
    assert len({(each.color, each.marker) for each in found.values()}) == len(METHODS) + 2
    few = styles.styles_of(
        ["sd", "pld", "eagle", "sprinter", "polybasic", "polybasic-model", "bild", "dsl", "specdec++"]
    )
    assert len({(each.color, each.marker) for each in few.values()}) == 9


def test_methods_of_a_run_have_distinct_colors():
    found = styles.styles_of(["ar", "sd", "lossy", "sd(gamma=2)", "polybasic", "polybasic-pld"])
    assert len({each.color for each in found.values()}) == 6
    assert all(found[name].color == METHODS[name].color for name in ("ar", "sd"))
