"""Tasks from a TOML file and JSONL files alone, and worked examples from a file."""

import json

import pytest

from specbench.config.construct import to_table
from specbench.config.options import Options
from specbench.config.pair import Pair
from specbench.config.presets import preset
from specbench.data.download import needs_of_task
from specbench.data.task import Task
from specbench.errors import ConfigError, MissingAsset
from specbench.resolution.selection import read_task
from specbench.resolution.spec import task_spec
from specbench.tasks.cnndm import CnnDm
from specbench.tasks.custom import Custom
from specbench.tasks.gsm8k import Gsm8k
from specbench.tasks.mmlu import Mmlu
from specbench.tasks.wmt import Wmt
from specbench.tasks.xsum import XSum

PAIR = Pair(models={})
PROMPT = "Question: {question}\nAnswer:"
CAPITALS = [{"question": "Capital of Peru?", "answer": "Lima"}, {"question": "Capital of Chad?", "answer": "N'Djamena"}]


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def graded(text, reference="Lima", **keys):
    task = Custom(prompt=PROMPT, reference="answer", **keys)
    row = {"question": "?", "answer": reference}
    return task.score(task.samples([row], "rows.jsonl")[0], text)


def test_a_toml_and_a_jsonl_file_define_a_task(tmp_path):
    written(tmp_path / "rows.jsonl", CAPITALS)
    written(tmp_path / "shots.jsonl", [{"question": "Capital of Mali?", "answer": "Bamako"}])
    (tmp_path / "mine.toml").write_text(
        'name = "custom"\nfile = "rows.jsonl"\nexemplars = "shots.jsonl"\nshots = 1\nreference = "answer"\n'
        'prompt = "Question: {question}\\nAnswer:"\nstop = ["\\n"]\n'
    )
    name, task = read_task(str(tmp_path / "mine.toml"), PAIR, Options())
    data = task.data("synthetic")  # the file of the task, whatever the pair's default
    assert name == "mine"
    first = "Question: Capital of Mali?\nAnswer: Bamako\n\nQuestion: Capital of Peru?\nAnswer:"
    assert data.samples[0].prompt == first
    assert [sample.reference for sample in data.samples] == ["Lima", "N'Djamena"]
    assert data.source == str(tmp_path / "rows.jsonl")
    (metric,) = task.metrics
    assert metric.signature.startswith("exact_match|norm:strip|shots:1|exemplars:")


def test_nothing_is_downloaded_for_a_file_of_the_task():
    (need,) = needs_of_task("mine", Custom(prompt=PROMPT, file="rows.jsonl"), "hub")
    assert (need.repo, need.why) == ("", "a local file")
    (need,) = needs_of_task("mine", Custom(prompt=PROMPT), "hub")
    assert "not on the hub" in need.why


def test_data_replaces_the_tasks_own_file(tmp_path):
    other = written(tmp_path / "other.jsonl", CAPITALS[1:])
    assert len(Custom(prompt=PROMPT, file="nowhere.jsonl").data(other).samples) == 1


@pytest.mark.parametrize(
    ("keys", "text", "value"),
    [
        ({}, " Lima ", 1.0),
        ({}, "lima", 0.0),
        ({"ignore_case": True, "ignore_punctuation": True}, "lima.", 1.0),
        ({"metric": "contains"}, "It is Lima, I think", 1.0),
        ({"metric": "contains"}, "It is Quito", 0.0),
        ({"extract": r"answer is (\w+)"}, "The answer is Quito. No, the answer is Lima.", 1.0),
        ({"extract": r"answer is (\w+)"}, "Lima", 0.0),
    ],
)
def test_texts_are_compared_as_the_keys_say(keys, text, value):
    assert graded(text, **keys)[keys.get("metric", "exact_match")] == value


def test_numbers_are_compared_by_value_and_any_accepted_reference_counts():
    assert graded("So it is 1,200.0 dollars", 1200, metric="number")["number"] == 1.0
    assert graded("12", 13, metric="number")["number"] == 0.0
    assert graded("none", 13, metric="number")["no_answer"] == 1.0
    assert graded("UK", ["United Kingdom", "UK"])["exact_match"] == 1.0


def test_rouge_and_bleu_compare_with_the_reference():
    rouge = Custom(prompt=PROMPT, reference="answer", metric="rouge")
    assert rouge.headline == "rougeL" and len(rouge.metrics) == 4
    assert graded("the cat sat", "the cat sat", metric="rouge")["rougeL"] == 1.0
    assert set(graded("the cat sat", "the cat sat", metric="bleu")) == {"bleu", "chrf++", "no_answer"}


