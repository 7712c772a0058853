"""`specbench init`: write commented files to start from."""

from typing import Annotated

import typer

from specbench.cli.console import printable
from specbench.config.templates import TEMPLATES, start


def known_kinds(incomplete: str) -> list[str]:
    """Complete the kinds of files."""
    return [kind for kind in TEMPLATES if kind.startswith(incomplete)]


def init(
    kind: Annotated[
        str, typer.Argument(help="pair, task, method, suite or plugin.", metavar="KIND", autocompletion=known_kinds)
    ],
    name: Annotated[
        str, typer.Argument(help="A name, or the path of the file to write. [my-KIND]", metavar="[NAME]")
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Write a commented pair, task, method, suite or plugin to start from.

    The files use the bundled models and work as they are. The last line is the command to type next.
    """
    paths, command = start(kind, name, force)
    for path in paths:
        print(f"wrote {printable(path)}")
    print(f"next: {printable(command)}")
