"""Measurement of several requests, in this process or in a new one."""

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from specbench.config.construct import Table
from specbench.config.presets import Preset, add
from specbench.config.request import Access, Request
from specbench.config.request_table import request_from, table_of
from specbench.experiment.child_process import BATCH, child_environment, command_line
from specbench.observer import Observer
from specbench.vocabulary import SandboxKind

REQUEST = "batch.json"
FRESH = Access(fresh=True)


@dataclass(frozen=True, kw_only=True)
class RequestBatch:
    """Requests to measure, and what the process that measures them needs.

    Args:
        requests: The requests. `sandbox` and `access` below replace their own, and `plugins` the plugins of their options,
            which JSON leaves out (`table_of`).
        threads: The number of CPU threads; 0: each request's own, else torch's. A number is always set, so that none is
            chosen by the load of the machine.
        sandbox: How generated code is isolated. None: it is not executed.
        plugins: Plugins of the user, as files or modules.
        methods: Tables of methods that no file defines, by name.
        access: How folders are accessed. By default, all runs are measured again.
    """

    requests: Sequence[Request] = ()
    threads: int = 0
    sandbox: SandboxKind | None = None
    plugins: Sequence[str] = ()
    methods: Mapping[str, Table] = field(default_factory=dict)
    access: Access = FRESH


Launch = Callable[[RequestBatch, Path], None]


class BatchFailed(SystemExit):
    """Raised when the process that measures a batch fails. Ends this process with the same exit code unless it is caught."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code)
        self.reason = reason


def measure_here(batch: RequestBatch, out: Path, observer: Observer | None = None) -> None:
    """Measure every request into run folders in `out`.

    Raises MissingAsset if a run cannot be scored; later requests are not measured then.
    """
    import torch  # slow to import

    from specbench.experiment.pipeline import run
    from specbench.resolution.plugins import load_all

    plugins = load_all(batch.plugins) if batch.plugins else ()
    for name, table in batch.methods.items():
        add("method", Preset(name, out / REQUEST, table), listed=False)
    for request in batch.requests:
        threads = batch.threads or request.options.threads or torch.get_num_threads()
        options = replace(request.options, plugins=plugins, threads=threads)
        results = run(replace(request, options=options, out=out, access=batch.access, sandbox=batch.sandbox), observer)
        if results.unscored:
            raise results.unscored


def measure_in_new_process(
    batch: RequestBatch, out: Path, module: str = "specbench", *arguments: str, quiet: bool = False
) -> None:
    """Run `measure_here` in a new process, for independent timing. Raises BatchFailed if the process fails.

    The batch is passed as JSON in `out`. The process writes to this one's standard error. With `quiet`, its standard error is
    captured instead, and its last line is the reason of a failure.
    """
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**asdict(batch), "requests": [table_of(request) for request in batch.requests]})
    (out / REQUEST).write_text(text, encoding="utf-8")
    done = subprocess.run(
        command_line(*arguments, BATCH, str(out), module=module), check=False, env=child_environment(),
        stderr=subprocess.PIPE if quiet else None,
    )  # fmt: skip
    if done.returncode:
        lines = (done.stderr or b"").decode(errors="replace").split("\n")
        raise BatchFailed(done.returncode, next(filter(None, map(str.strip, reversed(lines))), ""))


def batch_in(out: Path) -> RequestBatch:
    """Return the batch that `measure_in_new_process` wrote to a folder."""
    table = json.loads((out / REQUEST).read_text(encoding="utf-8"))
    return RequestBatch(
        **{
            **table,
            "requests": [request_from(each) for each in table["requests"]],
            "sandbox": table["sandbox"] and SandboxKind(table["sandbox"]),
            "access": Access(**table["access"]),
        }
    )
