"""Signals: a command is killed, interrupted or terminated at any moment; the same command then finishes what is missing."""

import contextlib
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.faults.attack import Ended, Outcome, apart, ended, here, started

FEW = ["-n", 3, "--repeats", 1, "--max-new-tokens", 8]
STARTING = 0.1  # share of trials that hit the start, and the seconds that they hit
EARLY = 1.0  # seconds in which, on a busy machine, Python may not yet have reached our first line
PATIENCE = 20.0  # seconds until all descendants of a killed process are gone
SUITE = """
paper = "none"
shows = "faults"
description = "two cells"
judge = { name = "likelihood", path = "specbench:tiny/models/draft", of = "sd", against = "ar" }
[options]
limit = 2
repeats = 1
max_new_tokens = 8
[[grid]]
methods = ["sd"]
pairs = ["tiny"]
tasks = ["gsm8k", "wmt"]
"""


@dataclass(frozen=True)
class Scenario:
    """A command that can be resumed. `victim`: which of its processes a SIGKILL hits."""

    name: str
    command: list[object]
    victim: str = "main"  # main | group | child

    def prepare(self, where: Path) -> None:
        where.mkdir(parents=True)
        (where / "own.toml").write_text(SUITE)


CODE = [
    "run", "-m", "sd", "-t", "humaneval", "-n", 4, "--repeats", 1, "--max-new-tokens", 48, "--allow-code-execution",
]  # fmt: skip
SCENARIOS = (
    Scenario("run", ["run", "-m", "sd", "-t", "gsm8k", *FEW]),
    Scenario("run, its process group", ["run", "-m", "sd", "-t", "gsm8k", *FEW], "group"),
    Scenario("parallel workers", ["run", "-m", "we-p", "-t", "gsm8k", *FEW]),
    Scenario("parallel workers, a worker", ["run", "-m", "we-p", "-t", "gsm8k", *FEW], "child"),
    Scenario("scoring in a sandbox", CODE),
    Scenario("scoring in a sandbox, a sandbox", CODE, "child"),
    Scenario("suite with a judge", ["run", "--suite", "own.toml"]),
    Scenario("train", ["train", "dsl", "-t", "gsm8k", "-n", 12, "-o", "head", "--set", "recipe.epochs=2"]),
    Scenario("gate", ["gate", "record", "base.json", "--counters-only", "-m", "sd", "-t", "gsm8k", *FEW[:2], *FEW[4:]]),
    Scenario(
        "gate with timing",
        [
            "gate",
            "record",
            "base.json",
            "--sessions",
            1,
            "-m",
            "sd",
            "-t",
            "gsm8k",
            "-n",
            1,
            "--repeats",
            1,
            *FEW[4:],
        ],
    ),
    Scenario("verify", ["verify", "-m", "sd", "-n", 2, "--repeats", 2, "--max-new-tokens", 8]),
)


def sigkill(trials: int, seed: int, folder: Path) -> Outcome:
    """SIGKILL at a moment chosen by seed, then the same command again: nothing is lost, changed or left running."""
    return _campaign(trials, seed, folder, SCENARIOS, _killed)


def interrupt(trials: int, seed: int, folder: Path) -> Outcome:
    """SIGINT: exit code 130, no traceback, and a run that resumes."""
    return _campaign(trials, seed, folder, SCENARIOS, _signalled(signal.SIGINT, 130))


def terminate(trials: int, seed: int, folder: Path) -> Outcome:
    """SIGTERM: exit code 143, no traceback, and a run that resumes."""
    return _campaign(trials, seed, folder, SCENARIOS, _signalled(signal.SIGTERM, 143))


Hit = Callable[[Scenario, Path, float, random.Random], list[str]]


def _campaign(trials: int, seed: int, folder: Path, scenarios: tuple[Scenario, ...], hit: Hit) -> Outcome:
    """The scenarios in turn, each hit at a share of the time that it takes alone."""
    outcome, whole = Outcome(), {}
    for trial in range(trials):
        scenario, rng = scenarios[trial % len(scenarios)], random.Random(f"{seed}:{trial}")
        command = str(scenario.command)
        if command not in whole:
            whole[command] = _undisturbed(scenario, folder / f"whole-{len(whole)}")
        seconds, expected = whole[command]
        where = folder / f"trial-{trial}"
        scenario.prepare(where)
        delay = rng.uniform(0.0, STARTING) if rng.random() < STARTING else rng.uniform(STARTING, seconds)
        problems = hit(scenario, where, delay, rng)
        problems += _lines_wrong(where)
        if not problems:
            problems = _finished(scenario, where, expected)
        outcome.add(f"{scenario.name}, trial {trial}", problems)
        shutil.rmtree(where, ignore_errors=True)
    return outcome


