"""Rows of local files: tables, other splits next to a file, and what the errors name."""

import json
from datetime import date

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from specbench.data.rows import read_file
from specbench.errors import ConfigError, MissingAsset
from specbench.tasks.gsm8k import Gsm8k
from specbench.tasks.mmlu import Mmlu

ROWS = [{"question": "1 + 1?", "answer": "#### 2"}, {"question": "2,3 + 1\n?", "answer": "None, 0"}]
MMLU = [{"question": "Q?", "subject": "law", "choices": list("wxyz"), "answer": 1}]


def written(path, rows):
    """Write rows as the type of file that the path names, with the library that users have."""
    if path.suffix == ".arrow":  # as a file; `save_to_disk` writes streams
        table = pyarrow.Table.from_pylist(rows)
        with pyarrow.OSFile(str(path), "wb") as out, pyarrow.ipc.new_file(out, table.schema) as writer:
            writer.write_table(table)
    elif path.suffix in (".csv", ".parquet"):
        {".csv": datasets.Dataset.to_csv, ".parquet": datasets.Dataset.to_parquet}[path.suffix](
            datasets.Dataset.from_list(rows), path
        )
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet", "rows.arrow", "rows.json", "rows.jsonl", "[1] rows.csv"])
def test_every_type_of_file_has_the_same_rows_and_the_same_checksum(tmp_path, name, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    path = written(tmp_path / name, ROWS)
    rows = read_file(path)
    assert rows.rows == ROWS
    assert rows.sha256 == read_file(written(tmp_path / "same.jsonl", ROWS)).sha256
    assert Gsm8k(shots=0).data(str(path)).samples[1].prompt == "Question: 2,3 + 1\n?\nAnswer:"


def test_a_stream_of_arrow_batches_is_read_too(tmp_path):
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    (path,) = (tmp_path / "saved").glob("*.arrow")
    assert read_file(path).rows == ROWS


def test_worked_examples_come_from_a_table_of_the_same_type(tmp_path):
    test = written(tmp_path / "test.parquet", MMLU)
    with pytest.raises(MissingAsset, match=r"no data file .*dev\.parquet"):
        Mmlu(shots=1).data(str(test))
    written(tmp_path / "dev.parquet", [{**MMLU[0], "question": "Worked?"}])
    assert Mmlu(shots=1).data(str(test)).samples[0].prompt.startswith("Question: Worked?\n")


def test_what_json_does_not_have_becomes_text_or_nothing(tmp_path):
    path = tmp_path / "rows.parquet"
    row = {"day": date(2026, 1, 2), "raw": b"\x00", "share": float("nan"), "texts": ["a", None], "inner": {"n": 1}}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path)
    (found,) = read_file(path).rows
    assert found == {"day": "2026-01-02", "raw": None, "share": None, "texts": ["a", None], "inner": {"n": 1}}


def test_columns_of_images_are_left_out(tmp_path):
    image = {"bytes": b"no image", "path": None}
    features = datasets.Features({"text": datasets.Value("string"), "images": datasets.List(datasets.Image())})
    table = datasets.Dataset.from_list([{"text": "a", "images": [image]}], features=features)
    table.to_parquet(tmp_path / "rows.parquet")
    assert read_file(tmp_path / "rows.parquet").rows == [{"text": "a"}]


@pytest.mark.parametrize(("name", "kind"), [("rows.parquet", "Parquet"), ("rows.arrow", "Arrow")])
def test_a_damaged_table_is_named_with_its_type(tmp_path, name, kind):
    path = tmp_path / name
    path.write_bytes(b"PAR1 or not")
    with pytest.raises(MissingAsset, match=rf"rows\.{kind.lower()}: not {kind}: "):
        read_file(path)


def test_a_wrong_column_of_a_table_is_named(tmp_path):
    path = written(tmp_path / "rows.csv", [{"questions": "?", "answer": "x"}])
    with pytest.raises(ConfigError, match=r"rows\.csv:1: no text under 'question' \(did you mean 'questions'"):
        Gsm8k().data(str(path))
    path = written(tmp_path / "numbers.csv", [{"question": "?", "answer": "7"}])
    assert Gsm8k(shots=0).data(str(path)).samples[0].reference == "7", "a cell is a text"
    path = written(tmp_path / "numbers.parquet", [{"question": "?", "answer": 7}])
    with pytest.raises(ConfigError, match=r"numbers\.parquet:1: 'answer' is of type int, task gsm8k needs a text"):
        Gsm8k().data(str(path))
