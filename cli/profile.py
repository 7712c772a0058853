"""`specbench profile`: what a chain's models cost and accept of one another, and whether theory keeps its middle ones."""

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli import params as choices
from specbench.cli.arguments import options_of
from specbench.cli.params import known
from specbench.cli.progress import Terminal, interrupted
from specbench.config.options import Access
from specbench.errors import ConfigError
from specbench.experiment.chain_profile import BASELINE, GAMMA, levels_of, pairings
from specbench.experiment.request import Request


def profile(
    pair: choices.Pair = "tiny-polybasic",
    method: Annotated[
        str,
        typer.Option(
            "--method",
            "-m",
            help="The method whose chain is meant: its proposer is a chain.",
            autocompletion=known("method"),
        ),
    ] = "polybasic",
    task: Annotated[
        list[str] | None,
        typer.Option("--task", "-t", help="Prompts. [the pair's first task]", autocompletion=known("task")),
    ] = None,
    data: choices.Data = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="Prompts; 0 is all.")] = 8,
    gamma: Annotated[int, typer.Option(help="Draft length at which pairs are measured.")] = GAMMA,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    repeats: Annotated[int, typer.Option(help="How often each prompt is decoded.")] = 1,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens a generation.")] = 64,
    device: choices.OnDevice = choices.Device.auto,
    dtype: choices.InDtype = choices.Dtype.auto,
    engine: choices.ByEngine = choices.Engine.auto,
    out: choices.Out = Path("results"),
    head: choices.Heads = None,
    set_: choices.Sets = None,
    fresh: choices.Fresh = False,
    wait: choices.Wait = False,
    break_lock: choices.BreakLock = False,
) -> None:
    """Measure what a chain's models cost, and accept of one another.

    Polybasic's Table 1.

    Then what theory says of keeping the middle, before a run is paid for.
    """
    from specbench.cli.report import place, print_table, say, terminal
    from specbench.experiment.pipeline import run
    from specbench.experiment.selection import read_pair
    from specbench.report import chain_profile as told

    options = options_of(
        set_=set_, head=head, gamma=[str(gamma)], data=data, limit=limit, temperature=temperature, repeats=repeats,
        max_new_tokens=max_new_tokens, ignore_eos=True, device=device, dtype=dtype, engine=engine,
    )  # fmt: skip
    _, found = read_pair(pair, options)
    levels = levels_of(method)
    tasks = task or list(found.defaults.tasks[:1])
    if not tasks:
        raise ConfigError("name a task for the prompts: -t TASK")
    access = Access(fresh=fresh, wait=wait, break_lock=break_lock)
    try:
        names = tuple(pairings(levels, found, gamma))
        results = run(
            Request(methods=names, pair=pair, tasks=tuple(tasks), options=options, out=out, access=access), Terminal()
        )
    except KeyboardInterrupt:
        interrupted(fresh)
    console = terminal()
    for summary in results.summaries:
        measured_ = told.Profile(Path(summary.folder), levels, BASELINE, told.kinds_of(summary))
        say(f"{summary.pair}, {summary.task}: {' > '.join(levels)}", console, "none")
        for table in (told.forwards_table(measured_), told.pairs_table(measured_)):
            print_table(table, console)
        for line in told.verdicts(measured_):
            say(line, console, "none")
        console.print(
            "Theory: exact laws of lengths from the measured acceptance (`theory.keeps_middle`); a head's catching up with"
            " its base, and drafts that come out short, are left out.", style="dim"
        )  # fmt: skip
        place(summary.folder, console)
