"""The gate: what it records it measures again; a halved acceptance fails it; a hit on the clock is confirmed first."""

import hashlib
import json
import os
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from specbench import __main__ as entry
from specbench.config.options import Options
from specbench.config.presets import parse_override
from specbench.config.request import Access, Request
from specbench.errors import ConfigError
from specbench.experiment import batch as remeasure
from specbench.experiment.pipeline import Results
from specbench.features.gate import gating
from specbench.features.gate.comparison import ANCHOR
from specbench.features.gate.snapshot import RunSnapshot, runs_of
from specbench.features.gate.verdict import GateLimits, Status
from specbench.files import CHECKSUM, json_with_checksum
from specbench.models import cached_session as session
from specbench.vocabulary import SandboxKind
from tests.fixtures.console import specbench
from tests.fixtures.fabricated import quiet
from tests.fixtures.snapshots import loaded

ROOT = Path(__file__).parents[3]
TINY = ROOT / "results" / "snapshots" / "tiny.json"
FEW = ["-m", "sd", "-p", "tiny", "-t", "gsm8k", "-n", "5", "--max-new-tokens", "12", "--counters-only"]
NOTHING = remeasure.RequestBatch()
REQUEST = Request(methods=("sd",), pair="tiny", tasks=("gsm8k",), options=Options())


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """A baseline of a few tokens, in its own folder."""
    where = tmp_path_factory.mktemp("gate")
    specbench("gate", "record", "base.json", *FEW, cwd=where)
    return where


def resealed(table) -> str:
    """Return a changed snapshot as JSON, with a checksum that fits it."""
    return json_with_checksum({key: value for key, value in table.items() if key != CHECKSUM})


def corrupted(roll):
    """Wrap `drafting.roll` so that it replaces half of the draft tokens by random ones.

    The distribution of a replaced token becomes one-hot at that token, so that verification stays exact.
    """

    def half(session, ids, *arguments, **named):
        draft = roll(session, ids, *arguments, **named)
        if len(draft.tokens) == 1:  # it may be a token of `ar`, which is not verified
            return draft
        chance = random.Random(hashlib.sha256(repr(ids).encode()).digest())
        tokens, probs = list(draft.tokens), draft.probs.clone()  # (k,), (k, V)
        for i in range(len(tokens)):
            if chance.random() < 0.5:
                tokens[i] = chance.randrange(probs.shape[1])
                probs[i] = torch.nn.functional.one_hot(torch.tensor(tokens[i]), probs.shape[1])
        return replace(draft, tokens=tokens, probs=probs)

    return half


def test_what_was_recorded_passes_and_needs_no_clock(recorded):
    shown = specbench("gate", "check", "base.json", "--out", "runs", "--junit", "gate.xml", cwd=recorded)
    assert "gate by base.json" in shown.stdout and shown.stdout.count("same") >= 2
    held = loaded(recorded / "base.json")
    assert held.counters_only and not held.runs[0].sessions
    assert held.runs[0].generations == runs_of(recorded / "runs")[0].generations
    assert 'failures="0"' in (recorded / "gate.xml").read_text()


def test_a_halved_acceptance_fails_by_name_with_every_token_as_it_was(recorded, monkeypatch):
    """Half of the drafted tokens are random, and verification repairs every one of them."""
    monkeypatch.setattr(session, "roll", corrupted(session.roll))
    done = specbench("gate", "check", "base.json", "--out", "corrupted", "-f", "json", cwd=recorded, code=5)
    found = {(each["method"], each["aspect"]): each for each in json.loads(done.stdout)["verdicts"]}
    assert found["sd", "decoding"]["title"] == "acceptance changed"
    assert found["sd", "decoding"]["detail"].startswith(
        "0 of 5 generations have different tokens, 5 different counters"
    )
    assert found["ar", "decoding"]["status"] == "ok"
    rates = [
        sum(row.accepted for row in cell.generations["sd"]) / sum(row.tested for row in cell.generations["sd"])
        for cell in (loaded(recorded / "base.json").runs[0], runs_of(recorded / "corrupted")[0])
    ]
    assert rates[1] < 0.65 * rates[0]


