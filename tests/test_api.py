"""The Python API, and the examples, which use it."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import specbench
from specbench.runs.record import Record

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
FEW = {"limit": 2, "repeats": 1, "max_new_tokens": 12, "data": "synthetic"}


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> specbench.RunResult:
    return specbench.run("sd", "tiny", "gsm8k", out=tmp_path_factory.mktemp("api") / "results", **FEW)


def test_run_returns_a_table_with_a_row_per_method(result):
    table = result.table()
    assert list(table["method"]) == ["ar", "sd"]
    assert list(table["generations"]) == [2, 2]
    assert table["acceptance_rate"].iloc[1] > 0
    assert result.complete


def test_the_table_has_settings_rank_and_end_to_end_speeds(result):
    table = result.table()
    assert table["draft_length"].fillna(0).tolist() == [0, 5]
    assert table["temperature"].tolist() == [0.0, 0.0]
    assert (table["end_to_end_tokens_per_second"] > 0).all()
    for name in ("speedup", "end_to_end_speedup"):
        assert table[name].tolist()[0] == 1.0 and table[name].notna().all(), "the baseline's ratio to itself"
        assert table[f"{name}_low"].isna().tolist()[0]
    assert {"rank", "end_to_end_speedup_low", "end_to_end_speedup_high"} <= set(table)


def test_data_frames_by_prompt_and_by_position_agree_with_the_records(result):
    prompts, positions = result.by_prompt(), result.by_position()
    records = list(result.records())
    assert len(prompts) == 4 and prompts["generations"].tolist() == [1] * 4
    assert prompts["tokens"].sum() == sum(len(record.tokens) for record in records)
    assert (prompts["end_to_end_seconds"] > prompts["seconds"]).all()
    assert prompts["acceptance_rate"].isna().tolist() == [True, True, False, False]
    assert positions["method"].unique().tolist() == ["sd"] and positions["position"].tolist()[0] == 1
    assert positions["accepted"].sum() == sum(r.accepted for record in records for r in record.rounds)
    assert positions["acceptance_rate"].tolist() == result.summaries[0].methods[1].acceptance_by_position


def test_every_column_of_a_data_frame_is_documented(result):
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    for frame in (result.table(), result.by_prompt(), result.by_position()):
        for column in frame:
            assert f"`{column.removesuffix('_low').removesuffix('_high')}`" in page, column


def test_texts_of_results_plans_and_specs_are_short(result):
    plan = specbench.plan("all", "tiny", ["gsm8k", "wmt", "xsum"], limit=2, data="synthetic")
    summary = result.summaries[0]
    runs = plan.resolved.runs
    for each in (
        result,
        plan,
        plan.resolved,
        plan.resolved.plans[0],
        runs[0],
        summary,
        summary.spec,
        summary.methods[1],
    ):
        lines = repr(each).splitlines()
        assert len(lines) <= 10 and max(map(len, lines)) < 300, repr(each)
    assert repr(result).splitlines()[1].strip() == "tiny, gsm8k@3-A, T = 0: ar, sd"
    assert "more" in repr(plan).splitlines()[-1] and "0 of" in repr(plan)


def test_results_and_plans_are_tables_in_a_notebook(result):
    page = result._repr_html_()
    assert "<p>sd (draft length 5) is " in page and "<th>end_to_end_speedup</th>" in page
    assert "<th>generations</th>" in specbench.plan("sd", "tiny", "gsm8k", **FEW)._repr_html_()


def test_the_conclusion_is_the_one_of_the_command_line(result):
    first, *_ = result.conclusion()
    assert first.startswith("sd (draft length 5) is ") and " ar on synthetic prompts in this run" in first
    assert any("need at least 5 different prompts" in sentence for sentence in result.conclusion())


def test_records_are_every_generation(result):
    records = result.records()
    assert len(records) == 4
    assert all(isinstance(record, Record) and record.tokens for record in records)


def test_the_same_call_measures_nothing_again(result):
    before = (result.folders[0] / "samples.jsonl").read_bytes()
    again = specbench.run("sd", "tiny", "gsm8k", out=result.folders[0].parent, **FEW)
    assert again.folders == result.folders
    assert (result.folders[0] / "samples.jsonl").read_bytes() == before


def test_load_reads_what_run_has_written(result):
    assert specbench.load(*result.folders).table().equals(result.table())


def test_load_rejects_a_folder_without_a_run(tmp_path):
    with pytest.raises(specbench.ConfigError, match="contains no run"):
        specbench.load(tmp_path)


def test_plan_loads_no_model_and_counts_what_is_done(result, monkeypatch):
    monkeypatch.setattr("specbench.models.loader.load", lambda *_: pytest.fail("a model was loaded"))
    table = specbench.plan("sd", "tiny", "gsm8k", out=result.folders[0].parent, **FEW).table()
    assert table[["generations", "done"]].to_numpy().tolist() == [[4, 4]]
    assert specbench.plan("sd", "tiny", "gsm8k", limit=3, data="synthetic").table()["done"].tolist() == [0]


@pytest.mark.parametrize(
    ("form", "holds"),
    [("md", "| sd |"), ("csv", "run,"), ("json", '"methods"'), ("latex", "tabular"), ("html", "<html")],
)
def test_reports_in_every_format(result, form, holds):
    assert holds in specbench.report(result, form)


def test_a_report_has_the_chosen_columns_or_every_table(result):
    assert "| method | speedup over ar" in specbench.report(result, columns=["speedup"])
    assert "speedup" in specbench.report(result, "latex", columns=["speedup"])
    assert len(specbench.report(result, full=True)) > len(specbench.report(result))
    for arguments, message in (
        ({"columns": ["sped"]}, "did you mean 'speedup'"),
        ({"format": "csv", "columns": ["speedup"]}, "csv contains every value"),
        ({"format": "pdf"}, "use one of md"),
    ):
        with pytest.raises(specbench.ConfigError, match=message):
            specbench.report(result, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "sdd"}, "did you mean 'sd'"),
        ({"limit": "three"}, "limit = 'three' must be of type int"),
        ({"limits": 3}, "unknown option 'limits'.*did you mean 'limit'"),
        ({"set": ["task.shots=0"]}, "set = .* must be a table"),
        ({"sandbox": "docker"}, "sandbox = 'docker'"),
        ({"heads": {"sprinter": "a"}}, "unknown option 'heads' .did you mean 'head'"),
        ({"overrides": {"task.shots": 0}}, "unknown option 'overrides' .did you mean 'set'"),
        ({"methods": "sd"}, "unknown option 'methods' .did you mean 'method'"),
        ({"head": {"sprinter": 3}}, "head: 3 must be a path"),
        ({"set": {1: 0}}, "set: key 1 must be a text"),
        ({"method": None}, "method = None must be a name"),
        ({"task": []}, r"task = \[\] names nothing; help: leave it out"),
        ({"gamma": 0}, "gamma = 0: a draft length must be at least 1"),
        ({"repeats": -1}, "repeats = -1 must be at least 1"),
        ({"data": {"gsm8k": None}}, "data: None must be a path"),
        ({"task": 3}, "task = 3 must be a name"),
        ({"plugins": 3}, "plugins = 3 must be"),
        ({"sandbox": 3}, "sandbox = 3"),
        ({"engine": "leen"}, "engine = 'leen' .did you mean 'lean'"),
        ({"device": "cudda"}, "device = 'cudda' .did you mean 'cuda'.*known: auto, cpu, cuda"),
        ({"dtype": "float23"}, "dtype = 'float23' .did you mean 'float32'"),
        ({"chat": "of"}, "chat = 'of' .did you mean 'off'"),
        ({"on_overflow": "truncate"}, "on_overflow = 'truncate' .did you mean 'truncate-"),
        ({"engine": None}, "engine = None; known: auto"),
        ({"temperature": 1.0, "set": {"tsk.shots": 0}}, "start with method., pair. or task."),
        ({"temperature": 1e-40}, "temperature = 1e-40 must be 0, which is greedy, or at least 1e-06"),
        ({"repeats": np.int64(3)}, r"repeats = np.int64\(3\) has the type numpy.int64; help: a Python number"),
        ({"limit": torch.tensor(3)}, "has the type torch.Tensor"),
        ({"gamma": np.array(3)}, "has the type numpy.ndarray"),
        ({"set": {"method.sd.proposer.gamma": np.int64(3)}}, "has the type numpy.int64"),
        ({"pair": np.array("tiny")}, "must be a name or a path, not ndarray"),
        ({"method": [torch.tensor(1)]}, "must be a name or a path, not Tensor"),
        ({"method": {"sd": 1}}, "must be a name, or a list of names"),
        ({"method": "sd\0"}, "cannot have a NUL character"),
        ({"set": {"task.prompt": "a\0"}}, "cannot have a NUL character"),
        ({"out": "a\0b"}, "cannot have a NUL character"),
        ({"out": "x" * 400}, "a file name has at most 255 bytes"),
        ({"pair": "x" * 400}, "unknown pair 'xxx"),
        ({"task": "y" * 400}, "unknown task 'yyy"),
        ({"method": f"{'z' * 400}.toml"}, "no method file zzz"),
        ({"plugins": "p" * 400}, "ppp"),
    ],
)
def test_invalid_arguments_are_config_errors(arguments, message, tmp_path):
    with pytest.raises(specbench.ConfigError, match=message):
        specbench.run(**{"method": "sd", "task": "gsm8k", "out": tmp_path} | arguments)


@pytest.mark.parametrize("repeats", ["x", 0, True])
def test_verify_takes_a_positive_number_of_repeats(repeats):
    with pytest.raises(specbench.ConfigError, match=r"repeats = .* must be (of type int|at least 1)"):
        specbench.verify("sd", repeats=repeats)


@pytest.mark.parametrize("folders", [(), (None,), (5, 6), ("a\0",), ("x" * 400,)])
def test_load_takes_paths(folders):
    with pytest.raises(specbench.ConfigError, match=r"takes paths|must be a path|NUL|at most 255 bytes"):
        specbench.load(*folders)


@pytest.mark.parametrize("arguments", [{"minutes": "4"}, {"minutes": np.float64(4)}, {"max_drop": "1"}, {"pair": 3}])
def test_advise_takes_plain_arguments(arguments):
    with pytest.raises(specbench.ConfigError, match=r"must be|has the type"):
        specbench.advise(**arguments)


@pytest.mark.parametrize("result", [None, [], specbench.RunResult((), ())])
def test_a_report_needs_runs(result):
    with pytest.raises(specbench.ConfigError, match="has no runs"):
        specbench.report(result)


@pytest.mark.parametrize("name", specbench.__all__)
def test_every_exported_name_can_be_imported(name):
    assert getattr(specbench, name)


def test_importing_the_package_imports_no_torch():
    code = "import sys, specbench; specbench.__version__; dir(specbench); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'rum'"):
        _ = specbench.rum


def output_of(script: Path, cwd: Path, monkeypatch, capsys) -> str:
    """The standard output of a script in this process, with short outputs of the models."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.chdir(cwd)
    monkeypatch.setattr(sys, "argv", [str(script)])
    short = cwd / "script.py"
    code = re.sub(r"max_new_tokens=\d+", "max_new_tokens=8", script.read_text(encoding="utf-8"))
    short.write_text(code, encoding="utf-8")
    runpy.run_path(str(short), run_name="__main__")
    return capsys.readouterr().out


