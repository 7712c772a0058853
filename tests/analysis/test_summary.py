"""Summaries of run folders: stored, read, and computed again when their inputs change."""

import json

from specbench.analysis.run_summary import from_table, to_table
from specbench.analysis.summary import save_summary, summarize, summary_of
from tests.fixtures.console import specbench


def test_a_summary_is_the_same_after_it_was_written_and_read(tmp_path):
    specbench("run", "-m", "sd,sprinter", "-t", "mmlu", "-n", 5, "--repeats", 2, cwd=tmp_path)
    (folder,) = (tmp_path / "results").iterdir()
    summary = summarize(folder)
    assert from_table(json.loads(json.dumps(to_table(summary))), "summary") == summary
    save_summary(folder, summary)
    assert summary_of(folder) == summary


def test_a_damaged_summary_is_computed_again(tmp_path):
    specbench("run", "-m", "sd", "-t", "gsm8k", "-n", 2, "--repeats", 1, "--max-new-tokens", 6, cwd=tmp_path)
    (folder,) = (tmp_path / "results").iterdir()
    path, summary = folder / "summary.json", summarize(folder)
    table = json.loads(path.read_text())
    del table["sha256"]
    for damaged in ("", "[]", "{}", json.dumps({**table, "pair": 3}), json.dumps({**table, "schema": 1})):
        path.write_text(damaged)
        assert summary_of(folder) == summary
