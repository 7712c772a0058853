"""`specbench run`: measure methods on a pair and tasks, beside their baselines, or the grid of a paper's table."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from specbench.cli import params as choices
from specbench.cli.arguments import options_of, words
from specbench.cli.progress import Terminal, interrupted
from specbench.config.options import Access, Options, SandboxKind
from specbench.config.presets import require_known
from specbench.errors import ConfigError, ExitCode
from specbench.experiment.request import Request

# options of a suite that a user may replace
REPLACEABLE = (
    "data", "gamma", "limit", "max_new_tokens", "device", "dtype", "engine", "overrides", "heads", "plugins", "repeats",
)  # fmt: skip


def run(
    method: choices.Methods = None,
    pair: choices.PairOrTiny = None,
    task: choices.Tasks = None,
    suite: choices.Suite = None,
    data: choices.Data = None,
    limit: choices.Limit = None,
    sample: choices.Drawn = 0,
    gamma: choices.Gamma = None,
    max_new_tokens: choices.MaxNewTokens = None,
    on_overflow: Annotated[
        choices.Overflow | None, typer.Option(help="What becomes of a prompt that is too long. [the task's]")
    ] = None,
    chat: Annotated[
        choices.Chat | None, typer.Option(help="Whether the models' chat template is used. [the task's]")
    ] = None,
    allow_code_execution: choices.CodeExecution = False,
    sandbox: choices.Sandbox = SandboxKind.auto,
    ignore_eos: choices.IgnoreEos = False,
    temperature: choices.Temperature = None,
    top_k: Annotated[int, typer.Option(help="Keep the k likeliest tokens; 0 is off.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep the smallest set of this mass; 1 is off.")] = 1.0,
    seed: choices.Seed = 0,
    repeats: choices.Repeats = None,
    device: choices.OnDevice = choices.Device.auto,
    dtype: choices.InDtype = choices.Dtype.auto,
    engine: choices.ByEngine = choices.Engine.auto,
    out: choices.Out = Path("results"),
    set_: choices.Sets = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over", help="Sweep a key; each value is a variant: method.target.alpha=[0.1, 0.3], lossy.bonus=[...]."
        ),
    ] = None,
    head: choices.Heads = None,
    plugin: choices.Plugins = None,
    fresh: choices.Fresh = False,
    wait: choices.Wait = False,
    break_lock: choices.BreakLock = False,
) -> None:
    """Measure methods on a pair and tasks, beside their baselines.

    The run folder is named by everything that the numbers depend on, so the same command resumes after an interruption and
    reports when there is nothing left to do.
    """
    options = options_of(
        gamma=gamma, set_=set_, over=over, head=head, plugin=plugin, data=data, limit=limit, sample=sample,
        max_new_tokens=max_new_tokens, ignore_eos=ignore_eos, on_overflow=on_overflow or "", chat=chat or "",
        temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, repeats=Options.repeats if repeats is None else repeats,
        device=device, dtype=dtype, engine=engine,
    )  # fmt: skip
    kind = sandbox if allow_code_execution else None
    access = Access(fresh=fresh, wait=wait, break_lock=break_lock)
    try:
        if suite:
            if method or pair or task:
                raise ConfigError("--suite brings its methods, pairs and tasks: leave out -m, -p and -t")
            code = _suite(suite, suite_changes(options, repeats), out, access, kind)
        else:
            methods, tasks = tuple(words(method) or ["se"]), tuple(words(task))
            code = measure(
                Request(
                    methods=methods, pair=pair or "tiny", tasks=tasks, options=options, out=out, access=access, sandbox=kind
                )
            )  # fmt: skip
    except KeyboardInterrupt:
        interrupted(fresh)
    sys.exit(code)


def measure(request: Request) -> ExitCode:
    """Run a request and print its tables."""
    require_known(request.methods, request.pair, request.tasks)  # before torch is imported
    from specbench.cli.report import overview, place, show, terminal
    from specbench.experiment.pipeline import run

    results, console = run(request, Terminal()), terminal()
    if len(results.summaries) > 1:
        overview(results.summaries, console)
        console.print("more of each: specbench report FOLDER", style="dim", highlight=False)
    else:
        show(results.summaries, console)
    for summary in results.summaries:
        place(request.out / summary.run, console)
    if results.unscored:
        raise results.unscored
    return ExitCode.SOME_FAILED if results.some_failed else ExitCode.OK


def suite_changes(options: Options, repeats: int | None) -> dict[str, Any]:
    """The options that replace a suite's own. Raises ConfigError for those that a suite does not let go of."""
    changes = {key: value for key, value in options.changes().items() if key != "repeats"}
    if fixed := sorted(changes.keys() - set(REPLACEABLE)):
        flags = ", ".join(f"--{key.replace('_', '-')}" for key in fixed)
        raise ConfigError(
            f"--suite brings its own {flags}: leave it out, or write a suite of your own (docs/suites.md)"
        )
    return changes if repeats is None else {**changes, "repeats": repeats}


def _suite(name: str, changes: dict[str, Any], out: Path, access: Access, kind: SandboxKind | None) -> ExitCode:
    """Run a suite, with the user's options in place of its own, and print its tables. Returns the exit code."""
    from specbench.cli.report import show_suite, terminal
    from specbench.config.suite import read_suite
    from specbench.experiment.suite_runner import SuiteRequest, run_suite

    suite = read_suite(name, **changes)
    changed = tuple(f"{key} = {value}" for key, value in changes.items() if key != "plugins")  # which replace nothing
    request = SuiteRequest(suite=suite, out=out, access=access, sandbox=kind, changes=changed)
    code = run_suite(request, Terminal())
    show_suite(suite, out, terminal(), bool(changed))
    return code
