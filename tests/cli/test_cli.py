"""The command line as a user meets it: one table, resumption, exit codes, no traceback for a user's mistake."""

import csv
import io
import json
import shutil
import tomllib
from pathlib import Path

import pandas
import pytest
from huggingface_hub import constants
from transformers import AutoTokenizer

from specbench.config.pair import PACKAGE
from specbench.methods.theories.ensemble_theory import alternate_proposal
from tests.fixtures.console import specbench
from tests.fixtures.formulas import never_slower

FEW = ["-n", "5", "--repeats", "1", "--max-new-tokens", "12"]
GSM8K = ["-t", "gsm8k", *FEW]
ENSEMBLE = ["-m", "se", *GSM8K]


def rows_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def done_run(tmp_path_factory) -> tuple[Path, str]:
    """One small run of an ensemble, and its whole report."""
    where = tmp_path_factory.mktemp("run")
    return where, specbench("run", *ENSEMBLE, "--full", cwd=where).stdout


def test_a_speculative_ensemble_is_reported_with_both_predictions(done_run):
    """Theorem 3.6 as printed, from the proposer's acceptance and c; and at draft lengths of 1 the closed form of 3.7."""
    where, shown = done_run
    summary = json.loads(next((where / "results").glob("*/summary.json")).read_text())
    row = next(row for row in summary["methods"] if row["method"] == "we-se")
    a, c = row["acceptance_by_model"], row["cost_ratio"]
    models = summary["spec"]["methods"]["we-se"]["options"]["models"]
    proposer = models[0]
    assert row["papers_prediction"] == pytest.approx(alternate_proposal(a[proposer], 1, 1, c))
    assert row["predicted"] == pytest.approx(never_slower(*(a[role] for role in models), c), rel=1e-3)
    assert "paper's theory" in shown


def test_a_run_folder_holds_the_method_and_its_baseline(done_run):
    where, shown = done_run
    (folder,) = (where / "results").iterdir()
    assert folder.name.startswith("we-se_tiny_gsm8k_")
    assert {p.name for p in folder.iterdir()} == {
        "run.toml",
        "env.json",
        "manifest.json",
        ".lock",
        "samples.jsonl",
        "scores.json",
        "summary.json",
    }
    assert {(r["method"], r["sample"]) for r in rows_of(folder)} == {(m, s) for m in ("we", "we-se") for s in "01234"}
    for word in ("speedup over we", "theory", "corrected", "acceptance", "outside forwards", "strict", "x ["):
        assert word in shown


def test_a_record_holds_tokens_times_and_rounds(done_run):
    (folder,) = (done_run[0] / "results").iterdir()
    row = next(r for r in rows_of(folder) if r["method"] == "we-se")
    assert len(row["tokens"]) == 12
    assert row["finish"] == "length"
    assert row["error"] is None
    assert row["decode_seconds"] > 0
    assert row["prefill_seconds"] > 0
    assert sum(step["tokens"] for step in row["rounds"]) == 12
    assert {role for step in row["rounds"] for role in step["proposers"]} <= {"math", "code"}
    for usage in row["models"].values():
        assert sum(int(fed) * count for fed, (count, _) in usage["by_fed"].items()) == usage["fed"]


def test_the_same_command_reports_a_complete_run_without_measuring(done_run):
    where, _ = done_run
    (folder,) = (where / "results").iterdir()
    before = (folder / "samples.jsonl").read_bytes()
    again = specbench("run", *ENSEMBLE, cwd=where)
    assert "speedup over we" in again.stdout
    assert (folder / "samples.jsonl").read_bytes() == before
    specbench("run", *ENSEMBLE, "--fresh", cwd=where)
    fresh = (folder / "samples.jsonl").read_bytes()
    assert fresh != before
    tokens = [[json.loads(line)["tokens"] for line in text.decode().splitlines()] for text in (before, fresh)]
    assert tokens[0] == tokens[1], "the same seed gives the same tokens"


def test_another_seed_is_another_run(tmp_path):
    for seed in (0, 1):
        specbench("run", *GSM8K, "--temperature", 3, "--seed", seed, "--out", seed, cwd=tmp_path)
    (first,), (second,) = (list((tmp_path / name).iterdir()) for name in "01")
    assert first.name != second.name
    assert [r["tokens"] for r in rows_of(first)] != [r["tokens"] for r in rows_of(second)]


