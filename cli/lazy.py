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
COLUMN = 24  # characters of the names of options in `--help`


class Entry(NamedTuple):
    """A row of the command table: `MODULE:NAME` of the function in `specbench.cli`, and its panel and line in `--help`."""

    function: str
    panel: str
    help: str


class PanelCommand(TyperCommand):
    """A command whose `--help` shows options in panels, in the order of `params.PANELS`."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line, with arguments without braces."""
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each panel, arguments first."""
        from specbench.cli.params import PANELS

        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], **{panel: [] for panel in PANELS}, "Options": []}
        for param in self.get_params(ctx):
            if record := param.get_help_record(ctx):
                default = "Arguments" if param.param_type_name == "argument" else "Options"
                sections[getattr(param, "rich_help_panel", None) or default].append(record)
        shown = {panel: rows for panel, rows in sections.items() if rows}
        for panel, rows in shown.items():
            with formatter.section(panel):
                formatter.write_dl(rows, col_max=COLUMN)


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
        target = getattr(imported, name)
        if not isinstance(target, typer.Typer):
            single = typer.Typer(**STYLE)
            single.command(self.name, cls=PanelCommand, epilog=getattr(imported, "EPILOG", None))(target)
            target = single
        command = typer.main.get_command(target)
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

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each panel of commands, with whole descriptions."""
        panels = dict.fromkeys(entry.panel for entry in self.table.values())
        for panel in panels:
            with formatter.section(panel):
                formatter.write_dl([(name, entry.help) for name, entry in self.table.items() if entry.panel == panel])