def test_update_and_add_keep_the_commands(recorded, tmp_path):
    """Of an outdated file too: that is when it is needed."""
    held = json.loads((recorded / "base.json").read_text())
    (tmp_path / "b.json").write_text(json.dumps({**held, "runs": {**held["runs"], "semantics": 0}}))
    specbench("gate", "update", "b.json", cwd=tmp_path)
    assert loaded(tmp_path / "b.json").requests == loaded(recorded / "base.json").requests
    specbench("gate", "record", "b.json", "--add", *FEW, "--temperature", "1", cwd=tmp_path)
    assert [cell.spec.decoding.temperature for cell in loaded(tmp_path / "b.json").runs] == [0.0, 1.0]
    assert loaded(tmp_path / "b.json").runs[0].generations == loaded(recorded / "base.json").runs[0].generations


def test_a_snapshot_of_the_other_kind_is_not_extended(recorded):
    how = gating.SnapshotOptions(counters_only=False, sessions=1)
    with pytest.raises(ConfigError, match="counters only"):
        gating.record(loaded(recorded / "base.json"), recorded, remeasure.RequestBatch(requests=[REQUEST]), how)
    assert specbench("gate", "check", "runs.json", cwd=recorded, code=2).stderr.startswith("error[")


@pytest.mark.parametrize("option", ["--temperature", "--limit", "--pair", "--sessions", "--add"])
def test_check_takes_no_option_that_the_snapshot_fixes(recorded, option):
    assert option in specbench("gate", "check", "base.json", option, "1", cwd=recorded, code=2).stderr


def test_two_baselines_of_one_name_are_distinguished(recorded, tmp_path):
    for name, count in (("a", 2), ("b", 3)):
        command = ["-m", "ar", "-t", "gsm8k", "-n", count, "--max-new-tokens", 4, "--counters-only"]
        specbench("gate", "record", f"{name}/tiny.json", *command, cwd=tmp_path)
    specbench("gate", "update", "a/tiny.json", "b/tiny.json", cwd=tmp_path)
    assert [[cell.samples for cell in loaded(tmp_path / name / "tiny.json").runs] for name in "ab"] == [[2], [3]]


def test_a_command_that_cannot_be_measured_is_reported(recorded, tmp_path):
    held = json.loads((recorded / "base.json").read_text())
    (command,) = held["runs"]["requests"]
    for wrong, message in (
        ({**command, "options": {"limt": 5}}, "did you mean 'limit'?"),
        ({key: value for key, value in command.items() if key != "methods"}, "missing required field `methods`"),
    ):
        (tmp_path / "b.json").write_text(resealed({**held, "runs": {**held["runs"], "requests": [wrong]}}))
        assert message in specbench("gate", "check", "b.json", cwd=tmp_path, code=2).stderr


def test_a_snapshot_of_another_version_or_without_runs_is_an_error(tmp_path):
    held = json.loads(TINY.read_text())
    for changes, message in (
        ({"semantics": 0}, "gate update"),
        ({"schema": 0}, "gate record"),
        ({"runs": []}, "no runs"),
    ):
        (tmp_path / "old.json").write_text(resealed({**held, **changes}))
        assert message in specbench("gate", "check", "old.json", cwd=tmp_path, code=2).stderr


def gated(monkeypatch, tmp_path, slower: list[float]) -> tuple[list, int]:
    """Verdicts against fabricated sessions, of which the nth has sd slower by a factor; and how many were measured."""
    asked = []

    def measure_sessions(request, out, launch, count, first=1):
        asked.append(first)
        return [quiet({"sd": slower[first - 1]}, seed=10 + first)]

    monkeypatch.setattr(gating, "measure_sessions", measure_sessions)
    return gating.check(RunSnapshot([], [quiet(count=2)], False), tmp_path, NOTHING, GateLimits()), len(asked)


@pytest.mark.parametrize(
    ("slower", "measured", "status"),
    [
        ([1.0], 1, Status.same),
        ([1.1, 1.0], 2, Status.same),
        ([1.1, 1.1, 1.0], 3, Status.same),
        ([1.1, 1.1, 1.1], 3, Status.regression),
    ],
)
def test_a_slow_down_is_confirmed_in_two_more_processes(monkeypatch, tmp_path, slower, measured, status):
    found, count = gated(monkeypatch, tmp_path, slower)
    assert count == measured
    assert next(each for each in found if each.method == "sd" and each.aspect == "speed").status is status


def test_counters_of_a_timed_baseline_need_neither_anchor_nor_repeats(monkeypatch, tmp_path):
    timed = replace(REQUEST, methods=("sd", ANCHOR), options=Options(repeats=5))
    seen = []
    monkeypatch.setattr(
        gating,
        "measure_sessions",
        lambda request, out, launch, count, first=1: seen.append((request, launch)) or [quiet()],
    )
    found = gating.check(
        RunSnapshot([timed], [quiet(count=2)], False), tmp_path, NOTHING, GateLimits(counters_only=True)
    )
    ((request, launch),) = seen
    assert request.requests == [replace(REQUEST, options=Options(repeats=1))]
    assert launch is remeasure.measure_here and {each.aspect for each in found} == {"decoding", "quality"}