@pytest.mark.parametrize("form", ["table", "md", "csv", "json"])
def test_every_format_of_a_report_holds_the_same_speedup(done_run, form, tmp_path):
    where, _ = done_run
    (folder,) = (where / "results").iterdir()
    shown = specbench("report", folder, "--format", form, cwd=where).stdout
    specbench("report", folder, "--format", form, "--out", tmp_path / "x", cwd=where)
    assert (tmp_path / "x").read_text().splitlines()[0].strip() == shown.splitlines()[0].strip()
    value = json.loads((folder / "summary.json").read_text())["methods"][1]["speedup"]["value"]
    if form == "csv":
        lines = list(csv.DictReader(io.StringIO(shown)))
        assert [line["method"] for line in lines] == ["we", "we-se"]
        assert float(lines[1]["speedup.value"]) == pytest.approx(value)
    elif form == "json":
        assert json.loads(shown)[0]["methods"][1]["speedup"]["value"] == value
    else:
        assert f"{value:.2f}x [" in shown


def test_a_report_without_a_name_shows_the_newest_run(done_run):
    assert "we-se" in specbench("report", cwd=done_run[0]).stdout


def test_greedy_sd_gives_the_baselines_output(tmp_path):
    specbench("run", "-m", "sd", "-t", "gsm8k", "-n", 3, "--repeats", 1, cwd=tmp_path)
    (folder,) = (tmp_path / "results").iterdir()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["methods"][1]["identical_output"] == 1.0


def test_two_local_folders_that_share_a_tokenizer(tmp_path):
    models = PACKAGE / "tiny" / "models"
    (tmp_path / "pairs").mkdir()
    for role in ("draft", "target"):
        (tmp_path / "pairs" / role).symlink_to(models / role)
    (tmp_path / "pairs" / "my-pair.toml").write_text(
        '[models.draft]\npath = "draft"\n[models.target]\npath = "target"\n'
    )
    (tmp_path / "own.jsonl").write_text('{"prompt": "Question: Ben has 3 cards."}\n')
    shown = specbench(
        "run", "-m", "sd", "-p", "pairs/my-pair.toml", "-t", "prompts", "--data", "own.jsonl", *FEW, cwd=tmp_path
    ).stdout
    assert "my-pair, prompts@1-A" in shown


def test_hub_ids_and_hub_data_load_offline_from_the_hubs_cache_and_record_their_commits(tmp_path, monkeypatch):
    """The real loading path on a cache laid out as the hub's client lays it out: refs, snapshots, commits."""
    models, rows = {"draft": "a" * 40, "target": "b" * 40}, "c" * 40
    hub = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(hub))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for role, commit in models.items():
        repo = hub / f"models--some--{role}"
        shutil.copytree(PACKAGE / "tiny" / "models" / role, repo / "snapshots" / commit)
        (repo / "refs").mkdir()
        (repo / "refs" / "main").write_text(commit)
    repo = hub / "datasets--openai--gsm8k"
    (repo / "snapshots" / rows / "main").mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(rows)
    pandas.DataFrame([{"question": "1+1?", "answer": "#### 2"}]).to_parquet(
        repo / "snapshots" / rows / "main" / "test-00000-of-00001.parquet"
    )
    (tmp_path / "hub.toml").write_text("".join(f'[models.{r}]\npath = "some/{r}"\n' for r in models))
    specbench("run", "-m", "sd", "-p", "hub.toml", "-t", "gsm8k", "--data", "hub", *FEW, cwd=tmp_path)
    (folder,) = (tmp_path / "results").iterdir()
    config = tomllib.loads((folder / "run.toml").read_text())
    assert {role: each["revision"] for role, each in config["pair"]["models"].items()} == models
    assert config["task"]["data"]["revision"] == rows
    assert config["methods"]["sd"]["options"]["proposer"]["gamma"] == 5
    (repo / "refs" / "main").write_text("d" * 40)  # the hub has moved on
    specbench("score", folder, cwd=tmp_path)


