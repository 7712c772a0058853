"""Damaged result folders: a file is cut, emptied, mutated or replaced, and then a command reads the folder."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from tests.faults.attack import Ended, Outcome, here
from tests.faults.kills import FEW, SUITE

SD = ["run", "-m", "sd", "-t", "gsm8k", *FEW]
SPRINTER = ["run", "-m", "sprinter", "-t", "gsm8k", "--head", "sprinter=head", *FEW]
FILES = ("run.toml", "env.json", "manifest.json", "samples.jsonl", "scores.json", "summary.json", ".lock.json")
SUITE_FILES = ("results/suites/own/index.json", "judged.json", "own.toml")
HEAD_FILES = ("head/head.safetensors", "head/report.json")
COMMANDS: tuple[Callable[[Path], list[object]], ...] = (
    lambda run: ["report", run, "-f", "json"],
    lambda run: ["report", run],
    lambda run: ["report", run, "-f", "md"],
    lambda run: ["report", run, "-f", "csv"],
    lambda run: ["report", run, "-f", "html"],
    lambda run: ["report", run, "-f", "latex"],
    lambda run: ["score", run],
    lambda run: ["compare", "base", run, "--counters-only"],
    lambda run: ["compare", run, "base", "--counters-only"],
    lambda run: ["compare", "base.json", run, "--counters-only"],
    lambda run: SD,
    lambda run: SPRINTER,
    lambda run: ["report", "--suite", "own.toml"],
    lambda run: ["report", "--suite", "own.toml", "-f", "csv"],
    lambda run: ["run", "--suite", "own.toml"],
    lambda run: ["plan", "--suite", "own.toml"],
    lambda run: ["reproduce"],
    lambda run: ["gate", "check", "base.json", "--counters-only"],
)
WAYS = (
    "cut", "empty", "delete", "noise", "latin-1", "leaf", "leaf", "leaf", "leaf", "key", "list", "deep", "nan", "surrogate",
    "double a line", "swap a line", "folder", "scalar",
)  # fmt: skip
LEAVES: tuple[Any, ...] = (None, -1, 0, 1e308, "", "x", "[/b]", "\x1b[2J", [], {}, True, 10**25, -0.5, "=1+1")


def damaged(trials: int, seed: int, folder: Path) -> Outcome:
    """Damage a file, run a command: a documented exit code and one line; and no number that differs without a word."""
    source = folder / "source"
    _prepare(source)
    where, outcome = folder / "work", Outcome()
    expected = _numbers(here(["report", _run_of(source), "-f", "json"], source))
    names = [f"{_run_of(source).relative_to(source)}/{name}" for name in FILES]
    names += [str(path.relative_to(source)) for path in source.glob("results/*/judged.json")] + ["base.json"]
    names += [name for name in (*SUITE_FILES, *HEAD_FILES) if (source / name).exists()]

    @seeded(seed)
    @settings(
        max_examples=trials, database=None, deadline=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck)
    )  # fmt: skip
    @given(st.sampled_from(names), st.sampled_from(WAYS), st.sampled_from(range(len(COMMANDS))), st.integers(0, 2**32))
    def each(name: str, way: str, command: int, number: int) -> None:
        shutil.rmtree(where, ignore_errors=True)
        shutil.copytree(source, where)
        run = _run_of(where)
        _damage(where / name, way, random.Random(number))
        line = COMMANDS[command](run.relative_to(where))
        done = here(line, where)
        problems = done.problems()
        if done.code == 0 and line[-2:] == ["-f", "json"]:
            problems += _changed(done, expected)
        outcome.add(f"{way} {Path(name).name} ({number}), {' '.join(map(str, line[:3]))}", problems)

    each()
    return outcome


def _prepare(where: Path) -> None:
    """A finished run, a copy to compare with, a snapshot, a judged suite, and a run with a head of the user's own."""
    where.mkdir()
    (where / "own.toml").write_text(SUITE)
    from specbench.config.pair import PACKAGE

    shutil.copytree(PACKAGE / "tiny" / "heads" / "sprinter", where / "head")
    for command in (SD, ["run", "--suite", "own.toml"], SPRINTER):
        done = here(command, where)
        assert done.code == 0, done
    shutil.copytree(_run_of(where), where / "base" / "run")
    record = [
        "gate",
        "record",
        "base.json",
        "--counters-only",
        "-m",
        "sd",
        "-t",
        "gsm8k",
        "-n",
        3,
        "--max-new-tokens",
        8,
    ]
    done = here(record, where)
    assert done.code == 0, done


