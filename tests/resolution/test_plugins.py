"""Plugins with a fault: the generation fails, or the command ends in one line, and what was recorded is kept."""

import json
import signal
import subprocess
import sys

import pytest

from tests.fixtures import plugin_faults
from tests.fixtures.console import specbench
from tests.fixtures.plugin_faults import PATH

FEW = ["-p", "tiny", "-n", 1, "--repeats", 1, "--max-new-tokens", 4, "--plugin", PATH]


def run(tmp_path, template: str, source: str, *arguments, code: int):
    """Run a plugin whose one gap is filled with a source, in a folder of its own."""
    folder = tmp_path / "case"
    while folder.exists():
        folder = folder.with_name(f"{folder.name}x")
    folder.mkdir()
    (folder / "rows.jsonl").write_text('{"prompt": "One two"}\n')
    (folder / PATH).write_text(template.replace("SOURCE", source))
    done = specbench(*arguments, *FEW, cwd=folder, code=code)
    assert "Traceback" not in done.stderr
    return folder, done


def error_line(done) -> str:
    """The line of the error, which follows lines of progress."""
    *before, line = done.stderr.splitlines()
    assert line.startswith("error[") and not any(each.startswith("error") for each in before)
    return line


def errors(folder) -> dict[str, str | None]:
    (path,) = folder.glob("results/*/samples.jsonl")
    return {row["method"]: row["error"] for row in map(json.loads, path.read_text().splitlines())}


@pytest.mark.parametrize("kind", ["rounds", "drafts", "targets"])
def test_what_a_method_must_not_yield_fails_the_generation(kind, tmp_path):
    template, faults = {
        "rounds": (plugin_faults.METHOD, plugin_faults.ROUNDS),
        "drafts": (plugin_faults.PROPOSER, plugin_faults.DRAFTS),
        "targets": (plugin_faults.TARGET, plugin_faults.TARGETS),
    }[kind]
    words = []
    for i, source in enumerate(faults):
        (tmp_path / f"bad{i}.py").write_text(template.replace("SOURCE", source).replace('name="bad"', f'name="bad{i}"'))
        words += ["-m", f"bad{i}", "--plugin", f"bad{i}.py"]
    done = specbench("run", *words, "-t", "gsm8k", *FEW[:-2], cwd=tmp_path, code=3)
    assert "Traceback" not in done.stderr
    found = errors(tmp_path)
    for i, (source, message) in enumerate(faults.items()):
        assert message in (found[f"bad{i}"] or ""), source
    assert kind == "targets" or found["ar"] is None


@pytest.mark.parametrize("source", plugin_faults.SCORES)
def test_what_a_grader_must_not_return_is_one_line(source, tmp_path):
    rows = ("-t", "bad", "--data", "rows.jsonl")
    folder, done = run(tmp_path, plugin_faults.GRADER, source, "run", "-m", "ar", *rows, code=2)
    line = error_line(done)
    assert plugin_faults.SCORES[source] in line and "bad" in line
    assert errors(folder) == {"ar": None}, "the generation is kept"


def test_a_grader_may_return_none_for_no_score(tmp_path):
    run(tmp_path, plugin_faults.GRADER, "return None", "run", "-m", "ar", "-t", "bad", "--data", "rows.jsonl", code=0)


@pytest.mark.parametrize("source", plugin_faults.LOADED)
def test_what_a_plugin_raises_when_it_is_imported_is_one_line(source, tmp_path):
    _, done = run(tmp_path, "SOURCE\n", source, "run", "-m", "ar", "-t", "gsm8k", code=2)
    line = error_line(done)
    assert "plugin bad.py" in line and plugin_faults.LOADED[source] in line


@pytest.mark.parametrize("hook", ["roles(self)", "declared_distribution(self)", "calibrated(self, pilot)"])
def test_a_plugin_cannot_end_the_command_with_exit_code_0(hook, tmp_path):
    template = f"{plugin_faults.METHOD}\n    def {hook}: sys.exit(0)\n"
    _, done = run(tmp_path, template, "yield Round([5])", "run", "-m", "bad", "-t", "gsm8k", code=2)
    line = error_line(done)
    assert line.startswith("error[plugin]: bad.py:") and line.endswith("SystemExit: 0")


@pytest.mark.parametrize(
    "source", ["yield Round([numpy.int64(0)])", "while True: yield Round([])", "sys.exit(0)", "return None"]
)
def test_enumerate_verify_and_trace_name_the_fault(source, tmp_path):
    message = plugin_faults.ROUNDS.get(source, "of type int64")
    (tmp_path / PATH).write_text(plugin_faults.METHOD.replace("SOURCE", source))
    for command in (("enumerate", "-m", "bad"), ("verify", "-m", "bad", "-n", 1), ("trace", "One two", "-m", "bad")):
        done = specbench(*command, "--plugin", PATH, cwd=tmp_path, code=2)
        assert message in done.stderr.splitlines()[-1]


def test_rounds_beyond_the_room_are_cut_as_the_driver_cuts_them(tmp_path):
    """A method that ignores the limits can be enumerated, and does not hang."""
    source = "while True: yield Round([0, 0, 0, 0, 0])"
    (tmp_path / PATH).write_text(plugin_faults.METHOD.replace("SOURCE", source))
    assert "FAILED" in specbench("enumerate", "-m", "bad", "--plugin", PATH, cwd=tmp_path, code=5).stdout


def test_sigterm_within_a_plugin_ends_the_command_with_exit_code_143(tmp_path):
    source = "import os; os.kill(os.getpid(), 15); yield Round([5])"
    (tmp_path / PATH).write_text(plugin_faults.METHOD.replace("SOURCE", source))
    code = "import sys; from specbench.cli import main; main()"
    command = [sys.executable, "-c", code, "run", "-m", "bad", "-t", "gsm8k", *map(str, FEW)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (128 + signal.SIGTERM, False)
