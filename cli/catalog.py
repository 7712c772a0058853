"""`specbench list` and `specbench show`: the presets, read from their TOML files."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from specbench.cli.app import wrapped
from specbench.cli.params import Json, Plugins, complete_kinds, complete_names, import_plugins
from specbench.config.pair import BUNDLED, PACKAGE
from specbench.config.presets import KINDS, Preset, names, preset
from specbench.errors import ConfigError, hint
from specbench.files import read_text
from specbench.reporting import escaping
from specbench.reporting.escaping import json_text, terminal_text


class Listed(StrEnum):
    methods = "methods"
    pairs = "pairs"
    tasks = "tasks"
    suites = "suites"
    machines = "machines"
    runs = "runs"


def list_(
    kind: Annotated[
        str,
        typer.Argument(help=f"{', '.join(Listed)}.", metavar="KIND", autocompletion=lambda: list(Listed)),
    ],
    plugin: Plugins = None,
    results: Annotated[Path, typer.Option("--from", help="Folder that contains the run folders.")] = Path("results"),
    as_json: Json = False,
) -> None:
    """List the methods, pairs, tasks, suites or machines, or the runs of a folder."""
    import_plugins(plugin)
    if kind not in [*Listed]:
        raise ConfigError(f"unknown kind '{kind}'{hint(kind, Listed)}")
    if kind == Listed.runs:
        _list_runs(results, as_json)
        return
    singular = next(k for k, plural in KINDS.items() if plural == kind)
    presets = [(name, preset(singular, name)) for name in names(singular)]
    if as_json:
        print(json_text([_row(*entry) for entry in presets], indent=2))
        return
    width = max(len(name) for name, _ in presets) + 2
    for name, entry in presets:
        row = _row(name, entry)
        other = f"the same as {entry.name}: " if entry.name != name else ""
        source = f" ({row['paper']})" if row["paper"] else ""
        print(wrapped(escaping.terminal(f"{name:<{width}}{other}{row['description']}{source}"), width))


def _list_runs(results: Path, as_json: bool) -> None:
    """List the runs in a folder, the newest last, with what was measured and the number of generations."""
    from specbench.runs.run_folder import SAMPLES, load, runs_in, spec_of  # imports numpy

    rows: list[dict[str, Any]] = []
    for folder in sorted(runs_in(results), key=lambda folder: (folder / SAMPLES).stat().st_mtime):
        try:
            spec, recorded = spec_of(folder), load(folder)
        except ConfigError as error:
            rows.append({"run": str(folder), "error": str(error)})
            continue
        expected = recorded.expected.generations if recorded.expected else len(recorded.records)
        rows.append({
            "run": str(folder), "pair": spec.pair.name, "task": spec.task.name, "methods": list(spec.methods),
            "temperature": spec.decoding.temperature, "generations": len(recorded.records), "expected": expected,
        })  # fmt: skip
    if as_json:
        print(json_text(rows, indent=2))
        return
    if not rows:
        raise ConfigError(f"no run folder in {results}; help: specbench run, or --from FOLDER")
    for row in rows:
        if "error" in row:
            print(escaping.terminal(f"{row['run']}  {row['error']}"))
            continue
        missing = (
            "" if row["generations"] == row["expected"] else f", {row['generations']} of {row['expected']} generations"
        )
        methods = row["methods"] if len(row["methods"]) <= 4 else [*row["methods"][:4], "..."]
        print(
            f"{row['run']}  {', '.join(methods)} on {row['pair']}, {row['task']}, T = {row['temperature']:g}{missing}"
        )


def _row(name: str, source: Preset) -> dict[str, str]:
    """Return a preset's row of the list. `same_as` names the preset that `name` is an alias of, if it is one."""
    paper = ", ".join(str(source.table[key]) for key in ("paper", "shows") if key in source.table)
    return {
        "name": name,
        "same_as": source.name if source.name != name else "",
        "description": source.table.get("description", ""),
        "paper": paper,
    }


def show(
    kind: Annotated[
        str, typer.Argument(help="method, pair, task, suite or machine.", metavar="KIND", autocompletion=complete_kinds)
    ],
    name: Annotated[
        str,
        typer.Argument(
            help="A preset's name, or a path to a TOML file.", metavar="NAME", autocompletion=complete_names
        ),
    ] = "",
    plugin: Plugins = None,
) -> None:
    """Print a preset and its path."""
    import_plugins(plugin)
    if kind not in KINDS:
        of = next((kind_ for kind_ in KINDS if kind in names(kind_)), "")
        suggestion = f"; did you mean `specbench show {of} {kind}`?" if of and not name else hint(kind, KINDS)
        raise ConfigError(f"unknown kind '{kind}'{suggestion}")
    if not name:
        raise ConfigError(f"NAME is missing; help: specbench list {KINDS[kind]}")
    source = preset(kind, name)
    print(f"# {escaping.terminal(str(source.path))}\n{terminal_text(source.text)}", end="")
    if isinstance(card := source.table.get("card"), str):
        path = PACKAGE / card.removeprefix(BUNDLED) if card.startswith(BUNDLED) else source.path.parent / card
        _print_markdown(terminal_text(read_text(path)))


def _print_markdown(text: str) -> None:
    """Print Markdown, formatted on a terminal and as text elsewhere."""
    if not sys.stdout.isatty():
        print(f"\n{text}", end="")
        return
    from rich.console import Console  # imported here to keep `list` fast
    from rich.markdown import Markdown

    Console().print(Markdown(text))