def test_a_failed_sample_is_a_failed_sample(tmp_path):
    """A later turn beyond the context window: an error, no timing, exit code 3, and the rest measured."""
    row = {"question_id": 81, "category": "writing", "turns": ["Ben has 3 cards.", "1 " * 5000]}
    (tmp_path / "own.jsonl").write_text(json.dumps(row) + "\n")
    done = specbench("run", "-m", "ar", "-t", "spec-bench", "--data", "own.jsonl", *FEW, cwd=tmp_path, code=3)
    (folder,) = (tmp_path / "results").iterdir()
    good, failed = rows_of(folder)
    assert good["error"] is None
    assert "tokens, 8191 are allowed; help: --on-overflow" in failed["error"]
    assert failed["decode_seconds"] is None
    assert failed["tokens"] == []
    assert "1 generation failed" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "-m", "see"], 2, "did you mean 'se'?"),
        (["run", "-p", "tinyy"], 2, "did you mean 'tiny'?"),
        (["run", "-t", "gsm9k"], 2, "did you mean 'gsm8k'?"),
        (["run", "-p", "llama-vicuna", "-m", "sd"], 2, "no model 'target'"),
        (["run", "--gamma", "x"], 2, "--gamma x"),
        (["run", "-m", "se", "--gamma", "1,2,3"], 2, "gamma"),
        (["run", "--gamma", "0"], 2, "at least 1"),
        (["run", "--temperature", "-1"], 2, "temperature"),
        (["run", "--top-p", "0"], 2, "top_p"),
        (["run", "--repeats", "0"], 2, "repeats"),
        (["run", "-m", "se", "--set", "method.target.weigts=[1.0, 0.0]"], 2, "did you mean 'target.weights'?"),
        (["run", "-m", "se", "--set", "method.target.weights=[0.4, 0.4]"], 2, "sum to 1"),
        (["run", "-m", "se", "--set", "method.target.weights=[0.4, 0.3, 0.3]"], 2, "weights"),
        (["run", "-t", "prompts"], 2, "--data prompts=FILE.jsonl"),
        (["run", "--data", "none.jsonl"], 4, "no data file"),
        (["run", "-t", "gsm8k", "--data", "hub"], 4, "openai/gsm8k"),
        (["run", "-p", "llama-2", "-m", "sd"], 4, "help:"),
        (["run", "--device", "cuda"], 4, "no CUDA"),
        (["report"], 2, "no run folder"),
        (["report", "nowhere"], 2, "does not exist"),
        (["show", "pair", "opt2"], 2, "did you mean 'opt'?"),
        (["show", "pear", "opt"], 2, "did you mean 'pair'?"),
        (["run", "--data", "prompts.jsonl", "-t", "gsm8k"], 2, "no text under 'question'"),
        (["run", "-t", "gsm8k", "--data", "empty.jsonl"], 2, "has no samples"),
        (["run", "--data", "latin.jsonl"], 4, "latin.jsonl:1: not JSON"),
        (["run", "-m", "latin.jsonl.toml"], 2, "latin.jsonl.toml"),
        (["run", "-m", "we", "--set", "method.scorers=[]"], 2, "at least one model"),
        (["run", "-m", "se", "--set", "method.models=[]"], 2, "at least one model"),
        (["run", "-m", "cd-se", "--set", "method.target.mu=nan"], 2, "finite"),
        (["run", "--set", "task.max_new_tokens=0"], 2, "max_new_tokens = 0"),
        (["run", "-t", "gsm8k", "--set", "task.shots=five"], 2, "task.shots = 'five' must be of type int"),
        (["run", "--set", "pair.defaults.task.gsm8k=3"], 2, "must be a table"),
        (["run", "--out", "empty.jsonl", *GSM8K], 2, "empty.jsonl"),
        (["report", "--out", "no/such/file"], 2, "no run folder"),
        (["list", "method"], 2, "methods"),
        (["rum"], 2, "run"),
        (["run", "--metod", "se"], 2, "--method"),
    ],
)
def test_a_mistake_of_the_user_is_one_message(arguments, code, message, tmp_path):
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "x"}\n')
    (tmp_path / "empty.jsonl").write_text("")
    for name in ("latin.jsonl", "latin.jsonl.toml"):
        (tmp_path / name).write_bytes(b'{"question": "\xfc"}\n')
    done = specbench(*arguments, cwd=tmp_path, code=code)
    assert message in done.stderr
    assert not list(tmp_path.glob("results/*")), "a command that cannot run leaves no files"