REGISTERING = [path for path in EXAMPLES if "register(" in path.read_text(encoding="utf-8")]
EACH_IN_TURN = """
import os, runpy, sys
from specbench.models.engines import Lean

Lean.is_checked = False
for path in sys.argv[1:]:
    name = os.path.basename(path)
    os.mkdir(name)
    os.chdir(name)
    print(f"--- {name}")
    runpy.run_path(path, run_name="__main__")
    os.chdir("..")
"""


@pytest.fixture(scope="module")
def registered(tmp_path_factory) -> dict[str, str]:
    """The outputs of the examples that register classes, by file name, from one process of their own."""
    command = [sys.executable, "-c", EACH_IN_TURN, *map(str, REGISTERING)]
    cwd = tmp_path_factory.mktemp("registered")
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return dict(part.split("\n", 1) for part in done.stdout.split("--- ")[1:])


@pytest.mark.parametrize("example", REGISTERING, ids=lambda path: path.stem)
def test_examples_that_register_classes_run(example, registered):
    assert registered[example.name].strip()


@pytest.mark.parametrize("example", [path for path in EXAMPLES if path not in REGISTERING], ids=lambda path: path.stem)
def test_examples_run(example, tmp_path, monkeypatch, capsys):
    assert output_of(example, tmp_path, monkeypatch, capsys).strip()


