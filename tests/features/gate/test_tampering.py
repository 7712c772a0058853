"""What a gate or a comparison must not call ok: deleted rows, an edited machine, another grader of an equal version."""

import json
from pathlib import Path

import pytest

from specbench.files import CHECKSUM, json_with_checksum
from tests.fixtures.console import specbench

FEW = ["-m", "sd", "-p", "tiny", "-t", "gsm8k", "-n", "5", "--max-new-tokens", "8", "--counters-only"]
TASK = """
from dataclasses import dataclass
from specbench.scoring import Metric
from specbench.tasks.custom import Prompts

@dataclass(frozen=True, kw_only=True)
class Graded(Prompts, name="graded"):
    metrics = (Metric("right", "always"),)

    def score(self, sample, text, sandbox=None):
        return {"right": RIGHT}
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    where = tmp_path_factory.mktemp("tampering")
    specbench("gate", "record", "base.json", *FEW, cwd=where)
    return where / "base.json"


def edited(path: Path, change, seal: bool) -> Path:
    """Write a changed copy of a snapshot, with the old checksum or, with `seal`, one that fits."""
    table = json.loads(path.read_text())
    for run in table["runs"]["runs"]:
        change(run)
    out = path.with_name("edited.json")
    kept = {key: value for key, value in table.items() if key != CHECKSUM}
    out.write_text(json_with_checksum(kept) if seal else json.dumps(table))
    return out


def without_rows(run) -> None:
    for method in run["generations"].values():
        method["rows"] = method["rows"][:1]


def on_another_processor(run) -> None:
    """Record another processor, and other tokens of every output."""
    run["environment"]["cpu"] = "another processor"
    for method in run["generations"].values():
        for row in method["rows"]:
            row[2] = "00000000"


@pytest.mark.parametrize("change", [without_rows, on_another_processor])
def test_a_snapshot_that_was_changed_after_it_was_written_is_an_error(recorded, change):
    path = edited(recorded, change, seal=False)
    for command in (["gate", "check", path], ["compare", path, recorded]):
        done = specbench(*command, cwd=recorded.parent, code=2)
        assert "changed after it was written; help: restore it, or specbench gate update" in done.stderr


def test_a_snapshot_without_its_checksum_is_an_error(recorded):
    table = json.loads(recorded.read_text())
    path = recorded.with_name("bare.json")
    path.write_text(json.dumps({key: value for key, value in table.items() if key != CHECKSUM}))
    assert "changed after it was written" in specbench("gate", "check", path, cwd=recorded.parent, code=2).stderr


def test_missing_rows_cannot_be_compared_even_with_a_fitting_checksum(recorded):
    path = edited(recorded, without_rows, seal=True)
    done = specbench("gate", "check", path, "-f", "json", cwd=recorded.parent, code=6)
    (verdict,) = json.loads(done.stdout)["verdicts"]
    assert verdict["status"] == "not comparable" and "BASE: ar: 1 of 5 generations" in verdict["detail"]


def test_other_tokens_on_another_processor_are_counted_and_not_ok(recorded):
    path = edited(recorded, on_another_processor, seal=True)
    done = specbench("gate", "check", path, "-f", "json", cwd=recorded.parent, code=6)
    found = {each["method"]: each for each in json.loads(done.stdout)["verdicts"] if each["aspect"] == "decoding"}
    assert {each["status"] for each in found.values()} == {"inconclusive"}
    assert found["sd"]["detail"].startswith("5 of 5 generations have different tokens")
    assert "another processor's arithmetic may be the cause" in found["sd"]["detail"]


def test_a_changed_grader_of_an_equal_version_is_not_a_change_of_quality(tmp_path):
    """And scores that the earlier grader gave are computed again."""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": f"One two {i}"}) + "\n" for i in range(12)))
    plugin = tmp_path / "graded_task.py"
    few = ["-n", 12, "--repeats", 1, "--max-new-tokens", 4, "--data", "rows.jsonl", "--plugin", plugin]
    run = ["run", "-m", "ar", "-p", "tiny", "-t", "graded", *few]
    for right, out in ((0.0, "before"), (1.0, "after")):
        plugin.write_text(TASK.replace("RIGHT", str(right)))
        specbench(*run, "-o", out, cwd=tmp_path)
    done = specbench("compare", "before", "after", "-f", "json", cwd=tmp_path, code=6)
    found = {each["aspect"]: each for each in json.loads(done.stdout)["verdicts"]}
    assert found["quality"]["title"] == "other metric" and "grader:" in found["quality"]["detail"]
    (folder,) = (tmp_path / "before").iterdir()
    specbench("score", folder, "--plugin", plugin, cwd=tmp_path)
    found = json.loads(specbench("compare", "before", "after", "-f", "json", cwd=tmp_path).stdout)["verdicts"]
    assert {each["status"] for each in found if each["aspect"] == "quality"} == {"ok"}
