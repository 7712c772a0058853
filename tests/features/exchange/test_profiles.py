"""Acceptance profiles: NVIDIA's files, pages of /metrics, runs, and comparisons of them."""

import itertools
import json

import pytest

from specbench.analysis.acceptance_profile import AcceptanceProfile, Drafts, lengths_of, of_lengths
from specbench.analysis.speculation_profile import read, written
from specbench.errors import ConfigError
from specbench.features.exchange.profile_comparison import compare_profiles
from specbench.features.exchange.profile_sources import of_counters, of_run
from specbench.features.gate.verdict import GateLimits, Status
from specbench.features.servers.served import SpeculationCounts
from tests.fixtures.console import specbench

METRICS = """# HELP vllm:spec_decode_num_drafts_total Number of drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{model="t"} 1000.0
vllm:spec_decode_num_draft_tokens_total{model="t"} 3000.0
vllm:spec_decode_num_accepted_tokens_total{model="t"} 1500.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{model="t",position="0"} 800.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{model="t",position="1"} 500.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{model="t",position="2"} 200.0
"""


def profile(*survival: float, rounds: int = 1000) -> AcceptanceProfile:
    return AcceptanceProfile(source="x", survival=survival, rounds=rounds, method="eagle3")


def require_rules_of_the_schema(table: dict) -> None:
    """Check a file by the rules of schema 1.0, without our classes."""
    k, marginal, conditional = (
        table[key] for key in ("num_speculative_tokens", "marginal_accept_rates", "conditional_accept_rates")
    )
    assert table["schema_version"] == "1.0" and table["measured"] is True
    assert len(marginal) == len(conditional) == k == table["max_supported_k"]
    assert all(0.0 <= rate <= 1.0 for rate in (*marginal, *conditional))
    assert all(two <= one for one, two in itertools.pairwise(marginal))
    product = 1.0
    for rate, expected in zip(conditional, marginal, strict=True):
        product *= rate
        assert product == pytest.approx(expected, abs=1e-4)
    assert table["mean_accept_length"] == pytest.approx(1.0 + sum(marginal), abs=0.02)
    histogram = {int(length): count for length, count in table["acceptance_length_histogram"].items()}
    steps = sum(histogram.values())
    assert min(histogram) >= 1 and max(histogram) <= k + 1
    assert sum(length * count for length, count in histogram.items()) / steps == pytest.approx(
        table["mean_accept_length"], abs=0.02
    )
    assert table["validation"]["mean_consistency"]["passed"] and table["validation"]["marginal_monotonicity"]["passed"]
    assert table["accept_length_by_k"][f"{k}"] == pytest.approx(table["mean_accept_length"], abs=1e-5)
    assert table["accept_length_model"] in ("chain_analytic", "measured_per_k")


def test_a_length_that_never_occurs_inherits_the_survival_of_the_next_larger_one():
    found = of_lengths({1: 2, 3: 1}, 2, "x")
    assert found.survival == pytest.approx((1 / 3, 1 / 3)) and found.conditional == pytest.approx((1 / 3, 1.0))
    assert found.mean_length == pytest.approx(5 / 3) and lengths_of(found) == {1: 2, 3: 1}
    table = json.loads(written(found))
    assert table["marginal_accept_rates"] == [0.333333, 0.333333] and table["conditional_accept_rates"] == [
        0.333333,
        1.0,
    ]
    assert table["mean_accept_length"] == 1.666667


def test_what_is_written_keeps_the_rules_and_reads_back_equal():
    one = of_lengths(
        {1: 211, 2: 307, 3: 199, 4: 283},
        3,
        "a.json",
        method="eagle3",
        target="org/model",
        draft="org/head",
        drafts=Drafts.chain,
    )
    text = written(one)
    require_rules_of_the_schema(json.loads(text))
    assert read(text, "a.json") == one
    assert written(read(text, "a.json")) == text
    table = json.loads(text)
    assert table["accept_length_by_k"]["1"] == pytest.approx(1.0 + one.survival[0], abs=1e-6)  # a chain


def test_rounds_that_draft_different_numbers_of_tokens_have_a_histogram_and_no_rates():
    """The schema's rates are conditional on a token having been drafted, which the histogram does not tell."""
    one = of_lengths({1: 500, 3: 500}, 2, "a.json", method="ngram", drafts=Drafts.adaptive)
    table = json.loads(written(one))
    assert table["marginal_accept_rates"] == table["conditional_accept_rates"] == []
    assert table["mean_accept_length"] == 2.0 and table["accept_length_by_k"] == {}
    assert read(json.dumps(table), "a.json") == one
    with pytest.raises(ConfigError, match="may draft different numbers"):
        one.acceptance_rate  # noqa: B018  (a property that raises)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"marginal_accept_rates": [0.5, 0.6, 0.1]}, "rises from 0.5 to 0.6 at position 2"),
        ({"num_speculative_tokens": 4}, "num_speculative_tokens is 4, and there are 3 marginal rates"),
        ({"mean_accept_length": 2.9}, "the mean length is 2.9, and its rates imply 2.5"),
        ({"conditional_accept_rates": [0.8, 0.7, 0.4]}, "the conditional rate at position 2 is 0.7"),
        ({"acceptance_length_histogram": {"5": 3}}, "a round has 5 tokens, more than 3 drafted ones"),
        ({"acceptance_length_histogram": {"1": 1, "2": 9}}, "the mean length is 2.5"),
        ({"acceptance_length_histogram": {"one": 1}}, "acceptance_length_histogram"),
        ({"measured": False}, "measured is false"),
        ({"schema_version": "2.0"}, "'1.0' is known"),
        ({"marginal_accept_rates": [1.2, 0.5, 0.2]}, "the survival at position 1 is 1.2, not a share"),
    ],
)
def test_a_file_that_contradicts_itself_is_an_error_with_the_number(changes, message):
    table = json.loads(written(profile(0.8, 0.5, 0.2)))
    with pytest.raises(ConfigError) as error:
        read(json.dumps(table | changes), "a.json")
    assert str(error.value).startswith("a.json: ") and message in str(error.value)


