"""`specbench gate`: measure what a baseline file says again, and judge it. For continuous integration (docs/ci.md)."""

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli import params as choices
from specbench.cli.arguments import imported, options_of, spoken, words
from specbench.cli.verdict_output import (
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
    tell,
)
from specbench.config.options import SandboxKind
from specbench.config.presets import require_known
from specbench.errors import ConfigError
from specbench.experiment import gate as gating
from specbench.experiment.fresh_process import Commands

RECORDED = (  # what --record takes, and a baseline file says
    "method", "pair", "task", "data", "limit", "gamma", "max_new_tokens", "ignore_eos", "temperature", "seed", "repeats",
    "device", "dtype", "engine", "set_", "head", "add",
)  # fmt: skip


def gate(
    ctx: typer.Context,
    baseline: Annotated[
        list[Path] | None, typer.Option("--baseline", help="A baseline file to judge by; repeat for several.")
    ] = None,
    counters_only: CountersOnly = False,
    form: Form = VerdictFormat.table,
    max_slowdown: MaxSlowdown = 3.0,
    max_quality_drop: MaxQualityDrop = 1.0,
    alpha: Alpha = 0.01,
    require_speed: RequireSpeed = False,
    inconclusive: Inconclusive = Undecided.fails,
    junit: JUnit = None,
    across_config: AcrossConfig = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Keep the run folders in a new subfolder of this path.")
    ] = None,
    allow_code_execution: choices.CodeExecution = False,
    sandbox: choices.Sandbox = SandboxKind.auto,
    plugin: choices.Plugins = None,
    update: Annotated[
        bool, typer.Option("--update", help="Measure the baseline files' commands and write the files anew.")
    ] = False,
    record: Annotated[Path | None, typer.Option("--record", help="Measure, and write this baseline file.")] = None,
    add: Annotated[bool, typer.Option("--add", help="With --record: keep what the file holds.")] = False,
    sessions_: Annotated[
        int | None, typer.Option("--sessions", min=1, help="Number of fresh processes that time a baseline. [2]")
    ] = None,
    method: choices.Methods = None,
    pair: choices.Pair = "tiny",
    task: choices.Tasks = None,
    data: choices.Data = "",
    limit: choices.Limit = None,
    gamma: choices.Gamma = "",
    max_new_tokens: choices.MaxNewTokens = None,
    ignore_eos: choices.IgnoreEos = False,
    temperature: choices.Temperature = None,
    seed: choices.Seed = 0,
    repeats: Annotated[
        int | None,
        typer.Option(help="How often each prompt is decoded by each method. [5 rounds; 1 with --counters-only]"),
    ] = None,
    device: choices.OnDevice = choices.Device.auto,
    dtype: choices.InDtype = choices.Dtype.auto,
    engine: choices.ByEngine = choices.Engine.auto,
    set_: choices.Sets = None,
    head: choices.Heads = None,
) -> None:
    """Measure again what a baseline file holds, and judge.

    Exit code 5 for a regression, 6 where nothing can be said.

    With --record, measure what -m, -p, -t and the options behind them say, and write the file.
    """
    if bool(baseline) == bool(record):
        raise ConfigError("name --baseline FILE, to judge by it, or --record FILE, to write it")
    said = spoken(ctx)
    if baseline and (own := [flag for name, flag in said.items() if name in RECORDED]):
        raise ConfigError(f"{', '.join(own)}: the baseline file says what is measured; --record writes another")
    if update and record:
        raise ConfigError("--update measures a --baseline file's own commands; --record writes another file")
    if update and counters_only:
        raise ConfigError(
            "--counters-only: with --update the file says whether it holds timing; --record writes another"
        )
    if sessions_ and not (update or record):
        raise ConfigError("--sessions is of a baseline's timing: with --record or --update")
    names, tasks = words(method) or ["se"], words(task)
    limits = limits_of(alpha, max_slowdown, max_quality_drop, require_speed, counters_only, across_config)
    imported(plugin)
    require_known(names, pair, tasks)
    told = Commands(commands=[], sandbox=sandbox.value if allow_code_execution else "", plugins=plugin or [])
    with _folder(out) as folder:
        if baseline and not update:
            verdicts = [
                each
                for number, path in enumerate(baseline, 1)
                for each in gating.judged(path, folder / f"{number}-{path.stem}", told, limits)
            ]
            title = f"gate by {', '.join(map(str, baseline))}"
            sys.exit(tell(verdicts, form, junit, title, inconclusive))
        for number, path in enumerate(baseline or [], 1):
            gating.update(path, folder / f"{number}-{path.stem}", told, sessions_)
        if record:
            options = options_of(
                gamma=gamma, set_=set_, head=head, data=data, limit=limit, max_new_tokens=max_new_tokens,
                ignore_eos=ignore_eos, temperature=temperature, seed=seed,
                repeats=(1 if counters_only else gating.ROUNDS) if repeats is None else repeats,
                device=device.value, dtype=dtype.value, engine=engine.value,
            )  # fmt: skip
            command = gating.command_of(names, pair, tasks, options)
            gating.record(record, command, folder, told, counters_only, sessions_ or gating.SESSIONS, add)
            print(f"wrote {record}", file=sys.stderr)


@contextlib.contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    """Where run folders go: a new folder in `out`, so that no older run is taken for this one's; or one that is gone
    afterwards."""
    if out:
        out.mkdir(parents=True, exist_ok=True)
        yield Path(tempfile.mkdtemp(prefix="gate-", dir=out))
        return
    with tempfile.TemporaryDirectory(prefix="specbench-") as folder:
        yield Path(folder)
