"""Faults that `enumerate` and `verify` must find, and what they say about those that they cannot."""

import json
from pathlib import Path

import pytest
import torch

from specbench.features.exactness.acceptance_test import LATE, AcceptanceTest
from tests.fixtures.console import specbench

PLUGIN = Path(__file__).parents[2] / "fixtures" / "faulty.py"
SIGNIFICANCE = 1e-4


def words_of(done) -> str:
    """Return what a command printed, without line breaks."""
    return " ".join(done.stdout.split())


@pytest.fixture
def faulty(tmp_path):
    text = 'description = "x"\nbaseline = "ar"\nname = "faulty"\ndraft = "draft"\nmodel = "target"\n'
    (tmp_path / "faulty-sd.toml").write_text(text)
    return "-m", "faulty-sd.toml", "--plugin", str(PLUGIN)


@pytest.mark.parametrize("late", [1, 3, 4])
def test_enumerate_finds_a_wrong_replacement_at_any_position_of_a_draft(late, faulty, tmp_path):
    done = specbench("enumerate", *faulty, "--set", f"method.late={late}", cwd=tmp_path, code=5)
    assert "FAILED" in done.stdout


def test_enumerate_covers_the_draft_length_in_use_and_says_so(faulty, tmp_path):
    sound = specbench("enumerate", *faulty, "--set", "method.gamma=4", cwd=tmp_path)
    assert "drafts of up to 4 tokens were enumerated" in words_of(sound)
    late = ("--set", "method.late=3")
    wrong = specbench("enumerate", *faulty, *late, "-s", "method.gamma=4", cwd=tmp_path, code=5)
    assert "NOT exact: faulty-sd: T = " in words_of(wrong)
    short = specbench("enumerate", *faulty, *late, "--set", "method.gamma=3", cwd=tmp_path)
    assert "drafts of up to 3 tokens were enumerated" in words_of(short)


def test_enumerate_says_which_drafts_are_too_long_for_it(faulty, tmp_path):
    done = specbench("enumerate", "-m", "pld", cwd=tmp_path)
    assert "were enumerated; longer ones, up to " in words_of(done)


@pytest.mark.parametrize("source", ["global", "own"])
def test_enumerate_detects_random_numbers_that_do_not_come_from_the_sampler(source, faulty, tmp_path):
    done = specbench("enumerate", *faulty, "--set", f"method.source={source}", cwd=tmp_path, code=6)
    assert "FAILED" not in done.stdout and "do not come from Sampler.choose" in words_of(done)


def test_enumerate_says_that_ratios_in_float32_differ_by_rounding_alone(faulty, tmp_path):
    done = specbench("enumerate", *faulty, "--set", "method.single=true", cwd=tmp_path)
    assert "FAILED" not in done.stdout and "equal up to rounding: below 1e-06" in words_of(done)


def test_verify_rejects_a_slightly_lenient_rule_by_its_enumeration(faulty, tmp_path):
    few = ("-t", "wmt", "-n", "2", "--repeats", "2", "--json")
    done = json.loads(specbench("verify", *faulty, "--set", "method.factor=1.3", *few, cwd=tmp_path, code=5).stdout)
    assert [check["name"] for check in done["checks"] if check["passed"] is False] == ["enumeration"]
    assert done["outcome"] == "differs" and not done["lossless"]


def test_verify_does_not_say_lossless_of_what_cannot_be_enumerated(faulty, tmp_path):
    few = ("-t", "wmt", "-n", "2", "--repeats", "2", "--json")
    done = json.loads(specbench("verify", *faulty, "--set", "method.source=own", *few, cwd=tmp_path).stdout)
    assert done["outcome"] == "no departure found" and done["line"].startswith("no departure found: faulty-sd")
    assert "too lenient" in done["line"] and "help: " in done["line"]
    assert done["power"]["factor"] is None or done["power"]["factor"] > 1.05


def test_the_verdict_says_which_drafts_were_not_enumerated(faulty, tmp_path):
    few = ("-t", "wmt", "-n", "2", "--repeats", "2", "--set", "method.gamma=12")
    done = specbench("verify", *faulty, *few, cwd=tmp_path)
    assert "enumerated exactly up to drafts of 8" in words_of(done)


