"""configs/papers.toml: every command runs, and every section, test and suite that it names speaks of the item."""

import ast
import json
import re
import shlex
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from specbench.config.suite import read_suite, suites
from specbench.experiment.machine_plan import machine_rows
from specbench.files import read_toml
from specbench.machine.accelerator import read_accelerator
from specbench.reporting.reproduction import papers
from tests.fixtures.console import specbench

ROOT = Path(__file__).parents[2]
ITEMS = read_toml(ROOT / "configs/papers.toml")["item"]
LABELS = [item.shows for item in papers(None)]  # "Figure 2", "Lemma 8"
KINDS = "table figure algorithm theorem lemma corollary remark equation appendix".split()
PLURALS = {"lemmata": "lemma", "corollaries": "corollary"}
NUMBER = r"(?:A\.)?\d+(?:\.\d+)?"
CITED = re.compile(rf"\b([A-Za-z]+) ({NUMBER}(?:(?:, and | and |, | to ){NUMBER})*)")
SKETCHES = {  # the models that propose in turn, and the tokens of each turn that are tested first
    ("Speculative Ensemble", "Figure 2"): (("math", "code"), (1, 1)),
    ("Speculative Ensemble", "Figure 3"): (("target", "math", "code"), (1, 1, 1)),
    ("Speculative Ensemble", "Figure 7"): (("target", "math", "code"), (3, 2, 1)),
    ("CoS slides", "sketches"): (("target", "math", "code"), (3, 2, 1)),
}


def cited(text):
    """Return every item that a text cites: `Tables 1 to 3, Figure 8` cites Table 1, Table 2, Table 3 and Figure 8."""
    found = set()
    for word, numbers in CITED.findall(text):
        kind = PLURALS.get(word.lower(), word.lower().removesuffix("s"))
        if kind in KINDS:
            parts = re.split(r", and | and |, ", numbers)
            found |= {f"{kind.title()} {each}" for part in parts for each in expanded(part)}
    return found


def expanded(numbers):
    """Return the numbers of a range: `3.3 to 3.5` is 3.3, 3.4 and 3.5."""
    first, _, last = numbers.partition(" to ")
    if not last:
        return [first]
    stem, _, begin = first.rpartition(".")
    end = last.rpartition(".")[2]
    return [f"{stem}.{i}".removeprefix(".") for i in range(int(begin), int(end) + 1)]


@cache
def sections(page):
    """Return the text of each section of a page by its anchor, without its subsections."""
    found, anchor = {}, ""
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        if re.match(r"#+ ", line):
            anchor = re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        found[anchor] = found.get(anchor, "") + line + "\n"
    return found


@cache
def docstrings(path):
    """Return the docstring of each test of a file by its name."""
    module = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name: ast.get_docstring(node) or "" for node in module.body if isinstance(node, ast.FunctionDef)}


