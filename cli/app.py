"""`specbench`: the Typer app, its exit codes, and nothing that imports torch.

Exit codes: 0 ok, 1 a bug of ours, 2 usage or config, 3 some samples failed, 4 a missing model, data set or device, 5 a law
that differs or a regression, 6 not comparable or inconclusive, 130 interrupted and resumable.
"""

import sys
from collections.abc import Callable

import typer

from specbench.cli import (
    catalog,
    compare,
    curve,
    doctor,
    fetch,
    gate,
    laws,
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
from specbench.errors import ConfigError, MissingAsset
from specbench.quiet import quiet

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
app.command("gate")(gate.gate)
app.command("list")(catalog.list_)
app.command("doctor")(doctor.doctor)
app.command("fetch")(fetch.fetch)
app.command("laws")(laws.laws)
app.command("verify")(verify.verify)
app.command("trace")(trace.trace)
app.command("show")(catalog.show)


def main(command: Callable[[], None] = app) -> None:
    """The console script: a user's mistake is one line on stderr, never a traceback."""
    quiet()
    try:
        command()
    except ConfigError as error:
        fail("config", error, 2)
    except MissingAsset as error:
        fail("asset", error, 4)
    except (NotADirectoryError, IsADirectoryError, FileNotFoundError, PermissionError) as error:
        fail("file", f"{error.filename}: {error.strerror}", 2)
    except Exception as error:
        place = _in_plugin(error)
        if place is None:
            raise
        fail("plugin", f"{place}: {type(error).__name__}: {error}", 2)


def _in_plugin(error: Exception) -> str | None:
    """Where in a plugin an error came from; None where it is one of ours."""
    plugins = sys.modules.get("specbench.plugins")
    return plugins.place_of(error) if plugins else None


def fail(kind: str, error: object, code: int) -> None:
    print(f"error[{kind}]: {error}", file=sys.stderr)
    sys.exit(code)