def test_a_method_that_cannot_run_on_lookup_tables_is_not_called_lossless(faulty, tmp_path):
    few = ("-t", "wmt", "-n", "2", "--repeats", "2", "--set", "method.real=true")
    done = specbench("verify", *faulty, *few, cwd=tmp_path)
    text = words_of(done)
    assert "no departure found" in text and "cannot run on lookup tables: AttributeError" in text
    shown = specbench("enumerate", *faulty, "--set", "method.real=true", cwd=tmp_path, code=2)
    assert "faulty.py" in shown.stderr and "AttributeError" in shown.stderr


def test_verify_finds_a_wrong_acceptance_and_states_what_smaller_ones_need(faulty, tmp_path):
    few = ("-t", "wmt", "-n", "3", "--json")
    done = specbench("verify", *faulty, "--set", "method.factor=3.0", *few, cwd=tmp_path, code=5)
    failed = {check["name"] for check in json.loads(done.stdout)["checks"] if check["passed"] is False}
    assert "acceptance, T = 2" in failed
    sound = json.loads(specbench("verify", *faulty, *few, cwd=tmp_path).stdout)
    numbers = next(check for check in sound["checks"] if check["name"] == "acceptance, T = 2")["numbers"]
    assert 1.05 < numbers["smallest_factor"] <= 2.0
    assert numbers["tokens_for_1.05"] > numbers["tested"]
    tokens = next(check for check in sound["checks"] if check["name"] == "later tokens, T = 2")
    assert 0.05 < tokens["numbers"]["smallest_shift"] < 1.0
    assert "standard deviations" in tokens["found"]


def _tested(odds: torch.Tensor, factor: float, seed: int) -> AcceptanceTest:
    """Return the test of tokens with these odds, accepted `factor` times as often."""
    generator = torch.Generator().manual_seed(seed)
    outcomes = torch.rand(len(odds), generator=generator) < (factor * odds).clamp(max=1.0)
    test = AcceptanceTest()
    for i, (a, accepted) in enumerate(zip(odds.tolist(), outcomes.tolist(), strict=True)):
        test.add(i % 5, a, accepted)
    return test


def test_acceptance_times_1_05_is_found_with_as_many_tokens_as_stated():
    odds = torch.rand(2000, generator=torch.Generator().manual_seed(1)) ** 0.5
    needed = _tested(odds, 1.0, 0).tokens_needed(SIGNIFICANCE)
    assert needed is not None and 1000 < needed < 20000
    enough = odds.repeat(10)[:needed]
    assert sum(_tested(enough, 1.05, seed).p <= SIGNIFICANCE for seed in range(15)) >= 12
    factor = _tested(odds, 1.0, 0).smallest_factor(SIGNIFICANCE)
    assert factor is not None and sum(_tested(odds, factor, seed).p <= SIGNIFICANCE for seed in range(15)) >= 12


@pytest.mark.parametrize("shape", ["certain", "likely", "rare", "mixed"])
def test_false_alarms_of_the_acceptance_test_are_bounded_by_p(shape):
    uniform = torch.rand(60, generator=torch.Generator().manual_seed(2))
    shapes = {"certain": 1.0 - uniform * 2e-3, "likely": 0.9 + uniform / 10, "rare": uniform / 50, "mixed": uniform}
    p = torch.tensor([_tested(shapes[shape], 1.0, seed).p for seed in range(1000)])
    for a in (0.1, 0.01):
        assert (p <= a).double().mean() <= a + 5 * (a * (1 - a) / 1000) ** 0.5


def test_a_fault_late_in_the_draft_is_found_by_position():
    odds = torch.full((3000,), 0.6)
    test = AcceptanceTest()
    generator = torch.Generator().manual_seed(3)
    for i, a in enumerate(odds.tolist()):
        true = 1.25 * a if i % 5 >= 3 else a
        test.add(i % 5, a, bool(torch.rand((), generator=generator) < true))
    assert test.p < 1e-6


def test_a_late_alternative_holds_from_its_position_on():
    def p_at(position: int) -> float:
        test = AcceptanceTest()
        for i in range(60):
            test.add(position, 0.6, i % 4 > 0)
        return test.p

    assert p_at(LATE) == p_at(LATE + 1) < p_at(LATE - 1) < 1.0
