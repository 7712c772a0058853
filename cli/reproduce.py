"""`specbench reproduce`: list which tables and figures of the four papers are reproduced, and by which command."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.console import print_table, terminal
from specbench.cli.params import Json
from specbench.report.reproduction import papers, papers_table


def reproduce(
    status: Annotated[
        bool, typer.Option("--status", help="List the state of every table and figure. Always on.")
    ] = True,
    results: Annotated[Path, typer.Option("--from", help="Folder of results.")] = Path("results"),
    as_json: Json = False,
) -> None:
    """List the papers' tables and figures and how each is reproduced.

    A table or figure is reproduced on the paper's weights, on the tiny models, on dummy weights, or not yet.
    """
    items = papers(results)
    if as_json:
        print(json.dumps([asdict(item) for item in items], indent=1, ensure_ascii=False))
        return
    console = terminal()
    print_table(papers_table(items), console, left=True)
    states = [item.state for item in items]
    console.print("; ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)), highlight=False)
