"""Time-outs: what a busy machine takes from a program does not count, and what a program wastes does."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from specbench.sandbox import ProgramLimits, Sandbox
from specbench.sandbox.process import STRETCH, Deadline, RunQueue, kernel_reports_waits
from tests.fixtures.hostile import find


@pytest.fixture(params=["bwrap", "unshare", "none"])
def sandbox(request) -> Sandbox:
    return find(request.param)


class Clock:
    """Stands in for `time`; `now` is set by the test."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    found = Clock()
    monkeypatch.setattr("specbench.sandbox.process.time", found)
    return found


def test_a_deadline_without_waits_is_wall_clock(clock):
    until = Deadline(3.0)
    assert until.remaining() == 3.0
    clock.now += 2.5
    assert until.remaining() == 0.5
    clock.now += 0.5
    with pytest.raises(TimeoutError):
        until.remaining()


def test_a_deadline_moves_by_what_tasks_waited_since_its_start(clock):
    first, second = [7.0], [1.0]
    until = Deadline(3.0, (lambda: first[0], lambda: second[0]))
    first[0], second[0] = 9.0, 1.5
    clock.now += 3.0
    assert until.remaining() == 2.5
    clock.now += 2.5
    with pytest.raises(TimeoutError):
        until.remaining()


def test_a_deadline_is_never_further_away_than_its_bound(clock):
    until = Deadline(3.0, (lambda: clock.now,))  # waits all the time
    clock.now += 3.0 * STRETCH - 1
    assert until.remaining() > 0
    clock.now += 1
    with pytest.raises(TimeoutError):
        until.remaining()


def test_a_run_queue_keeps_its_last_value_when_its_task_ends(tmp_path):
    file = tmp_path / "schedstat"
    file.write_text("5 2500000000 7\n")
    queue = RunQueue(str(file))
    assert queue.waited() == 2.5
    file.write_text("")
    assert queue.waited() == 2.5
    queue.close()
    assert queue.waited() == 2.5
    assert RunQueue("/proc/none").waited() == 0.0


@pytest.fixture
def load() -> Iterator[None]:
    """Six busy processes on the one core to which they, this process, and its sandboxes are bound."""
    if not kernel_reports_waits():
        pytest.skip("this kernel does not say how long tasks wait for a CPU")
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    hog = [sys.executable, "-S", "-c", "while 1: pass"]
    busy = [subprocess.Popen(hog, start_new_session=True) for _ in range(6)]  # Linux shares out time by session
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()
        os.sched_setaffinity(0, before)


BURN = "import time\ndef f(seconds):\n    while time.process_time() < seconds: pass\n    return 'done'"
ADD = "def f(a, b): return a + b"


def test_a_correct_program_passes_on_a_busy_core(load, sandbox):
    """It computes for longer than a seventh of its limit, which is all that it would get."""
    limits = ProgramLimits(seconds=2.5)
    assert sandbox.check(BURN, "def check(f): assert f(.6) == 'done'", "f", limits=limits).reason == "passed"


def test_a_correct_program_with_many_calls_passes_on_a_busy_core(load, sandbox):
    test = "def check(f):\n    for n in range(100): assert f(n, n) == 2 * n"
    assert sandbox.check(ADD, test, "f", limits=ProgramLimits(seconds=0.5)).reason == "passed"


@pytest.mark.parametrize(
    "program",
    [
        "import time\ndef f(): time.sleep(600)",
        "def f():\n while 1: pass",
        "import os\ndef f(): os.read(os.pipe()[0], 1)",
    ],
    ids=["sleep", "loop", "block"],
)
def test_programs_that_do_not_end_time_out_on_a_busy_core(load, sandbox, program):
    assert (
        sandbox.check(program, "def check(f): f()", "f", limits=ProgramLimits(seconds=0.3)).reason == "timeout: 0.3 s"
    )
