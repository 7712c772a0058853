"""What `specbench status` shows: the state of each run of a suite, from the ledger, the logs and the records."""

import time
from dataclasses import dataclass
from pathlib import Path

from specbench.config.suite import Suite
from specbench.errors import ConfigError
from specbench.launch.ledger import Entry, Ledger
from specbench.runs.run_folder import SAMPLES
from specbench.runs.suite_index import SUITES

TAIL_BYTES = 4096  # of a log, in which its last line is looked for


@dataclass(frozen=True)
class JobProgress:
    """One run: its state, the generations that are recorded, and where and since when its job runs.

    `last` is the last line of the log, or for a failed run the reason, with the path of the log.
    """

    run: str
    state: str
    attempt: int
    done: int
    total: int
    host: str
    since: str
    last: str
    log: str

    @property
    def is_open(self) -> bool:
        """Whether the run is neither done nor failed."""
        return self.state in ("waiting", "pending", "running")

    @property
    def done_of(self) -> str:
        """The recorded generations and their number in a complete run."""
        return f"{self.done} of {self.total}"


def progress_of(suite: Suite, results: Path) -> list[JobProgress]:
    """Return the state of every run. Raises ConfigError if no launcher has run the suite."""
    ledger = Ledger.of(results / SUITES / suite.name)
    if not ledger.entries:
        raise ConfigError(
            f"no launcher has run {suite.name}; help: specbench run --suite {suite.name} --launcher local"
        )
    return [_progress(entry, results, ledger.job(entry).log) for entry in ledger.entries.values()]


def _progress(entry: Entry, results: Path, log: Path) -> JobProgress:
    samples = results / entry.key / SAMPLES
    done = 0
    if entry.generations and samples.exists():
        with samples.open("rb") as file:
            done = min(sum(line.endswith(b"\n") for line in file), entry.generations)
    last = _last_line(log) if entry.active and entry.log else ""
    if entry.state in ("failed", "missing"):
        last = f"{entry.why}; {log}" if entry.log else entry.why
    return JobProgress(
        entry.key, entry.state, entry.attempt, done, entry.generations, entry.host, _ago(entry.changed), last, str(log)
    )


def _ago(moment: float) -> str:
    """Return how long ago a moment was, such as `3 min`."""
    if not moment:
        return "–"
    seconds = max(time.time() - moment, 0.0)
    return (
        f"{seconds:.0f} s"
        if seconds < 60
        else f"{seconds / 60:.0f} min"
        if seconds < 3600
        else f"{seconds / 3600:.1f} h"
    )


def _last_line(log: Path) -> str:
    """Return the last line of a log that is not empty."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - TAIL_BYTES, 0))
        lines = file.read().decode(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
