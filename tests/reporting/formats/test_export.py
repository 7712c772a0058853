"""AcceptanceReports of acceptance: rates by position, overall and by group, and the forms of other tools."""

import json

import pytest

from specbench.reporting.formats.acceptance_report import Share, acceptance_of
from tests.fixtures.console import specbench
from tests.fixtures.records import record, round_of


def test_survival_and_conditional_rates_are_those_of_the_rounds():
    """Of four drafts of two tokens, three accept the first token and two both; conditionally 3/4 and 2/3."""
    rounds = [round_of(2, 2), round_of(2, 1), round_of(2, 0), round_of(2, 2)]
    found = acceptance_of([record("sd", str(i), rounds=rounds) for i in range(6)])
    first, second = found.positions
    assert (first.survival.value, second.survival.value) == (0.75, 0.5)
    assert (first.conditional.value, second.conditional.value) == (0.75, 0.6667)
    assert (first.drafts, second.drafts) == (24, 18)
    assert found.prompts == 6 and second.survival.low == 0.5  # prompts do not differ


def test_a_position_at_which_nothing_is_accepted_has_rate_zero():
    found = acceptance_of([record("sd", str(i), rounds=[round_of(1, 0)]) for i in range(6)])
    assert found.positions[0].survival == Share(value=0.0)


@pytest.fixture(scope="module")
def profiles(two_runs):
    folder, runs = two_runs
    return json.loads(specbench("report", *runs, "-f", "acceptance", cwd=folder).stdout)["profiles"]


def test_every_method_that_drafts_has_an_acceptance_profile(profiles):
    assert [(each["method"], each["task"].partition("@")[0]) for each in profiles] == [
        ("sd", "gsm8k"), ("pld", "gsm8k"), ("sd", "wmt"), ("pld", "wmt"),
    ]  # fmt: skip
    assert set(profiles[0]["models"]) == {"draft", "target"} and profiles[0]["temperature"] == 0.0


def test_other_tools_get_rates_that_do_not_increase(profiles):
    """They draft in every round: the rates give the accepted tokens per round, also where some rounds had no draft."""
    for each in profiles:
        rates, survival = (
            each["vllm"]["synthetic_acceptance_rates"],
            [p["survival"]["value"] for p in each["positions"]],
        )
        assert rates == sorted(rates, reverse=True) and all(a <= b for a, b in zip(rates, survival, strict=True))
        assert -0.001 < 1.0 + sum(rates) - each["tokens_per_round"] < 0.2  # the end of an output cuts rounds here
        assert each["vllm"]["num_speculative_tokens"] == len(rates)
        assert each["llama.cpp"][-1] == ",".join(map(str, rates))


def test_the_format_applies_to_run_folders_only(tmp_path):
    shown = specbench("report", "--suite", "se-table2-tiny", "-f", "acceptance", cwd=tmp_path, code=2)
    assert "applies to run folders" in shown.stderr
