"""`specbench init`: write commented files to start from. They are the files of configs/templates/ with the user's name."""

import shlex
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.console import printable
from specbench.config.presets import PLAIN
from specbench.errors import ConfigError, hint
from specbench.files import write

PLACEHOLDER = "NAME"


@dataclass(frozen=True)
class Template:
    """The files of a kind by their ending, the default name, and the command that uses them."""

    files: dict[str, str]  # ending of the written file -> file in configs/templates/
    default: str
    command: str


TEMPLATES = {
    "pair": Template({".toml": "pair.toml"}, "my-pair", "specbench run -m sd -p {file} --data synthetic"),
    "task": Template(
        {".toml": "task.toml", ".jsonl": "task.jsonl", ".examples.jsonl": "task.examples.jsonl"},
        "my-task",
        "specbench run -m sd -p tiny -t {file}",
    ),
    "method": Template({".toml": "method.toml"}, "my-method", "specbench run -m {file} -p tiny -t gsm8k -n 4"),
    "suite": Template({".toml": "suite.toml"}, "my-suite", "specbench run --suite {file}"),
    "plugin": Template(
        {".py": "plugin.txt"}, "my-stop", "specbench run -m {name} -p tiny -t gsm8k -n 4 --plugin {file}"
    ),
}


def start(kind: str, name: str, force: bool = False) -> tuple[list[Path], str]:
    """Write the files of a kind. Returns their paths, the main one first, and the command to type next.

    `name` is a name, or the path of the main file; empty for the default. Raises ConfigError for an unknown kind, a wrong
    name, and files that exist, unless `force` is set.
    """
    if kind not in TEMPLATES:
        raise ConfigError(f"unknown kind '{kind}'{hint(kind, TEMPLATES)}")
    template = TEMPLATES[kind]
    ending, *_ = template.files
    main_file = Path(name or template.default).expanduser()
    stem = main_file.name.removesuffix(ending)
    if not PLAIN.fullmatch(stem) or ":" in stem:
        name_help = f"use letters, digits and . + - _, as in {template.default}"
        raise ConfigError(f"'{main_file.name}' is not a name; help: {name_help}")
    folder = Path(str(resources.files("specbench.configs"))) / "templates"
    texts = {
        main_file.with_name(stem + ending): (folder / file).read_text(encoding="utf-8").replace(PLACEHOLDER, stem)
        for ending, file in template.files.items()
    }
    if (existing := [path for path in texts if path.exists()]) and not force:
        raise ConfigError(f"{existing[0]} exists; help: another name, or --force to overwrite it")
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, text)
    paths = list(texts)
    return paths, template.command.format(file=shlex.quote(str(paths[0])), name=stem)


def complete_kinds(incomplete: str) -> list[str]:
    """Complete the kinds of files."""
    return [kind for kind in TEMPLATES if kind.startswith(incomplete)]


def init(
    kind: Annotated[
        str, typer.Argument(help="pair, task, method, suite or plugin.", metavar="KIND", autocompletion=complete_kinds)
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
