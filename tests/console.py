"""The console script, run in the tests' own process."""

import contextlib
import io
import os
import sys
from pathlib import Path
from typing import NamedTuple

from specbench.cli.app import main


class Done(NamedTuple):
    stdout: str
    stderr: str


def specbench(*arguments: object, cwd: Path, code: int | set[int] = 0) -> Done:
    """Run the console script's `main` in this process, which spares an import of torch a call.

    `code` is the exit code that it has to end with, or those that it may.
    """
    out, err, here, argv, ended = io.StringIO(), io.StringIO(), Path.cwd(), sys.argv, 0
    try:
        os.chdir(cwd)
        sys.argv = ["specbench", *map(str, arguments)]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        ended = end.code or 0
    finally:
        os.chdir(here)
        sys.argv = argv
    done = Done(out.getvalue(), err.getvalue())
    assert ended in (code if isinstance(code, set) else {code}), (ended, done)
    return done
