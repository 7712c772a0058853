"""Measurement of a snapshot's commands, in this process or in a fresh one."""

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.config.options import Access, SandboxKind
from specbench.errors import ExitCode
from specbench.observer import Observer
from specbench.resolution.request import Request

if TYPE_CHECKING:
    from specbench.regression.measurement import Measured
    from specbench.regression.snapshot import Command

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PARENT = "SPECBENCH_PARENT"  # environment variable: the process whose end also ends the child
SESSION = "--session"  # argument of `python -m specbench` before the folder of a session
REQUEST = "commands.json"


@dataclass(frozen=True, kw_only=True)
class Commands:
    """Commands to measure, the number of CPU threads (0: unchanged), the sandbox backend, and the user's plugins."""

    commands: "list[Command]"
    threads: int = 0
    sandbox: str = ""  # the backend; empty: generated code is not executed
    plugins: list[str] = field(default_factory=list)


Launch = Callable[[Commands, Path], None]


def measure_here(request: Commands, out: Path, observer: Observer | None = None) -> None:
    """Measure every command into new run folders in `out`. Raises MissingAsset if a run cannot be scored."""
    # imports torch
    from specbench.experiment.pipeline import run
    from specbench.regression.snapshot import options_of
    from specbench.resolution.plugins import load_all

    plugins = load_all(request.plugins) if request.plugins else ()
    kind = SandboxKind(request.sandbox) if request.sandbox else None
    with _threads(request.threads):
        for command in request.commands:
            options = replace(options_of(command), plugins=plugins)
            methods, tasks = tuple(command["methods"]), tuple(command["tasks"])
            results = run(
                Request(
                    methods=methods, pair=command["pair"], tasks=tasks, options=options, out=out,
                    access=Access(fresh=True), sandbox=kind,
                ),
                observer,
            )  # fmt: skip
            if results.unscored:
                raise results.unscored


def measure_apart(request: Commands, out: Path, module: str = "specbench", *arguments: str) -> None:
    """Run `measure_here` in a fresh process, for independent timing. Exits with the process's exit code if it fails."""
    out.mkdir(parents=True, exist_ok=True)
    (out / REQUEST).write_text(json.dumps(asdict(request)), encoding="utf-8")
    environment = os.environ | {PARENT: str(os.getpid())}
    command = [sys.executable, "-P", "-m", module, *arguments, SESSION, str(out)]
    done = subprocess.run(command, check=False, env=environment)
    if done.returncode:
        sys.exit(done.returncode)


def sessions(request: Commands, out: Path, launch: Launch, count: int, first: int = 1) -> "list[Measured]":
    """Measure `count` sessions one after the other, and return their runs, pooled."""
    from specbench.regression.measurement import of_run, pooled  # imports numpy, which `--help` need not
    from specbench.runs.run_folder import SAMPLES

    runs = []
    for number in range(first, first + count):
        folder = out / f"session-{number}"
        launch(request, folder)
        runs += [of_run(each.parent) for each in sorted(folder.glob(f"*/{SAMPLES}"))]
    return pooled(runs)


def request_in(out: Path) -> Commands:
    """Return the request that `measure_apart` wrote."""
    return Commands(**json.loads((out / REQUEST).read_text(encoding="utf-8")))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Set the number of CPU threads for a block, since it changes the last bits of sums."""
    import torch  # slow to import

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def end_with_parent() -> None:
    """Have Linux send SIGTERM to this process when its parent in `measure_apart` ends, even by SIGKILL."""
    parent = os.environ.get(PARENT)
    if parent is None or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent):  # the parent ended before the call
        sys.exit(ExitCode.TERMINATED)
