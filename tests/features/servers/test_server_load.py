"""`specbench server run` on two servers that decode a small checkpoint. No assertion depends on how fast they are."""

import json

import pytest

from tests.fixtures.console import specbench
from tests.fixtures.model_server import model_server


def run(on, off, out, *words, code=0):
    return specbench(
        "server", "run", "--on", on.url, "--off", off.url, "--data", "synthetic", "-n", "6", "-c", "1,2", "--pairs", "3",
        "--aa-pairs", "0", "--seconds", "0.2", "--ramp", "0.05", "--max-new-tokens", "12", "-o", out, *words,
        cwd=out, code=code,
    )  # fmt: skip


@pytest.fixture
def servers(checkpoint):
    pause = {"seconds_per_step": 0.001}  # in which other requests arrive
    with model_server(checkpoint, **pause) as on, model_server(checkpoint, speculates=False, **pause) as off:
        yield on, off


def summary_of(out):
    return json.loads(next(out.glob("run-*/summary.json")).read_text())


def test_a_run_measures_every_level_and_answers(servers, tmp_path):
    on, off = servers
    done = run(on, off, tmp_path, "--aa-pairs", "3")
    table = summary_of(tmp_path)
    assert [level["concurrency"] for level in table["levels"]] == [1, 2]
    for level in table["levels"]:
        assert level["pairs"] == 3 and set(level["speedups"]) >= {"throughput", "TPOT", "end to end"}
        assert level["noise"]["low"] is not None
        assert level["acceptance"]["tokens_per_round"] > 1.0 and len(level["acceptance"]["by_position"]) == 3
    assert on.most_in_flight == off.most_in_flight == 2
    assert table["scores"]["on"].keys() == table["scores"]["off"].keys() != set()
    assert "at concurrency 1" in done.stdout and "--speculative-config" in done.stdout
    assert {row["length"] for row in table["predictions"]} == set(range(1, 9))


def test_the_same_command_resumes_and_repeats_only_an_interrupted_pair(servers, tmp_path):
    on, off = servers
    run(on, off, tmp_path)
    folder = next(tmp_path.glob("run-*"))
    first, sent = summary_of(tmp_path), len(on.requests)
    run(on, off, tmp_path)
    assert len(on.requests) == sent and summary_of(tmp_path) == first
    lines = (folder / "blocks.jsonl").read_bytes().split(b"\n")
    (folder / "blocks.jsonl").write_bytes(b"\n".join(lines[:-2]) + b"\n")  # the last block of the last pair
    before = (len(on.requests), len(off.requests))
    run(on, off, tmp_path)
    assert len(off.requests) > before[1]
    assert [level["pairs"] for level in summary_of(tmp_path)["levels"]] == [3, 3]


def test_failed_requests_are_counted_and_end_with_exit_code_3(servers, tmp_path):
    on, off = servers
    on.failures = ["500", "garbage", "cut"]
    done = run(on, off, tmp_path, code=3)
    assert "3 of" in done.stdout and "requests to on failed" in done.stdout
    assert summary_of(tmp_path)["failures"] == {"on": 3, "off": 0}


def test_two_urls_are_needed(tmp_path):
    done = specbench("server", "run", "--on", "http://127.0.0.1:9", "--off", "", cwd=tmp_path, code=2)
    assert "two servers are needed" in done.stderr
