"""`specbench`: the table of commands, which are imported when they are invoked, and the exit codes of errors.

Exit codes: 0 ok, 1 a bug in specbench, 2 usage or config, 3 some samples failed, 4 a missing model, data set or device, a
folder in use or a full disk, 5 a distribution that differs or a regression, 6 not comparable or inconclusive, 130 interrupted
and 143 terminated, both resumable.
"""

import codecs
import errno
import io
import json
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Callable
from importlib import import_module
from textwrap import fill
from typing import Annotated, Any, ClassVar, NamedTuple, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from specbench._logging import quiet
from specbench.errors import (
    CPU_ALLOCATOR,
    ConfigError,
    ExitCode,
    FolderInUse,
    MissingAsset,
    NotComparable,
    PluginError,
    Terminated,
    is_out_of_memory,
)

STYLE: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,  # rich would drop defaults in brackets
}
COLUMN = 24  # characters of the names of options in `--help`
WIDEST_HELP = 120  # columns; narrower terminals get their own width
ASCII = {"–": "-", "−": "-", "±": "+-", "×": "x", "…": "...", "†": "*", "µ": "u"}
UNUSABLE = {  # error of a path -> exit code: 2 if another path helps, 4 if the machine lacks something
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES, errno.EPERM), 2),
    **dict.fromkeys((errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.ENOTEMPTY, errno.EROFS), 2),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM), 4),
}
SMALLER = "use a smaller model or --dtype, `quantization` in the pair, or shorter prompts (max_prompt_tokens)"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class CommandEntry(NamedTuple):
    """A row of the command table: `MODULE:NAME` of the function in `specbench.cli`, and its panel and line in `--help`."""

    function: str
    panel: str
    help: str


class PanelCommand(TyperCommand):
    """A command whose `--help` shows options in panels, in the order of `params.PANELS`."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line, with arguments without braces."""
        return [re.sub("[{}]", "", piece) for piece in super().collect_usage_pieces(ctx)]

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

    def __init__(self, name: str, entry: CommandEntry) -> None:
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

    table: ClassVar[dict[str, CommandEntry]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands.update({name: LazyCommand(name, entry) for name, entry in self.table.items()})

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each panel of commands, with whole descriptions."""
        panels = dict.fromkeys(entry.panel for entry in self.table.values())
        for panel in panels:
            with formatter.section(panel):
                formatter.write_dl(
                    [
                        (name, entry.help)
                        for name, entry in self.table.items()
                        if entry.panel == panel and name not in HIDDEN
                    ]
                )


COMMANDS = {  # by panel, in the order of `specbench --help`; each line equals the first line of the function's docstring
    "run": CommandEntry("run:run", "Measure", "Measure methods on a pair and tasks, together with their baselines."),
    "plan": CommandEntry("plan:plan", "Measure", "Show what a run or a suite would measure, without measuring."),
    "status": CommandEntry(
        "status:status", "Measure", "Show the jobs of a suite: pending, queued, running, failed, done."
    ),
    "advise": CommandEntry(
        "advise:advise", "Measure", "Advise whether to speculate with a pair, on this machine and task, and how."
    ),
    "profile": CommandEntry(
        "profile:profile", "Measure", "Measure the forward times and acceptance rates of the models of a chain."
    ),
    "report": CommandEntry("report:report", "Report", "Show runs or a suite as tables, plots or one HTML file."),
    "compare": CommandEntry("compare:compare", "Report", "Compare two measurements: decoding, quality, speed."),
    "score": CommandEntry("score:score", "Report", "Score stored generations again with the current tasks."),
    "judge": CommandEntry(
        "judge:judge", "Report", "Let a language model compare the stored generations of two methods."
    ),
    "archive": CommandEntry("archive:archive", "Report", "Write runs to one archive with checksums, or read one."),
    "verify": CommandEntry(
        "verify:verify",
        "Check",
        "Test whether a method is lossless, or follows the other distribution that it declares.",
    ),
    "enumerate": CommandEntry(
        "verify:enumerate_", "Check", "Compare a method's exact output distribution with the declared one."
    ),
    "server": CommandEntry("server:server", "Check", "Verify and measure model servers with speculative decoding."),
    "trace": CommandEntry("trace:trace", "Check", "Decode one prompt and show the origin of each token."),
    "gate": CommandEntry("gate:gate", "Check", "Check, record or update a snapshot of a measurement."),
    "doctor": CommandEntry("doctor:doctor", "Check", "Check this machine or a server: one line per item, with advice."),
    "train": CommandEntry("train:train", "Extend", "Train heads and draft models for a pair."),
    "init": CommandEntry("init:init", "Extend", "Write a commented pair, task, method, suite or plugin to start from."),
    "list": CommandEntry(
        "catalog:list_", "Extend", "List the methods, pairs, tasks, suites or machines, or the runs of a folder."
    ),
    "show": CommandEntry("catalog:show", "Extend", "Print a preset and its path."),
    "schema": CommandEntry("schema:schema", "Extend", "Write JSON Schemas of the TOML files, for editors and checks."),
    "fetch": CommandEntry("fetch:fetch", "Extend", "Download what pairs, tasks or a suite need from the hub."),
    "reproduce": CommandEntry(
        "reproduce:reproduce",
        "Papers",
        "List the papers' tables, figures, algorithms, theorems and claims, and how each is reproduced.",
    ),
}


HIDDEN = ("schema",)  # commands that `--help` leaves out
RENAMED = {  # earlier commands, with what replaces them
    "curve": "specbench run --over auto",
    "export": "specbench archive export",
    "import": "specbench archive import",
}
RENAMED_OPTIONS = {  # earlier options and formats by command, with the present one
    ("advise", "--heads"): "--head",
    ("server", "--noise-pairs"): "--aa-pairs",
    ("report", "passport"): "the format acceptance",
}


class Commands(LazyGroup):
    """The commands of `specbench`."""

    table = COMMANDS

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name. Raises ConfigError for an earlier name, with the present one."""
        if args and args[0] in RENAMED:
            raise ConfigError(f"`specbench {args[0]}` is now `{RENAMED[args[0]]}`")
        for option in (word.partition("=")[0] for word in args[1:]):
            if today := RENAMED_OPTIONS.get((args[0], option)):
                raise ConfigError(f"{option} is now {today}")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="specbench",
    cls=Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDEST_HELP},
    **{**STYLE, "add_completion": True},
)


