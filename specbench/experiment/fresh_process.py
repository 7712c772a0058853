"""The commands of a baseline file, measured in this process or in a fresh one (specbench.cli.fresh_process)."""

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
from specbench.experiment.request import Request
from specbench.observer import Observer

if TYPE_CHECKING:
    from specbench.regression.measurement import Measured
    from specbench.regression.snapshot import Command

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PARENT = "SPECBENCH_PARENT"  # environment variable: the process that a measuring child ends with
MODULE = "specbench.cli.fresh_process"
ASKED = "commands.json"


@dataclass(frozen=True, kw_only=True)
class Commands:
    """Commands to measure, on how many CPU threads (0: as found), and what this machine's user allows and brings."""

    commands: "list[Command]"
    threads: int = 0
    sandbox: str = ""  # the kind, where generated code may run
    plugins: list[str] = field(default_factory=list)


Launch = Callable[[Commands, Path], None]


def measure_here(request: Commands, out: Path, observer: Observer | None = None) -> None:
    """Measure every command into run folders under `out`, anew. Raises MissingAsset where something cannot be scored."""
    from specbench.experiment.pipeline import run
    from specbench.experiment.plugins import load_all
    from specbench.regression.snapshot import options_of

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


def measure_apart(request: Commands, out: Path, module: str = MODULE, *arguments: str) -> None:
    """The same in a fresh process, whose memory layout and luck are its own. Ends with its exit code where it fails."""
    out.mkdir(parents=True, exist_ok=True)
    (out / ASKED).write_text(json.dumps(asdict(request)), encoding="utf-8")
    environment = os.environ | {PARENT: str(os.getpid())}
    done = subprocess.run([sys.executable, "-P", "-m", module, *arguments, str(out)], check=False, env=environment)
    if done.returncode:
        sys.exit(done.returncode)


def sessions(request: Commands, out: Path, launch: Launch, count: int, first: int = 1) -> "list[Measured]":
    """The cells of `count` sessions, measured one after the other."""
    from specbench.regression.measurement import of_run, pooled
    from specbench.runs.run_folder import SAMPLES

    cells = []
    for number in range(first, first + count):
        folder = out / f"session-{number}"
        launch(request, folder)
        cells += [of_run(each.parent) for each in sorted(folder.glob(f"*/{SAMPLES}"))]
    return pooled(cells)


def request_in(out: Path) -> Commands:
    """What `measure_apart` asked for."""
    return Commands(**json.loads((out / ASKED).read_text(encoding="utf-8")))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """CPU threads as told, since sums over more of them differ in their last bits; behind it as they were."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def end_with_parent() -> None:
    """Have Linux send this process SIGTERM when the process that started it by `measure_apart` dies, even by SIGKILL."""
    parent = os.environ.get(PARENT)
    if parent is None or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent):  # it died before the request
        sys.exit(ExitCode.TERMINATED)
