"""`specbench status`: the jobs of a suite that a launcher runs."""

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from specbench.analysis.number_format import NumberCell
from specbench.cli import params
from specbench.cli.console import duration, output_console, print_table, say
from specbench.errors import ConfigError
from specbench.features.suites.suite import Suite, read_suite
from specbench.reporting.tables import Table

if TYPE_CHECKING:
    from specbench.features.launch.ledger import JobProgress

REDRAW_SECONDS = 2.0


def status(
    suite: params.Suite = None,
    results: Annotated[Path, typer.Option("--from", help="Folder that contains the runs of the suite.")] = Path(
        "results"
    ),
    watch: Annotated[bool, typer.Option("--watch", help="Redraw every two seconds while jobs run.")] = False,
    as_json: params.Json = False,
) -> None:
    """Show the jobs of a suite: pending, queued, running, failed, done.

    Reads the files in the results folder, so it works on any machine that has the folder, and without the driver.
    """
    from specbench.features.launch.ledger import driver_runs, progress_of  # imports the suite's runner

    if not suite:
        raise ConfigError("--suite is missing; help: specbench status --suite NAME")
    chosen, console = read_suite(suite), output_console()
    jobs = progress_of(chosen, results)
    if as_json:
        print(json.dumps([asdict(job) for job in jobs], indent=1))
        return
    while True:
        has_driver = driver_runs(chosen, results)
        _show(chosen, jobs, has_driver, console)
        if not watch or not (has_driver or any(job.is_active for job in jobs)):
            return
        time.sleep(REDRAW_SECONDS)
        jobs = progress_of(chosen, results)
        console.clear()


def _since(job: "JobProgress") -> str:
    return duration(max(time.time() - job.since, 0.0)) if job.since else "–"


def _show(suite: Suite, jobs: "Sequence[JobProgress]", has_driver: bool, console: Console) -> None:
    """Print the table of a suite's jobs, and the number of runs in each state."""
    heads = ["run", "state", "generations", "host", "since", "last line"]
    rows = [
        [job.run, job.state, NumberCell(job.done, job.done_of), job.host or "–", _since(job), job.last or "–"]
        for job in jobs
    ]
    print_table(Table(f"Runs of {suite.name}", heads, rows), console, optional=["host", "since"])
    states = Counter(job.state for job in jobs)
    say(", ".join(f"{number} {state}" for state, number in states.items()), console, "bold")
    if any(job.is_open for job in jobs) and not has_driver:
        say("No driver is running. The same `specbench run` command continues.", console)