def _version(value: bool) -> None:
    if value:
        from importlib.metadata import version  # slow

        print(f"specbench {version('specbench')}")
        raise typer.Exit


@app.callback()
def specbench(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Measure how much faster a decoding method is, what it costs in quality, and how reliable the numbers are."""


def main(command: Callable[[], None] = app) -> None:
    """Run a command. User errors and machine failures print one line to stderr instead of a traceback."""
    quiet()
    replace_unprintable()
    try:
        _require_text(sys.argv)
        command()
    except (KeyboardInterrupt, Terminated):
        raise
    except FolderInUse as error:
        fail("lock", error, 4)
    except PluginError as error:
        location = _in_plugin(error)
        fail("plugin", f"{location}: {error}" if location else error, 2)
    except ConfigError as error:
        fail("config", error, 2)
    except MissingAsset as error:
        fail("asset", error, 4)
    except NotComparable as error:
        fail("comparison", error, ExitCode.INCONCLUSIVE)
    except Exception as error:
        location = _in_plugin(error)
        if location is not None:
            fail("plugin", f"{location}: {type(error).__name__}: {error}", 2)
        if isinstance(error, OSError) and error.errno in UNUSABLE:
            fail("file", f"{error.filename or 'a file'}: {error.strerror}{_advice(error)}", UNUSABLE[error.errno])
        if isinstance(error, FloatingPointError):
            fail("model", f"{error}; help: --dtype float32, or other weights", ExitCode.SOME_FAILED)
        if is_out_of_memory(error):
            why = str(error).rpartition(CPU_ALLOCATOR)[2].partition(". ")[0]
            fail("memory", f"out of memory: {why}; help: {SMALLER}", ExitCode.MISSING)
        if isinstance(error, UnicodeError | json.JSONDecodeError | tomllib.TOMLDecodeError):
            fail("file", f"cannot parse a file: {error}", 2)
        raise
    except BaseException as error:
        if location := _in_plugin(error):  # also SystemExit, whose code might be 0
            fail("plugin", f"{location}: {type(error).__name__}: {error}", 2)
        raise


def replace_unprintable() -> None:
    """Let standard output and error replace the characters that their encoding lacks, instead of raising an error."""

    def replaced(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        return "".join(ASCII.get(char, "?") for char in error.object[error.start : error.end]), error.end

    codecs.register_error("specbench", replaced)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower().replace("-", "") != "utf8":
            stream.reconfigure(errors="specbench")


def _advice(error: OSError) -> str:
    if error.errno in FULL:
        return "; help: make room, then run the same command: what is finished is kept"
    return "; help: choose another folder" if error.errno == errno.EROFS else ""


def _require_text(arguments: list[str]) -> None:
    """Raise ConfigError for an argument that is not UTF-8: no config or table could hold it."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"argument {argument!a} is not UTF-8 text") from None


def _in_plugin(error: BaseException) -> str | None:
    """Return the location in a plugin that an error came from, or None if it came from specbench."""
    plugins = sys.modules.get("specbench.resolution.plugins")
    return plugins.location_of(error) if plugins else None


def fail(kind: str, error: object, code: int) -> NoReturn:
    """Print an error and exit. Control characters are printed as escapes."""
    from specbench.reporting.escaping import terminal_lines  # needed for errors only

    print(f"error[{kind}]: {terminal_lines(str(error))}", file=sys.stderr)
    sys.exit(code)


def wrapped(text: str, indent: int = 0) -> str:
    """Return a line wrapped between words, with an indent from its second line on; in a file or a pipe, as one line."""
    columns = os.environ.get("COLUMNS", "")
    if not columns.isdecimal() and not sys.stdout.isatty():
        return text
    width = max(shutil.get_terminal_size().columns, indent + 20)
    return fill(text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
