"""Disks that are full or read-only, and limits on the size of a file; with room again, the command finishes."""

import json
import os
import random
import shutil
import subprocess
from pathlib import Path

from tests.faults.attack import Outcome, apart, here
from tests.faults.kills import FEW

RUN = ["run", "-m", "sd", "-t", "gsm8k", *FEW, "-o", "results"]


def full(trials: int, seed: int, folder: Path) -> Outcome:
    """A tmpfs of a few pages: exit code 4 and one line (ENOSPC), then the run finishes once there is room."""
    if os.geteuid() != 0 or not shutil.which("mount"):
        return Outcome(skipped="mounting a tmpfs needs root")
    outcome = Outcome()
    for trial in range(trials):
        rng, where = random.Random(f"{seed}:{trial}"), folder / f"trial-{trial}"
        disk = where / "results"
        disk.mkdir(parents=True)
        pages = rng.randint(1, 9)
        options = f"size={4 * pages}k,nr_inodes={rng.choice([4, 8, 64])}"
        if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", disk], capture_output=True).returncode:
            return Outcome(skipped="a tmpfs cannot be mounted here")
        try:
            done = apart(RUN, where)
            problems = done.problems({0, 4})
            before = _lines(disk)
            subprocess.run(["mount", "-o", "remount,size=64m,nr_inodes=9999", disk], check=True)
            problems += here(RUN, where).problems({0}) + _lost(before, _lines(disk))
            subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
            problems += apart([*RUN, "--fresh"], where).problems({2, 4})  # EROFS
            problems += here(["report", next(disk.glob("*/run.toml")).parent], where).problems({0})
        finally:
            subprocess.run(["umount", "-l", disk], check=True)
        outcome.add(f"{options}, trial {trial}", problems)
    return outcome


def limited(trials: int, seed: int, folder: Path) -> Outcome:
    """RLIMIT_FSIZE: exit code 4 and one line (EFBIG), then the run finishes without the limit."""
    if not shutil.which("prlimit"):
        return Outcome(skipped="no prlimit")
    outcome = Outcome()
    for trial in range(trials):
        where = folder / f"trial-{trial}"
        where.mkdir()
        size = random.Random(f"{seed}:{trial}").randint(100, 9000)
        done = apart(RUN, where, "prlimit", f"--fsize={size}")
        problems = done.problems({0, 4})
        before = _lines(where)
        problems += here(RUN, where).problems({0}) + _lost(before, _lines(where))
        outcome.add(f"{size} bytes, trial {trial}", problems)
    return outcome


def _lines(where: Path) -> list[bytes]:
    return [
        line
        for path in where.glob("**/samples.jsonl")
        for line in path.read_bytes().splitlines(True)
        if line.endswith(b"\n")
    ]


def _lost(before: list[bytes], after: list[bytes]) -> list[str]:
    """Generations that were there and are not, or are there twice, or are missing in the end."""
    keys = [(row["method"], row["sample"]) for row in map(json.loads, after)]
    lost = [] if after[: len(before)] == before else ["records were lost or changed"]
    return lost + ([] if len(keys) == len(set(keys)) == 6 else [f"{len(keys)} records of 6"])
