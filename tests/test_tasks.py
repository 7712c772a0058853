"""Tasks: prompts, scores, sources, and what they say when a source is not theirs."""

import itertools
import json
import re
from pathlib import Path

import pytest

from specbench.errors import ConfigError, MissingAsset
from specbench.task import Sample, without
from specbench.tasks.gsm8k import EXAMPLES, Gsm8k, number_of
from specbench.tasks.prompts import Prompts
from specbench.tiny.problems import LARGEST, problems

REAL = Path(__file__).parents[2] / "shared" / "data" / "gsm8k" / "test.jsonl"


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        (" 6*3=18\n#### 18", 1, 1),
        (" so it is 18.", 0, 1),
        ("#### 18\n\nQuestion: another\n#### 5", 1, 0),
        ("#### 5 and then 18", 0, 1),
        ("#### $18", 0, 1),
        ("#### 18.", 1, 1),
        ("#### 18.00", 0, 0),
        ("#### -18", 0, 0),
        ("I make $18", 0, 1),
        ("### 18", 0, 1),
        ("####18", 0, 1),
        ("", 0, 0),
        ("no number", 0, 0),
    ],
)
def test_strict_and_flexible_answers(text, strict, flexible):
    score = Gsm8k().score(Sample("0", "", "18"), text)
    assert (score["strict"], score["flexible"]) == (strict, flexible)
    assert score["answered"] == float("#### " in text and "#### $" not in text)


def test_thousands_compare_equal():
    score = Gsm8k().score(Sample("0", "", number_of(" 1,500")), "#### 1500")
    assert score == {"strict": 1.0, "flexible": 1.0, "answered": 1.0}
    assert Gsm8k().score(Sample("0", "", "1500"), "that is $1,500")["flexible"] == 1.0


def test_shots_come_before_the_question_and_nothing_after_it():
    assert Gsm8k(shots=0).prompt("Why?") == "Question: Why?\nAnswer:"
    four = Gsm8k().prompt("Why?")
    assert four.count("Question: ") == 5
    assert four.endswith("\n\nQuestion: Why?\nAnswer:")
    with pytest.raises(ValueError, match="shots = 5"):
        Gsm8k(shots=5)


def test_the_worked_examples_are_right():
    for _, worked in EXAMPLES:
        sums = re.findall(r"([\d *+/-]+) = (\d+)", worked)
        assert all(eval(left) == int(right) for left, right in sums)
        assert worked.splitlines()[-1] == f"#### {sums[-1][1]}"


def test_a_stop_string_ends_the_text():
    assert without(("\n\nQuestion",), "#### 5\n\nQuestion: next\n#### 6") == "#### 5"
    assert without((), "all") == "all"


def test_synthetic_problems_are_gsm8k_rows_of_the_test_split():
    data = Gsm8k(shots=0).data("synthetic")
    assert data == Gsm8k(shots=0).data("synthetic")
    assert len({s.prompt for s in data.samples}) > 0.95 * len(data.samples)
    assert len(data.sha256) == 64


def test_splits_share_no_problem():
    train = {p["question"] for p in itertools.islice(problems("train", seed=2), 4000)}
    test = {p["question"] for s in range(3) for p in itertools.islice(problems("test", seed=s), 1500)}
    assert not train & test


def test_generated_answers_are_right_and_numbers_stay_small():
    for problem in itertools.islice(problems("train", seed=9), 2000):
        sums = re.findall(r"(\d+[-+*/]\d+)=<<\1=(\d+)>>\2", problem["answer"])
        assert sums
        assert all(eval(left) == int(right) for left, right in sums)
        assert problem["answer"].splitlines()[-1] == f"#### {sums[-1][1]}"
        assert all(int(n) <= LARGEST for n in re.findall(r"\d+", problem["question"] + problem["answer"]))


@pytest.mark.skipif(not REAL.exists(), reason="the real data lies beside a development checkout only")
def test_the_real_rows_score_their_own_answers():
    data = Gsm8k().data(str(REAL))
    assert len(data.samples) == 1319
    answers = [json.loads(line)["answer"] for line in REAL.read_text().splitlines()]
    scores = [Gsm8k().score(s, a) for s, a in zip(data.samples, answers, strict=True)]
    assert all(score == {"strict": 1.0, "flexible": 1.0, "answered": 1.0} for score in scores)


def test_a_file_that_is_not_gsm8k_says_so(tmp_path):
    own = tmp_path / "rows.jsonl"
    own.write_text('{"questions": "?", "answer": "#### 1"}\n')
    with pytest.raises(ConfigError, match=r":1: no text under 'question' \(did you mean 'questions'"):
        Gsm8k().data(str(own))
    own.write_text('{"question": ')
    with pytest.raises(MissingAsset, match=":1: not JSON"):
        Gsm8k().data(str(own))
    with pytest.raises(MissingAsset, match="no data file"):
        Gsm8k().data(str(tmp_path / "none.jsonl"))


def test_the_hub_offline_says_what_to_do(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(MissingAsset, match=r"(?s)openai/gsm8k.*--data FILE\.jsonl"):
        Gsm8k().data("hub")


def test_prompts_are_taken_as_they_stand(tmp_path):
    own = tmp_path / "prompts.jsonl"
    own.write_text('{"prompt": "  Hello\\n"}\n\n{"prompt": "World"}\n')
    assert [s.prompt for s in Prompts().data(str(own)).samples] == ["  Hello\n", "World"]
    assert Prompts().score(Sample("0", ""), "x") == {}
    with pytest.raises(ConfigError, match=r"--data FILE\.jsonl"):
        Prompts().data("hub")
    with pytest.raises(ConfigError, match="no text under 'text'"):
        Prompts(field="text").data(str(own))
