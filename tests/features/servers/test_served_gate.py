"""`compare`, `gate`, profiles and `doctor` on results of servers."""

import json
from dataclasses import replace

import pytest

from specbench.features.exactness.outcome import Outcome
from specbench.features.gate.verdict import GateLimits, Status
from specbench.features.servers.exactness.stored_verdict import KindVerdict, ServerVerification
from specbench.features.servers.load.blocks import Pace
from specbench.features.servers.load.load_metrics import Acceptance
from specbench.features.servers.load.server_run import Level, Load, ServerRun
from specbench.features.servers.request_key import RequestKind
from specbench.features.servers.served import Description, ServedSampling, SpeculationCounts
from specbench.features.servers.served_comparison import compare_served
from specbench.features.servers.served_results import WORDS, as_json, results_in
from tests.fixtures.console import specbench
from tests.fixtures.model_server import model_server

LOAD = Load(task="gsm8k", prompts="0", sampling=ServedSampling(), pace=Pace())
COUNTS = SpeculationCounts(100, 300, 150, (80, 50, 20))


def level(**changes) -> Level:
    fields = {
        "concurrency": 1, "pairs": 4, "is_queueing": False, "ratios": [1.2, 1.21, 1.19, 1.2],
        "accepted": {i: 2.5 + 0.01 * i for i in range(20)}, "accepted_unit": "tokens per round",
        "acceptance": Acceptance(by_counters=COUNTS), "throughput": {}, "speedups": {}, "noise": None, "times": {},
    }  # fmt: skip
    return Level(**{**fields, **changes})


def run(*levels: Level, load: Load = LOAD, version: str = "1", scores: dict[int, float] | None = None) -> ServerRun:
    on = Description(backend="vllm", url="http://a", model="m", version=version)
    rows = {"on": {"strict": scores or dict.fromkeys(range(40), 1.0)}, "off": {}}
    return ServerRun(on=on, off=on, load=load, levels=levels, scores=rows, failures={})


def verification(outcome: str, *differing: int) -> ServerVerification:
    """Return a verification of two kinds of requests, of which those at concurrencies `differing` differ."""
    kinds = [
        KindVerdict(
            kind=RequestKind(sampling=ServedSampling(), concurrency=concurrency), outputs=8,
            differs=["later"] if concurrency in differing else [],
        )
        for concurrency in (1, 2)
    ]  # fmt: skip
    description = Description(backend="vllm", url="http://a", model="m")
    return ServerVerification(
        outcome=Outcome(outcome), line=f"{outcome}: m", description=description, reference="weights", kinds=kinds
    )


def found(base, new, **limits) -> dict[str, Status]:
    """Return the status of each finding by title."""
    return {each.title: each.status for each in compare_served([base], [new], GateLimits(**limits))}


def test_an_equal_run_is_the_same():
    statuses = found(run(level()), run(level()))
    assert statuses == dict.fromkeys(("same acceptance", "same speedup", "same quality"), Status.same)


@pytest.mark.parametrize(
    ("new", "title", "status"),
    [
        (run(level(accepted={i: 2.2 + 0.012 * i for i in range(20)})), "acceptance dropped", Status.regression),
        (run(level(accepted={i: 2.8 + 0.012 * i for i in range(20)})), "acceptance rose", Status.improved),
        (run(level(ratios=[1.0, 1.01, 0.99, 1.0])), "speedup dropped", Status.regression),
        (run(level(), scores=dict.fromkeys(range(40), 0.0)), "quality dropped", Status.regression),
        (run(level(), version="2"), "other servers", Status.same),
        (run(level(concurrency=2)), "level missing in NEW", Status.incomparable),
        (run(level(), load=replace(LOAD, prompts="1")), "other load", Status.incomparable),
        (verification("exact"), "missing in NEW", Status.incomparable),
    ],
)  # fmt: skip
def test_a_change_of_a_run_is_found(new, title, status):
    assert found(run(level()), new)[title] is status


def test_a_change_below_the_limit_or_within_noise_is_no_finding():
    assert found(run(level()), run(level(ratios=[1.19, 1.2, 1.18, 1.19])))["same speedup"] is Status.same
    noisy = level(accepted={i: 2.55 + 0.01 * i + 0.4 * (-1) ** i for i in range(20)})
    assert found(run(level()), run(noisy))["same acceptance"] is Status.same
    fewer = level(accepted={i: 2.5 + 0.01 * i for i in range(7, 20)})  # other prompts alone are no change
    assert found(run(level()), run(fewer))["same acceptance"] is Status.same
    assert found(run(level()), run(level(ratios=[0.6, 1.6, 0.7])))["change undecided"] is Status.inconclusive
    assert "speedup dropped" not in found(run(level()), run(level(ratios=[0.5] * 4)), counters_only=True)


