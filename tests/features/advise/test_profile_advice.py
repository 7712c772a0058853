"""Speeds that an acceptance profile would have at the costs of a run, and synthetic logits with its rate."""

import json

import pytest

from specbench.analysis.acceptance_profile import AcceptanceProfile, Drafts
from specbench.analysis.intervals import Estimate
from specbench.analysis.speculation_profile import written
from specbench.errors import ConfigError
from specbench.features.advise.profile_advice import ProfileAdvice, ProfiledLength, advise_on_profile, profile_answer
from specbench.features.exchange.profile_sources import profiles_of
from tests.fixtures.console import specbench

WORDS = ("-p", "tiny", "-t", "gsm8k", "--data", "synthetic", "-n", 6, "--max-new-tokens", 32, "--repeats", 1)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    specbench("run", "-m", "sd", "--gamma", 4, *WORDS, cwd=folder)
    (path,) = (path.parent for path in folder.glob("results/*/samples.jsonl"))
    return path


def test_the_profile_of_the_run_itself_predicts_its_own_speed(run):
    (own,) = profiles_of(run)
    advice = advise_on_profile(run, own)
    assert [length.gamma for length in advice.lengths] == [1, 2, 3, 4]
    assert advice.lengths[-1].tokens == pytest.approx(own.mean_length)
    summary = json.loads(specbench("report", run, "-f", "json", cwd=run).stdout)[0]
    measured = next(row["speedup"]["value"] for row in summary["methods"] if row["preset"] == "sd")
    assert advice.lengths[-1].speedup.value == pytest.approx(measured, rel=0.25)  # the last round of an output is cut


def test_better_rates_are_faster_and_unknown_rounds_narrow_nothing(run):
    def predicted(rate, rounds=0):
        survival = tuple(rate**i for i in range(1, 5))
        profile = AcceptanceProfile(source="x", survival=survival, rounds=rounds, drafts=Drafts.chain)
        return advise_on_profile(run, profile).lengths[3].speedup

    low, high = predicted(0.3), predicted(0.9)
    assert high.value > low.value
    few, many = predicted(0.5, 20), predicted(0.5, 20_000)
    assert few.high / few.low > many.high / many.low


def answer_of(low, value, high, rounds=10):
    profile = AcceptanceProfile(source="x", survival=(0.5,), rounds=rounds)
    return profile_answer(ProfileAdvice(profile, "sd", None, (ProfiledLength(1, 1.5, Estimate(value, low, high)),)))


def test_the_answer_follows_the_interval():
    assert answer_of(1.1, 1.2, 1.3).startswith("Draft 1 drafted token: predicted 1.20x")
    assert answer_of(0.9, 1.0, 1.1).startswith("It cannot be decided")
    assert answer_of(0.7, 0.8, 0.9).startswith("Do not draft with these rates")
    assert "does not say how many rounds" in answer_of(1.1, 1.2, 1.3, rounds=0)


def test_the_command_takes_a_file(run, tmp_path):
    path = tmp_path / "speculation_profile.json"
    path.write_text(written(AcceptanceProfile(source="x", survival=(0.8, 0.6), rounds=500, drafts=Drafts.chain)))
    shown = specbench("advise", run, "--profile", path, cwd=tmp_path)
    assert "tokens per round" in shown.stdout and "acceptance here is that of the profile" in " ".join(
        shown.stdout.split()
    )
    row = json.loads(specbench("advise", run, "--profile", path, "--json", cwd=tmp_path).stdout)
    assert [length["gamma"] for length in row["lengths"]] == [1, 2] and row["lengths"][1]["tokens"] == pytest.approx(
        2.4
    )
    assert (
        "--profile needs the costs of a run"
        in specbench("advise", "-p", "tiny", "--profile", path, cwd=tmp_path, code=2).stderr
    )


def test_a_run_without_a_draft_model_has_no_costs(tmp_path):
    specbench("run", "-m", "pld", *WORDS, cwd=tmp_path)
    (folder,) = (path.parent for path in tmp_path.glob("results/*/samples.jsonl"))
    with pytest.raises(ConfigError, match="needs the costs of a timed run of a draft model"):
        advise_on_profile(folder, AcceptanceProfile(source="x", survival=(0.5,)))


def test_synthetic_logits_take_the_rate_of_a_profile(tmp_path):
    """Accepted / tested tokens of .8 and .6: 1.4 of 1.8."""
    path = tmp_path / "speculation_profile.json"
    path.write_text(written(AcceptanceProfile(source="x", survival=(0.8, 0.6), rounds=500, drafts=Drafts.chain)))
    words = ("--set", "pair.logits=synthetic", "--set", f"pair.acceptance={path}")
    specbench("run", "-m", "sd", *WORDS, *words, cwd=tmp_path)
    (run,) = tmp_path.glob("results/*/run.toml")
    assert "acceptance = 0.7777" in run.read_text()
    path.write_text("{}")
    assert "speculation_profile.json" in specbench("run", "-m", "sd", *WORDS, *words, cwd=tmp_path, code=2).stderr