def test_counters_that_do_not_agree_are_an_error():
    with pytest.raises(ConfigError, match="1400 tokens were accepted, and 1500 by position"):
        of_counters(SpeculationCounts(1000, 3000, 1400, (800, 500, 200)), "server")
    with pytest.raises(ConfigError, match="no counters of accepted tokens by position"):
        of_counters(SpeculationCounts(1000, 3000, 1500), "server")


@pytest.mark.parametrize(
    ("new", "status", "title"),
    [
        (profile(0.8, 0.5, 0.2), Status.same, "same acceptance"),
        (profile(0.6, 0.4, 0.2), Status.inconclusive, "lower acceptance"),
        (profile(0.9, 0.6, 0.3), Status.improved, "higher acceptance"),
        (profile(0.6, 0.4, 0.2, rounds=10), Status.inconclusive, "change undecided"),  # too few rounds
        (profile(0.8, 0.5), Status.incomparable, "other draft length"),
        (profile(0.6, 0.4, 0.2, rounds=0), Status.inconclusive, "change undecided"),
    ],
)
def test_profiles_are_compared_by_their_mean_length(new, status, title):
    (verdict,) = compare_profiles([profile(0.8, 0.5, 0.2)], [new], GateLimits())
    assert (verdict.status, verdict.title) == (status, title)


def test_the_position_that_changed_most_is_named():
    (verdict,) = compare_profiles([profile(0.8, 0.6, 0.3)], [profile(0.8, 0.4, 0.2)], GateLimits())
    assert "at position 2: 0.750 → 0.500" in verdict.detail


def test_a_run_is_written_and_compared_with_another_tools_counters(tmp_path):
    specbench(
        "run", "-m", "sd", "-p", "tiny", "-t", "gsm8k", "-n", 6, "--repeats", 1, "--max-new-tokens", 24, "--gamma", 3,
        cwd=tmp_path,
    )  # fmt: skip
    (run,) = (tmp_path / "results").iterdir()
    (ours,) = of_run(run)
    specbench("report", run, "-f", "speculation-profile", "-o", "ours.json", cwd=tmp_path)
    table = json.loads((tmp_path / "ours.json").read_text())
    require_rules_of_the_schema(table)
    assert table["method"] == "draft_model" and table["measurement_conditions"]["task"].startswith("gsm8k")
    done = specbench("compare", run, tmp_path / "ours.json", cwd=tmp_path)
    assert "same acceptance" in done.stdout or "1 ok" in done.stdout
    (tmp_path / "metrics.txt").write_text(METRICS)
    done = specbench("compare", "metrics.txt", run, "-f", "json", "--exit-zero", cwd=tmp_path)
    (verdict,) = json.loads(done.stdout)["verdicts"]
    assert verdict["aspect"] == "acceptance" and f"2.500 → {ours.mean_length:.3f}" in verdict["short"]


def test_several_methods_are_a_file_each(tmp_path):
    specbench(
        "run", "-m", "sd", "-m", "pld", "-p", "tiny", "-t", "gsm8k", "-n", 2, "--repeats", 1, "--max-new-tokens", 16,
        cwd=tmp_path,
    )  # fmt: skip
    done = specbench("report", "results", "-f", "speculation-profile", cwd=tmp_path, code=2)
    assert "2 profiles, and a file holds one" in done.stderr
    specbench("report", "results", "-f", "speculation-profile", "-o", "profiles", cwd=tmp_path)
    assert {path.name for path in (tmp_path / "profiles").iterdir()} == {"1-draft_model.json", "2-ngram.json"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_speculative_tokens": 10**12}, "drafts of 1000000000000 tokens; a profile has from 1 to 1024"),
        ({"num_speculative_tokens": 0}, "drafts of 0 tokens"),
        ({"acceptance_length_histogram": {"1": -5, "2": 9}}, "-5 rounds have 1 tokens"),
        ({"acceptance_length_histogram": {"1": 10**400}}, "rounds have 1 tokens"),
    ],
)
def test_counts_out_of_bounds_are_errors_and_do_not_hang(change, message):
    table = {"schema_version": "1.0", "num_speculative_tokens": 2, "acceptance_length_histogram": {"1": 3}, **change}
    with pytest.raises(ConfigError, match=message):
        read(json.dumps(table), "x.json")


def test_deeply_nested_json_is_an_error_with_its_file(tmp_path):
    nested = "[" * 5000 + '{"acceptance_histogram": [1]}' + "]" * 5000
    shallow = "[" * 200 + '{"acceptance_histogram": [1]}' + "]" * 200
    for text in (nested, shallow):
        (tmp_path / "deep.json").write_text(text)
        done = specbench("compare", "deep.json", "deep.json", cwd=tmp_path, code=2)
        assert "deep.json" in done.stderr and "nested more than 100 levels deep" in done.stderr