def test_tasks_without_the_requested_data_are_skipped(tmp_path):
    (tmp_path / "own.jsonl").write_text('{"prompt": "One"}\n' * 5)
    assert "tiny, prompts@1-A" in specbench("run", "-m", "ar", "--data", "own.jsonl", *FEW, cwd=tmp_path).stdout
    specbench("run", "-m", "ar", "--set", "task.shots=0", *GSM8K, cwd=tmp_path)


def test_a_run_that_cannot_load_leaves_nothing_and_fresh_deletes_nothing(tmp_path):
    broken = tmp_path / "target"
    shutil.copytree(PACKAGE / "tiny" / "models" / "target", broken)
    (tmp_path / "pair.toml").write_text('[models.target]\npath = "target"\n')
    command = ["run", "-m", "ar", "-p", "pair.toml", "-t", "prompts", "--data", "own.jsonl", *FEW]
    (tmp_path / "own.jsonl").write_text('{"prompt": "One"}\n')
    specbench(*command, cwd=tmp_path)
    (folder,) = (tmp_path / "results").iterdir()
    before = (folder / "samples.jsonl").read_bytes()
    (broken / "model.safetensors").write_bytes((broken / "model.safetensors").read_bytes()[:-1000])
    specbench(*command, "--fresh", cwd=tmp_path, code=4)
    assert [path.name for path in (tmp_path / "results").iterdir()] == [folder.name]
    assert (folder / "samples.jsonl").read_bytes() == before


# Quality


def test_several_tasks_are_one_table(tmp_path):
    done = specbench("run", "-m", "sd", "-t", "wmt,xsum", "-n", 3, "--repeats", 1, cwd=tmp_path)
    for word in ("wmt@1-A", "xsum@1-A", "bleu", "rouge2"):
        assert word in done.stdout
    output = " ".join(done.stdout.split())
    assert output.count("one repeat does not show drift") == 1, "one line for both"
    assert "The speedup of sd over ar (" in output and "Intervals need more prompts." in output
    shown = specbench("report", *(tmp_path / "results").iterdir(), "--full", cwd=tmp_path).stdout
    assert "tok:13a" in shown, "signatures stand beside the scores"


def test_generated_code_is_scored_later_if_it_is_not_executed_now(tmp_path):
    shown = specbench("run", "-m", "ar", "-t", "humaneval", *FEW, cwd=tmp_path).stdout
    (folder,) = (tmp_path / "results").iterdir()
    assert "not executed" in shown
    assert f"specbench score results/{folder.name} --allow-code-execution" in " ".join(shown.split())
    before = (folder / "samples.jsonl").read_bytes()
    options = ["--allow-code-execution", "--sandbox", "none"]
    assert "not executed" not in specbench("score", folder, *options, cwd=tmp_path).stdout
    assert (folder / "samples.jsonl").read_bytes() == before
    assert len(json.loads((folder / "scores.json").read_text())["rows"]) == 5
    assert "scored by executing generated code" in specbench("score", folder, cwd=tmp_path, code=2).stderr
    assert "sandbox:none|python:3." in specbench("report", folder, "--full", cwd=tmp_path).stdout
    again = specbench("run", "-m", "ar", "-t", "humaneval", *FEW, cwd=tmp_path).stdout
    assert "not executed" not in again, "what is scored stays scored"


def test_scoring_again_gives_the_same_scores_without_a_model(done_run, monkeypatch):
    where, _ = done_run
    (folder,) = (where / "results").iterdir()
    before = (folder / "scores.json").read_text()
    (folder / "scores.json").unlink()
    assert "scores are missing or outdated" in specbench("report", folder, cwd=where).stdout
    monkeypatch.setattr("specbench.models.loader.load", lambda *_: pytest.fail("a model was loaded"))
    assert "strict" in specbench("score", folder, cwd=where).stdout
    assert (folder / "scores.json").read_text() == before


def test_scores_of_other_rows_are_rejected(tmp_path):
    (tmp_path / "own.jsonl").write_text('{"question": "1+1?", "answer": "#### 2"}\n' * 5)
    specbench("run", "-m", "ar", "--data", "own.jsonl", *GSM8K, cwd=tmp_path)
    (folder,) = (tmp_path / "results").iterdir()
    (tmp_path / "own.jsonl").rename(tmp_path / "moved.jsonl")
    assert "no data file" in specbench("score", folder, cwd=tmp_path, code=4).stderr
    specbench("score", folder, "--data", "moved.jsonl", cwd=tmp_path)
    (tmp_path / "moved.jsonl").write_text('{"question": "1+2?", "answer": "#### 3"}\n' * 5)
    assert (
        "does not contain the rows" in specbench("score", folder, "--data", "moved.jsonl", cwd=tmp_path, code=2).stderr
    )


