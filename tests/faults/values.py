"""Values at the edges: figures of machines, settings of launchers, lock files, and arguments of the Python API."""

import json
import os
import random
import re
import shutil
import socket
from pathlib import Path
from typing import Any

from tests.faults.attack import Outcome, apart, here

NUMBERS = (
    "0",
    "0.0",
    "-1.0",
    "1e-320",
    "1e-300",
    "1e308",
    "inf",
    "-inf",
    "nan",
    "true",
    '"x"',
    "[]",
    "10000000000000000000",
)
FIGURES = ("memory_gib", "bandwidth_gb_s", "bf16_tflops", "copy_share")
LAUNCHERS = {
    "local": ("jobs", "gpus", "gpu", "attempts", "untimed", "job"),
    "slurm": (
        "gpus", "minutes", "cpus", "memory_gb", "parallel", "exclusive", "partition", "setup", "additional", "cluster",
        "mem_gb", "timeout_min", "nonsense",
    ),
    "ray": ("gpus", "cpus", "accelerator", "resources", "gpu"),
}  # fmt: skip
SETTINGS = ("-1", "1.5", "x", '"x"', "[1]", "{a = [1]}", "{a = -1}", "nan", "1e308")
SUITE = """
paper = "none"
shows = "faults"
description = "one cell"
[options]
limit = 1
repeats = 1
max_new_tokens = 2
[[grid]]
methods = ["ar"]
pairs = ["tiny"]
tasks = ["gsm8k"]
"""
PIDS = (10**12, 2**31, 2**63, -1, 0, 1, True, "x", None, 1.5)
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "method": (None, 5, "", [None], ["sd", 5], b"sd", "a\x00b"),
    "pair": (None, 5, "", ["tiny"], b"tiny", "a\x00b"),
    "task": (None, 5, "", [None], b"gsm8k", "x" * 5000),
    "sandbox": (True, 5, "", [], "docker"),
    "set": ({5: 1}, {"": 1}, {"method": 1}, {"method.gamma": object()}, "x", 5, [1], {"task.x": float("nan")}),
    "over": ({5: [1]}, {"gamma": 5}, {"gamma": []}, {"method.gamma": ["x"]}, "x"),
    "head": ({5: "x"}, {"sprinter": 5}, {"": "x"}, "x"),
    "gamma": (-1, 0, 1.5, "x", [], [0], True, {"sd": None}, {5: 5}, 10**30),
    "data": (5, [], {"gsm8k": None}, {"gsm8k": 5}, {5: "x"}, "no-such-file.jsonl", "/dev/zero"),
    "threads": (-1, 1.5, "x", None, True, 10**6),
    "repeats": (-1, 0, 1.5, "x", None, True),
    "limit": (-1, 1.5, "x", None, True),
    "max_new_tokens": (-1, 0, 1.5, "x", True),
    "temperature": (-1, float("nan"), float("inf"), "x", None, True),
    "top_k": (-1, 1.5, "x"),
    "top_p": (-1, 0, 7, float("nan"), "x"),
    "seed": (1.5, "x", -1, 2**70),
    "plugins": (5, "no.py", [5], "/dev/null"),
    "shard": ("x", "0/2", "3/2", 5),
    "out": ("/proc/nowhere", "a\x00b", 5),
    "unknown": (1,),
}


def at_the_edge(trials: int, seed: int, folder: Path) -> Outcome:
    """Give such values: they are used, or rejected in one line or with one of the documented exceptions."""
    source, outcome = folder / "source", Outcome()
    source.mkdir()
    (source / "own.toml").write_text(SUITE)
    assert here(["run", "--suite", "own.toml"], source).code == 0
    for trial in range(trials):
        where = folder / f"trial-{trial}"
        shutil.copytree(source, where)
        what, problems = KINDS[trial % len(KINDS)](random.Random(f"{seed}:{trial}"), where)
        outcome.add(f"{what}, trial {trial}", problems)
        shutil.rmtree(where)
    return outcome


def _machine(rng: random.Random, where: Path) -> tuple[str, list[str]]:
    from specbench.config.presets import preset

    text = preset("machine", "h200").path.read_text()
    key, value = rng.choice(FIGURES), rng.choice(NUMBERS)
    text = re.sub(rf"^{key} = .*$\n?", "", text, flags=re.MULTILINE) + f"\n{key} = {value}\n"
    (where / "own.toml").write_text(text)
    command = [
        "plan",
        "-m",
        rng.choice(["sd", "we-se", "cascade-opt"]),
        "-p",
        rng.choice(["llama-2", "qwen-3b"]),
        "-t",
        "gsm8k",
    ]
    return f"{key} = {value}", here([*command, "--for", "own.toml"], where).problems()


def _launcher(rng: random.Random, where: Path) -> tuple[str, list[str]]:
    """The only run of the suite is complete, so no job is submitted."""
    name = rng.choice(list(LAUNCHERS))
    key, value = rng.choice(LAUNCHERS[name]), rng.choice(SETTINGS)
    extra = ["--launcher-set", "cluster=debug"] if name == "slurm" and key != "cluster" else []
    line = ["run", "--suite", "own.toml", "--launcher", name, *extra, "--launcher-set", f"{key}={value}"]
    done = apart(line, where) if name == "ray" else here(line, where)  # Ray starts a cluster in the process
    return f"{name} {key}={value}", done.problems({0, 2, 4})


def _lock(rng: random.Random, where: Path) -> tuple[str, list[str]]:
    """A lock file that names an impossible process: the run is reported, and measured where the lock is free."""
    pid = rng.choice(PIDS)
    run = ["run", "-m", "ar", "-t", "gsm8k", "-n", 1, "--repeats", 1, "--max-new-tokens", 2]
    holder = {"pid": pid, "host": rng.choice([socket.gethostname(), "elsewhere"]), "token": "x"}
    (folder,) = (path.parent for path in where.glob("results/*/run.toml"))
    (folder / ".lock.json").write_text(json.dumps(holder))
    problems = here([*run, "--fresh", *rng.choice([[], ["--break-lock"], ["--wait"]])], where).problems({0})
    for command in (["report", folder], ["plan", *run[1:-2]], ["list", "runs"]):
        problems += here(command, where).problems()
    return f"lock of process {pid!r}", problems


def _argument(rng: random.Random, where: Path) -> tuple[str, list[str]]:
    import specbench

    name = rng.choice(list(ARGUMENTS))
    value = rng.choice(ARGUMENTS[name])
    call = rng.choice([specbench.plan, specbench.plan, specbench.run, specbench.verify])
    few = {"method": "sd", "task": "gsm8k", "limit": 1, "repeats": 1, "max_new_tokens": 2}
    before = Path.cwd()
    os.chdir(where)
    try:
        if call is not specbench.verify or name != "out":
            call(**few | {name: value})
        else:
            specbench.report(specbench.load(value))
    except (specbench.ConfigError, specbench.MissingAsset) as error:
        return f"{call.__name__} {name} = {value!r}", ["an error of several lines"] if str(error).count(
            "\n"
        ) > 1 else []
    except Exception as error:
        return f"{call.__name__} {name} = {value!r}", [f"{type(error).__name__}: {error}"]
    finally:
        os.chdir(before)
    return f"{call.__name__} {name} = {value!r}", []


KINDS = (_machine, _launcher, _lock, _argument, _argument)
