"""The papers' items: the state of each, and whether the command, section, test or suite that it names reproduces it."""

import ast
import json
import re
import shlex
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from specbench.features.suites.papers import reproduction
from specbench.features.suites.papers.reproduction import SAME, counterpart, papers, state_of
from specbench.features.suites.suite import TINY, read_suite, suites
from specbench.features.suites.suite_index import Index, IndexEntry
from specbench.files import read_toml, write_with_checksum
from tests.fixtures.console import specbench
from tests.fixtures.plans import named_on_h200

ROOT = Path(__file__).parents[4]
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


@pytest.mark.parametrize("name", sorted({item["suite"] for item in ITEMS if "suite" in item}))
def test_every_suite_that_papers_toml_names_can_be_planned(name):
    """Every method, pair and task of the suite resolves, without weights."""
    rows = named_on_h200(name)
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
        "mean acceptance length" in shown
        if action == "trace"
        else "html" in shown or (tmp_path / "head/report.json").exists()
    )
    for item, label in zip(ITEMS, LABELS, strict=True):
        if item.get("command") == command and (sketch := SKETCHES.get((item["paper"], label))):
            rounds = json.loads(specbench(action, *words, "--json", cwd=tmp_path).stdout)["rounds"]
            owners, tested = sketch
            assert [each["proposers"] for each in rounds[: len(owners)]] == [
                [owner] * count for owner, count in zip(owners, tested, strict=True)
            ]


@pytest.fixture
def empty_results(tmp_path):
    """A folder whose results hold no suite."""
    (tmp_path / "results/suites").mkdir(parents=True)
    return tmp_path


def test_reproduce_shows_the_models_of_each_table(empty_results):
    items = json.loads(specbench("reproduce", "--status", "--json", cwd=empty_results).stdout)
    assert {item["state"] for item in items} == {"not yet", "by tests", "explained", "shown"}
    for name, runs, state in (
        ("se-table2-tiny", [{"simulated": "", "state": "done"}], "tiny"),
        ("se-table3", [{"simulated": "dummy", "state": "done"}], "dummy + synthetic"),
        (
            "se-table4",
            [{"simulated": "", "state": "done"}, {"simulated": "", "state": "missing"}],
            "the paper's weights, in part",
        ),
    ):
        folder = empty_results / "results/suites" / name
        folder.mkdir(parents=True)
        rows = [{"key": str(i), "seconds": 1.0, **run} for i, run in enumerate(runs)]
        write_with_checksum(
            folder / "index.json", {"suite": name, "runs": rows, "definition": read_suite(name).definition}
        )
        states = {
            (item["paper"], item["shows"]): item["state"]
            for item in json.loads(specbench("reproduce", "--json", cwd=empty_results).stdout)
        }
        assert states["Speculative Ensemble", f"Table {name[8]}"] == state


def test_reproduce_says_that_a_suite_measured_something_else(empty_results):
    path = empty_results / "results/suites/se-table2-tiny/index.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_with_checksum(
        path, {"suite": "se-table2-tiny", "runs": [{"key": "0", "state": "done"}], "definition": "earlier"}
    )
    (state,) = {
        item["state"]
        for item in json.loads(specbench("reproduce", "--json", cwd=empty_results).stdout)
        if item["paper"] == "Speculative Ensemble" and item["shows"] == "Table 2"
    }
    assert state == "tiny, with an earlier definition"


def test_reproduce_finds_the_checkouts_results_from_anywhere(tmp_path, monkeypatch):
    states = json.loads(specbench("reproduce", "--json", cwd=tmp_path).stdout)
    assert "tiny" in {item["state"] for item in states}
    monkeypatch.setattr(reproduction, "PACKAGE", tmp_path / "specbench")  # as an installed package
    done = specbench("reproduce", "--status", cwd=tmp_path).stdout
    assert "no results here" in done and "--from FOLDER" in done
    assert "no such folder" in specbench("reproduce", "--from", "nowhere", cwd=tmp_path, code=2).stderr


def test_runs_with_other_models_do_not_count_as_reproduction(tmp_path):
    run = IndexEntry(key="0", seconds=1.0, state="done")
    for changes, state in ((["limit = 3"], "the paper's weights, in part"), (["data = synthetic"], "not yet")):
        index = Index.of("se-table2", tmp_path, changed=True)
        index.runs, index.changes = {"0": run}, changes
        index.keep(["0"])
        assert state_of("se-table2", tmp_path)[0] == state


@pytest.mark.parametrize(
    ("name", "differences"),
    [
        ("cos-parallel-tiny", ["2 of the 4 tasks (humaneval, gsm8k)", "no ensemble of 3 models"]),
        ("se-fig4-tiny", ["5 of the 9 values of we-se.target.weights"]),
        ("se-fig8-tiny", ["tasks gsm8k, cnndm, wmt, humaneval", "5 of the 9 values of se-small-large.target.weights"]),
        ("polybasic-table2-tiny", ["instead of spec-bench", "also polybasic-model, polybasic-pld, sd"]),
        ("se-table2-tiny", ["without qwen-3b, qwen-1.5b"]),
        ("cascade-table2-tiny", ["5 of the 7 values of cascade-opt.target.alpha"]),
        ("sprinter-table4-tiny", ["task cnndm instead of wiki-summary"]),
    ],
)
def test_a_smaller_grid_is_said_to_be_another(name, differences):
    said = counterpart(read_suite(name))
    assert SAME not in said
    assert all(each in said for each in differences), said


@pytest.mark.parametrize(
    "name",
    ["se-table3-tiny", "se-table4-tiny", "se-fig5-tiny"],
)
def test_the_same_grid_is_said_to_be_the_same(name):
    assert SAME in counterpart(read_suite(name))


def test_a_grid_that_loses_a_value_a_method_or_a_temperature_is_another():
    suite = read_suite("se-table3-tiny")
    first, second = suite.grid
    assert "temperatures 0 instead of 0, 1" in counterpart(replace(suite, grid=(first,)))
    lines = tuple(replace(line, methods=("cd-se",)) for line in suite.grid)
    assert "without cd-sd" in counterpart(replace(suite, grid=lines))
    over = tuple((key, values[:1]) for key, values in first.options.over)
    lines = tuple(replace(line, options=replace(line.options, over=over)) for line in (first, second))
    assert "1 of the 2 values of cd-sd.proposer.gamma" in counterpart(replace(suite, grid=lines))


def test_only_a_small_version_of_a_bundled_suite_has_a_counterpart():
    suite = read_suite("se-table3-tiny")
    assert counterpart(read_suite("se-table3")) == counterpart(replace(suite, name="mine-tiny")) == ""


@pytest.mark.parametrize("name", [name for name in suites() if name.startswith(("se-table2", "cos-parallel"))])
def test_three_models_have_the_same_draft_lengths_wherever_the_paper_prints_one_cell(name):
    lines = [line for line in read_suite(name).grid if {"qwen-1.5b-3", "tiny-qwen-1.5b-3"} & set(line.pairs)]
    assert bool(lines) == (name != "cos-parallel" + TINY)
    for line in lines:
        assert dict(line.options.over)["we-sd.proposer.gamma"] == [5, 1]
