"""`specbench run`: measure methods on a pair and tasks, beside their baselines, or the grid of a paper's table."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.choices import (
    ByEngine,
    Chat,
    Device,
    Dtype,
    Engine,
    InDtype,
    OnDevice,
    Overflow,
    Plugins,
    SandboxKind,
    known,
    with_plugins,
)
from specbench.cli.measuring import INTERRUPTED, measure
from specbench.errors import ConfigError
from specbench.options import Options

REPEATS = 3
OVERRULING = (
    "data",
    "limit",
    "max_new_tokens",
    "device",
    "dtype",
    "engine",
    "overrides",
    "heads",
    "plugins",
)  # a suite's


def run(
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method", "-m", help="A method, or a TOML file; repeat for several. [se]", autocompletion=known("method")
        ),
    ] = None,
    pair: Annotated[
        str | None,
        typer.Option("--pair", "-p", help="A pair of models, or a TOML file. [tiny]", autocompletion=known("pair")),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            "--task", "-t", help="A task, or a TOML file; repeat for several. [all]", autocompletion=known("task")
        ),
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(
            "--suite",
            help="The grid of a paper's table or figure, instead of -m, -p and -t.",
            autocompletion=known("suite"),
        ),
    ] = None,
    data: Annotated[str, typer.Option(help="hub, synthetic, or a JSONL file. [the pair's, else hub]")] = "",
    limit: Annotated[int | None, typer.Option("--limit", "-n", help="Only the first N samples; 0 is all.")] = None,
    sample: Annotated[
        int, typer.Option(help="Only N samples, drawn at random, the same ones every time; overrules --limit.")
    ] = 0,
    gamma: Annotated[str, typer.Option(help="Draft length N, or one a model, N,N.... [by the models' sizes]")] = "",
    max_new_tokens: Annotated[int | None, typer.Option(help="Most tokens to generate. [the task's]")] = None,
    on_overflow: Annotated[
        Overflow | None, typer.Option(help="What becomes of a prompt that is too long. [the task's]")
    ] = None,
    chat: Annotated[Chat | None, typer.Option(help="Whether the models' chat template is used. [the task's]")] = None,
    allow_code_execution: Annotated[
        bool, typer.Option("--allow-code-execution", help="Run what models wrote, in a sandbox, to score it.")
    ] = False,
    sandbox: Annotated[
        SandboxKind, typer.Option(help="How generated code is kept in; none is no protection.")
    ] = SandboxKind.auto,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Fixed length: no EOS, no stop strings.")] = False,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy. [1 for ensembles, else 0]")] = None,
    top_k: Annotated[int, typer.Option(help="Keep the k likeliest tokens; 0 is off.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep the smallest set of this mass; 1 is off.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Repeat r uses seed + r.")] = 0,
    repeats: Annotated[int | None, typer.Option(help="How often each prompt is decoded by each method. [3]")] = None,
    device: OnDevice = Device.auto,
    dtype: InDtype = Dtype.auto,
    engine: ByEngine = Engine.auto,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where run folders go.")] = Path("results"),
    set_: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="Override a key: method.target.mu=0.2, task.shots=0.")
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over", help="Sweep a key, a variant a value: method.target.alpha=[0.1, 0.3], lossy.bonus=[...]."
        ),
    ] = None,
    head: Annotated[
        list[str] | None,
        typer.Option("--head", help="Another head than the pair's: sprinter=FOLDER, eagle@middle=FOLDER."),
    ] = None,
    plugin: Plugins = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure anew what is already measured.")] = False,
) -> None:
    """Measure methods on a pair and tasks, each beside its baseline, and print the table.

    The run folder is named by everything that the numbers depend on, so the same command resumes after an interruption and
    reports when there is nothing left to do.
    """
    from specbench.options import parse_head, parse_override

    options = Options(
        gamma=lengths(gamma),
        data=data,
        limit=limit,
        sample=sample,
        max_new_tokens=max_new_tokens,
        ignore_eos=ignore_eos,
        on_overflow=on_overflow or "",
        chat=chat or "",
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        repeats=REPEATS if repeats is None else repeats,
        device=device,
        dtype=dtype,
        engine=engine,
        overrides=tuple(map(parse_override, set_ or [])),
        over=tuple(map(parse_override, over or [])),
        heads=tuple(map(parse_head, head or [])),
        plugins=with_plugins(plugin),
    )
    kind = sandbox if allow_code_execution else None
    try:
        if suite:
            if method or pair or task or gamma or over:
                raise ConfigError(
                    "--suite brings its methods, pairs, tasks and sweeps: leave out -m, -p, -t, --gamma, --over"
                )
            code = _suite(suite, options, repeats, out, fresh, kind)
        else:
            code = measure(words(method) or ["se"], pair or "tiny", words(task), options, out, fresh, kind)
    except KeyboardInterrupt:
        print("interrupted; the same command resumes", file=sys.stderr)
        code = INTERRUPTED
    sys.exit(code)


def _suite(name: str, options: Options, repeats: int | None, out: Path, fresh: bool, kind: SandboxKind | None) -> int:
    """A suite, its options overruled by what the user says; then its tables. Returns the exit code."""
    from specbench.cli.report import show_suite, terminal
    from specbench.cli.suites import run_suite
    from specbench.suite import read_suite

    own, defaults = asdict(options), asdict(Options())
    told = {key for key in own if own[key] != defaults[key]} - {"repeats"}
    if refused := sorted(told - set(OVERRULING)):
        words = ", ".join(f"--{key.replace('_', '-')}" for key in refused)
        raise ConfigError(
            f"--suite brings its own {words}: leave it out, or write a suite of your own (docs/suites.md)"
        )
    changes = {key: getattr(options, key) for key in sorted(told)} | ({"repeats": repeats} if repeats else {})
    suite = read_suite(name, **changes)
    changed = [f"{key} = {value}" for key, value in changes.items() if key != "plugins"]  # which overrule nothing
    code = run_suite(suite, out, fresh, kind, changed)
    show_suite(suite, out, terminal(), bool(changed))
    return code


def words(values: list[str] | None) -> list[str]:
    """Repeated options and comma lists alike."""
    return [word.strip() for value in values or [] for word in value.split(",") if word.strip()]


def lengths(text: str) -> tuple[int, ...]:
    try:
        lengths = tuple(int(word) for word in text.split(",") if word.strip())
    except ValueError:
        raise ConfigError(f"--gamma {text}: write it as N or N,N") from None
    if lengths and min(lengths) < 1:
        raise ConfigError(f"--gamma {text}: a draft length is at least 1")
    return lengths
