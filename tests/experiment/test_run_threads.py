"""The threads of a run: recorded, kept when it resumes, and the process's own afterwards."""

import json
from dataclasses import replace

import pytest
import torch

import specbench
from specbench.config.request import Request
from specbench.errors import ConfigError
from specbench.experiment.batch import RequestBatch, measure_here
from specbench.files import CHECKSUM, read_with_checksum, write_with_checksum
from specbench.machine import threads
from specbench.machine.hardware import Environment
from specbench.machine.threads import Cores, using
from specbench.reporting.notes import notes
from tests.resolution.test_options import BASE

SHORT = {"data": "synthetic", "limit": 1, "repeats": 1, "max_new_tokens": 3, "device": "cpu", "dtype": "float32"}


@pytest.fixture(autouse=True)
def two_idle_processors(monkeypatch):
    """Have two threads by default, on two processors without other programs."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "cores_here", lambda with_load: Cores(2))
    with using(2):
        yield


def measured(folder, task="gsm8k", **options):
    return specbench.run("sd", "tiny", task, out=folder, **SHORT, **options)


def environment_of(folder):
    return read_with_checksum(folder / "env.json", Environment)


def without_last_record(folder):
    """Make a run incomplete."""
    lines = (folder / "samples.jsonl").read_text().splitlines(keepends=True)
    (folder / "samples.jsonl").write_text("".join(lines[:-1]))


def test_a_small_model_has_one_thread_and_the_note_says_why(tmp_path):
    result = measured(tmp_path)
    environment = environment_of(result.folders[0])
    assert (environment["threads"], environment["threads_reason"]) == (1, "model of 13 MB")
    assert "1 thread (model of 13 MB)" in notes(result.summaries[0])[0].text
    assert torch.get_num_threads() == 2


def test_a_run_resumes_with_its_recorded_threads(tmp_path):
    (folder,) = measured(tmp_path, threads=2).folders
    assert environment_of(folder)["threads_reason"] == "as requested"
    without_last_record(folder)
    assert measured(tmp_path).complete
    assert environment_of(folder)["threads"] == 2


def test_a_run_is_not_resumed_with_another_number_that_the_user_gave(tmp_path, monkeypatch):
    (folder,) = measured(tmp_path, threads=2).folders
    without_last_record(folder)
    with pytest.raises(ConfigError, match=r"threads: 2 \| 1"):
        measured(tmp_path, threads=1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with using(1), pytest.raises(ConfigError, match=r"threads: 2 \| 1"):
        measured(tmp_path)
    assert measured(tmp_path, threads=1, fresh=True).complete
    assert environment_of(folder)["threads"] == 1


def test_every_run_of_a_request_has_its_own_recorded_threads(tmp_path):
    (first,) = measured(tmp_path, threads=2).folders
    without_last_record(first)
    folders = measured(tmp_path, ["gsm8k", "xsum"]).folders
    assert [environment_of(folder)["threads"] for folder in folders] == [2, 1]


def test_a_run_of_an_earlier_revision_without_a_reason_is_read(tmp_path):
    result = measured(tmp_path)
    path = result.folders[0] / "env.json"
    table = json.loads(path.read_text())
    kept = {key: value for key, value in table.items() if key not in ("threads_reason", CHECKSUM)}
    write_with_checksum(path, kept)
    (summary,) = specbench.load(result.folders[0]).summaries
    assert "1 thread;" in f"{notes(summary)[0].text};"


def test_parts_of_a_run_do_not_depend_on_other_programs(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(threads, "cores_here", lambda with_load: asked.append(with_load) or Cores(2))
    specbench.run("ar", out=tmp_path, task="gsm8k", **{**SHORT, "limit": 2}, shard="1/2")
    specbench.run("ar", out=tmp_path, task="gsm8k", **SHORT)
    assert asked == [False, True]


def test_a_batch_of_the_gate_uses_the_number_of_its_snapshot(tmp_path):
    options = replace(BASE, limit=1, repeats=1, max_new_tokens=3)
    request = Request(methods=("ar",), pair="tiny", tasks=("gsm8k",), options=options)
    for count, expected in ((1, 1), (0, 2)):  # 0: that of torch, which two_idle_processors sets
        measure_here(RequestBatch(requests=[request], threads=count), tmp_path / str(count))
        (folder,) = (path.parent for path in (tmp_path / str(count)).glob("*/env.json"))
        assert environment_of(folder)["threads"] == expected
    assert torch.get_num_threads() == 2
