"""A replaced draft of a lossless method: acceptance, cost and speed apart, with outputs that must stay equal."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.features.gate.comparison import compare
from specbench.features.gate.snapshot import runs_of
from specbench.features.gate.verdict import GateLimits, Status
from tests.fixtures.console import specbench

PAIR = """
[models.draft]
path = "specbench:tiny/models/{draft}"

[models.target]
path = "specbench:tiny/models/target"

[defaults]
data = "synthetic"
task.gsm8k.shots = 0
"""
FEW = ["-p", "own.toml", "-t", "gsm8k", "-n", 10, "--gamma", 4, "--max-new-tokens", 10, "--temperature", 0]


def pair(folder: Path, draft: str) -> None:
    (folder / "own.toml").write_text(PAIR.format(draft=draft))


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Runs with the bundled draft, and with the middle model in its place."""
    where = tmp_path_factory.mktemp("drafts")
    for draft in ("draft", "middle"):
        pair(where, draft)
        specbench("run", "-m", "sd,lossy", *FEW, "-o", draft, cwd=where)
    return where


def aspects(shown: str, method: str) -> dict[str, dict[str, str]]:
    return {each["aspect"]: each for each in json.loads(shown)["verdicts"] if each["method"] == method}


def test_a_better_draft_has_a_higher_acceptance_at_a_higher_cost_and_speed_is_judged_apart(runs):
    done = specbench("compare", "draft", "middle", "-f", "json", cwd=runs, code={0, 5, 6})
    found = aspects(done.stdout, "sd")
    assert {"decoding", "acceptance", "cost", "speed"} <= found.keys()
    assert found["decoding"]["title"] == "same outputs"
    assert found["acceptance"]["title"] in ("higher acceptance", "same acceptance", "no significant change")
    assert "draft forward" in found["cost"]["short"] and "cost ratio" in found["cost"]["short"]
    before, after = (float(x) for x in found["cost"]["short"].split("cost ratio ")[1].split(" → "))
    assert min(before, after) > 0.0
    assert "sd over ar" in found["speed"]["detail"] and "model draft checksum" in found["decoding"]["detail"]
    assert aspects(done.stdout, "ar")["decoding"]["status"] == "ok", "the baseline does not read the draft"


def test_a_worse_draft_is_no_regression_by_its_acceptance_alone(runs):
    done = specbench("compare", "middle", "draft", "-f", "json", "--counters-only", cwd=runs, code={0, 6})
    found = aspects(done.stdout, "sd")
    assert found["acceptance"]["status"] in ("inconclusive", "ok") and "cost" not in found
    assert found["decoding"]["status"] == "ok"


def test_a_method_that_is_not_lossless_cannot_be_compared_with_another_draft(runs):
    found = aspects(specbench("compare", "draft", "middle", "-f", "json", cwd=runs, code={5, 6}).stdout, "lossy")
    assert found["comparability"]["title"] == "other draft"
    assert "only the drafts of a lossless method can be compared" in found["comparability"]["detail"]


def test_other_outputs_of_a_lossless_method_with_another_draft_are_a_regression(runs):
    base, new = ([replace(run, sessions=[]) for run in runs_of(runs / name)] for name in ("draft", "middle"))
    other = [replace(row, ids="other") if row.sample == "0" else row for row in new[0].generations["sd"]]
    new = [replace(new[0], generations={**new[0].generations, "sd": other})]
    verdicts = {v.aspect: v for v in compare(base, new, GateLimits(counters_only=True)) if v.method == "sd"}
    assert (verdicts["decoding"].status, verdicts["decoding"].title) == (Status.regression, "decoding changed")


@pytest.mark.parametrize(
    ("seconds", "status", "title"),
    [
        (0.8, Status.regression, "slower with the new draft"),
        (0.5, Status.improved, "faster with the new draft"),
        (0.6, Status.same, "same speed"),
    ],
)
def test_the_speed_decides_whether_a_new_draft_is_better(runs, seconds, status, title):
    """Whatever the acceptance and the cost of a forward are."""
    base, new = (runs_of(runs / name) for name in ("draft", "middle"))
    rounds = {"ar": 1.0, "lossy": 0.7}
    base, new = (
        [
            replace(run, sessions=[{n: [(100, s + 0.001 * i) for i in range(5)] for n, s in (rounds | sd).items()}])
            for run in runs_
        ]
        for runs_, sd in ((base, {"sd": 0.6}), (new, {"sd": seconds}))
    )
    verdicts = {v.aspect: v for v in compare(base, new, GateLimits()) if v.method == "sd"}
    assert (verdicts["speed"].status, verdicts["speed"].title) == (status, title)
    assert {verdicts[each].status for each in ("decoding", "acceptance", "cost")} <= {
        Status.same, Status.improved, Status.skipped,
    }  # fmt: skip


def test_another_target_is_not_comparable(runs):
    (runs / "own.toml").write_text(PAIR.format(draft="draft").replace("models/target", "models/math"))
    specbench("run", "-m", "sd", *FEW, "-o", "other", cwd=runs)
    (verdict,) = json.loads(specbench("compare", "draft", "other", "-f", "json", cwd=runs, code=6).stdout)["verdicts"]
    assert verdict["status"] == "not comparable" and "model target checksum" in verdict["detail"]


def test_the_gate_answers_whether_a_new_draft_is_better(tmp_path):
    pair(tmp_path, "draft")
    specbench("gate", "record", "base.json", "-m", "sd", *FEW, "--counters-only", cwd=tmp_path)
    pair(tmp_path, "middle")
    done = specbench("gate", "check", "base.json", "-f", "json", cwd=tmp_path, code={0, 6})
    found = aspects(done.stdout, "sd")
    assert found["decoding"]["title"] == "same outputs" and "acceptance 0." in found["acceptance"]["short"]


def test_equal_prompts_are_too_few_for_a_verdict(tmp_path):
    """Twelve samples with one prompt are one prompt, in run folders and in snapshots."""
    row = {"question": "Tom has 3 apples and buys 4 more. How many apples does Tom have?", "answer": "#### 7"}
    (tmp_path / "same.jsonl").write_text("".join(json.dumps(row) + "\n" for _ in range(12)))
    few = [*FEW[:-2], "-n", 12, "--data", "same.jsonl", "--counters-only", "--temperature", 1, "--max-new-tokens", 6]
    for draft in ("middle", "draft"):
        pair(tmp_path, draft)
        specbench("gate", "record", f"{draft}.json", "-m", "sd", *few, cwd=tmp_path)
    done = specbench("compare", "middle.json", "draft.json", "-f", "json", "--counters-only", cwd=tmp_path, code=6)
    found = aspects(done.stdout, "sd")["acceptance"]
    assert found["status"] == "inconclusive" and "too few samples for a verdict" in found["detail"]
