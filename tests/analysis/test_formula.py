"""Formulas by name: those of bundled methods, those of plugins, and names that nothing registers."""

import subprocess
import sys

import pytest

from specbench import formula
from specbench.analysis import formula as formulas
from specbench.analysis.formula import AssumedRates, formula_of, known_formula
from specbench.analysis.predictions import predictions
from specbench.analysis.theory import RoundCounts
from specbench.decoding.traits import Theory
from specbench.errors import ConfigError, PluginError
from tests.fixtures.records import record, usage_of

RATES = AssumedRates(acceptance=0.5, deferred=0.25)


@pytest.fixture
def alternating(monkeypatch):
    """The formula of a method whose target writes every second token."""
    monkeypatch.setattr(formulas, "_FORMULAS", {**formulas._FORMULAS})

    @formula("alternating", papers=lambda method, rates, cost_ratio: 2.0 / (1.0 + cost_ratio))
    def alternating(method, rates):
        return RoundCounts(2.0, [{1: 1.0}, {2: 1.0}])

    return Theory(formula="alternating", models=("draft", "target"))


def test_formulas_of_bundled_methods_import_no_torch():
    code = (
        "import sys\n"
        "from specbench.analysis.formula import known_formula\n"
        "assert known_formula('untested run').papers is None and known_formula('ensemble').papers\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_plugins_formula_predicts_its_speed(alternating):
    """Blocks of two cost 1.5 s in the target: 2 tokens in 0.5 + 1.5 s, against 1 s per token, and 0.5 + 1 s on paper."""
    models = {"draft": usage_of({1: (40, 20.0)}), "target": usage_of({2: (40, 60.0)})}
    rows = [record("alternating", "0", 80, 80.0, models=models)]
    base = [record("ar", "0", 80, 80.0, models={"target": usage_of({1: (80, 80.0)})})]
    found = predictions(alternating, ["target"], rows, base)
    assert found is not None and found.corrected == pytest.approx(1.0)
    assert found.predicted == pytest.approx(2.0 / 1.5)
    assert found.papers_prediction == pytest.approx(2.0 / 1.5)


def test_a_run_of_a_plugin_that_is_not_loaded_has_no_prediction():
    rows = [record("alternating", "0", 80, 80.0, models={"target": usage_of({1: (80, 80.0)})})]
    theory = Theory(formula="alternating", models=("target",))
    assert known_formula("alternating") is None and predictions(theory, ["target"], rows, rows) is None


def test_an_unknown_formula_of_a_method_is_an_error_with_the_nearest_name(alternating):
    assert formula_of(alternating)(alternating, RATES) == RoundCounts(2.0, [{1: 1.0}, {2: 1.0}])
    with pytest.raises(PluginError, match=r"no formula 'alternate' is registered \(did you mean 'alternating'\?\)"):
        formula_of(Theory(formula="alternate", models=("target",)))


def test_a_plugin_cannot_replace_a_bundled_formula(monkeypatch):
    monkeypatch.setattr(formulas, "_FORMULAS", {})  # as before any look-up
    monkeypatch.delitem(sys.modules, "specbench.methods.theories")
    for name in [each for each in sys.modules if each.startswith("specbench.methods.theories.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigError, match="the formula 'ensemble' already exists"):
        formula("ensemble")(lambda method, rates: None)
