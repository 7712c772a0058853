"""Ordinary files: cells stay text, every ending is read or rejected by name, and a wrong row is named."""

import gzip
import json

import pytest

from specbench.data.rows import read_file, text_of
from specbench.data.templates import at_path, filled
from specbench.errors import ConfigError, MissingAsset
from specbench.tasks.custom import Custom, Prompts
from specbench.tasks.gsm8k import Gsm8k


def task(path, **keys) -> Custom:
    return Custom(prompt="{q}", reference="a", file=str(path), **keys)


@pytest.mark.parametrize("cell", ["02116", "1.50", "true", "1e5", "0.00002", "NA", "2024-01-02", " x ", "-0", "1_000"])
@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv", "ROWS.CSV", "rows.csv.gz"])
def test_a_cell_is_its_text(tmp_path, name, cell):
    mark = "\t" if ".tsv" in name else ","
    text = f"q{mark}a\nWhich?{mark}{cell}\nAnd?{mark}y\n".encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    first = task(path).data(str(path)).samples[0]
    assert (first.prompt, first.reference) == ("Which?", cell)
    assert task(path).score(first, cell) == {"exact_match": 1.0, "no_answer": 0.0}


def test_a_cell_may_be_long_quoted_and_of_several_lines(tmp_path):
    long = "word " * 60_000
    (tmp_path / "rows.csv").write_text(f'\ufeffq,a\r\n"{long}, ""x""\nnext",y\r\n\r\nz,2\r\n', encoding="utf-8")
    rows = read_file(tmp_path / "rows.csv").rows
    assert rows == [{"q": f'{long}, "x"\nnext', "a": "y"}, {"q": "z", "a": "2"}]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("q,a\nx,y,z\n", r"rows.csv:2: 3 fields, and the header has 2; help: put a field"),
        ("q,a\nx\n", r"rows.csv:2: 1 field, and the header has 2"),
        ("q,q\nx,y\n", r"rows.csv: two columns are called 'q'"),
        ("q;a\nx;y\n", r"rows.csv: the header has one field, with ';' in it"),
        ('q,a\n"x,y\n', r"rows.csv:2: not CSV: unexpected end of data"),
        (b"q,a\n\xff,y\n", r"rows.csv: not UTF-8"),
    ],
)
def test_a_wrong_table_is_named(tmp_path, text, wrong):
    (tmp_path / "rows.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(MissingAsset, match=wrong):
        read_file(tmp_path / "rows.csv")


def test_an_empty_cell_where_a_text_is_needed_is_named(tmp_path):
    (tmp_path / "rows.csv").write_text("q,a\nx,y\n,z\n")
    with pytest.raises(ConfigError, match=r"rows.csv:2: the prompt's field 'q' is empty"):
        task(tmp_path / "rows.csv").data("hub")
    (tmp_path / "rows.csv").write_text("q,a\nx,\n")
    with pytest.raises(ConfigError, match=r"rows.csv:1: 'a' = '' is empty"):
        task(tmp_path / "rows.csv").data("hub")
    (tmp_path / "rows.csv").write_text("question,answer\n,4\n")
    with pytest.raises(ConfigError, match=r"rows.csv:1: 'question' is empty"):
        Gsm8k(shots=0).data(str(tmp_path / "rows.csv"))


@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl", "rows.NDJSON", "rows.json.gz", "rows.jsonl.GZ"])
@pytest.mark.parametrize("is_array", [True, False])
def test_json_is_an_array_or_lines_whatever_its_ending(tmp_path, name, is_array):
    rows = [{"prompt": "a"}, {"prompt": "b"}]
    text = json.dumps(rows, indent=1) if is_array else "".join(json.dumps(row) + "\n" for row in rows)
    content = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.lower().endswith(".gz") else content)
    assert [sample.prompt for sample in Prompts().data(str(tmp_path / name)).samples] == ["a", "b"]


@pytest.mark.parametrize("name", ["rows.xlsx", "rows.txt", "rows", "rows.parquet.gz"])
def test_other_files_are_rejected_with_the_endings_that_are_read(tmp_path, name):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(MissingAsset, match=rf"{name}: no reader for files .*help: .jsonl, .ndjson, .json, .csv, .tsv"):
        Prompts().data(str(tmp_path / name))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.00005, "0.00005"), (1e16, "10000000000000000"), (4.0, "4"), (1.5, "1.5"), (-0.1, "-0.1"), (True, "true"),
        (12, "12"), ("1.50", "1.50"),
    ],
)  # fmt: skip
def test_numbers_have_no_exponent(value, text):
    assert text_of(value) == text