@cache
def rows_of_suites():
    """Return the row of docs/suites.md that lists each suite."""
    found = {}
    for line in (ROOT / "docs/suites.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("| `") and len(cells := line.split("|")) == 5:
            listed = re.findall(r"`([\w-]+)`", cells[1])
            if " to " in cells[1]:
                stem = listed[0].rstrip("0123456789")
                listed = [f"{stem}{i}" for i in range(int(listed[0][-1]), int(listed[1][-1]) + 1)]
            found |= dict.fromkeys(listed, cells[2])
    return found


def wrong_pointer(item, label):
    """Return what is wrong with the test, section or suite that an item names; empty if it speaks of the item."""
    numbered = item["kind"] != "claim" and cited(label)
    if "tests" in item:
        path, _, name = item["tests"].partition("::")
        if not (ROOT / path).is_file() or name not in docstrings(path):
            return f"no test {item['tests']}"
        lines = [line for line in docstrings(path)[name].split("; ") if f"{item['paper']}, " in line]
        return "" if not numbered or any(label in cited(each) for each in lines) else f"{name} does not cite {label}"
    if "docs" in item:
        page, _, anchor = item["docs"].partition("#")
        if not (ROOT / page).is_file() or anchor not in sections(page):
            return f"no section {item['docs']}"
        return "" if not numbered or label in cited(sections(page)[anchor]) else f"{item['docs']} does not cite {label}"
    if "suite" in item:
        if item["suite"] not in suites():
            return f"no suite {item['suite']}"
        row = rows_of_suites().get(item["suite"], "")
        return "" if not numbered or label in cited(row) else f"docs/suites.md: {item['suite']} does not name {label}"
    return ""


@pytest.mark.parametrize(("item", "label"), list(zip(ITEMS, LABELS, strict=True)), ids=LABELS)
def test_what_an_item_names_speaks_of_it(item, label):
    assert not wrong_pointer(item, label)


@pytest.mark.parametrize(
    ("pointer", "message"),
    [
        (
            {"tests": "tests/methods/test_sequential_cascades.py::test_a_token_cascade_follows_its_rule"},
            "does not cite",
        ),
        ({"tests": "tests/methods/test_sequential_cascades.py::test_nothing"}, "no test"),
        ({"tests": "tests/nowhere.py::test_nothing"}, "no test"),
        ({"docs": "docs/papers/speccascade.md#errata"}, "does not cite"),
        ({"docs": "docs/papers/speccascade.md#nowhere"}, "no section"),
        ({"suite": "cascade-fig1"}, "does not name"),
        ({"suite": "cascade-fig9"}, "no suite"),
    ],
)
def test_a_pointer_to_something_else_is_found(pointer, message):
    """Control: Algorithm 3 of SpecCascade with other tests, sections and suites."""
    item = {"paper": "SpecCascade", "kind": "algorithm", "shows": "3", **pointer}
    assert message in wrong_pointer(item, "Algorithm 3")


def test_citations_are_read():
    assert cited("SE, Tables 2 to 4, Figure 8, and lemmas 1, 3 and 5") == {
        "Table 2", "Table 3", "Table 4", "Figure 8", "Lemma 1", "Lemma 3", "Lemma 5",
    }  # fmt: skip
    assert cited("Corollaries 3.3 to 3.5; Appendix A.1") == {*(f"Corollary 3.{i}" for i in (3, 4, 5)), "Appendix A.1"}
    assert cited("a Remark on 3 tables") == set()


@pytest.mark.parametrize("name", sorted({item["suite"] for item in ITEMS if "suite" in item}))
def test_every_suite_that_papers_toml_names_can_be_planned(name):
    """Every method, pair and task of the suite resolves, without weights."""
    rows = machine_rows(read_suite(name), read_accelerator("h200"))
    assert rows and all(row.generations for row in rows)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a short run, which `RUN` in a command stands for."""
    folder = tmp_path_factory.mktemp("run")
    specbench("run", "-m", "sd", "-t", "gsm8k", "-n", 2, "--repeats", 1, "--max-new-tokens", 8, cwd=folder)
    return folder


@pytest.mark.parametrize("command", sorted({item["command"] for item in ITEMS if "command" in item}))
def test_every_command_of_papers_toml_runs(command, run, tmp_path):
    """Each ends with 0. Training is limited to a few texts and seconds, and a run replaces RUN."""
    if "tiny-polybasic" in command and not find_spec("torchao"):
        pytest.skip("needs torchao")
    program, action, *words = shlex.split(command)
    assert program == "specbench"
    if action == "train":
        words += ["-t", "gsm8k", "-n", "12", "--set", "recipe.epochs=1", "--trial", "0", "-o", "head"]
    if action == "report":
        (folder,) = (run / "results").glob("*/run.toml")
        words = [str(folder.parent) if word == "RUN" else word for word in words]
    shown = specbench(action, *words, cwd=tmp_path).stdout
    assert (
        "accepted length" in shown if action == "trace" else "html" in shown or (tmp_path / "head/report.json").exists()
    )
    for item, label in zip(ITEMS, LABELS, strict=True):
        if item.get("command") == command and (sketch := SKETCHES.get((item["paper"], label))):
            rounds = json.loads(specbench(action, *words, "--json", cwd=tmp_path).stdout)["rounds"]
            owners, tested = sketch
            assert [each["proposers"] for each in rounds[: len(owners)]] == [
                [owner] * count for owner, count in zip(owners, tested, strict=True)
            ]
