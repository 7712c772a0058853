"""`specbench run`: measure methods and their baselines on a pair and tasks, or run a suite."""

import sys
import tomllib
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from specbench.cli import params
from specbench.cli.console import TerminalObserver, output_console, print_path
from specbench.cli.interrupts import interrupted
from specbench.cli.params import explicit_methods, judge_table, pair_of_models, words
from specbench.config.construct import Table
from specbench.config.options import Options
from specbench.config.presets import AUTO, AUTO_LENGTH, require_presets
from specbench.config.request import Access, Request, request_of
from specbench.config.shard import Shard, shards_of
from specbench.errors import ConfigError, ExitCode
from specbench.features.suites.suite import SuiteRequest, read_suite
from specbench.files import read_toml
from specbench.vocabulary import SandboxKind

# options of a suite that a user may replace
REPLACEABLE = (
    "data", "gamma", "limit", "max_new_tokens", "device", "dtype", "engine", "threads", "overrides", "heads", "plugins",
    "repeats",
)  # fmt: skip


class LauncherName(StrEnum):
    """The launchers of `--launcher`."""

    local = "local"
    slurm = "slurm"
    ray = "ray"


@dataclass(frozen=True)
class SuiteMode:
    """How a suite is measured: in this process by default.

    `refine` is the number of prompts of a coarse run. `shard` selects one part of the prompts, and `shards` is the number of
    parts. `launcher` runs jobs, with `settings` as KEY=VALUE or as files of them.
    """

    refine: int = 0
    shard: Shard | None = None
    shards: int = 0
    launcher: LauncherName | None = None
    settings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.settings and not self.launcher:
            raise ConfigError("--launcher-set needs --launcher")
        if self.launcher and self.refine:
            raise ConfigError("--launcher and --refine cannot be combined")


def run_suite_mode(request: SuiteRequest, mode: SuiteMode) -> ExitCode:
    """Measure a suite, and print its tables. Returns the exit code."""
    from specbench.cli.report import show_suite  # imports numpy
    from specbench.features.launch.sharding import combine_suite, run_suite_in_shards, with_shard
    from specbench.features.suites.refinement import run_refined  # imports torch
    from specbench.features.suites.suite_runner import run_suite
    from specbench.models.resolve_models import assuming

    if mode.shard:
        request = replace(request, suite=with_shard(request.suite, mode.shard))
    if request.access.fresh and (mode.shards or mode.launcher):
        raise ConfigError("--fresh cannot be combined with --shards and --launcher; help: another folder with --out")
    suite, changed = request.suite, request.is_changed
    if mode.refine:
        suite, code = run_refined(request, mode.refine, TerminalObserver())
        changed = True
    elif mode.launcher:
        settings = settings_of(mode.settings)
        with assuming(_device(mode.launcher, settings)):
            code = _launch_jobs(request, mode, settings)
            if mode.shards:
                requests = [replace(request, suite=with_shard(suite, shard)) for shard in shards_of(mode.shards)]
                code = max(code, combine_suite(request, requests, TerminalObserver()))
    elif mode.shards:
        code = run_suite_in_shards(request, mode.shards, TerminalObserver())
    else:
        code = run_suite(request, TerminalObserver())
    show_suite(suite, request.out, output_console(), changed)
    return code


def settings_of(texts: tuple[str, ...]) -> Table:
    """Return settings from KEY=VALUE texts and TOML files. Raises ConfigError for a text that is neither."""
    settings: Table = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            settings |= read_toml(Path(text))
            continue
        try:
            settings |= {key: tomllib.loads(f"v = {value}")["v"]}
        except tomllib.TOMLDecodeError:
            settings[key] = value  # text without quotes
    return settings


def _device(name: LauncherName, settings: Table) -> str:
    """Return the default device of the machines that jobs run on; empty if it is the same as on this machine."""
    device = settings.pop("device", "cuda" if name is LauncherName.slurm and settings.get("gpus") else "")
    if device not in ("", "cpu", "cuda"):
        raise ConfigError(f"device = {device!r} must be cpu or cuda")
    return str(device)


def _launch_jobs(request: SuiteRequest, mode: SuiteMode, settings: Table) -> ExitCode:
    """Measure a suite by jobs. Returns the exit code."""
    from specbench.features.launch.driver import MOST_ATTEMPTS, Campaign, launch, launcher_of  # imports torch
    from specbench.features.launch.ledger import folder_of

    attempts, is_untimed = settings.pop("attempts", MOST_ATTEMPTS), settings.pop("untimed", False)
    if type(attempts) is not int or attempts < 1:
        raise ConfigError(f"attempts = {attempts!r} must be a number of at least 1")
    if not isinstance(is_untimed, bool):
        raise ConfigError(f"untimed = {is_untimed!r} must be true or false")
    assert mode.launcher
    launcher = launcher_of(mode.launcher, settings, request, folder_of(request))
    campaign = Campaign(
        request=request,
        launcher=launcher,
        untimed=is_untimed or launcher.shared,
        shards=mode.shards,
        attempts=attempts,
        ask=_cancels,
    )
    return launch(campaign, TerminalObserver())


def _cancels() -> bool:
    """Return whether the user wants to cancel the running jobs. Without a terminal they keep running."""
    if not sys.stdin.isatty():
        return False
    try:
        return input("\nCancel the running jobs? [y/N] ").strip().lower().startswith("y")
    except EOFError:
        return False


