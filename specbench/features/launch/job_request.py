"""The request of a job: one run of a suite, as a file that any machine with the results folder can read."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from specbench.config.construct import Table
from specbench.config.request import Access
from specbench.config.request_table import options_of, options_table
from specbench.config.shard import Shard
from specbench.errors import ConfigError, ExitCode, MissingAsset, NotComparable
from specbench.features.launch.sharding import with_shard
from specbench.features.suites.suite import SuiteRequest, read_suite
from specbench.features.suites.suite_runner import run_one
from specbench.files import read_with_checksum, write, write_with_checksum
from specbench.observer import Observer
from specbench.resolution.plugins import load_all
from specbench.vocabulary import SandboxKind


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """One run of a suite.

    Args:
        suite: The suite's name, or its path.
        part: The number of the part of the suite's grid, from 1.
        run: The name of the run's folder.
        out: The folder of run folders.
        options: The options of the suite that the user replaced, as `specbench.config.request_table` has them.
        plugins: Plugins, as files or modules.
        judge: The judge that replaces the suite's; empty for the suite's own.
        shard: The part of the prompts; None for all.
        access: How folders are accessed.
        sandbox: How generated code is isolated; None: it is not executed.
    """

    suite: str
    part: int
    run: str
    out: str
    options: Mapping[str, Any] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()
    judge: Table = field(default_factory=dict)
    shard: Shard | None = None
    access: Access = field(default_factory=Access)
    sandbox: SandboxKind | None = None

    def suite_request(self) -> SuiteRequest:
        """Return the request for the suite, or for a shard of it. Raises ConfigError for a mistake."""
        given = options_of(self.options)
        replaced = {key: getattr(given, key) for key in self.options}
        if self.plugins:
            replaced["plugins"] = load_all(self.plugins)
        suite = read_suite(self.suite, **replaced).with_judge(self.judge)
        if self.shard:
            suite = with_shard(suite, self.shard)
        return SuiteRequest(
            suite=suite, out=Path(self.out), access=self.access, sandbox=self.sandbox, replaced=replaced
        )


def job_request(request: SuiteRequest, part: int, run: str, shard: Shard | None, untimed: bool) -> JobRequest:
    """Return the request of a run's jobs.

    A job waits for another process that uses the run's folder, and measures again what was measured elsewhere.
    """
    suite = request.suite
    return JobRequest(
        suite=suite.requested or suite.name,
        part=part,
        run=run,
        out=str(request.out),
        options=options_table(request.replaced),
        plugins=request.plugins,
        judge=suite.judge,
        shard=shard,
        access=Access(wait=True, restart=True, break_lock=request.access.break_lock, untimed=untimed),
        sandbox=request.sandbox,
    )


def write_request(path: Path, request: JobRequest) -> None:
    """Write the request of a run's jobs, creating the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_with_checksum(path, asdict(request), indent=1)


def perform_request(path: Path, error_file: Path, observer: Observer) -> ExitCode:
    """Measure the run of a request file. An error is also written to a file, for the driver. Returns the exit code."""
    try:
        job = read_with_checksum(path, JobRequest)
        return run_one(job.suite_request(), job.part, job.run, observer)
    except (ConfigError, MissingAsset, NotComparable) as error:
        write(error_file, f"{error}\n")
        raise
    except Exception as error:
        write(error_file, f"{type(error).__name__}: {error}\n")
        raise