def _undisturbed(scenario: Scenario, where: Path) -> tuple[float, dict[str, object]]:
    """Seconds that a scenario takes, and what it leaves."""
    scenario.prepare(where)
    begin = time.monotonic()
    done = apart(scenario.command, where)
    assert done.code == 0, done
    return time.monotonic() - begin, _left(where)


def _killed(scenario: Scenario, where: Path, delay: float, rng: random.Random) -> list[str]:
    with started(scenario.command, where) as process:
        time.sleep(delay)
        family = descendants(process.pid)
        if scenario.victim == "child" and family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(family)[0], signal.SIGKILL)
            done = ended(process)
            problems = done.problems({0, 3, 4})
        else:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGSTOP)  # so that it starts no process after this look
                family += descendants(process.pid)
                if scenario.victim == "group":
                    os.killpg(process.pid, signal.SIGKILL)
                process.kill()
            ended(process)
            problems = []
    return problems + survivors(family)


def _signalled(number: signal.Signals, code: int) -> Hit:
    def hit(scenario: Scenario, where: Path, delay: float, rng: random.Random) -> list[str]:
        with started(scenario.command, where) as process:
            time.sleep(delay)
            family = descendants(process.pid)
            process.send_signal(number)
            done = ended(process)
        if (
            delay < EARLY and "<frozen site>" in done.err
        ):  # Python itself was starting, and reports an interrupt by code 1
            return survivors(family)
        allowed = {0, code, -number} if delay < EARLY else {0, code}
        return done.problems(allowed) + survivors(family)

    return hit


def descendants(pid: int) -> list[tuple[int, str]]:
    """All processes below one, with their start times, which tell them from later ones of the same number."""
    parents: dict[int, list[tuple[int, str]]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            fields = path.read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append((int(path.parent.name), fields[19]))
    found, todo = [], [pid]
    while todo:
        for child in parents.get(todo.pop(), []):
            found.append(child)
            todo.append(child[0])
    return found


def survivors(family: list[tuple[int, str]]) -> list[str]:
    """Processes of a family that outlive it."""
    until = time.monotonic() + PATIENCE
    while left := [pid for pid, born in family if _born(pid) == born]:
        if time.monotonic() > until:
            return [f"process {pid} survives: {_line(pid)}" for pid in left]
        time.sleep(0.05)
    return []


def _born(pid: int) -> str:
    """When a process started; empty where it is gone, or dead and not yet collected."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:120]
    except OSError:
        return "gone"


def _rows(where: Path) -> dict[str, list[bytes]]:
    """The complete lines of every run below a folder."""
    files = sorted(where.glob("**/samples.jsonl"))
    return {
        path.parent.name: [line for line in path.read_bytes().splitlines(True) if line.endswith(b"\n")]
        for path in files
    }


def _lines_wrong(where: Path) -> list[str]:
    """Lines that are no JSON, and generations that are there twice."""
    problems = []
    for name, lines in _rows(where).items():
        try:
            keys = [(row["method"], row["sample"], row["repeat"]) for row in map(json.loads, lines)]
        except ValueError as error:
            return [f"{name}: a damaged line: {error}"]
        if len(set(keys)) < len(keys):
            problems.append(f"{name}: {len(keys) - len(set(keys))} generations twice")
    return problems


def _left(where: Path) -> dict[str, object]:
    """What a command left, without what may differ: tokens of every generation, states of runs, files that are whole.

    The hash in a run's name is left out, since it covers the folder of a head.
    """
    tokens = {
        (name.rpartition("_")[0], row["method"], row["sample"], row["repeat"]): None if row["error"] else row["tokens"]
        for name, lines in _rows(where).items()
        for row in map(json.loads, lines)
    }
    files = {path.name for path in where.glob("*/*.safetensors")} | {path.name for path in where.glob("*.json")}
    states = [
        run["state"]
        for path in where.glob("results/suites/*/index.json")
        for run in json.loads(path.read_text())["runs"]
    ]
    return {"tokens": tokens, "files": files, "states": states}


def _finished(scenario: Scenario, where: Path, expected: dict[str, object]) -> list[str]:
    """Run the same command to its end: every line that was there still is, and nothing is missing."""
    before = _rows(where)
    done: Ended = here(scenario.command, where)
    problems = done.problems({0, 3} if scenario.victim == "child" else {0})
    after = _rows(where)
    lost = [name for name, lines in before.items() if after.get(name, [])[: len(lines)] != lines]
    problems += [f"{name}: records were lost or changed" for name in lost] + _lines_wrong(where)
    left = _left(where)
    if not problems and scenario.victim != "child" and left != expected:
        problems.append(f"it left {_differing(left, expected)}")
    return problems


def _differing(left: dict[str, object], expected: dict[str, object]) -> str:
    key = next(key for key in expected if left[key] != expected[key])
    return f"other {key}: {str(left[key])[:200]}, expected {str(expected[key])[:200]}"
