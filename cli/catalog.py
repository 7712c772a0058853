"""`specbench list` and `specbench show`: the presets, read from their TOML files."""

import json
import sys
from enum import StrEnum
from typing import Annotated

import typer

from specbench.cli.arguments import imported
from specbench.cli.params import Json, Plugins, known_kinds, known_there
from specbench.config.pair import BUNDLED, PACKAGE
from specbench.config.presets import KINDS, Preset, names, preset
from specbench.errors import ConfigError, hint
from specbench.files import read_text


class Listed(StrEnum):
    methods = "methods"
    pairs = "pairs"
    tasks = "tasks"
    suites = "suites"
    machines = "machines"


def list_(
    kind: Annotated[Listed, typer.Argument(help="What to list.")],
    plugin: Plugins = None,
    as_json: Json = False,
) -> None:
    """List the methods, pairs, tasks, suites or machines."""
    imported(plugin)
    singular = next(k for k, plural in KINDS.items() if plural == kind)
    found = [(name, preset(singular, name)) for name in names(singular)]
    if as_json:
        print(json.dumps([_row(*each) for each in found], indent=2, ensure_ascii=False))
        return
    width = max(len(name) for name, _ in found) + 2
    for name, each in found:
        row = _row(name, each)
        other = f"the same as {each.name}: " if each.name != name else ""
        source = f" ({row['paper']})" if row["paper"] else ""
        print(f"{name:<{width}}{other}{row['description']}{source}")


def _row(name: str, found: Preset) -> dict[str, str]:
    """Return a preset's row of the list. `same_as` names the preset that `name` is an alias of, if it is one."""
    paper = ", ".join(str(found.table[key]) for key in ("paper", "shows") if key in found.table)
    return {
        "name": name,
        "same_as": found.name if found.name != name else "",
        "description": found.table.get("description", ""),
        "paper": paper,
    }


def show(
    kind: Annotated[
        str, typer.Argument(help="method, pair, task, suite or machine.", metavar="KIND", autocompletion=known_kinds)
    ],
    name: Annotated[str, typer.Argument(help="A preset's name, or a path to a TOML file.", autocompletion=known_there)],
    plugin: Plugins = None,
) -> None:
    """Print a preset and its path."""
    imported(plugin)
    if kind not in KINDS:
        raise ConfigError(f"unknown kind '{kind}'{hint(kind, KINDS)}")
    found = preset(kind, name)
    print(f"# {found.path}\n{found.text}", end="")
    if isinstance(card := found.table.get("card"), str):
        path = PACKAGE / card.removeprefix(BUNDLED) if card.startswith(BUNDLED) else found.path.parent / card
        _print_markdown(read_text(path))


def _print_markdown(text: str) -> None:
    """Print Markdown, formatted on a terminal and as text elsewhere."""
    if not sys.stdout.isatty():
        print(f"\n{text}", end="")
        return
    from rich.console import Console  # imported here to keep `list` fast
    from rich.markdown import Markdown

    Console().print(Markdown(text))