EPILOG = """\b
Examples:
  specbench run -m se -p llama-vicuna -t humaneval -n 40
  specbench run --draft ./small --target ./large -t gsm8k -n 40
  specbench run -m sd -p tiny -t gsm8k --over "gamma=[1, 3, 5]" --repeats 5
  specbench run -m cascade-opt,lossy -p tiny-t5 -t wmt --over auto
"""


@params.with_shared_options()
def run(
    *,
    method: params.Methods = None,
    pair: params.PairOrTiny = None,
    target: params.Target = "",
    draft: params.Draft = "",
    task: params.Tasks = None,
    suite: params.Suite = None,
    shared: params.SharedOptions,
    allow_code_execution: params.CodeExecution = False,
    sandbox: params.SandboxOption = SandboxKind.auto,
    out: params.Out = Path("results"),
    full: params.Full = False,
    explain: params.Explain = False,
    refine: Annotated[
        int,
        typer.Option(
            help="For suites of quality-latency curves: measure N prompts at every setting, then all prompts at the settings"
            " that the curves may choose.",
            rich_help_panel=params.SUITES,
        ),
    ] = 0,
    shards: Annotated[
        int,
        typer.Option(
            help="Measure the prompts in N parts, and combine them into one run.", rich_help_panel=params.SUITES
        ),
    ] = 0,
    launcher: Annotated[
        LauncherName | None,
        typer.Option(
            help="Run a suite as jobs: processes of this machine, a Slurm or a Ray cluster.",
            rich_help_panel=params.SUITES,
        ),
    ] = None,
    launcher_set: Annotated[
        list[str] | None,
        typer.Option(
            help="Setting of the launcher, KEY=VALUE, or a TOML file of settings.", rich_help_panel=params.SUITES
        ),
    ] = None,
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
    grids = [word for word in shared["over"] or () if word in (AUTO, AUTO_LENGTH)]
    if grids and (suite or shards):
        raise ConfigError(f"--over {grids[0]} and {'--suite' if suite else '--shards'} cannot be combined")
    shared = params.SharedOptions(
        {**shared.given, "over": [word for word in shared["over"] or () if word not in grids]}
    )
    options = shared.options()
    pair = pair_of_models(pair, draft, target)
    if shards and (shared["shard"] or refine or fresh):
        other = "--shard" if shared["shard"] else "--refine" if refine else "--fresh"
        raise ConfigError(f"--shards and {other} cannot be combined")
    kind = sandbox if allow_code_execution else None
    access = Access(fresh=fresh, wait=wait, break_lock=break_lock)
    judging = judge_table(judge, judge_model)
    try:
        if suite:
            if method or pair or task:
                raise ConfigError("--suite defines methods, pairs and tasks; help: leave out -m, -p and -t")
            chosen = read_suite(suite, **(changes := suite_changes(options, shared["repeats"]))).with_judge(judging)
            plugins = tuple(shared["plugin"] or ())
            suite_request = SuiteRequest(
                suite=chosen, out=out, access=access, sandbox=kind, replaced=changes, plugins=plugins
            )
            mode = SuiteMode(refine, options.shard, shards, launcher, tuple(launcher_set or ()))
            code = run_suite_mode(suite_request, mode)
        elif refine or launcher:
            raise ConfigError(f"--{'refine' if refine else 'launcher'} applies to --suite")
        elif judging:
            raise ConfigError("--judge applies to --suite; help: specbench judge RUN judges a run")
        else:
            names = (words(method), pair or "", words(task))
            request = request_of(*names, options=options, out=out, access=access, sandbox=kind)
            require_presets(explicit_methods(request.methods), request.pair, request.tasks)  # before torch is imported
            if grids:
                from specbench.features.suites.refinement import with_grids  # imports torch

                request = with_grids(request, grids, TerminalObserver())
            code = measure_request(request, Shown(full, explain), shards)
    except KeyboardInterrupt:
        interrupted(fresh)
    sys.exit(code)


class Shown(NamedTuple):
    """What is printed: all tables, and the definitions of their columns."""

    full: bool = False
    explain: bool = False


ALONE = Shown()  # the first table


def measure_request(request: Request, shown: Shown = ALONE, shards: int = 0) -> ExitCode:
    """Run a request, if requested in shards, and print its results: the first table and the conclusion, or all tables."""
    from specbench.cli.report import show, show_curves  # imports numpy
    from specbench.experiment.pipeline import run  # imports torch
    from specbench.features.launch.sharding import run_in_shards

    results = run_in_shards(request, shards, TerminalObserver()) if shards else run(request, TerminalObserver())
    console = output_console()
    show(results.summaries, console, *shown)
    show_curves(results.summaries, console)
    for summary in results.summaries:
        print_path(request.out / summary.run, console)
    if results.unscored:
        raise results.unscored
    return ExitCode.SOME_FAILED if results.some_failed else ExitCode.OK


def suite_changes(options: Options, repeats: int | None) -> dict[str, Any]:
    """Return the options that replace a suite's own. Raises ConfigError for options that a suite fixes."""
    changes = {key: value for key, value in options.changes().items() if key not in ("repeats", "shard")}
    if fixed := sorted(changes.keys() - set(REPLACEABLE)):
        flags = ", ".join(f"--{key.replace('_', '-')}" for key in fixed)
        raise ConfigError(f"--suite defines {flags}; help: leave it out, or write your own suite (docs/suites.md)")
    return changes if repeats is None else {**changes, "repeats": repeats}