def test_the_code_of_the_docs_page_runs(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    script = tmp_path / "page.py"
    script.write_text(code.replace("limit=", "max_new_tokens=8, limit="), encoding="utf-8")
    assert "12 of 12" in output_of(script, tmp_path, monkeypatch, capsys).splitlines()[-1]


THREADS = """
import threading, specbench
from pathlib import Path

Path("broken").mkdir()
for file in Path(specbench.__file__).parent.glob("tiny/models/target/*"):
    Path("broken", file.name).write_bytes(file.read_bytes()[: 10 if file.suffix == ".safetensors" else None])
Path("broken.toml").write_text("[models.target]\\npath = 'broken'\\n")
found = {}
start = threading.Barrier(4)

def run(number, method="sd", pair="tiny"):
    try:
        out = f"out/{number}"
        specbench.run(method, pair, "gsm8k", limit=1, repeats=1, max_new_tokens=2, out=out, data="synthetic")
        found[number] = "done"
    except specbench.MissingAsset as error:
        found[number] = "damaged" if "damaged" in str(error) else str(error)

def together(*args):
    start.wait()
    run(*args)

threads = [threading.Thread(target=together, args=args) for args in [(0,), (1,), (2,), (3, "ar", "broken.toml")]]
for each in threads:
    each.start()
for each in threads:
    each.join()
run(4)
print(sorted(found.items()))
"""


@pytest.mark.slow
def test_threads_load_models_at_the_same_time(tmp_path):
    """Also beside a load that fails, and later runs of the process are not affected."""
    done = subprocess.run([sys.executable, "-c", THREADS], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    expected = [(0, "done"), (1, "done"), (2, "done"), (3, "damaged"), (4, "done")]
    assert done.stdout.splitlines()[-1] == str(expected)


def test_advise_returns_a_row_per_candidate_and_takes_a_run_instead(tmp_path, result):
    advice = specbench.advise("tiny", "gsm8k", minutes=0, out=tmp_path, **{**FEW, "limit": 10})
    table = advice.table()
    assert table["method"].iloc[0] == advice.method and {"sd-1", "sd-6", "pld"} <= set(table["method"])
    assert "The time limit was reached" in repr(advice) and advice.advice.best.parts == 0
    assert f"{advice.method}, chosen by specbench advise" in advice.toml
    again = specbench.advise(run=result.folders[0])
    measured = again.table().set_index("method")["measured"]
    assert measured["sd"] > 0 and measured.drop("sd").isna().all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gamma": 3}, "takes no gamma"),
        ({"shard": "1/2"}, "takes no shard"),
        ({"max_drop": 2.0}, "must be a share of the score"),
        ({"run": "results"}, "not both"),
        ({"out": 5}, "out = 5 must be a path"),
    ],
)
def test_advise_rejects_what_it_chooses_itself(arguments, message, tmp_path):
    with pytest.raises(specbench.ConfigError, match=message):
        specbench.advise("tiny", "gsm8k", **{"out": tmp_path, "data": "synthetic", **arguments})


def test_paths_of_other_types_are_rejected():
    for function in (specbench.run, specbench.plan):
        with pytest.raises(specbench.ConfigError, match="out = 5 must be a path"):
            function("sd", "tiny", "gsm8k", out=5)
    with pytest.raises(specbench.ConfigError, match="run = 5 must be a path"):
        specbench.advise(run=5)
