"""Run folders of another kind of record: recorder, lock, manifest, readers, grading and `report` work for it."""

import json
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
import tomli_w

from specbench.config.options import Access
from specbench.data.task import Sample
from specbench.errors import ConfigError
from specbench.experiment.scorer import grade
from specbench.files import write_with_checksum
from specbench.runs import kind as kinds
from specbench.runs.kind import CONFIG, RunKind, TextTable
from specbench.runs.locking import locked
from specbench.runs.run_folder import MANIFEST, SAMPLES, Recorder, load, read, spec_of
from specbench.tasks.gsm8k import Gsm8k
from tests.fixtures.console import specbench


@dataclass(frozen=True)
class LoadSpec:
    """Requests at a rate."""

    rates: tuple[int, ...]
    requests: int

    @property
    def checksum(self) -> str:
        return f"{self.rates} {self.requests}"


@dataclass(frozen=True)
class Request:
    """One request to a server."""

    rate: int
    number: int
    latency: float
    text: str = ""
    error: str | None = None

    @property
    def key(self) -> tuple[int, int]:
        return self.rate, self.number


@dataclass(frozen=True)
class Requests:
    """All requests of a run."""

    spec: LoadSpec

    @property
    def generations(self) -> int:
        return len(self.spec.rates) * self.spec.requests

    def why_unexpected(self, record: Request) -> str:
        return "" if record.rate in self.spec.rates else f"rate {record.rate} is not in this run"


def line(record: Request) -> bytes:
    text = json.dumps(asdict(record)).encode()
    return b"%s %08x\n" % (text, zlib.crc32(text))


def parse(text: bytes) -> Request:
    body, checksum = text[:-10], int(text[-9:-1], 16)
    if zlib.crc32(body) != checksum:
        raise ConfigError("it was changed after it was written")
    return Request(**json.loads(body))


def tables(folder: Path) -> list[TextTable]:
    records = list(read(folder, None, SERVER))
    return [TextTable("Latency", ["rate", "requests"], [["5", str(sum(r.rate == 5 for r in records))]])]


SERVER = RunKind(
    name="test-server",
    read_spec=lambda table, path: LoadSpec(tuple(table["rates"]), table["requests"]),
    expected=lambda spec, manifest, folder: Requests(spec),
    line=line,
    parse=parse,
    tables=tables,
)
SPEC = LoadSpec((1, 5), 2)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A run folder of that kind, which is registered for the test."""
    monkeypatch.setitem(kinds._KINDS, SERVER.name, SERVER)
    made = tmp_path / "server"
    made.mkdir()
    (made / CONFIG).write_text(tomli_w.dumps({"kind": SERVER.name, "rates": list(SPEC.rates), "requests": 2}))
    write_with_checksum(made / MANIFEST, {"config_sha256": SPEC.checksum, "samples": []})
    return made


def record(folder, *requests):
    with locked([folder], Access()) as locks:
        recorder = Recorder(locks[folder], Requests(SPEC), SERVER)
        for request in requests:
            recorder.append(request)
        return recorder.done


def test_records_of_another_kind_are_written_once_and_resumed_after_an_incomplete_line(folder):
    record(folder, Request(1, 0, 0.5), Request(5, 0, 0.7, error="timeout"))
    with (folder / SAMPLES).open("ab") as file:
        file.write(b'{"rate": 5, "num')  # from a killed process
    assert record(folder, Request(1, 1, 0.4)) == {(1, 0), (5, 0), (1, 1)}
    recorded = load(folder, None, SERVER)
    assert not recorded.problems and not recorded.complete
    record(folder, Request(5, 1, 0.1))
    assert load(folder, None, SERVER).complete


def test_what_does_not_belong_to_the_run_is_a_problem(folder):
    record(folder, Request(1, 0, 0.5))
    with (folder / SAMPLES).open("ab") as file:
        file.write(
            line(Request(1, 0, 0.5)) + line(Request(9, 0, 0.5)) + line(Request(5, 0, 0.5)).replace(b"5", b"6", 1)
        )
    second, foreign, damaged = load(folder, None, SERVER).problems
    assert "a second record of (1, 0)" in second and "rate 9 is not in this run" in foreign and "changed" in damaged
    with pytest.raises(ConfigError, match="delete these lines"):
        record(folder)


def test_report_shows_the_tables_of_the_kind(folder, tmp_path):
    record(folder, Request(1, 0, 0.5), Request(5, 0, 0.7), Request(5, 1, 0.7))
    assert "rate   requests" in specbench("report", folder, cwd=tmp_path).stdout
    assert "| 5 | 2 |" in specbench("report", folder, "-f", "md", cwd=tmp_path).stdout
    assert "does not apply" in specbench("report", folder, "-f", "html", cwd=tmp_path, code=2).stderr


def test_commands_for_generations_name_the_kind(folder, tmp_path):
    record(folder, Request(1, 0, 0.5))
    with pytest.raises(
        ConfigError, match="a run of the kind 'test-server', and this needs one of the kind 'generations'"
    ):
        spec_of(folder)
    assert "test-server" in specbench("score", folder, cwd=tmp_path, code=2).stderr


def test_grading_needs_the_text_only():
    sample = Sample("0", "How many?", reference="7")
    assert grade(Gsm8k(), sample, Request(1, 0, 0.1, text="So it is 7.\n#### 7"), None)["strict"] == 1.0
