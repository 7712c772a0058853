"""`specbench reproduce`: list every table, figure, algorithm and theorem of the papers, and how each is reproduced."""

import json
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from specbench.cli.console import output_console, print_path, say
from specbench.cli.params import Json
from specbench.errors import ConfigError
from specbench.features.suites.papers.reproduction import NOT_YET, WEIGHTS, papers, results_folder

STYLES = {WEIGHTS: "green", NOT_YET: "yellow"}  # of states; others are dim
MISSING = (
    "no results here, and none are installed with the package; help: --from FOLDER, or run in a checkout of specbench"
)


def reproduce(
    status: Annotated[bool, typer.Option("--status", help="List the state of every item.", hidden=True)] = True,
    results: Annotated[
        Path | None, typer.Option("--from", help="Folder of results. [results here, else the checkout's]")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the papers' tables, figures, algorithms, theorems and claims, and how each is reproduced.

    A measured item is reproduced on the paper's weights, on the tiny models, on dummy weights, or not yet. The others are
    checked by tests of the repository, shown by a command, or explained in its docs.
    """
    if results and not results.is_dir():
        raise ConfigError(f"--from {results}: no such folder")
    results = results or results_folder()
    items = papers(results)
    if as_json:
        print(json.dumps([asdict(item) for item in items], indent=1, ensure_ascii=False))
        return
    console = output_console()
    for paper, group in groupby(items, lambda item: item.paper):
        console.print(Text(f"\n{paper}", style="bold"))
        for item in group:
            console.print(
                Text.assemble(f"  {item.shows}: {item.what} ", (f"({item.state})", STYLES.get(item.state, "dim")))
            )
            console.print(Text(f"      {item.command}", style="dim"), soft_wrap=True)
    console.print()
    states = [item.state for item in items]
    if results is None:
        say(MISSING, console, "yellow")
    else:
        print_path(f"results: {results}", console)
    console.print("; ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)), highlight=False)
