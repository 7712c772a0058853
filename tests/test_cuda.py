"""The CUDA path on a simulated device: what it waits for, what it launches, and what is left after a failure."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch
from simulated_cuda import SimulatedCuda

from specbench import runner
from specbench.bench import Bench
from specbench.cli.measuring import prepared
from specbench.decode import Generation
from specbench.locking import locked
from specbench.options import Access, Options
from specbench.records import Record

CUDA = torch.device("cuda")


@pytest.fixture
def device(monkeypatch) -> Iterator[SimulatedCuda]:
    monkeypatch.setattr(runner, "copy_bandwidth", lambda _: 1e9)
    with SimulatedCuda() as simulated:
        yield simulated


class Cost(NamedTuple):
    """What one generation asked of the device."""

    out: Generation
    syncs: int
    launches: int

    def a_round(self) -> tuple[float, float]:
        return self.syncs / len(self.out.rounds), self.launches / len(self.out.rounds)


def bench_of(method: str, engine: str, folder, pair: str = "tiny", task: str = "gsm8k", **options) -> Bench:
    asked = Options(device="cuda", dtype="float32", engine=engine, repeats=1, ignore_eos=True, **options)
    return prepared([method], pair, [task], asked, folder, None)[0]


def run(bench: Bench, simulated: SimulatedCuda, monkeypatch) -> dict[str, tuple[Record, Cost]]:
    """Each method's last record, and the cost of its decoding."""
    costs, decode = [], runner.decode

    def counted(*arguments):
        syncs, launches = sum(simulated.syncs.values()), simulated.launches
        out = decode(*arguments)
        costs.append(Cost(out, sum(simulated.syncs.values()) - syncs, simulated.launches - launches))
        return out

    monkeypatch.setattr(runner, "decode", counted)
    (job,) = bench.jobs
    with locked([job.folder], Access()) as locks:
        recorder = runner.prepare(job.cell, job.data, locks[job.folder], True)
        records = list(bench.measure(job, recorder))
    monkeypatch.setattr(runner, "decode", decode)
    assert not any(record.error for record in records), [record.error for record in records]
    measured = costs[-len(records) :]
    return {record.method: (record, cost) for record, cost in zip(records, measured, strict=True)}


BUDGETS = {  # waits for the device, and launches, of a round on the graph engine at T = 1, with what settles a generation
    "ar": (1.1, 21), "sd": (2.9, 95), "we-se": (1.3, 80), "cd-se": (2.1, 90), "cascade-opt": (3.4, 130),
    "eagle": (2.8, 110), "we-p": (1.2, 37), "pld": (1.2, 46),
}  # fmt: skip
