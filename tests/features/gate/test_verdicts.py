"""`specbench compare` as a user and continuous integration see it: tables, codes, annotations, step summary, JUnit XML."""

import json
from xml.etree import ElementTree

import pytest

from specbench.cli import compare
from specbench.features.gate.snapshot import RunSnapshot
from specbench.features.gate.verdict import GateVerdict, Status
from tests.fixtures.console import specbench
from tests.fixtures.fabricated import quiet
from tests.fixtures.snapshots import save


@pytest.fixture
def two_files(tmp_path):
    for name, slower in (("base", 1.0), ("new", 1.1)):
        runs = [quiet({"sd": slower}, seed=3 + int(slower * 10), count=2)]
        save(RunSnapshot([], runs, False), tmp_path / f"{name}.json")
    return tmp_path


def test_the_command_prints_verdicts_and_sets_the_exit_code(two_files):
    shown = specbench("compare", "base.json", "new.json", cwd=two_files, code=5).stdout
    assert "REGRESSION" in shown and "overhead changed" in shown
    specbench("compare", "base.json", "new.json", "--exit-zero", cwd=two_files)
    specbench("compare", "base.json", "new.json", "--max-slowdown", "20", cwd=two_files)
    as_json = json.loads(specbench("compare", "base.json", "new.json", "-f", "json", cwd=two_files, code=5).stdout)
    assert as_json["exit_code"] == 5
    assert [each["method"] for each in as_json["verdicts"] if each["status"] == "regression"] == ["sd"]


def test_mistakes_are_one_line(two_files):
    (two_files / "none.json").write_text("{}")
    for arguments in (["base.json", "nowhere"], ["base.json", "none.json"], ["base.json", "new.json", "--alpha", "2"]):
        done = specbench("compare", *arguments, cwd=two_files, code=2)
        assert done.stderr.startswith("error[config]") and done.stderr.count("\n") == 1


def test_github_gets_annotations_and_a_step_summary(two_files, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(two_files / "summary.md"))
    (two_files / "summary.md").write_text("before\n")
    shown = specbench("compare", "base.json", "new.json", cwd=two_files, code=5).stdout
    (line,) = [line for line in shown.splitlines() if line.startswith("::")]
    assert line.startswith("::error title=overhead changed%3A sd on made-up%2C gsm8k%2C T = 0::sd over ar")
    summary = (two_files / "summary.md").read_text()
    assert summary.startswith("before\n") and "| run | method |" in summary and "- regression: overhead" in summary
    as_json = specbench("compare", "base.json", "new.json", "-f", "json", cwd=two_files, code=5)
    assert json.loads(as_json.stdout) and "::error" in as_json.stderr


def test_texts_cannot_break_annotations_tables_or_xml(tmp_path):
    nasty = GateVerdict("a|b,c", "m", "decoding", Status.regression, "50 %: bad", "line\nanother % <&>\x00", "x|y")
    (line,) = compare.annotations([nasty])
    assert line == "::error title=50 %25%3A bad%3A m on a|b%2Cc::line%0Aanother %25 <&>\\x00"
    rows = [line for line in compare.markdown([nasty], "t").splitlines() if line.startswith("| a")]
    assert rows == ["| a\\|b,c | m | REGRESSION: x\\|y |"], "columns without a value are left out"
    root = ElementTree.fromstring(compare.junit_xml([nasty], "t"))
    assert root.find("testsuite/testcase/failure").text == "line\nanother % <&>"


def test_junit_has_a_case_a_verdict(two_files):
    specbench("compare", "base.json", "new.json", "--junit", "out/j.xml", cwd=two_files, code=5)
    (suite,) = ElementTree.parse(two_files / "out" / "j.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("6", "1", "0")
    assert len(suite) == 6 and [case.get("name") for case in suite if case.find("failure") is not None] == ["sd: speed"]
