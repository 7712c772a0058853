"""Commands that are imported when they are invoked, so that `specbench --help` and the completion of names import none."""

from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

STYLE: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,  # rich would drop defaults in brackets
}


class Entry(NamedTuple):
    """A row of the command table: the function or group, `MODULE:NAME` within `specbench.cli`, and its line in `--help`."""

    function: str
    help: str


class LazyCommand(TyperCommand):
    """A command of which only the name and the help line are known until it is invoked or its own help is printed.

    `EPILOG` of its module, if there is one, ends the help.
    """

    def __init__(self, name: str, entry: Entry) -> None:
        super().__init__(name, help=entry.help)
        self.entry = entry

    def load(self) -> TyperCommand | TyperGroup:
        """Import the module of the command, and return the command, or the group of commands, with its parameters."""
        module, name = self.entry.function.split(":")
        imported = import_module(f"specbench.cli.{module}")
        found = getattr(imported, name)
        if not isinstance(found, typer.Typer):
            single = typer.Typer(**STYLE)
            single.command(self.name, epilog=getattr(imported, "EPILOG", None))(found)
            found = single
        command = typer.main.get_command(found)
        assert isinstance(command, TyperCommand | TyperGroup)
        return command

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Parse arguments with the loaded command. The context that is returned refers to that command."""
        return self.load().make_context(*arguments, **options)


class LazyGroup(TyperGroup):
    """A group whose commands come from `table`. Subclasses set it."""

    table: ClassVar[dict[str, Entry]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands.update({name: LazyCommand(name, entry) for name, entry in self.table.items()})
