"""Synthetic tasks: real schemas, correct answers, disjoint splits, and unchanged rows."""

import ast
import hashlib
import itertools
import json
import re

import pytest

from scripts.tiny_family import COPYING
from specbench.data.rows import SyntheticTask
from specbench.data.synthetic import SYNTHETIC_TASKS
from specbench.data.synthetic.multiple_choice import TOWNS
from specbench.data.synthetic.translations import WMT_BACK
from specbench.data.synthetic.word_problems import LARGEST
from specbench.tasks.mmlu import stated_letter

ALL = {**SYNTHETIC_TASKS, "wmt-back": WMT_BACK}
SCHEMAS = {
    "gsm8k": {"question", "answer"},
    "humaneval": {"task_id", "prompt", "canonical_solution", "test", "entry_point"},
    "mmlu": {"question", "subject", "choices", "answer", "rationale"},
    "cnndm": {"article", "highlights", "id"},
    "xsum": {"document", "summary", "id"},
    "wmt": {"translation"},
    "wmt-back": {"translation"},
}


CHECKSUMS = {  # of the first 200 test rows: results are only comparable with the same data
    "gsm8k": "eec0e2c651e9cd16", "humaneval": "0659073171bd25a9", "mmlu": "1546d420e78584ec",
    "cnndm": "110ca26952a21861", "xsum": "6f1f7ba1fb632d65", "wmt": "f8093559c119c35c",
}  # fmt: skip


def some(synthetic: SyntheticTask, count: int, split: str = "train", seed: int = 9) -> list[dict]:
    return list(itertools.islice(synthetic.rows(split, seed), count))


@pytest.mark.parametrize("name", CHECKSUMS)
def test_test_rows_are_those_of_recorded_results(name):
    rows = list(itertools.islice(SYNTHETIC_TASKS[name].rows("test"), 200))
    text = json.dumps(rows, sort_keys=True).encode()
    assert hashlib.sha256(text).hexdigest()[:16] == CHECKSUMS[name]


@pytest.mark.parametrize("name", ALL)
def test_rows_have_the_real_schema_and_are_reproducible_from_a_seed(name):
    rows = some(ALL[name], 20)
    assert all(set(row) == SCHEMAS[name] for row in rows)
    assert rows == some(ALL[name], 20)
    assert rows != some(ALL[name], 20, seed=8)


@pytest.mark.parametrize("name", ALL)
def test_splits_share_no_prompt_for_any_seed(name):
    synthetic = ALL[name]
    train = {synthetic.prompt(row) for row in some(synthetic, 3000, seed=2)}
    test = {synthetic.prompt(row) for seed in range(3) for row in some(synthetic, 300, "test", seed)}
    assert not train & test


@pytest.mark.parametrize("name", ALL)
def test_test_rows_are_unique(name):
    prompts = [ALL[name].prompt(row) for row in some(ALL[name], 1000, "test", 0)]
    assert len(set(prompts)) == 1000


def test_word_problems_have_correct_solutions_and_small_numbers():
    for row in some(SYNTHETIC_TASKS["gsm8k"], 2000):
        sums = re.findall(r"(\d+[-+*/]\d+)=<<\1=(\d+)>>\2", row["answer"])
        assert sums
        assert all(eval(left) == int(right) for left, right in sums)
        assert row["answer"].splitlines()[-1] == f"#### {sums[-1][1]}"
        assert all(int(n) <= LARGEST for n in re.findall(r"\d+", row["question"] + row["answer"]))


def test_functions_pass_their_tests_and_their_docstring_examples():
    for row in some(SYNTHETIC_TASKS["humaneval"], 300):
        space: dict = {}
        exec(row["prompt"] + row["canonical_solution"] + row["test"], space)
        space["check"](space[row["entry_point"]])
        call, shown = re.search(r">>> (.*)\n    (.*)\n", row["prompt"]).groups()
        assert eval(call, space) == ast.literal_eval(shown)


def test_a_wrong_function_fails_the_tests():
    """The tests tell functions apart: a constant passes at most one in twenty."""
    passed = 0
    for row in some(SYNTHETIC_TASKS["humaneval"], 200):
        space: dict = {}
        exec(row["test"], space)
        try:
            space["check"](lambda *arguments: [])
            passed += 1
        except AssertionError:
            pass
    assert passed <= 10


def test_rationales_end_with_the_correct_letter():
    for row in some(SYNTHETIC_TASKS["mmlu"], 2000):
        assert len(set(row["choices"])) == 4
        assert stated_letter(row["rationale"]) == "ABCD"[row["answer"]]
        assert row["choices"][row["answer"]] in row["rationale"]


def test_days_are_counted_correctly():
    days = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
    for row in some(SYNTHETIC_TASKS["mmlu"], 3000):
        if row["subject"] == "calendar":
            step, start = re.search(r"comes (\d+) days after (\w+)\?", row["question"]).groups()
            assert days[(days.index(start) + int(step)) % 7] == row["choices"][row["answer"]]


def test_copying_repeats_its_words():
    for row in some(COPYING, 50):
        words = COPYING.answer(row).split()
        assert words == row["words"] * (row["times"] - 1)
        assert len(words) >= len(row["words"])


def test_facts_are_the_same_in_every_row():
    facts: dict[str, str] = {}
    for split in ("train", "test"):
        for row in some(SYNTHETIC_TASKS["mmlu"], 2000, split):
            if row["subject"] != "vocabulary":
                assert facts.setdefault(row["question"], row["choices"][row["answer"]]) == row["choices"][row["answer"]]
    assert len(facts) == 4 * len(TOWNS) + 7 * 3


def test_summaries_contain_only_facts_of_the_story():
    """Every name and number of a summary stands in its story, but for twice and its like."""
    for name, story, summary in (("cnndm", "article", "highlights"), ("xsum", "document", "summary")):
        for row in some(SYNTHETIC_TASKS[name], 500):
            facts = set(re.findall(r"\d+|(?<!^)(?<!\n)\b[A-Z]\w+", row[summary])) - {"Cost"}
            missing = {fact for fact in facts if fact not in row[story]}
            assert not missing, row


def test_german_sentences_have_correct_agreement_and_verb_positions():
    genders = {"Mann": "m", "Frau": "f", "Kind": "n", "Brief": "m", "Lampe": "f", "Buch": "n"}
    nominative = {"m": "der", "f": "die", "n": "das"}
    seen = 0
    for row in some(SYNTHETIC_TASKS["wmt"], 3000):
        german, english = row["translation"]["de"], row["translation"]["en"]
        assert german.endswith(".") and english.endswith(".")
        subject = re.match(r"(Der|Die|Das) (Mann|Frau|Kind)\b", german)
        if subject:
            seen += 1
            assert subject[1].lower() == nominative[genders[subject[2]]]
        if ", weil " in german:
            assert re.search(r"(?<! nich)(t|hat|kann|muss|will|soll)\.$", german), "the finite verb comes last"
            assert " because " in english
        assert ("nicht" in german) == ("not" in english.split())
    assert seen > 50