def test_second_turns_read_the_methods_own_first_answer(tmp_path):
    row = {"question_id": 81, "category": "writing", "turns": ["Ben has 3 cards.", "And now?"]}
    (tmp_path / "own.jsonl").write_text(json.dumps(row) + "\n")
    command = ["run", "-m", "sd", "-t", "spec-bench", "--data", "own.jsonl", "--temperature", 5]
    shown = specbench(*command, *FEW, "--full", cwd=tmp_path).stdout
    assert "their prompts differ between methods" in shown
    (folder,) = (tmp_path / "results").iterdir()
    tokenizer = AutoTokenizer.from_pretrained(PACKAGE / "tiny" / "models" / "target")
    answers = {r["method"]: r["text"] for r in rows_of(folder) if r["sample"] == "81"}
    assert answers["ar"] != answers["sd"], "at this temperature outputs differ"
    for row in (r for r in rows_of(folder) if r["sample"] == "81.2"):
        asked = f"USER: Ben has 3 cards.\nASSISTANT: {answers[row['method']].strip()}\nUSER: And now?\nASSISTANT:"
        ids = tokenizer(asked)["input_ids"]
        assert (row["prompt_tokens"], row["prompt_ends"]) == (len(ids), ids[:8] + ids[8:][-8:])
    assert len(rows_of(folder)) == 4


def test_truncated_prompts_are_counted(tmp_path):
    shutil.copytree(PACKAGE / "tiny" / "models" / "target", tmp_path / "target")
    config = json.loads((tmp_path / "target/config.json").read_text())
    (tmp_path / "target/config.json").write_text(json.dumps({**config, "max_position_embeddings": 64}))
    (tmp_path / "pair.toml").write_text('[models.target]\npath = "target"\n')
    (tmp_path / "own.jsonl").write_text(json.dumps({"prompt": "1 " * 100}) + "\n")
    command = ["run", "-m", "ar", "-p", "pair.toml", "-t", "prompts", "--data", "own.jsonl"]
    shown = specbench(*command, "--on-overflow", "truncate-left", *FEW, cwd=tmp_path).stdout
    assert "truncated prompts: ar 100%" in shown
    (folder,) = (tmp_path / "results").iterdir()
    (row,) = rows_of(folder)
    assert row["prompt_tokens"] == 64 - 12
    assert row["prompt_tokens"] + row["prompt_cut"] == 200


REAL = Path(__file__).parents[3] / "shared" / "data"
NINE = {
    "humaneval": "humaneval/test",
    "gsm8k": "gsm8k/test",
    "mmlu": "mmlu/test",
    "cnndm": "cnn_dailymail/test",
    "xsum": "xsum/test",
    "wmt": "wmt14_de_en/test",
    "spec-bench": "spec_bench/question",
    "mt-bench": "mt_bench/question",
    "wiki-summary": "wiki_summary/test",
    "lm1b": "lm1b/test",
}


@pytest.mark.skipif(not REAL.exists(), reason="the real data lies beside a development checkout only")
@pytest.mark.parametrize("task", NINE)
def test_every_real_file_runs_scores_and_reports(task, tmp_path):
    """As a user would, but for the number of prompts and tokens."""
    file = REAL / f"{NINE[task]}.jsonl"
    task = "spec-bench" if task == "mt-bench" else task  # the same schema
    command = ["run", "-m", "sd", "-p", "tiny", "-t", task, "--data", file, "-n", 2, "--repeats", 1]
    shown = specbench(*command, "--max-new-tokens", 8, cwd=tmp_path).stdout
    (folder,) = (tmp_path / "results").iterdir()
    summary = json.loads((folder / "summary.json").read_text())
    assert f"tiny, {task}@" in shown
    assert summary["complete"] and not any(row["failed"] for row in summary["methods"])
    assert summary["methods"][1]["identical_output"] == 1.0
    assert bool(summary["headline"]) == (task != "spec-bench")
