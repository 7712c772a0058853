"""`specbench`: the Typer app, its exit codes, and nothing that imports torch.

Exit codes: 0 ok, 1 a bug of ours, 2 usage or config, 3 some samples failed, 4 a missing model, data set or device, a folder
in use or a full disk, 5 a law that differs or a regression, 6 not comparable or inconclusive, 130 interrupted and 143
terminated, both resumable.
"""

import errno
import json
import sys
import tomllib
from collections.abc import Callable
from typing import NoReturn

import typer

from specbench._logging import quiet
from specbench.cli import (
    catalog,
    compare,
    curve,
    doctor,
    enumerate,
    fetch,
    gate,
    plan,
    profile,
    report,
    reproduce,
    run,
    score,
    trace,
    train,
    verify,
)
from specbench.errors import ConfigError, ExitCode, FolderInUse, MissingAsset

app = typer.Typer(
    name="specbench",
    help="Does this way of decoding make this model pair faster on this task, by how much, and can I believe the number?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # which would swallow the defaults that stand in brackets
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("plan")(plan.plan)
app.command("curve")(curve.curve)
app.command("report")(report.report)
app.command("reproduce")(reproduce.reproduce)
app.command("score")(score.score)
app.command("train")(train.train)
app.command("profile")(profile.profile)
app.command("compare")(compare.compare)
app.add_typer(gate.gate, name="gate")
app.command("list")(catalog.list_)
app.command("doctor")(doctor.doctor)
app.command("fetch")(fetch.fetch)
app.command("enumerate")(enumerate.enumerate_)
app.command("verify")(verify.verify)
app.command("trace")(trace.trace)
app.command("show")(catalog.show)


def main(command: Callable[[], None] = app) -> None:
    """Run a command. A user's mistake, and a machine that cannot go on, is one line on stderr, never a traceback."""
    quiet()
    try:
        _require_text(sys.argv)
        command()
    except FolderInUse as error:
        fail("lock", error, 4)
    except ConfigError as error:
        fail("config", error, 2)
    except MissingAsset as error:
        fail("asset", error, 4)
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


UNUSABLE = {  # what is wrong with a path -> exit code: 2 where another path helps, 4 where the machine lacks something
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
    """Whether a device or the machine has no memory left, by torch's or Python's error. Imports no torch."""
    name = type(error).__name__
    return name in ("OutOfMemoryError", "MemoryError") or (name == "RuntimeError" and "not enough memory" in str(error))


def _require_text(arguments: list[str]) -> None:
    """Raise ConfigError for an argument that is not UTF-8: no config or table could hold it."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"argument {argument!a} is not UTF-8 text") from None


def _in_plugin(error: Exception) -> str | None:
    """Where in a plugin an error came from; None where it is one of ours."""
    plugins = sys.modules.get("specbench.experiment.plugins")
    return plugins.place_of(error) if plugins else None


def fail(kind: str, error: object, code: int) -> NoReturn:
    """Print an error and exit. Control characters are printed as escapes."""
    from specbench.report.escaping import terminal_lines

    print(f"error[{kind}]: {terminal_lines(str(error))}", file=sys.stderr)
    sys.exit(code)
