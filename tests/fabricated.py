"""Measurements made up for tests of statistics: no model, no clock, stated noise."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import tomli_w

from specbench.report.measured import Generation, Measured, Session

PROMPTS = 8
SECONDS = {"ar": 1.0, "sd": 0.6, "hf-generate": 2.0}  # a round, before noise
CONFIG = {
    "semantics": 4,
    "baseline": "ar",
    "clock": "decoding",
    "pair": {"name": "made-up", "models": {"target": {"source": "here", "checksum": "1", "dtype": "float32"}}},
    "task": {
        "name": "gsm8k",
        "version": "2-A",
        "options": {"shots": 0},
        "continues": False,
        "data": {
            "source": "made up",
            "sha256": "d",
            "prompts_sha256": "p",
            "samples": PROMPTS,
            "later_turns": 0,
            "total": PROMPTS,
        },
    },
    "methods": {name: {"name": name} for name in SECONDS},
    "decoding": {
        "temperature": 0.0,
        "top_k": 0,
        "top_p": 1.0,
        "max_new_tokens": 40,
        "ignore_eos": False,
        "seed": 0,
        "repeats": 5,
    },
    "engine": {"name": "lean", "device": "cpu"},
}
ENVIRONMENT = {"cpu": "made up", "instructions": "i", "cores": 2, "threads": 1, "gpu": "none"} | dict.fromkeys(
    ("torch", "torchao", "transformers", "tokenizers", "numpy"), "1"
)


def generations(accepted: int = 30, right: int = 6) -> list[Generation]:
    """One a prompt: 40 tokens in 10 rounds of which 34 were tested; the first `right` of them are right."""
    return [
        Generation(str(i), 0, "same", 40, 10, 50, 34, accepted, {"target": 10}, {"strict": float(i < right)})
        for i in range(PROMPTS)
    ]


def write_run(folder: Path, methods: list[str], lines: str, repeats: int = 1, samples: int = 1) -> None:
    """Write a run folder of these lines, with a config that every reader accepts."""
    data = {
        "source": "made up",
        "sha256": "d",
        "prompts_sha256": "p",
        "samples": samples,
        "later_turns": 0,
        "total": samples,
    }
    decoding = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "max_new_tokens": 40, "ignore_eos": False, "seed": 0}
    config = {
        "semantics": 4,
        "baseline": methods[0],
        "clock": "decoding",
        "pair": {"name": "made-up", "models": {}, "traffic": {}, "shapes": {}},
        "task": {"name": "gsm8k", "version": "2-A", "continues": False, "options": {}, "data": data},
        "methods": {name: {"name": name} for name in methods},
        "decoding": decoding | {"repeats": repeats},
        "engine": {"name": "lean", "device": "cpu"},
    }
    (folder / "run.toml").write_text(tomli_w.dumps(config))
    (folder / "samples.jsonl").write_text(lines)


def session(rng: np.random.Generator, slower: dict[str, float], process=0.005, noise=0.01, drift=0.05) -> Session:
    """Five interleaved rounds of one process.

    Log-normal noise: `drift` is the whole round's, for all methods alike; `process` the process's, for each method; `noise`
    each measurement's own. `slower` multiplies a method's seconds.
    """
    luck = {name: rng.normal(0.0, process) for name in SECONDS}
    out: Session = {name: [] for name in SECONDS}
    for _ in range(5):
        machine = rng.normal(0.0, drift)
        for name, seconds in SECONDS.items():
            told = machine + luck[name] + rng.normal(0.0, noise)
            out[name].append((320, seconds * slower.get(name, 1.0) * float(np.exp(told))))
    return out


def measured(sessions: list[Session], config: dict | None = None, environment: dict | None = None, **rows) -> Measured:
    """A cell with these sessions; `rows` by method instead of the usual ones."""
    return Measured(
        config=config or CONFIG,
        environment=environment or ENVIRONMENT,
        metrics=[{"name": "strict", "signature": "s", "combine": "mean"}],
        groups={},
        generations={name: rows.get(name, generations()) for name in SECONDS},
        failed=dict.fromkeys(SECONDS, 0),
        sessions=sessions,
    )


def quiet(slower: dict[str, float] | None = None, seed: int = 0, count: int = 1, **changes) -> Measured:
    """A cell of `count` sessions with the usual noise."""
    rng = np.random.default_rng(seed)
    return measured([session(rng, slower or {}) for _ in range(count)], **changes)


def without_prompts(cell: Measured, left: int) -> Measured:
    """The same with its first prompts only."""
    return replace(cell, generations={name: rows[:left] for name, rows in cell.generations.items()})
