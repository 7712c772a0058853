"""Two and three processes in one folder at the same time, with and without `--wait`."""

import contextlib
import json
import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file

from tests.faults.attack import Outcome, ended, here, started
from tests.faults.kills import FEW, SUITE

RUN = ["run", "-m", "sd", "-t", "gsm8k", *FEW]
CROSSED = (["run", "-m", "sd", "-t", "gsm8k,wmt", *FEW], ["run", "-m", "sd", "-t", "wmt,gsm8k", *FEW])
TRAIN = ["train", "dsl", "-t", "gsm8k", "-n", 12, "-o", "head", "--set", "recipe.epochs=2"]
SUITE_COMMAND = [["run", "--suite", "own.toml"]]
COMMANDS = ([RUN], [TRAIN], CROSSED, SUITE_COMMAND)


def together(trials: int, seed: int, folder: Path) -> Outcome:
    """Several processes at once: every generation is there once, and a process that may not write names the one that does."""
    outcome = Outcome()
    for trial in range(trials):
        rng = random.Random(f"{seed}:{trial}")
        where = folder / f"trial-{trial}"
        where.mkdir()
        (where / "own.toml").write_text(SUITE)
        commands = COMMANDS[trial // 2 % len(COMMANDS)]
        waits = trial % 2 == 0
        outcome.add(f"trial {trial}", _one(commands, waits, rng.choice([2, 3]), rng, where))
        shutil.rmtree(where)
    return outcome


def _one(commands: Sequence[list[object]], waits: bool, count: int, rng: random.Random, where: Path) -> list[str]:
    with contextlib.ExitStack() as stack:
        processes = []
        for i in range(count):
            command = commands[i % len(commands)]
            processes.append(stack.enter_context(started([*command, *(["--wait"] if waits else [])], where)))
            time.sleep(rng.uniform(0.0, 1.0))
        done = [ended(process) for process in processes]
    problems = [problem for each in done for problem in each.problems({0} if waits else {0, 3, 4})]
    if not any(each.code == 0 for each in done):
        problems.append("no process finished")
    problems += [
        f"code 4 without the holder: {each.err[-200:]}"
        for each in done
        if each.code == 4 and "process " not in each.err
    ]
    for path in where.glob("head/*.safetensors"):
        load_file(path)  # raises for a damaged one
    if commands == [TRAIN] and not list(where.glob("head/*.safetensors")):
        problems.append("no head was written")
    # It prints what is there, or resumes what a cell that was locked lacked:
    problems += here(commands[0], where).problems({0})
    for path in where.glob("results/*/samples.jsonl"):
        keys = [(row["method"], row["sample"], row["repeat"]) for row in map(json.loads, path.read_text().splitlines())]
        expected = 4 if commands == SUITE_COMMAND else 6  # prompts x methods
        if len(keys) != len(set(keys)) or len(keys) != expected:
            problems.append(
                f"{path.parent.name}: {len(keys)} lines of {len(set(keys))} generations, expected {expected}"
            )
    return problems
