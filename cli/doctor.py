"""`specbench doctor`: print checks of this machine and installation, or of a model server."""

import dataclasses
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from specbench.cli.app import wrapped
from specbench.cli.params import Json
from specbench.errors import ExitCode
from specbench.features.doctor.checkup import checks
from specbench.http_client import KEY
from specbench.machine.check import Check
from specbench.reporting import escaping

INDENT = 23  # of the second line of an item
STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def _of_server(url: str, key_env: str) -> Iterable[Check]:
    from specbench.cli.console import TerminalObserver
    from specbench.features.servers.server_checks import checks_of_url  # imports torch

    return checks_of_url(url, key_env, TerminalObserver())


def doctor(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of run folders.")] = Path("results"),
    server: Annotated[
        str, typer.Option("--server", help="Check a model server at this URL instead: what `specbench server` can use.")
    ] = "",
    key_env: Annotated[str, typer.Option("--key-env", help="Environment variable with the server's key.")] = KEY,
    as_json: Json = False,
) -> None:
    """Check this machine or a server: one line per item, with advice.

    Python, packages, processor, GPU, memory, disk, hub, sandbox and clock.

    Exit code 4 if something that every run needs is missing.
    """
    console = Console(highlight=False, markup=False, soft_wrap=True)
    done = []
    for check in _of_server(server, key_env) if server else checks(out):
        done.append(check)
        if not as_json:  # each as soon as it is known
            advice = f"; help: {escaping.terminal(check.help)}" if check.help else ""
            line = Text(wrapped(f"{check.state:<5}{check.name:<18}{escaping.terminal(check.found)}{advice}", INDENT))
            line.stylize(STYLES[check.state], 0, len(check.state))
            console.print(line)
    if as_json:
        print(json.dumps([dataclasses.asdict(check) for check in done], indent=2))
    sys.exit(ExitCode.MISSING if any(check.state == "fail" for check in done) else ExitCode.OK)
