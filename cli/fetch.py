"""`specbench fetch`: download models and data from the hub, for runs on a machine that is offline."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

import specbench.tasks  # noqa: F401  (registers the tasks)
from specbench.analysis.number_format import HUNDREDTHS
from specbench.cli.console import output_console, print_table, printable, status
from specbench.cli.params import Json, Plugins, import_plugins, preset_option, words
from specbench.config.construct import Table
from specbench.config.options import Options
from specbench.config.pair import Pair
from specbench.data import download as fetching
from specbench.data.download import Need, Repository, needs_of_pair, needs_of_task, source
from specbench.errors import ConfigError, ExitCode, MissingAsset
from specbench.features.suites.suite import GridLine, read_suite
from specbench.machine.accelerator import GIB
from specbench.reporting.tables import Table as TextTable


def fetch(
    pair: Annotated[
        list[str] | None, preset_option("pair", "A pair of models, or a TOML file; repeat for several.", None)
    ] = None,
    task: Annotated[
        list[str] | None, preset_option("task", "A task, or a TOML file; repeat for several.", None)
    ] = None,
    method: Annotated[
        list[str] | None,
        preset_option("method", "Fetch only the models and heads that this method needs; repeat for several.", None),
    ] = None,
    suite: Annotated[
        str | None, preset_option("suite", "The grid of a paper's table or figure, instead of -p and -t.", None)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what is needed without downloading.")] = False,
    plugin: Plugins = None,
    as_json: Json = False,
) -> None:
    """Download what pairs, tasks or a suite need from the hub.

    Downloads models, heads and data that are not in the local cache.

    Weights are downloaded in one format, safetensors if available. Bundled models and local folders need no download.

    Exit code 4 if something cannot be downloaded.
    """
    pairs, tasks, methods = words(pair), words(task), words(method)
    if suite and (pairs or tasks or methods):
        raise ConfigError("--suite defines pairs, tasks and methods; help: leave out -p, -t and -m")
    if not (suite or pairs or tasks):
        raise ConfigError("nothing to fetch; help: -p PAIR, -t TASK or --suite NAME")
    if methods and not pairs:
        raise ConfigError("-m applies to pairs; help: -p PAIR")
    options = Options(plugins=import_plugins(plugin))
    line = GridLine(methods=tuple(methods), pairs=tuple(pairs), tasks=tuple(tasks), options=options)
    needs = _of_suite(suite, options.plugins) if suite else _of_line(line)
    repositories = fetching.gathered(needs)
    with status("reading repositories on the hub"):
        for repository in repositories:
            fetching.look(repository)
    _announce(needs, repositories, as_json)
    for repository in repositories:
        if not dry_run and not repository.wrong and not repository.complete:
            with status(f"fetching {repository.repo}"):
                fetching.download(repository)
    if as_json:
        print(json.dumps(_json(needs, repositories), indent=2))
    rejected = list(dict.fromkeys(repository.wrong for repository in repositories if repository.wrong))
    for why in rejected:
        print(f"error[asset]: {printable(why)}", file=sys.stderr)
    if not dry_run and repositories and not rejected:
        print("everything is in the local cache", file=sys.stderr)
    sys.exit(ExitCode.MISSING if rejected else ExitCode.OK)


def _of_suite(name: str, plugins: tuple[tuple[str, str], ...]) -> list[Need]:
    """Return the models and data of a suite's lines, and the model of its judge."""
    suite = read_suite(name, plugins=plugins)
    needs = [need for line in suite.grid for need in _of_line(line, whole=suite.kind == "profile")]
    if "path" in suite.judge:
        needs.append(source("the judge", suite.judge["path"], "", Path()))
    return list(dict.fromkeys(needs))


def _of_line(line: GridLine, whole: bool = False) -> list[Need]:
    """Return what a line's pairs and tasks need. Without methods, or with `whole`, pairs are needed as a whole.

    The data of tasks are needed from the pairs' default source, otherwise from the hub.
    """
    from specbench.resolution import selection  # imports torch

    needs: list[Need] = []
    pairs = []
    for name in line.pairs:
        preset, pair = selection.read_pair(name, line.options)
        roles, heads = (tuple(pair.models), tuple(pair.heads)) if whole or not line.methods else _parts(line, pair)
        variants = [pair.on(task) for task in line.tasks] if pair.differs_by_task and line.tasks else [pair]
        for variant in variants:
            needs += needs_of_pair(preset.name, variant, preset.path.parent, roles, heads)
        pairs.append(pair)
    for pair in pairs or [Pair(models={})]:
        for name in line.tasks:
            task_name, task = selection.read_task(name, pair, line.options)
            needs += needs_of_task(task_name, task, selection.source_of(name, pair, line.options))
    return list(dict.fromkeys(needs))


def _parts(line: GridLine, pair: Pair) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the models and heads of a pair that a line's methods need."""
    from specbench.resolution.methods import Methods  # imports torch

    try:
        methods = Methods(line.methods, pair, line.options)
        return methods.roles, methods.heads
    except MissingAsset:  # a head that is still to be trained
        return tuple(pair.models), tuple(pair.heads)


def _announce(needs: list[Need], repositories: list[Repository], as_json: bool) -> None:
    """Print what is needed, with repositories and sizes, and the size of the download."""
    if not as_json:
        rows = [["; ".join(repository.purposes), *_row(repository)] for repository in repositories]
        rows += [[need.what, "–", "–", "–", "–", need.why] for need in needs if not need.repo]
        print_table(TextTable("", ["needed for", "repository", "commit", "gated", "GiB", ""], rows), output_console())
    whole, missing = (
        sum(getattr(repository, key) for repository in repositories) for key in ("bytes", "missing_bytes")
    )
    rejected = sum(bool(repository.wrong) for repository in repositories)
    note = f"; {rejected} cannot be downloaded, and their size is not known" if rejected else ""
    known = (
        ""
        if rejected == len(repositories) and rejected
        else f", {whole / GIB:.2f} GiB, {missing / GIB:.2f} GiB to download"
    )
    print(
        f"{len(repositories)} repositories{known}{note}",
        file=sys.stderr if as_json else sys.stdout,
        flush=True,
    )


def _row(repository: Repository) -> list[str]:
    """Return the cells of a repository after its purpose."""
    state = "unavailable" if repository.wrong else "cached" if repository.complete else "to fetch"
    is_readable = not repository.wrong
    size = HUNDREDTHS.text(repository.bytes / GIB if is_readable else None)
    return [
        repository.repo,
        repository.commit[:8] or "–",
        ("yes" if repository.gated else "no") if is_readable else "–",
        size,
        state,
    ]


def _json(needs: list[Need], repositories: list[Repository]) -> Table:
    """Return the needs as a JSON object."""
    return {
        "repositories": [
            {
                "repository": repository.repo, "kind": repository.kind,
                "revision": repository.revision, "commit": repository.commit,
                "for": repository.purposes, "gated": repository.gated, "files": repository.sizes, "bytes": repository.bytes,
                "missing_bytes": repository.missing_bytes, "here": repository.complete, "wrong": repository.wrong,
            }
            for repository in repositories
        ],
        "nothing_to_fetch": [{"for": need.what, "why": need.why} for need in needs if not need.repo],
    }  # fmt: skip
