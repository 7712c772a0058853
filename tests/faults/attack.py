"""An attack, its outcome, and what attacks share: the command in this process or in one of its own."""

import contextlib
import io
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
PROGRAM = str(Path(sys.executable).with_name("specbench"))
DOCUMENTED = {0, 2, 3, 4, 5, 6, 130, 143}  # exit codes; 1 is a bug
MOST_SECONDS = 180  # that a command may take, on a busy machine
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


@dataclass
class Outcome:
    """How many trials an attack made, and what went wrong, a line each. `skipped` says why it could not be tried here."""

    trials: int = 0
    failures: list[str] = field(default_factory=list)
    skipped: str = ""

    def add(self, where: str, problems: list[str]) -> None:
        """Count a trial and its problems."""
        self.trials += 1
        self.failures += [f"{where}: {problem}" for problem in problems]


@dataclass(frozen=True)
class Attack:
    """A kind of fault. `run` takes trials, a seed and an empty folder."""

    name: str
    what: str
    trials: int  # of the long campaign
    few: int  # of the tests
    run: Callable[[int, int, Path], Outcome]


class Ended(NamedTuple):
    code: int
    out: str
    err: str

    def problems(self, allowed: set[int] | None = None) -> list[str]:
        """What a user should not see: a traceback, or an exit code that is not documented."""
        found = []
        if "Traceback (most recent call last)" in self.err and ("/cli/" in self.err or "/specbench/" in self.err):
            found.append(f"traceback: {last_line(self.err)}")
        if self.code not in (DOCUMENTED if allowed is None else allowed):
            found.append(f"exit code {self.code}: {last_line(self.err)}")
        return found


def last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""


@cache
def _command() -> Any:
    """The command line, built once: building it takes longer than many a command."""
    from typer.main import get_command

    from specbench.cli.app import app

    return get_command(app)


def here(arguments: list[Any], where: Path) -> Ended:
    """Run a command in this process, as the console script does."""
    from specbench.cli import app

    out, err, argv, before, code = io.StringIO(), io.StringIO(), sys.argv, Path.cwd(), 0
    sys.argv = ["specbench", *map(str, arguments)]
    os.chdir(where)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            app.main(_command())
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception:
        err.write(traceback.format_exc())
        code = 1
    finally:
        os.chdir(before)
        sys.argv = argv
    return Ended(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def started(arguments: list[Any], where: Path, *wrapper: str) -> Iterator["subprocess.Popen[str]"]:
    """Start the real command in a session of its own; whatever is left of it at the end is killed."""
    line = [*wrapper, PROGRAM, *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(line, cwd=where, env=os.environ | ENVIRONMENT, start_new_session=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: "subprocess.Popen[str]") -> Ended:
    """Wait for a process to end. A process that hangs is a code of its own."""
    try:
        out, err = process.communicate(timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        return Ended(124, out, f"{err}\nstill running after {MOST_SECONDS} s")
    return Ended(process.returncode, out, err)


def apart(arguments: list[Any], where: Path, *wrapper: str) -> Ended:
    """Run the real command to its end."""
    with started(arguments, where, *wrapper) as process:
        return ended(process)