def test_the_anchor_is_measured_with_methods_whose_baseline_is_ar():
    def methods(*names: str) -> tuple[str, ...]:
        return gating.with_anchor(replace(REQUEST, methods=names)).methods

    assert (
        methods("sd") == ("sd", ANCHOR) and methods("we-se") == ("we-se",) and methods("sd", ANCHOR) == ("sd", ANCHOR)
    )


def test_a_new_process_measures_the_same_and_its_failure_is_reported(monkeypatch, tmp_path):
    """The child is run in this process instead: options come through JSON as they were."""
    overrides = (parse_override("method.target.weights=[0.3, 0.7]"),)
    options = Options(gamma=(("", (3, 1)),), overrides=overrides, repeats=2)
    request = Request(methods=("we-se",), pair="tiny", tasks=("gsm8k",), options=options)
    seen = []

    def run(arguments, check, env, stderr):
        assert arguments[:4] == [sys.executable, "-P", "-m", "specbench"]
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", arguments[3:])
            patch.setattr(
                "specbench.experiment.pipeline.run", lambda request, observer: seen.append(request) or Results([], None)
            )
            entry.main()
        return subprocess.CompletedProcess(arguments, 4)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(SystemExit) as ended:
        remeasure.measure_in_new_process(
            remeasure.RequestBatch(requests=[request], sandbox=SandboxKind.none), tmp_path / "session-1"
        )
    assert ended.value.code == 4
    access = Access(fresh=True)
    options = replace(options, threads=torch.get_num_threads())  # the same in every session
    expected = replace(request, options=options, out=tmp_path / "session-1", access=access, sandbox=SandboxKind.none)
    assert seen == [expected]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the parent-death signal is Linux's")
def test_a_measuring_child_ends_with_a_parent_that_is_killed(tmp_path):
    (tmp_path / "sleeper.py").write_text(
        "import time; from specbench.experiment.child_process import end_with_parent\n"
        "end_with_parent(); print('started', flush=True); time.sleep(600)\n"
    )
    code = (
        "from pathlib import Path; from specbench.experiment.batch import RequestBatch, measure_in_new_process\n"
        f"measure_in_new_process(RequestBatch(), Path({str(tmp_path)!r}), 'sleeper')\n"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout.readline() == "started\n"
        parent.kill()
        assert parent.stdout.read() == "", "the pipe closes when the child has ended too"


def test_the_bundled_snapshot_covers_the_tiny_family():
    """A file that lacks a cell, or holds other commands than cells, would pass what it should not."""
    held = loaded(TINY)
    methods = {name for request in held.requests for name in request.methods}
    assert methods >= {"sd", "we-se", "cd-se", "eagle", "polybasic", "sprinter", "adaedl", "cascade-opt"}
    assert TINY.stat().st_size < 200_000 and held.counters_only
    for temperature in (0.0, 1.0):
        cells = [cell for cell in held.runs if cell.spec.decoding.temperature == temperature]
        assert {name for cell in cells for name in cell.generations} >= methods
        assert all(len(rows) == cell.samples for cell in cells for rows in cell.generations.values())


def test_the_action_uses_its_inputs_and_existing_options():
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    text = json.dumps(action["runs"])
    assert set(re.findall(r"inputs\.([a-z-]+)", text)) == set(action["inputs"])
    (script,) = (step["run"] for step in action["runs"]["steps"] if step.get("id") == "gate")
    shown = specbench("gate", "check", "--help", cwd=ROOT).stdout
    assert all(option in shown for option in re.findall(r"--[a-z-]+", script))


def test_the_recipes_name_every_verdict_and_only_existing_options():
    text = (ROOT / "docs" / "ci.md").read_text()
    titles = ("engine changed", "overhead changed", "acceptance changed", "decoding changed", "quality dropped")
    assert all(f"**{title}**" in text for title in titles)
    names = ("gate check", "gate record", "gate update", "compare", "server verify", "server run", "doctor")
    shown = "".join(specbench(*name.split(), "--help", cwd=ROOT).stdout for name in names)
    assert all(option in shown for option in re.findall(r"--[a-z]+(?:-[a-z]+)*", text))
