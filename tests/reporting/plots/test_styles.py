"""Colors, markers and line styles of methods."""

from specbench.config.presets import names
from specbench.reporting.plots import styles
from specbench.reporting.plots.styles import preset_style, style_of

METHODS = {name: style for name in names("method") if (style := preset_style(name))}


def styles_of(*names):
    """The styles of methods without settings."""
    return styles.styles_of({name: name for name in names})


def test_styles_differ_and_belong_to_presets():
    assert len(METHODS) >= 40
    looks = [(style.color, style.marker) for name, style in METHODS.items() if name != "se"]  # another name of we-se
    assert len(set(looks)) == len(looks)


def test_a_methods_color_does_not_depend_on_the_other_methods_of_a_plot():
    assert style_of("sd") == METHODS["sd"]
    assert style_of("a-plugins-method") == style_of("a-plugins-method")
    found = styles.styles_of({f"sd(gamma={k})": "sd" for k in (1, 3)})
    assert {each.marker for each in found.values()} == {METHODS["sd"].marker}


def test_models_in_a_stacked_bar_have_different_colors():
    """Those of the table keep theirs; the others get what is left."""
    colors = styles.part_colors(["eagle-target", "target", "middle", "eagle", "draft", "host"])
    assert len(set(colors.values())) == 6
    assert {part: colors[part] for part in styles.PARTS if part in colors} == {
        part: color for part, color in styles.PARTS.items() if part in colors
    }


def test_many_methods_of_a_run_have_distinct_pairs_of_color_and_marker():
    found = styles_of(*METHODS, "a-plugins-method", "another-plugins-method")
    assert len({(each.color, each.marker) for each in found.values()}) == len(METHODS) + 2
    few = styles_of("sd", "pld", "eagle", "sprinter", "polybasic", "polybasic-model", "bild", "dsl", "specdec++")
    assert len({(each.color, each.marker) for each in few.values()}) == 9


def test_methods_of_a_run_have_distinct_colors():
    found = styles.styles_of(
        {
            "ar": "ar",
            "sd": "sd",
            "lossy": "lossy",
            "sd(gamma=2)": "sd",
            "polybasic": "polybasic",
            "polybasic-pld": "polybasic-pld",
        }
    )
    assert len({each.color for each in found.values()}) == 6
    assert all(found[name].color == METHODS[name].color for name in ("ar", "sd"))
