"""`specbench`: the table of commands, and the exit codes of errors. Imports no command.

Exit codes: 0 ok, 1 a bug in specbench, 2 usage or config, 3 some samples failed, 4 a missing model, data set or device, a
folder in use or a full disk, 5 a distribution that differs or a regression, 6 not comparable or inconclusive, 130 interrupted
and 143 terminated, both resumable.
"""

import codecs
import errno
import io
import json
import sys
import tomllib
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer

from specbench._logging import quiet
from specbench.cli.lazy import STYLE, Entry, LazyGroup
from specbench.errors import ConfigError, ExitCode, FolderInUse, MissingAsset, NotComparable, PluginError, Terminated

COMMANDS = {  # by panel, in the order of `specbench --help`; each line equals the first line of the function's docstring
    "run": Entry("run:run", "Measure", "Measure methods on a pair and tasks, together with their baselines."),
    "plan": Entry("plan:plan", "Measure", "Show what a run or a suite would measure, without measuring."),
    "status": Entry("status:status", "Measure", "Show the jobs of a suite: pending, running, failed, done."),
    "curve": Entry("curve:curve", "Measure", "Sweep a method's parameter: its quality against its latency."),
    "profile": Entry(
        "profile:profile", "Measure", "Measure the forward times and acceptance rates of the models of a chain."
    ),
    "train": Entry(
        "train:train",
        "Measure",
        "Train a head for a pair, and measure on held-out prompts whether it speeds up decoding.",
    ),
    "report": Entry("report:report", "Report", "Show runs or a suite as tables, plots or one HTML file."),
    "compare": Entry("compare:compare", "Report", "Compare two measurements: decoding, quality, speed."),
    "score": Entry("score:score", "Report", "Score stored generations again with the current tasks."),
    "judge": Entry("judge:judge", "Report", "Let a language model compare the stored generations of two methods."),
    "export": Entry("archive:export", "Report", "Write runs to one archive with checksums, to share them."),
    "import": Entry(
        "archive:import_", "Report", "Read an archive of runs, after checking its names, sizes, checksums and records."
    ),
    "verify": Entry("verify:verify", "Check", "Test whether a method is lossless on a pair and device."),
    "enumerate": Entry(
        "enumerate:enumerate_", "Check", "Compare a method's exact output distribution with the declared one."
    ),
    "trace": Entry("trace:trace", "Check", "Decode one prompt and show the origin of each token."),
    "gate": Entry("gate:gate", "Check", "Check, record or update a snapshot of a measurement."),
    "doctor": Entry("doctor:doctor", "Check", "Check this machine: one line per item, with advice."),
    "init": Entry("init:init", "Extend", "Write a commented pair, task, method, suite or plugin to start from."),
    "list": Entry(
        "catalog:list_", "Extend", "List the methods, pairs, tasks, suites or machines, or the runs of a folder."
    ),
    "show": Entry("catalog:show", "Extend", "Print a preset and its path."),
    "schema": Entry("schema:schema", "Extend", "Write JSON Schemas of the TOML files, for editors and checks."),
    "fetch": Entry("fetch:fetch", "Extend", "Download what pairs, tasks or a suite need from the hub."),
    "reproduce": Entry(
        "reproduce:reproduce",
        "Papers",
        "List the papers' tables, figures, algorithms, theorems and claims, and how each is reproduced.",
    ),
}
WIDEST_HELP = 120  # columns; narrower terminals get their own width


class Commands(LazyGroup):
    """The commands of `specbench`."""

    table = COMMANDS


app = typer.Typer(
    name="specbench",
    cls=Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDEST_HELP},
    **{**STYLE, "add_completion": True},
)


def _version(wanted: bool) -> None:
    if wanted:
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
        place = _in_plugin(error)
        fail("plugin", f"{place}: {error}" if place else error, 2)
    except ConfigError as error:
        fail("config", error, 2)
    except MissingAsset as error:
        fail("asset", error, 4)
    except NotComparable as error:
        fail("comparison", error, ExitCode.INCONCLUSIVE)
    except Exception as error:
        place = _in_plugin(error)
        if place is not None:
            fail("plugin", f"{place}: {type(error).__name__}: {error}", 2)
        if isinstance(error, OSError) and error.errno in UNUSABLE:
            fail("file", f"{error.filename or 'a file'}: {error.strerror}{_advice(error)}", UNUSABLE[error.errno])
        if _is_out_of_memory(error):
            fail("memory", f"out of memory: {str(error).partition('. ')[0]}; help: {SMALLER}", ExitCode.MISSING)
        if isinstance(error, UnicodeError | json.JSONDecodeError | tomllib.TOMLDecodeError):
            fail("file", f"cannot parse a file: {error}", 2)
        raise
    except BaseException as error:
        if place := _in_plugin(error):  # also SystemExit, whose code might be 0
            fail("plugin", f"{place}: {type(error).__name__}: {error}", 2)
        raise


ASCII = {"–": "-", "−": "-", "±": "+-", "×": "x", "…": "...", "†": "*", "µ": "u"}


def replace_unprintable() -> None:
    """Let standard output and error replace the characters that their encoding lacks, instead of raising an error."""

    def replaced(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        return "".join(ASCII.get(each, "?") for each in error.object[error.start : error.end]), error.end

    codecs.register_error("specbench", replaced)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower().replace("-", "") != "utf8":
            stream.reconfigure(errors="specbench")


UNUSABLE = {  # error of a path -> exit code: 2 if another path helps, 4 if the machine lacks something
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES, errno.EPERM), 2),
    **dict.fromkeys((errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.ENOTEMPTY, errno.EROFS), 2),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM), 4),
}
SMALLER = "use a smaller model or --dtype, `quantization` in the pair, or shorter prompts (max_prompt_tokens)"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _advice(error: OSError) -> str:
    if error.errno in FULL:
        return "; help: make room, then run the same command: what is finished is kept"
    return "; help: choose another folder" if error.errno == errno.EROFS else ""


def _is_out_of_memory(error: Exception) -> bool:
    """Return whether an error of torch or Python means that memory is exhausted. Imports no torch."""
    name = type(error).__name__
    return name in ("OutOfMemoryError", "MemoryError") or (name == "RuntimeError" and "not enough memory" in str(error))


def _require_text(arguments: list[str]) -> None:
    """Raise ConfigError for an argument that is not UTF-8: no config or table could hold it."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"argument {argument!a} is not UTF-8 text") from None


def _in_plugin(error: BaseException) -> str | None:
    """Return the place in a plugin that an error came from, or None if it came from specbench."""
    plugins = sys.modules.get("specbench.resolution.plugins")
    return plugins.place_of(error) if plugins else None


def fail(kind: str, error: object, code: int) -> NoReturn:
    """Print an error and exit. Control characters are printed as escapes."""
    from specbench.reporting.escaping import terminal_lines  # needed for errors only

    print(f"error[{kind}]: {terminal_lines(str(error))}", file=sys.stderr)
    sys.exit(code)
