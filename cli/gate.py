"""`specbench gate`: check, record and update snapshots of a measurement, for continuous integration (docs/ci.md)."""

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli import params
from specbench.cli.app import STYLE, PanelCommand
from specbench.cli.compare import (
    AcrossConfig,
    Alpha,
    CountersOnly,
    Form,
    Inconclusive,
    JUnit,
    MaxQualityDrop,
    MaxSlowdown,
    RequireSpeed,
    Undecided,
    VerdictFormat,
    limits_of,
    write_verdicts,
)
from specbench.cli.console import TerminalObserver
from specbench.cli.params import explicit_methods, import_plugins, words
from specbench.config.presets import require_presets
from specbench.config.request import Request
from specbench.errors import ConfigError
from specbench.vocabulary import SandboxKind

gate = typer.Typer(
    name="gate", no_args_is_help=True, help="Check, record or update a snapshot of a measurement.", **STYLE
)
Files = Annotated[list[Path], typer.Argument(help="Snapshot files.", show_default=False)]
OutOption = Annotated[
    Path | None, typer.Option("--out", "-o", help="Keep the run folders in a new subfolder of this path.")
]
Sessions = Annotated[
    int | None, typer.Option("--sessions", min=1, help="Number of fresh processes in which times are measured. [2]")
]


@gate.command(cls=PanelCommand)
def check(
    snapshots: Files,
    counters_only: CountersOnly = False,
    form: Form = VerdictFormat.table,
    max_slowdown: MaxSlowdown = 3.0,
    max_quality_drop: MaxQualityDrop = 1.0,
    alpha: Alpha = 0.01,
    require_speed: RequireSpeed = False,
    inconclusive: Inconclusive = Undecided.fails,
    junit: JUnit = None,
    across_config: AcrossConfig = False,
    allow_code_execution: params.CodeExecution = False,
    sandbox: params.SandboxOption = SandboxKind.auto,
    plugin: params.Plugins = None,
    out: OutOption = None,
) -> None:
    """Measure the requests of snapshot files again, and compare.

    Exit code 5 for a regression, 6 if the result is not comparable or not decided.
    """
    limits = limits_of(alpha, max_slowdown, max_quality_drop, require_speed, counters_only, across_config)
    import_plugins(plugin)
    from specbench.experiment.batch import RequestBatch
    from specbench.features.exchange import snapshot_file  # imports numpy

    batch = RequestBatch(sandbox=sandbox if allow_code_execution else None, plugins=plugin or [])
    how = snapshot_file.Remeasuring(batch=batch, observer=TerminalObserver())
    verdicts = []
    with _folder(out) as folder:
        for number, path in enumerate(snapshots, 1):
            verdicts += snapshot_file.check(path, folder / f"{number}-{path.stem}", how, limits)
    sys.exit(write_verdicts(verdicts, form, junit, f"gate by {', '.join(map(str, snapshots))}", inconclusive))


@gate.command(cls=PanelCommand)
@params.with_shared_options("shard")
def record(
    *,
    snapshot: Annotated[Path, typer.Argument(help="The snapshot file to write.", show_default=False)],
    method: params.Methods = None,
    pair: params.Pair = "tiny",
    task: params.Tasks = None,
    counters_only: CountersOnly = False,
    add: Annotated[bool, typer.Option("--add", help="Keep what the file holds.")] = False,
    sessions: Sessions = None,
    shared: params.SharedOptions,
    repeats: Annotated[
        int | None,
        typer.Option(help="How often each method decodes each prompt. [5; 1 with --counters-only]"),
    ] = None,
    allow_code_execution: params.CodeExecution = False,
    sandbox: params.SandboxOption = SandboxKind.auto,
    served: Annotated[
        list[Path] | None,
        typer.Option("--served", help="Instead of measuring: a folder with results of `specbench server`; repeatable."),
    ] = None,
    out: OutOption = None,
) -> None:
    """Measure methods on a pair and tasks, or take results of servers, and write a snapshot file."""
    names, tasks = words(method), words(task)
    if not served:
        import_plugins(shared["plugin"])
        require_presets(explicit_methods(names), pair, tasks)  # before slow imports
    from specbench.features.exchange import snapshot_file
    from specbench.features.servers import served_gate

    content = snapshot_file.load(snapshot) if add and snapshot.exists() else snapshot_file.SnapshotFile({})
    if snapshot.exists() and not add:
        if not snapshot_file.is_snapshot(snapshot):
            raise ConfigError(f"{snapshot} exists and is not a snapshot; help: another name")
        print(f"{snapshot} will be replaced; --add keeps what it holds", file=sys.stderr)
    if served:
        part = served_gate.recorded(content.get("servers"), served)
        content.with_part("servers", part).save(snapshot)
        print(f"wrote {snapshot}", file=sys.stderr)
        return
    from specbench.experiment.batch import RequestBatch
    from specbench.features.gate import gating  # imports numpy

    options = shared.options(repeats=(1 if counters_only else gating.ROUNDS) if repeats is None else repeats)
    request = Request(methods=tuple(names), pair=pair, tasks=tuple(tasks), options=options)
    kind = sandbox if allow_code_execution else None
    batch = RequestBatch(requests=[request], sandbox=kind, plugins=shared["plugin"] or [])
    with _folder(out) as folder:
        how = gating.SnapshotOptions(counters_only=counters_only, sessions=sessions or gating.SESSIONS)
        runs, unseen, others = gating.record(content.get("runs"), folder, batch, how)
    content.with_part("runs", runs).save(snapshot)
    print(f"wrote {snapshot}", file=sys.stderr)
    if not unseen and not others:
        print("this snapshot sees the known faults of rejection rules", file=sys.stderr)
    if unseen:
        print("faults that this snapshot could not see:", *(f"  {each}" for each in unseen), sep="\n", file=sys.stderr)
    if others:
        print(f"faults were not tried on {', '.join(others)}, which test drafts in another way", file=sys.stderr)
    if unseen:
        print("help: --add a request with a higher --temperature, or with more samples (-n)", file=sys.stderr)


@gate.command(cls=PanelCommand)
def update(
    snapshots: Files,
    sessions: Sessions = None,
    allow_code_execution: params.CodeExecution = False,
    sandbox: params.SandboxOption = SandboxKind.auto,
    plugin: params.Plugins = None,
    out: OutOption = None,
) -> None:
    """Measure the requests of snapshot files again, and write the files from the results."""
    import_plugins(plugin)
    from specbench.experiment.batch import RequestBatch
    from specbench.features.exchange import snapshot_file  # imports numpy

    batch = RequestBatch(sandbox=sandbox if allow_code_execution else None, plugins=plugin or [])
    how = snapshot_file.Remeasuring(batch=batch, sessions=sessions, observer=TerminalObserver())
    with _folder(out) as folder:
        for number, path in enumerate(snapshots, 1):
            snapshot_file.update(path, folder / f"{number}-{path.stem}", how)
            print(f"wrote {path}", file=sys.stderr)


@contextlib.contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    """Yield a folder for run folders, without older runs: a new one in `out`, or a temporary one."""
    if out:
        out.mkdir(parents=True, exist_ok=True)
        yield Path(tempfile.mkdtemp(prefix="gate-", dir=out))
        return
    with tempfile.TemporaryDirectory(prefix="specbench-") as folder:
        yield Path(folder)
