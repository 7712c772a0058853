"""However a checking process ends, and whenever, its sandboxes leave no process, directory or mount."""

import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from string import Template

import pytest

from specbench.sandbox import Sandbox
from tests.fixtures.hostile import STUBBORN, UNIQUE, find, left

PATIENCE = 30.0  # seconds: for a busy machine
TRUSTING = [
    "sleep",
    "no-descriptors",
    "daemons",
]  # those that leave the supervisor alone, which "none" does not protect
CHECKS = """
import itertools, signal
from concurrent.futures import ThreadPoolExecutor
from specbench.sandbox import ProgramLimits, Sandbox
limits = ProgramLimits(seconds=$seconds, file=$unique)
def check(program):
    $sandbox.check(program, "def check(f): f()", "f", limits=limits)
programs = $programs
print("ready", flush=True)
$run
"""
ONE = "check(programs[0])"
IN_THREADS = "with ThreadPoolExecutor(2) as pool: list(pool.map(check, programs * 2))"
FOREVER = "for program in itertools.cycle(programs): check(program)"


@pytest.fixture(params=["bwrap", "unshare", "none"])
def sandbox(request) -> Sandbox:
    return find(request.param)


def checking(sandbox: Sandbox, programs: list[str], run: str, seconds: float, temporary: Path) -> subprocess.Popen[str]:
    """Start a process that checks programs."""
    words = {
        "seconds": seconds,
        "unique": UNIQUE,
        "sandbox": f"Sandbox({str(sandbox.kind)!r}, {sandbox.python!r}, {sandbox.prefix!r})",
        "programs": repr(programs),
        "run": run,
    }
    code = Template(CHECKS).substitute(words)
    environment = os.environ | {"TMPDIR": str(temporary)}
    started = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    return started


def await_that(claim: Callable[[], object], why: str) -> None:
    until = time.monotonic() + PATIENCE
    while not claim():
        assert time.monotonic() < until, why
        time.sleep(0.01)


def stat(pid: int | str) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on: [0] state, [1] parent, [19] start time; [] without a process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return []


def descendants(pid: int) -> set[tuple[int, str]]:
    """Return (pid, start time) of all processes below one."""
    every = {int(path.name): fields for path in Path("/proc").glob("[0-9]*") if (fields := stat(path.name))}
    found, new = set(), {pid}
    while new:
        new = {each for each, fields in every.items() if int(fields[1]) in new}
        found |= new
    return {(each, every[each][19]) for each in found}


def alive(processes: set[tuple[int, str]]) -> list[int]:
    found = [(pid, begin, stat(pid)) for pid, begin in processes]
    return [pid for pid, begin, fields in found if fields and fields[19] == begin and fields[0] != "Z"]


def runs(mark: str) -> bool:
    """Return whether a program has given a process the name `mark`, the last thing that it does before it sleeps."""
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            if path.read_text().strip() == mark:
                return True
        except OSError:
            continue
    return False


def end_and_find_nothing(checker: subprocess.Popen[str], number: signal.Signals, temporary: Path) -> None:
    below = descendants(checker.pid)
    mounts = Path("/proc/self/mountinfo").read_text()
    checker.send_signal(number)
    checker.communicate()
    await_that(lambda: not left() and not alive(below), f"{left()} {alive(below)} outlive {number.name}")
    await_that(lambda: not list(temporary.iterdir()), f"{list(temporary.iterdir())} outlive {number.name}")
    assert Path("/proc/self/mountinfo").read_text() == mounts


@pytest.mark.parametrize(
    ("name", "number", "run"),
    [(name, signal.SIGKILL, run) for name in STUBBORN for run in (ONE, IN_THREADS)]
    + [("sleep", number, ONE) for number in (signal.SIGTERM, signal.SIGINT)],
)
def test_nothing_survives_a_checker_that_ends_while_programs_sleep(sandbox, name, number, run, tmp_path):
    if sandbox.kind == "none" and name not in TRUSTING:
        pytest.skip("kind none does not protect the supervisor")
    generator = random.Random(f"{sandbox.kind} {name}")
    mark = f"sb{secrets.token_hex(5)}"
    checker = checking(sandbox, [STUBBORN[name].replace("$mark", mark)], run, 600, tmp_path)
    try:
        await_that(lambda: runs(mark), "the program never slept")
        time.sleep(generator.uniform(0, 0.1))
        assert len(descendants(checker.pid)) >= 4, "two supervisors and two workers at least"
    finally:
        end_and_find_nothing(checker, number, tmp_path)


@pytest.mark.parametrize("seed", range(8))
def test_nothing_survives_a_checker_that_is_killed_while_sandboxes_start_and_end(sandbox, seed, tmp_path):
    """Programs that end at once, crash, and time out, so that every stage of a check is hit."""
    generator = random.Random(f"{sandbox.kind} {seed}")
    programs = ["def f(): pass", STUBBORN["daemons"].replace("$mark", "sb"), "import os\nos._exit(0)"]
    checker = checking(sandbox, programs, FOREVER, 0.2, tmp_path)
    time.sleep(generator.uniform(0, 0.15 if seed < 4 else 1.0))
    end_and_find_nothing(checker, generator.choice([signal.SIGKILL, signal.SIGTERM]), tmp_path)


LITTER = """
import os, time
def f():
    os.makedirs("a/b")
    for link in ("a/link", "link"):
        os.symlink("/tmp", link)
    open("a/b/file", "w").close()
    open("written", "w").close()
    time.sleep(600)
"""


def test_a_killed_checker_leaves_no_directory_that_a_program_has_filled(tmp_path):
    checker = checking(find("none"), [LITTER], ONE, 600, tmp_path)
    try:
        await_that(lambda: list(tmp_path.glob("*/written")), "the program never wrote")
    finally:
        end_and_find_nothing(checker, signal.SIGKILL, tmp_path)
    assert Path("/tmp").exists()