def test_without_a_reference_nothing_is_scored():
    task = Custom(prompt=PROMPT)
    assert task.metrics == () and task.score(task.samples(CAPITALS, "x")[0], "text") == {}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"prompt": ""}, "'prompt' is missing"),
        ({"shots": 2}, "unless exemplars = FILE.jsonl"),
        ({"exemplars": "FILE"}, "no effect with shots = 0"),
        ({"exemplars": "FILE", "shots": 1}, "worked examples need an answer"),
        ({"extract": "("}, "not a regular expression"),
        ({"shots": -1}, "at least 0"),
        ({"metric": "exactmatch"}, "metric"),
        ({"referense": "answer"}, "did you mean 'reference'"),
    ],
)
def test_a_wrong_key_is_an_error(keys, message):
    with pytest.raises(ConfigError, match=message):
        Task.build({"name": "custom", "prompt": PROMPT, **keys}, "mine.toml")


def test_errors_in_rows_name_the_file_and_the_line(tmp_path):
    rows = written(tmp_path / "rows.jsonl", [*CAPITALS, {"question": "?", "anser": "x"}])
    with pytest.raises(ConfigError, match=r"rows.jsonl:3: key 'answer' must hold a text.* \(did you mean 'anser'"):
        Custom(prompt=PROMPT, reference="answer").data(rows)
    with pytest.raises(ConfigError, match=r"no field 'quest' \(did you mean 'question'"):
        Custom(prompt="{quest}").data(rows)
    with pytest.raises(MissingAsset, match="no data file"):
        Custom(prompt=PROMPT, reference="answer", shots=1, exemplars="none.jsonl").data(rows)
    short = written(tmp_path / "short.jsonl", CAPITALS[:1])
    with pytest.raises(ConfigError, match="has 1 rows; shots = 2"):
        Custom(prompt=PROMPT, reference="answer", shots=2, exemplars=short).data(rows)


@pytest.mark.parametrize(
    ("kind", "row", "text"),
    [
        (Gsm8k, {"question": "1 + 1?", "answer": "It is 2.\n#### 2"}, "Question: 1 + 1?\nAnswer: It is 2.\n#### 2\n\n"),
        (
            XSum,
            {"document": "D", "summary": "S"},
            "Document: D\n\nA one-sentence summary of the above document is: S\n\n",
        ),
        (Wmt, {"translation": {"en": "House", "de": "Haus"}}, "English phrase: House\n\nGerman phrase: Haus\n\n"),
        (CnnDm, {"article": "A", "highlights": "H"}, "Summarize the following article:\n\nA\n\nSummary: H\n\n"),
    ],
)
def test_exemplars_are_formatted_like_the_tasks_own(tmp_path, kind, row, text):
    task = kind(shots=2, exemplars=written(tmp_path / "own.jsonl", [row, row, row]))
    data = task.data(written(tmp_path / "rows.jsonl", [row]))
    assert data.samples[0].prompt.startswith(text * 2)
    assert not data.samples[0].prompt.startswith(text * 3)
    checksums = {metric.signature.partition("shots:2|exemplars:")[2][:8] for metric in task.metrics}
    assert len(checksums) == 1 and len(checksums.pop()) == 8


def test_more_examples_than_the_task_has_need_a_file():
    with pytest.raises(ValueError, match=r"shots = 5 must be from 0 to 4, unless exemplars"):
        Gsm8k(shots=5)


def test_mmlu_takes_rows_by_subject_and_rejects_exemplars_without_effect(tmp_path):
    row = {"question": "Q?", "subject": "law", "choices": ["a", "b", "c", "d"], "answer": 1}
    rows = written(tmp_path / "rows.jsonl", [row])
    own = written(tmp_path / "own.jsonl", [{**row, "question": "Own?"}])
    task = Mmlu(shots=1, exemplars=own)
    assert task.data(rows).samples[0].prompt.startswith("Question: Own?\n")
    assert all("|exemplars:" in metric.signature for metric in task.metrics)
    with pytest.raises(ConfigError, match="1 rows of 'law'; shots = 2"):
        Mmlu(shots=2, exemplars=own).data(rows)
    with pytest.raises(ValueError, match="no effect with shots = 0"):
        Mmlu(shots=0, exemplars=own)
    with pytest.raises(ValueError, match="needs grader = 'se-paper'"):
        Mmlu(exemplars="texts.json")


def test_a_run_of_a_task_without_exemplars_has_the_spec_of_earlier_revisions(tmp_path):
    task = Gsm8k()
    options = task_spec("gsm8k", task, task.data("synthetic")).options
    assert "exemplars" not in options and options["shots"] == 4
    assert Task.build(options, "run.toml") == Gsm8k()
    row = {"question": "?", "answer": "#### 1"}
    own = Gsm8k(shots=1, exemplars=written(tmp_path / "own.jsonl", [row]))
    assert task_spec("gsm8k", own, own.data("synthetic")).options["exemplars"] == own.exemplars
    assert to_table(own)["exemplars"] == own.exemplars
    assert "exemplars" not in preset("task", "gsm8k").table
