"""`specbench gate`: measure what a baseline file says again, and judge it. For continuous integration (docs/ci.md)."""

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli import gating
from specbench.cli.choices import (
    ByEngine,
    Device,
    Dtype,
    Engine,
    InDtype,
    OnDevice,
    Plugins,
    SandboxKind,
    known,
    with_plugins,
)
from specbench.cli.remeasure import Request
from specbench.cli.run import lengths, words
from specbench.cli.verdicts import (
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
from specbench.errors import ConfigError


def gate(
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
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Keep the run folders, in a new folder in this one.")
    ] = None,
    allow_code_execution: Annotated[
        bool, typer.Option("--allow-code-execution", help="Run what models wrote, in a sandbox, to score it.")
    ] = False,
    sandbox: Annotated[
        SandboxKind, typer.Option(help="How generated code is kept in; none is no protection.")
    ] = SandboxKind.auto,
    plugin: Plugins = None,
    update: Annotated[
        bool, typer.Option("--update", help="Measure the baseline files' commands and write the files anew.")
    ] = False,
    record: Annotated[Path | None, typer.Option("--record", help="Measure, and write this baseline file.")] = None,
    add: Annotated[bool, typer.Option("--add", help="With --record: keep what the file holds.")] = False,
    sessions_: Annotated[
        int | None, typer.Option("--sessions", min=1, help="Fresh processes that a baseline's timing is from. [2]")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method", "-m", help="A method, or a TOML file; repeat for several. [se]", autocompletion=known("method")
        ),
    ] = None,
    pair: Annotated[
        str, typer.Option("--pair", "-p", help="A pair of models, or a TOML file.", autocompletion=known("pair"))
    ] = "tiny",
    task: Annotated[
        list[str] | None,
        typer.Option(
            "--task", "-t", help="A task, or a TOML file; repeat for several. [all]", autocompletion=known("task")
        ),
    ] = None,
    data: Annotated[str, typer.Option(help="hub, synthetic, or a JSONL file. [the pair's, else hub]")] = "",
    limit: Annotated[int | None, typer.Option("--limit", "-n", help="Only the first N samples; 0 is all.")] = None,
    gamma: Annotated[str, typer.Option(help="Draft length N, or one a model, N,N.... [by the models' sizes]")] = "",
    max_new_tokens: Annotated[int | None, typer.Option(help="Most tokens to generate. [the task's]")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Fixed length: no EOS, no stop strings.")] = False,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy. [1 for ensembles, else 0]")] = None,
    seed: Annotated[int, typer.Option(help="Repeat r uses seed + r.")] = 0,
    repeats: Annotated[
        int | None,
        typer.Option(help="How often each prompt is decoded by each method. [5 rounds; 1 with --counters-only]"),
    ] = None,
    device: OnDevice = Device.auto,
    dtype: InDtype = Dtype.auto,
    engine: ByEngine = Engine.auto,
    set_: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="Override a key: method.target.mu=0.2, task.shots=0.")
    ] = None,
    head: Annotated[
        list[str] | None,
        typer.Option("--head", help="Another head than the pair's: sprinter=FOLDER, eagle@middle=FOLDER."),
    ] = None,
) -> None:
    """Measure again what a baseline file holds, and judge: exit code 5 for a regression, 6 where nothing can be said.

    With --record, measure what -m, -p, -t and the options behind them say, and write the file.
    """
    from specbench.options import Options, parse_head, parse_override

    if bool(baseline) == bool(record):
        raise ConfigError("name --baseline FILE, to judge by it, or --record FILE, to write it")
    chosen = {"-m": method, "-t": task, "-n": limit, "--gamma": gamma, "--max-new-tokens": max_new_tokens, "--set": set_,
             "--ignore-eos": ignore_eos, "--temperature": temperature, "--repeats": repeats, "--data": data,
             "--head": head, "--add": add}  # fmt: skip
    if baseline and (own := [name for name, value in chosen.items() if value not in (None, "", False)]):
        raise ConfigError(f"{', '.join(own)}: the baseline file says what is measured; --record writes another")
    if update and record:
        raise ConfigError("--update measures a --baseline file's own commands; --record writes another file")
    limits = limits_of(alpha, max_slowdown, max_quality_drop, require_speed, counters_only)
    with_plugins(plugin)
    told = Request(commands=[], sandbox=sandbox.value if allow_code_execution else "", plugins=plugin or [])
    with _folder(out) as folder:
        if baseline and not update:
            verdicts = [each for path in baseline for each in gating.judged(path, folder / path.stem, told, limits)]
            title = f"gate by {', '.join(map(str, baseline))}"
            sys.exit(tell(verdicts, form, junit, title, inconclusive))
        for path in baseline or []:
            gating.update(path, folder / path.stem, told, sessions_)
        if record:
            options = Options(
                gamma=lengths(gamma),
                data=data,
                limit=limit,
                max_new_tokens=max_new_tokens,
                ignore_eos=ignore_eos,
                temperature=temperature,
                seed=seed,
                repeats=(1 if counters_only else gating.ROUNDS) if repeats is None else repeats,
                device=device.value,
                dtype=dtype.value,
                engine=engine.value,
                overrides=tuple(map(parse_override, set_ or [])),
                heads=tuple(map(parse_head, head or [])),
            )
            command = gating.command_of(words(method) or ["se"], pair, words(task), options)
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
