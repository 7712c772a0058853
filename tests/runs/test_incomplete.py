"""Runs that are not whole cannot be compared, and runs under other conditions cannot be resumed."""

import json
import shutil
import tomllib
from dataclasses import replace
from xml.etree import ElementTree

import pytest
import tomli_w

from specbench.config.request import Access
from specbench.files import write_with_checksum
from specbench.runs.locking import locked
from specbench.runs.record import Record
from specbench.runs.run_folder import Expected, Recorder, load
from tests.fixtures.console import specbench

FEW = ["run", "-m", "sd", "-t", "gsm8k", "-n", "3", "--repeats", "1", "--max-new-tokens", "6"]
EXPECTED = Expected(("sd",), 1, 2, frozenset("ab"))


@pytest.fixture(scope="module")
def done_run(tmp_path_factory):
    """A finished run of three prompts, six generations."""
    where = tmp_path_factory.mktemp("run")
    specbench(*FEW, cwd=where)
    return where


@pytest.fixture
def run(done_run, tmp_path):
    """A copy of it in `results`, beside the original under `base`."""
    shutil.copytree(done_run / "results", tmp_path / "results")
    shutil.copytree(done_run / "results", tmp_path / "base")
    (folder,) = (tmp_path / "results").iterdir()
    return folder


def base_of(run):
    return run.parents[1] / "base" / run.name


def rewritten(path, change):
    """Change a JSON file as its writer would: with a new checksum."""
    table = change(json.loads(path.read_text()))
    write_with_checksum(path, {key: value for key, value in table.items() if key != "sha256"})


def without_summary(run):
    (run / "summary.json").unlink()


@pytest.mark.parametrize("order", ["new", "base"])
def test_missing_generations_cannot_be_compared(run, order):
    lines = (run / "samples.jsonl").read_text().splitlines(keepends=True)
    (run / "samples.jsonl").write_text("".join(lines[:2]))
    sides = [base_of(run), run] if order == "new" else [run, base_of(run)]
    junit = run.parents[1] / "junit.xml"
    done = specbench("compare", *sides, "--junit", junit, cwd=run.parents[1], code=6)
    assert "2 of 6 generations" in done.stdout
    assert ElementTree.parse(junit).getroot().get("failures") == "1"
    specbench("compare", *sides, "--inconclusive", "pass", cwd=run.parents[1])


def test_unscored_generations_cannot_be_compared(run):
    rewritten(
        run / "scores.json",
        lambda scores: {k: v for k, v in scores.items() if k != "sha256"} | {"rows": scores["rows"][:2]},
    )
    done = specbench("compare", base_of(run), run, cwd=run.parents[1], code=6)
    assert "2 of 6 generations are scored" in done.stdout


def test_doubled_records_cannot_be_compared(run):
    text = (run / "samples.jsonl").read_text()
    (run / "samples.jsonl").write_text(text + text)
    done = specbench("compare", base_of(run), run, cwd=run.parents[1], code=6)
    assert "6 unknown, damaged or duplicate records" in done.stdout


def test_a_whole_run_equals_itself(run):
    specbench("compare", base_of(run), run, "--counters-only", cwd=run.parents[1])


def other(value):
    return value + 1 if isinstance(value, int) else f"{value} other"


@pytest.mark.parametrize(
    "key",
    [
        "cpu", "instructions", "cores", "threads", "os", "python", "code", "git.revision", "packages.torch",
        "packages.numpy", "packages.tokenizers", "packages.transformers", "packages.torchao",
    ],
)  # fmt: skip
def test_a_run_under_other_conditions_is_neither_resumed_nor_compared(run, key):
    whole = (run / "samples.jsonl").read_text()
    (run / "samples.jsonl").write_text("".join(whole.splitlines(keepends=True)[:-1]))
    environment = json.loads((run / "env.json").read_text())
    table, _, name = key.rpartition(".")
    place = environment[table] if table else environment
    place[name] = other(place.get(name, ""))
    write_with_checksum(run / "env.json", {key: value for key, value in environment.items() if key != "sha256"})
    done = specbench(*FEW, cwd=run.parents[1], code=2)
    assert name in done.stderr
    assert "--fresh" in done.stderr
    (run / "samples.jsonl").write_text(whole)
    about_code = key in ("code", "git.revision")  # which a comparison is about
    done = specbench("compare", base_of(run), run, "--require-speed", cwd=run.parents[1], code=6)
    assert (f"{name}: " in done.stdout) != about_code


@pytest.mark.parametrize("key", ["temperature", "max_new_tokens", "seed"])
def test_an_edited_config_is_rejected_by_every_command(run, key):
    config = tomllib.loads((run / "run.toml").read_text())
    config["decoding"][key] += 1
    (run / "run.toml").write_text(tomli_w.dumps(config))
    without_summary(run)
    for command in (FEW, ["report", run], ["score", run], ["compare", base_of(run), run]):
        done = specbench(*command, cwd=run.parents[1], code={2} if command is not FEW else {0, 2})
        assert command is FEW or "was changed after the run began" in done.stderr
    (run / "samples.jsonl").write_text((run / "samples.jsonl").read_text().splitlines(keepends=True)[0])
    assert "was changed after the run began" in specbench(*FEW, cwd=run.parents[1], code=2).stderr


def test_a_changed_draft_length_is_a_diff_and_is_compared_on_demand(run, tmp_path):
    own = "\n".join(
        [
            'name = "speculative"',
            'baseline = "ar"',
            'scorers = "target"',
            "[proposer]",
            'name = "model"',
            'model = "draft"',
        ]
    )
    folders = []
    for gamma in (4, 2):
        (tmp_path / "own.toml").write_text(f'{own}\ngamma = {gamma}\n[target]\nname = "last"\n')
        out = tmp_path / f"runs-{gamma}"
        command = [{"sd": "own.toml", "6": "16"}.get(word, word) for word in FEW]
        specbench(*command, "--out", out, cwd=tmp_path)
        folders.append(out)
    junit = tmp_path / "junit.xml"
    done = specbench("compare", *folders, "--counters-only", "--junit", junit, cwd=tmp_path, code=6)
    assert "proposer.gamma 4 -> 2" in done.stdout
    assert "{" not in done.stdout
    assert ElementTree.parse(junit).getroot().get("failures") == "1"
    done = specbench("compare", *folders, "--counters-only", "--across-config", "-f", "json", cwd=tmp_path, code={5, 6})
    (found,) = (each for each in json.loads(done.stdout)["verdicts"] if each["status"] != "ok")
    assert "target forwards/token" in found["detail"]
    assert "proposer.gamma 4 -> 2" in found["detail"]


def test_a_record_with_invalid_times_is_written_as_a_failed_one(tmp_path):
    with locked([tmp_path], Access()) as locks:
        recorder = Recorder(locks[tmp_path], EXPECTED)
        good = Record(
            method="sd",
            sample="a",
            repeat=0,
            seed=0,
            order=0,
            tokens=[1],
            finish="eos",
            prefill_seconds=0.1,
            decode_seconds=0.1,
        )
        bad = replace(good, sample="b", order=1, decode_seconds=-0.1)
        assert recorder.append(good) == good
        written = recorder.append(bad)
        assert written.error and not written.tokens and written.key == bad.key
        assert load(tmp_path, EXPECTED).records == [good, written]
        with pytest.raises(AssertionError, match="no reader accepts"):
            recorder.append(replace(good, repeat=-1))