def test_a_number_scores_by_its_value(tmp_path):
    rows = [{"q": "?", "a": 0.00005}, {"q": "?", "a": 1e16}, {"q": "?", "a": -3.0}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    small, large, negative = task(tmp_path / "rows.jsonl", metric="number").data("hub").samples
    by_number = Custom(prompt="{q}", reference="a", metric="number")

    def right(sample, text: str) -> bool:
        return by_number.score(sample, text)["number"] == 1.0

    assert (
        right(small, "It is 0.00005.") and right(small, "5e-5 m") and right(small, ".00005") and not right(small, "5")
    )
    assert right(large, "10000000000000000") and right(large, "10,000,000,000,000,000") and not right(large, "16")
    assert right(negative, "\u22123") and right(negative, "x = -3.00") and not right(negative, "5-3")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1,2", "2"), ("12,500", "12500"), ("about 1,234,567.5 in all", "1234567.5"), ("v1.2", "1.2"), (".5", "0.5"),
        ("2E3", "2000"), ("6.02e23", "6.02e23"), ("是-3", "-3"),
        ("2e99999999", "99999999"), ("5kg", "5"), ("a-7", "7"), ("(-7)", "-7"),
    ],
)  # fmt: skip
def test_the_last_number_of_a_text(text, number):
    score = Custom(prompt="x", reference="a", metric="number")
    (sample,) = score.samples([{"a": number}], "rows")
    assert score.score(sample, text)["number"] == 1.0


def test_a_placeholder_is_a_key_with_blanks_or_a_path():
    row = {
        "Question Text": "2+2?",
        "answer-key": 4,
        "a.b": "dot",
        "answers": {"text": ["x", "y"]},
        "messages": [{"content": "m"}],
    }
    assert filled("Q: {Question Text} {answer-key} {a.b}", **row) == "Q: 2+2? 4 dot"
    assert (
        filled("{answers.text[1]} {answers[text][0]} {messages[-1][content]} { Question Text }", **row) == "y x m 2+2?"
    )
    assert at_path("messages[3].content", row) is None
    for template, wrong in (
        ("{Question  Text}", "no field 'Question  Text' .did you mean 'Question Text'"),
        ("{answers}", "field 'answers' holds an object"),
        ("{answers.text}", "field 'answers.text' holds a list"),
        ("{messages[1][content]}", r"no field 'messages\[1\]\[content\]'"),
        ('{"a": 1}', "no field '\"a\": 1'.*{{ and }} for braces"),
        ("a { b", "a single '{'; help: write {{ for a brace"),
        (r"\boxed{}", "a single '{'"),
    ):
        with pytest.raises(ConfigError, match=wrong):
            filled(template, **row)


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("2+2 = 4. The answer is 4.", "4"), ("#### 40 apples", "40"), ("#### 4.0", "4.0"), ("x\n#### 1,250", "1250"),
        ("It costs $3.50", "3.50"), ("#### -7", "-7"), ("#### 25 m^2", "25"), ("#### 40 apples for 3 people", "40"),
        ("#### 0.5", "0.5"),
    ],
)  # fmt: skip
def test_the_answer_of_gsm8k_is_a_number_with_or_without_a_mark(answer, reference):
    (sample,) = Gsm8k(shots=0).samples([{"question": "?", "answer": answer}], "rows")
    assert sample.reference == reference
    texts = {reference, reference.removesuffix(".0")} | ({reference.removesuffix("0")} if "." in reference else set())
    assert all(Gsm8k(shots=0).score(sample, f"#### {text}")["strict"] == 1.0 for text in texts)
    assert Gsm8k(shots=0).score(sample, "#### 99")["strict"] == 0.0


def test_an_answer_without_a_number_is_named():
    with pytest.raises(ConfigError, match="rows:1: 'answer' has no number"):
        Gsm8k(shots=0).samples([{"question": "?", "answer": "none"}], "rows")
