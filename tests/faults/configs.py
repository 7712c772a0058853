"""Fuzzed TOML files: methods, pairs, tasks and suites with keys dropped, added and given values of any type."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomli_w
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from specbench.config.presets import names, preset
from tests.faults.attack import Outcome, here

VALUES: tuple[Any, ...] = (
    "", "x", "../x", "draft", "target", "ensemble", "speculative", "chain", "model", "last", "[/b]", "\x1b[31m", "\u202e", 0,
    -1, 1, 7, 10**30, 0.5, -0.5, float("inf"), float("nan"), True, [], ["x"], [1], [[1]], {}, {"name": "x"}, {"name": 1},
    {"a": {"b": 1}},
)  # fmt: skip
KEYS = (
    "x",
    "name",
    "proposer",
    "gamma",
    "target",
    "scorers",
    "models",
    "stop",
    "head",
    "sweep",
    "baseline",
    "temperature",
)
TOP = (
    "paper",
    "shows",
    "description",
    "options",
    "grid",
    "tables",
    "plots",
    "expect",
    "judge",
    "defaults",
    "heads",
    "clock",
)
SUITES = ("se-fig6-tiny", "sprinter-table1-tiny")
PAIRS = ("tiny", "tiny-t5", "tiny-polybasic", "tiny-3")
ROWS = '{"prompt": "One"}\n'
RUN = {
    "method": lambda file, name: ["-m", file, "-p", "tiny-polybasic" if name.startswith("polybasic") else "tiny"],
    "pair": lambda file, name: ["-m", "sd", "-p", file],
    "task": lambda file, name: ["-m", "sd", "-t", file, "-n", 1],
    "suite": lambda file, name: ["--suite", file],
}


def fuzzed(trials: int, seed: int, folder: Path) -> Outcome:
    """Plan a run of each fuzzed file: it is planned, or rejected in one line with a documented exit code."""
    (folder / "rows.jsonl").write_text(ROWS)
    outcome = Outcome()

    def attempt(kind: str, name: str, table: dict[str, Any]) -> None:
        file = folder / "own.toml"
        try:
            file.write_text(tomli_w.dumps(table))
        except (TypeError, ValueError, UnicodeEncodeError):  # no TOML
            return
        data = ["-t", "prompts", "--data", "rows.jsonl"] if kind in ("method", "pair") else []
        problems = here(["plan", *RUN[kind](file, name), *data], folder).problems()
        outcome.trials += 1
        assert not problems, f"{kind} {name}: {problems}\n{file.read_text()}"

    _try(attempt, trials, seed, outcome)
    return outcome


def _try(attempt: Callable[..., None], trials: int, seed: int, outcome: Outcome) -> None:
    """Run Hypothesis over the files, so that a failure comes with its smallest file."""

    @seeded(seed)
    @settings(
        max_examples=trials, database=None, deadline=None, phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(files())
    def each(made: tuple[str, str, dict[str, Any]]) -> None:
        attempt(*made)

    try:
        each()
    except BaseExceptionGroup as group:
        outcome.failures += [str(error) for error in group.exceptions]
    except AssertionError as error:
        outcome.failures.append(str(error))


@st.composite
def files(draw: st.DrawFn) -> tuple[str, str, dict[str, Any]]:
    """A preset's kind, name and table with up to three changes."""
    kind = draw(st.sampled_from(["method", "method", "method", "pair", "task", "suite"]))
    known = {"pair": PAIRS, "suite": SUITES}.get(kind) or tuple(names(kind))
    name = draw(st.sampled_from(known))
    table = copy.deepcopy(preset(kind, name).table)
    for _ in range(draw(st.integers(1, 3))):
        _change(draw, table)
    return kind, name, table


def _change(draw: st.DrawFn, table: dict[str, Any]) -> None:
    place, key = draw(st.sampled_from(list(_places(table)) or [(table, "x")]))
    how = draw(st.sampled_from(["drop", "add", "replace", "replace", "replace"]))
    if how == "drop":
        place.pop(key, None) if isinstance(place, dict) else place.clear()
    elif how == "add" and isinstance(place, dict):
        place[draw(st.sampled_from(KEYS + TOP))] = copy.deepcopy(draw(st.sampled_from(VALUES)))
    else:
        place[key] = copy.deepcopy(draw(st.sampled_from(VALUES)))


def _places(value: Any) -> Any:
    """Every dict or list within a value, with each of its keys."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from _places(inner)