def _run_of(where: Path) -> Path:
    """The run of speculative decoding alone, of three prompts."""
    (run,) = (
        path
        for path in where.glob("results/sd_tiny_gsm8k_*")
        if len((path / "manifest.json").read_text()) and _samples(path) == 3
    )
    return run


def _samples(run: Path) -> int:
    return len(json.loads((run / "manifest.json").read_text())["samples"])


def _damage(path: Path, way: str, rng: random.Random) -> None:
    """Damage a file in one of WAYS; JSON and line ways cut a file that is neither."""
    if not path.is_file():  # a lock that is not held
        path.write_text('{"pid": 1, "host": "elsewhere", "token": "x"}')
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    at = rng.randrange(len(lines)) if lines else 0
    if way == "delete":
        path.unlink()
    elif way == "folder":
        path.unlink()
        path.mkdir()
    elif way == "empty":
        path.write_bytes(b"")
    elif way == "noise":
        spot = rng.randrange(len(data) + 1)
        path.write_bytes(data[:spot] + rng.randbytes(8) + data[spot + 8 :])
    elif way == "latin-1":
        path.write_bytes(data + b"\xff\xfe")
    elif way == "scalar":
        path.write_text(rng.choice(["1", '"x"', "[]", "{}", "null", "[1]\n[2]\n"]))
    elif way == "double a line" and lines:
        path.write_bytes(b"".join([*lines, lines[at]]))
    elif way == "swap a line" and len(lines) > 1:
        path.write_bytes(b"".join([*lines[:at], *lines[at + 1 :], b"{}\n"]))
    elif path.suffix in (".json", ".jsonl") and lines:
        whole = path.suffix == ".json"
        text = _mutated(data if whole else lines[at], way, rng)
        path.write_bytes(text if whole else b"".join([*lines[:at], text + b"\n", *lines[at + 1 :]]))
    else:
        path.write_bytes(data[: rng.randrange(len(data) + 1)])


def _mutated(text: bytes, way: str, rng: random.Random) -> bytes:
    """JSON with one value, key or shape changed."""
    if way == "deep":
        return b"[" * 100_000
    if way == "surrogate":
        return text.rstrip().replace(b'": "', b'": "\\ud800', 1)
    if way == "cut":
        return text[: rng.randrange(len(text) + 1)]
    value = json.loads(text)
    places = list(_places(value))
    if not places:
        return b"{}"
    place, key = rng.choice(places)
    if way == "key" and isinstance(place, dict):
        del place[key]
    elif way == "list":
        place[key] = [place[key]]
    elif way == "nan":
        place[key] = float("nan")
    else:
        place[key] = rng.choice(LEAVES)
    return json.dumps(value).encode()


def _places(value: Any) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from _places(inner)


def _numbers(done: Ended) -> Any:
    (summary,) = json.loads(done.out)
    return {key: summary[key] for key in ("pair", "task", "spec", "baseline", "methods", "metrics")}


def _changed(done: Ended, expected: Any) -> list[str]:
    """Numbers that differ from the undamaged run's, where the report says neither that it is incomplete nor unscored."""
    (summary,) = json.loads(done.out)
    if not summary["complete"] or summary["problems"] or not summary["scored"]:
        return []
    found = _numbers(done)
    return [f"{key} differs without a word" for key in expected if found[key] != expected[key]]
