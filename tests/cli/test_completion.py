"""Shell completion: names of presets, offered without waiting for torch. And `list` for scripts."""

import json
import os
import subprocess
import sys

import pytest

from specbench.config.presets import names
from tests.fixtures.console import specbench


@pytest.fixture(autouse=True)
def called_specbench(monkeypatch):
    """The program's name, that a shell uses, is pytest's where that was run as a module."""
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None)


def completed(words: str, monkeypatch, tmp_path) -> list[str]:
    """What bash is offered for the last of these words; a trailing blank requests a new one."""
    count = len(words.split()) - (not words.endswith(" "))
    for key, value in {"_SPECBENCH_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(count)}.items():
        monkeypatch.setenv(key, value)
    return specbench(cwd=tmp_path).stdout.split()


@pytest.mark.parametrize("command", ["run", "plan", "verify", "gate record", "trace", "enumerate", "profile"])
def test_methods_are_completed_for_every_command(command, monkeypatch, tmp_path):
    assert completed(f"specbench {command} -m casc", monkeypatch, tmp_path) == [
        name for name in names("method") if name.startswith("casc")
    ]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("run --pair tiny-l", ["tiny-llama-2", "tiny-llama-3", "tiny-llama-vicuna"]),
        ("run -t gsm8k,wik", ["gsm8k,wiki-summary"]),
        ("run --suite se-table2", ["se-table2", "se-table2-tiny"]),
        ("report --suite se-table3", ["se-table3", "se-table3-tiny"]),
        ("fetch -p tiny-p", ["tiny-polybasic"]),
        ("list ", ["methods", "pairs", "tasks", "suites", "machines", "runs"]),
        ("plan --for h", ["h100", "h200"]),
        ("show p", ["pair"]),
        ("show pair tiny-p", ["tiny-polybasic"]),
        ("show nothing t", []),
        ("doc", ["doctor"]),
    ],
)
def test_other_values_are_completed(words, offered, monkeypatch, tmp_path):
    assert completed(f"specbench {words}", monkeypatch, tmp_path) == offered


@pytest.mark.parametrize(
    ("words", "offered", "most"), [("run -m spri", "sprinter", 300), ("doc", "doctor", 200), ("lis", "list", 200)]
)
def test_completion_imports_few_modules(words, offered, most):
    """In a process of its own, as a shell starts it. Names of commands are completed without any command's module."""
    code = (
        "import sys; sys.argv = ['specbench']\n"
        "from specbench.cli.app import main\n"
        "try: main()\n"
        "finally:\n"
        "    assert not {'torch', 'transformers', 'numpy', 'pandas', 'huggingface_hub'} & set(sys.modules)\n"
        f"    assert len(sys.modules) < {most}, len(sys.modules)\n"
    )
    asked = {"_SPECBENCH_COMPLETE": "complete_bash", "COMP_WORDS": f"specbench {words}"}
    asked["COMP_CWORD"] = str(len(words.split()))
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, [offered]), done.stderr


def test_a_completion_script_is_printed(monkeypatch, tmp_path):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    shown = specbench("--show-completion", "bash", cwd=tmp_path).stdout
    assert "_SPECBENCH_COMPLETE=complete_bash" in shown


@pytest.mark.parametrize("kind", ["method", "pair", "task", "suite"])
def test_a_list_for_scripts_has_every_name_with_its_description(kind, tmp_path):
    listed = json.loads(specbench("list", f"{kind}s", "--json", cwd=tmp_path).stdout)
    assert [each["name"] for each in listed] == names(kind)
    assert all(each["description"] for each in listed)
    same = {each["name"]: each["same_as"] for each in listed if each["same_as"]}
    assert same == ({"se": "we-se"} if kind == "method" else {})
