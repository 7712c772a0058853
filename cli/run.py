"""`specbench run`: measure methods and their baselines on a pair and tasks, or run a suite."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from specbench.cli import params
from specbench.cli.arguments import judge_table, named, options_of, words
from specbench.cli.console import place, terminal
from specbench.cli.progress import Terminal, interrupted
from specbench.config.options import Access, Options, SandboxKind
from specbench.config.presets import require_known
from specbench.config.suite import Suite, read_suite
from specbench.errors import ConfigError, ExitCode
from specbench.experiment.request import Request

# options of a suite that a user may replace
REPLACEABLE = (
    "data", "gamma", "limit", "max_new_tokens", "device", "dtype", "engine", "overrides", "heads", "plugins", "repeats",
)  # fmt: skip


def run(
    method: params.Methods = None,
    pair: params.PairOrTiny = None,
    task: params.Tasks = None,
    suite: params.Suite = None,
    data: params.Data = None,
    limit: params.Limit = None,
    sample: params.Drawn = 0,
    gamma: params.Gamma = None,
    max_new_tokens: params.MaxNewTokens = None,
    on_overflow: Annotated[
        params.Overflow | None, typer.Option(help="How to treat a prompt that is too long. [the task's]")
    ] = None,
    chat: Annotated[params.Chat | None, typer.Option(help="Whether to apply the chat template. [the task's]")] = None,
    allow_code_execution: params.CodeExecution = False,
    sandbox: params.Sandbox = SandboxKind.auto,
    ignore_eos: params.IgnoreEos = False,
    temperature: params.Temperature = None,
    top_k: Annotated[int, typer.Option(help="Sample from the k most likely tokens; 0: off.")] = 0,
    top_p: Annotated[
        float, typer.Option(help="Sample from the smallest set of tokens with this probability; 1: off.")
    ] = 1.0,
    seed: params.Seed = 0,
    repeats: params.Repeats = None,
    device: params.OnDevice = params.Device.auto,
    dtype: params.InDtype = params.Dtype.auto,
    engine: params.ByEngine = params.Engine.auto,
    out: params.Out = Path("results"),
    set_: params.Sets = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over",
            help="Sweep a key; each value is a variant: gamma=[1, 3, 5], method.target.alpha=[0.1, 0.3], lossy.bonus=[...].",
        ),
    ] = None,
    head: params.Heads = None,
    plugin: params.Plugins = None,
    full: params.Full = False,
    explain: params.Explain = False,
    refine: Annotated[
        int,
        typer.Option(
            help="Suites of quality-latency curves: first this many prompts at every setting, then all at those that matter."
        ),
    ] = 0,
    judge: params.JudgeSource = "",
    judge_model: params.JudgeModel = "",
    fresh: params.Fresh = False,
    wait: params.Wait = False,
    break_lock: params.BreakLock = False,
) -> None:
    """Measure methods on a pair and tasks, together with their baselines.

    A run folder is named by a hash of the resolved config. The same command resumes an interrupted run; for a finished run it
    prints the tables again.
    """
    options = options_of(
        gamma=gamma, set_=set_, over=over, head=head, plugin=plugin, data=data, limit=limit, sample=sample,
        max_new_tokens=max_new_tokens, ignore_eos=ignore_eos, on_overflow=on_overflow or "", chat=chat or "",
        temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, repeats=Options.repeats if repeats is None else repeats,
        device=device, dtype=dtype, engine=engine,
    )  # fmt: skip
    kind = sandbox if allow_code_execution else None
    access, judging = Access(fresh=fresh, wait=wait, break_lock=break_lock), judge_table(judge, judge_model)
    try:
        if suite:
            if method or pair or task:
                raise ConfigError("--suite defines methods, pairs and tasks; help: leave out -m, -p and -t")
            chosen = read_suite(suite, **(changes := suite_changes(options, repeats))).with_judge(judging)
            # plugins replace nothing
            changed = tuple(f"{key} = {value}" for key, value in changes.items() if key != "plugins")
            code = _suite(chosen, out, access, kind, changed, refine)
        elif refine:
            raise ConfigError("--refine applies to --suite")
        elif judging:
            raise ConfigError("--judge applies to --suite; help: specbench judge RUN judges a run")
        else:
            methods, tasks = tuple(words(method)), tuple(words(task))
            code = measure(
                Request(
                    methods=methods, pair=pair or "tiny", tasks=tasks, options=options, out=out, access=access, sandbox=kind
                ),
                full,
                explain,
            )  # fmt: skip
    except KeyboardInterrupt:
        interrupted(fresh)
    sys.exit(code)


def measure(request: Request, full: bool = False, explain: bool = False) -> ExitCode:
    """Run a request and print its results: the first table and the conclusion, or with `full` all tables."""
    require_known(named(request.methods), request.pair, request.tasks)  # before torch is imported
    from specbench.cli.report_output import show  # imports numpy
    from specbench.experiment.pipeline import run  # imports torch

    results, console = run(request, Terminal()), terminal()
    show(results.summaries, console, full, explain)
    for summary in results.summaries:
        place(request.out / summary.run, console)
    if results.unscored:
        raise results.unscored
    return ExitCode.SOME_FAILED if results.some_failed else ExitCode.OK


def suite_changes(options: Options, repeats: int | None) -> dict[str, Any]:
    """Return the options that replace a suite's own. Raises ConfigError for options that a suite fixes."""
    changes = {key: value for key, value in options.changes().items() if key != "repeats"}
    if fixed := sorted(changes.keys() - set(REPLACEABLE)):
        flags = ", ".join(f"--{key.replace('_', '-')}" for key in fixed)
        raise ConfigError(f"--suite defines {flags}; help: leave it out, or write your own suite (docs/suites.md)")
    return changes if repeats is None else {**changes, "repeats": repeats}


def _suite(
    suite: Suite, out: Path, access: Access, kind: SandboxKind | None, changes: tuple[str, ...], refine: int
) -> ExitCode:
    """Run a suite, and print its tables. Returns the exit code."""
    from specbench.cli.report_output import show_suite  # imports numpy
    from specbench.experiment.refinement import run_refined  # imports torch
    from specbench.experiment.suite_runner import SuiteRequest, run_suite

    request = SuiteRequest(suite=suite, out=out, access=access, sandbox=kind, changes=changes)
    if refine:
        suite, code = run_refined(request, refine, Terminal())
    else:
        code = run_suite(request, Terminal())
    show_suite(suite, out, terminal(), bool(changes or refine))
    return code
