"""`specbench run --suite`: the ways in which a suite is measured."""

import sys
import tomllib
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from specbench.cli.console import terminal
from specbench.cli.progress import Terminal
from specbench.config.construct import Table
from specbench.config.suite import SuiteRequest
from specbench.errors import ConfigError, ExitCode
from specbench.files import read_toml

OF_LAUNCHER = ("--launcher", "--launcher-set", "--shards")  # options with a value that jobs do not get


class LauncherName(StrEnum):
    """The launchers of `--launcher`."""

    local = "local"
    slurm = "slurm"
    ray = "ray"


@dataclass(frozen=True)
class SuiteMode:
    """The way in which a suite is measured: in this process by default.

    `refine` is the number of prompts of a coarse run, `shard` and `shards` select parts of the prompts, `only` one run, and
    `launcher` runs jobs, with settings KEY=VALUE or files of them.
    """

    refine: int = 0
    shard: str = ""
    shards: int = 0
    only: str = ""
    launcher: LauncherName | None = None
    settings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.settings and not self.launcher:
            raise ConfigError("--launcher-set needs --launcher")
        if self.launcher and self.refine:
            raise ConfigError("--launcher and --refine cannot be combined")


def run_suite_in(request: SuiteRequest, mode: SuiteMode) -> ExitCode:
    """Measure a suite, and print its tables. Returns the exit code."""
    from specbench.cli.report_output import show_suite  # imports numpy
    from specbench.experiment.refinement import run_refined  # imports torch
    from specbench.experiment.sharding import combine_suite, run_suite_in_shards, shards_of, with_shard
    from specbench.experiment.suite_runner import run_one, run_suite
    from specbench.models.resolve import assuming

    if mode.shard:
        request = replace(request, suite=with_shard(request.suite, mode.shard))
    if mode.only:
        return run_one(request, mode.only, Terminal())
    if request.access.fresh and (mode.shards or mode.launcher):
        raise ConfigError("--fresh cannot be combined with --shards and --launcher; help: another folder with --out")
    suite, changed = request.suite, bool(request.changes)
    if mode.refine:
        suite, code = run_refined(request, mode.refine, Terminal())
        changed = True
    elif mode.launcher:
        settings = settings_of(mode.settings)
        with assuming(_device(mode.launcher, settings)):
            code = _launched(request, mode, settings)
            if mode.shards:
                requests = [replace(request, suite=with_shard(suite, each)) for each in shards_of(mode.shards)]
                code = max(code, combine_suite(request, requests, Terminal()))
    elif mode.shards:
        code = run_suite_in_shards(request, mode.shards, Terminal())
    else:
        code = run_suite(request, Terminal())
    show_suite(suite, request.out, terminal(), changed)
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
    """Return the default device of the machines that jobs run on; empty if it is that of this machine."""
    device = settings.pop("device", "cuda" if name is LauncherName.slurm and settings.get("gpus") else "")
    if device not in ("", "cpu", "cuda"):
        raise ConfigError(f"device = {device!r} must be cpu or cuda")
    return str(device)


def _launched(request: SuiteRequest, mode: SuiteMode, settings: Table) -> ExitCode:
    """Measure a suite by jobs. Returns the exit code."""
    from specbench.launch.driver import MOST_ATTEMPTS, Campaign, launch, launcher_of  # imports torch
    from specbench.launch.ledger import folder_of

    attempts, is_untimed = settings.pop("attempts", MOST_ATTEMPTS), settings.pop("untimed", False)
    if type(attempts) is not int or attempts < 1:
        raise ConfigError(f"attempts = {attempts!r} must be a number of at least 1")
    if not isinstance(is_untimed, bool):
        raise ConfigError(f"untimed = {is_untimed!r} must be true or false")
    assert mode.launcher
    launcher = launcher_of(mode.launcher, settings, request, folder_of(request))
    extra = ("--untimed",) if is_untimed or launcher.shared else ()
    campaign = Campaign(
        request=request,
        arguments=(*_arguments(sys.argv[1:]), *extra),
        launcher=launcher,
        shards=mode.shards,
        attempts=attempts,
        ask=_cancels,
    )
    return launch(campaign, Terminal())


def _arguments(given: list[str]) -> list[str]:
    """Return the arguments of this command without those of the launcher and `--shards`."""
    arguments, skip = [], False
    for each in given:
        name, equals, _ = each.partition("=")
        if skip:
            skip = False
        elif name in OF_LAUNCHER:
            skip = not equals
        else:
            arguments.append(each)
    return arguments


def _cancels() -> bool:
    """Return whether the user wants to cancel the running jobs. Without a terminal they keep running."""
    if not sys.stdin.isatty():
        return False
    try:
        return input("\nCancel the running jobs? [y/N] ").strip().lower().startswith("y")
    except EOFError:
        return False
