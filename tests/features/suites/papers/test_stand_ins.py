"""Stand-ins: the acceptance that a printed speed implies, and which number alone decides an outcome."""

import pytest

from specbench.decoding.traits import Theory
from specbench.features.suites.papers.stand_ins import fastest, implied_rate, model_bytes, printed_speeds, stands_for

ALTERNATING = Theory(formula="ensemble", models=("llama", "vicuna"), gamma=(1, 1))
EQUAL = {"llama": 1.0, "vicuna": 1.0}


@pytest.mark.parametrize(("printed", "rate"), [(1.58, 0.734), (1.52, 0.684), (1.41, 0.582), (1.46, 0.63)])
def test_table_2_of_speculative_ensemble_implies_these_acceptance_rates(printed, rate):
    assert implied_rate([ALTERNATING], EQUAL, ("llama", "vicuna"), printed) == pytest.approx(rate, abs=1e-3)


def test_the_best_of_several_settings_implies_the_lowest_rate():
    longer = Theory(formula="ensemble", models=("llama", "vicuna"), gamma=(5, 1))
    both = implied_rate([ALTERNATING, longer], EQUAL, ("llama", "vicuna"), 1.58)
    assert both == pytest.approx(
        min(implied_rate([each], EQUAL, ("llama", "vicuna"), 1.58) for each in (ALTERNATING, longer))
    )


def test_a_speed_that_no_acceptance_reaches_implies_none():
    assert implied_rate([ALTERNATING], EQUAL, ("llama", "vicuna"), 2.1) is None
    assert fastest([ALTERNATING], EQUAL, ("llama", "vicuna"), 1.0) == pytest.approx(2.0, rel=0.01)


def test_printed_speeds_are_those_of_all_tables_of_a_pair():
    assert {row.method for row in printed_speeds("llama-vicuna")} == {"we-sd", "we-se"}
    assert {row.T for row in printed_speeds("llama-2")} == {"0", "1"}


def test_bytes_are_known_for_models_and_heads_of_the_papers_pairs():
    sizes = model_bytes("vicuna-7b")
    assert sizes["draft"].forward / sizes["target"].forward == pytest.approx(1 / 150, rel=0.1)
    assert 0.03 < sizes["eagle"].forward / sizes["target"].forward < 0.08
    assert stands_for("vicuna-7b") == ""
