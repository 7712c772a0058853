"""The number of threads: chosen from model size and processors, by the user, or as recorded."""

import math
import os

import pytest
import torch

from specbench.machine import hardware, threads
from specbench.machine.threads import BYTES_PER_THREAD, Cores, ThreadChoice, Threads, choose, using

MB = 1_000_000


@pytest.mark.parametrize(("size", "cores", "expected"), [
    (0, Cores(64), Threads(1, "model of 0 MB")),
    (13 * MB, Cores(2), Threads(1, "model of 13 MB")),  # the bundled target
    (93 * MB, Cores(2), Threads(2, "model of 93 MB")),  # 25 million parameters in float32
    (400 * MB, Cores(2), Threads(2, "2 cores")),
    (400 * MB, Cores(1), Threads(1, "1 core")),
    (400 * MB, Cores(8), Threads(8, "8 cores")),
    (400 * MB, Cores(8, busy=0.2), Threads(8, "8 cores")),  # of no other program
    (400 * MB, Cores(8, busy=1.1), Threads(7, "7 of 8 cores free")),
    (93 * MB, Cores(2, busy=1.0), Threads(1, "1 of 2 cores free")),
    (400 * MB, Cores(2, busy=9.0), Threads(1, "1 of 2 cores free")),
    (400 * MB, Cores(64, quota=2.5), Threads(2, "2 cores")),
    (400 * MB, Cores(64, quota=2.5, busy=40.0), Threads(2, "2 cores")),
    (400 * MB, Cores(64, quota=0.5), Threads(1, "1 core")),
])  # fmt: skip
def test_threads_follow_the_size_of_the_model_and_the_free_processors(size, cores, expected):
    assert choose(size, cores) == expected


def test_a_choice_takes_the_users_number_then_the_recorded_one_then_that_of_the_machine(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    recorded, large = Threads(3, "1 of 3 cores free"), 9 * BYTES_PER_THREAD
    assert ThreadChoice(2).threads(large, recorded) == Threads(2, "as requested")
    assert ThreadChoice(0, lambda: Cores(2)).threads(large, recorded) == recorded
    assert ThreadChoice(0, lambda: Cores(2)).threads(large) == Threads(2, "2 cores")
    assert ThreadChoice(0, lambda: Cores(8)).threads(large) == Threads(4, "as set in PyTorch")
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert ThreadChoice(0, lambda: Cores(2)).threads(large, recorded) == Threads(4, "OMP_NUM_THREADS")
    assert ThreadChoice(2).threads(large) == Threads(2, "as requested")


def test_the_load_is_measured_once_for_all_runs_of_a_choice(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    looks = []
    monkeypatch.setattr(threads, "cores_here", lambda with_load: looks.append(with_load) or Cores(1))
    choice = ThreadChoice()
    assert [choice.threads(size).reason for size in (1, 2 * MB)] == ["model of 0 MB", "model of 2 MB"]
    assert looks == [True]


def test_the_previous_number_of_threads_is_restored_also_after_an_error():
    before = torch.get_num_threads()
    with using(before + 1):
        assert torch.get_num_threads() == before + 1
    with using(0):
        assert torch.get_num_threads() == before
    with pytest.raises(ZeroDivisionError), using(before + 1):
        1 // 0  # noqa: B018  (raises, as the code of a user may)
    assert torch.get_num_threads() == before


def test_the_processors_of_this_process_are_those_of_its_affinity_and_cgroups(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 3, 5})
    monkeypatch.setattr(threads, "CGROUPS", tmp_path)
    monkeypatch.setattr(threads, "OWN_CGROUP", tmp_path / "self")
    assert threads.cores_here(with_load=False) == Cores(3, math.inf)
    (tmp_path / "self").write_text("12:cpuset:/other\n0::/outer/inner\n")
    (tmp_path / "outer/inner").mkdir(parents=True)
    (tmp_path / "outer/inner/cpu.max").write_text("max 100000\n")
    (tmp_path / "outer/cpu.max").write_text("250000 100000\n")
    assert threads.cores_here(with_load=False) == Cores(3, 2.5)


def test_the_load_is_that_of_other_programs_on_the_processors_of_this_process(tmp_path, monkeypatch):
    tick = os.sysconf("SC_CLK_TCK")
    monkeypatch.setattr(hardware, "STAT", stat := tmp_path / "stat")
    stat.write_text(f"cpu {99 * tick} 0 0 5\ncpu0 {90 * tick} 0 0 5\ncpu1 {5 * tick} 0 0 5\ncpu11 {4 * tick} 0 0 5\n")
    load = hardware.OtherLoad({1})
    stat.write_text(
        f"cpu {199 * tick} 0 0 5\ncpu0 {150 * tick} 0 0 5\ncpu1 {35 * tick} 0 0 5\ncpu11 {14 * tick} 0 0 5\n"
    )
    assert load.seconds() == pytest.approx(30.0, abs=5.0)  # without the time of this process