@pytest.mark.parametrize(
    ("base", "new", "title", "status"),
    [
        (verification("exact"), verification("exact"), "same exactness", Status.same),
        (verification("exact"), verification("differs", 1), "no longer exact", Status.regression),
        (verification("differs", 1), verification("differs", 1, 2), "no longer exact", Status.regression),
        (verification("differs", 1), verification("exact"), "exact now", Status.improved),
        (verification("exact"), verification("inconclusive"), "exactness undecided", Status.inconclusive),
    ],
)
def test_a_change_of_exactness_is_found(base, new, title, status):
    assert found(base, new) == {title: status}


VERIFY = (
    "--data", "synthetic", "-n", "3", "--max-new-tokens", "8", "--max-prompt-tokens", "16", "-c", "1",
    "--no-seeds", "--prompts", "raw", "-T", "0",
)  # fmt: skip


def test_a_snapshot_of_a_server_is_recorded_and_checked_by_its_requests(checkpoint, tmp_path):
    with model_server(checkpoint) as server:
        out, snapshot = tmp_path / "base", tmp_path / "served.json"
        specbench("server", "verify", "--on", server.url, "--weights", checkpoint, *VERIFY, "-o", out, cwd=tmp_path)
        specbench("gate", "record", snapshot, "--served", out, cwd=tmp_path)
        done = specbench("gate", "check", snapshot, "-f", "json", cwd=tmp_path)
        assert [row["title"] for row in json.loads(done.stdout)["verdicts"]] == ["same exactness"]
        server.fault = "rounded logits"
        done = specbench("gate", "check", snapshot, cwd=tmp_path, code=5)
        assert "no longer exact" in done.stdout
        server.failures = ["500"] * 1000
        specbench("gate", "check", snapshot, cwd=tmp_path, code=4)


def test_a_snapshot_without_requests_is_compared_but_not_measured_again(tmp_path):
    (tmp_path / "base").mkdir()
    (tmp_path / "base/summary.json").write_text(as_json(run(level())))
    specbench("gate", "record", "served.json", "--served", "base", cwd=tmp_path)
    specbench("compare", "served.json", "base", cwd=tmp_path)
    before = (tmp_path / "served.json").read_text()
    for command in ("check", "update"):
        done = specbench("gate", command, "served.json", cwd=tmp_path, code=2)
        (line,) = done.stderr.splitlines()
        assert "can be compared, but not measured again" in line
    assert (tmp_path / "served.json").read_text() == before


def test_runs_have_acceptance_profiles_and_are_compared(checkpoint, tmp_path):
    with model_server(checkpoint) as on, model_server(checkpoint, speculates=False) as off:
        specbench(
            "server", "run", "--on", on.url, "--off", off.url, "--data", "synthetic", "-n", "4", "-c", "1", "--pairs", "3",
            "--aa-pairs", "0", "--seconds", "0.3", "--ramp", "0", "--max-new-tokens", "12", "-o", "runs",
            "--plots", "plots", "--plot-format", "svg", cwd=tmp_path,
        )  # fmt: skip
    assert (tmp_path / "plots/draft-lengths.svg").read_text().startswith("<svg")
    (result,) = results_in(tmp_path / "runs")
    (report,) = json.loads(specbench("report", "runs", "-f", "acceptance", cwd=tmp_path).stdout)["profiles"]
    counts = result.levels[0].acceptance.counts
    assert report["tokens_per_round"] == pytest.approx(1.0 + counts.accepted / counts.rounds, abs=1e-3)
    assert [row["position"] for row in report["positions"]] == [1, 2, 3] and report["draft_length"] == 3
    assert report["vllm"]["num_speculative_tokens"] == 3
    specbench("compare", "runs", "runs", cwd=tmp_path)


def test_the_doctor_says_what_a_server_offers(checkpoint, tmp_path):
    with model_server(checkpoint, backend="openai") as server:
        rows = json.loads(specbench("doctor", "--server", server.url, "--json", cwd=tmp_path).stdout)
        states = {row["name"]: row["state"] for row in rows}
        assert (states["token ids"], states["counters"], states["stream"]) == ("warn", "warn", "ok")
    with model_server(checkpoint, backend="llama.cpp") as server:
        rows = json.loads(specbench("doctor", "--server", server.url, "--json", cwd=tmp_path).stdout)
        found = {row["name"]: row["found"] for row in rows}
        assert "whole vocabulary" in found["log-probabilities"] and "by position" in found["counters"]
    specbench("doctor", "--server", "http://127.0.0.1:9", cwd=tmp_path, code=4)


def test_results_in_the_words_of_earlier_revisions_are_read(tmp_path):
    measured = run(level())
    text = as_json(measured)
    earlier = {today: word for word, today in WORDS.items()}
    for today, word in earlier.items():
        text = text.replace(f'"{today}":', f'"{word}":')
    assert '"dialect":' in text
    (tmp_path / "summary.json").write_text(text)
    (read,) = results_in(tmp_path)
    assert as_json(read) == as_json(measured)
