"""Measurement of some requests, in this process or in a fresh one."""

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from specbench.config.commands import command_of, request_of
from specbench.config.options import Access, Request, SandboxKind
from specbench.errors import ExitCode
from specbench.observer import Observer

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PARENT = "SPECBENCH_PARENT"  # environment variable: the process whose end also ends the child
ARGUMENT = "--batch"  # argument of `python -m specbench` before the folder of a batch
REQUEST = "batch.json"


@dataclass(frozen=True, kw_only=True)
class RequestBatch:
    """Requests to measure, the number of CPU threads (0: that of torch), the sandbox backend, and the user's plugins.

    Without a backend, generated code is not executed.
    """

    requests: Sequence[Request] = ()
    threads: int = 0
    sandbox: SandboxKind | None = None
    plugins: Sequence[str] = ()


Launch = Callable[[RequestBatch, Path], None]


def measure_here(batch: RequestBatch, out: Path, observer: Observer | None = None) -> None:
    """Measure every request into new run folders in `out`. Raises MissingAsset if a run cannot be scored."""
    import torch  # slow to import

    from specbench.experiment.pipeline import run
    from specbench.resolution.plugins import load_all

    plugins = load_all(batch.plugins) if batch.plugins else ()
    for request in batch.requests:
        threads = batch.threads or request.options.threads or torch.get_num_threads()
        options, access = replace(request.options, plugins=plugins, threads=threads), Access(fresh=True)
        results = run(replace(request, options=options, out=out, access=access, sandbox=batch.sandbox), observer)
        if results.unscored:
            raise results.unscored


def measure_in_new_process(batch: RequestBatch, out: Path, module: str = "specbench", *arguments: str) -> None:
    """Run `measure_here` in a fresh process, for independent timing. Exits with the process's exit code if it fails."""
    out.mkdir(parents=True, exist_ok=True)
    commands = [command_of(request) for request in batch.requests]
    text = json.dumps({**asdict(batch), "requests": commands})
    (out / REQUEST).write_text(text, encoding="utf-8")
    environment = os.environ | {PARENT: str(os.getpid())}
    command = [sys.executable, "-P", "-m", module, *arguments, ARGUMENT, str(out)]
    done = subprocess.run(command, check=False, env=environment)
    if done.returncode:
        sys.exit(done.returncode)


def batch_in(out: Path) -> RequestBatch:
    """Return the batch that `measure_in_new_process` wrote."""
    table = json.loads((out / REQUEST).read_text(encoding="utf-8"))
    requests = [request_of(command) for command in table["requests"]]
    return RequestBatch(
        **{**table, "requests": requests, "sandbox": table["sandbox"] and SandboxKind(table["sandbox"])}
    )


def end_with_parent() -> None:
    """Have Linux send SIGTERM to this process when its parent in `measure_in_new_process` ends, even by SIGKILL."""
    parent = os.environ.get(PARENT)
    if parent is None or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent):  # the parent ended before the call
        sys.exit(ExitCode.TERMINATED)
