"""`specbench profile`: what a chain's models cost and accept of one another, and whether theory keeps its middle ones."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specbench.cli import choices
from specbench.cli.asked import options_of
from specbench.cli.choices import known
from specbench.cli.progress import interrupted
from specbench.errors import ConfigError
from specbench.options import Access

if TYPE_CHECKING:
    from specbench.pair import Pair

BASELINE = "ar"
GAMMA = 5  # draft length at which pairs of models are measured


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
    data: choices.Data = "",
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
    from specbench import cells
    from specbench.cli.measuring import measured
    from specbench.cli.report import place, print_table, say, terminal
    from specbench.report import profile as told

    options = options_of(
        set_=set_, head=head, gamma=str(gamma), data=data, limit=limit, temperature=temperature, repeats=repeats,
        max_new_tokens=max_new_tokens, ignore_eos=True, device=device, dtype=dtype, engine=engine,
    )  # fmt: skip
    _, found = cells.read_pair(pair, options)
    levels = levels_of(method)
    tasks = task or list(found.defaults.tasks[:1])
    if not tasks:
        raise ConfigError("name a task for the prompts: -t TASK")
    access = Access(fresh=fresh, wait=wait, break_lock=break_lock)
    try:
        summaries, _ = measured(pairings(levels, found, gamma), pair, tasks, options, out, access, None)
    except KeyboardInterrupt:
        interrupted(fresh)
    console = terminal()
    for summary in summaries:
        measured_ = told.Profile(Path(summary["folder"]), levels, BASELINE, told.kinds_of(summary))
        say(f"{summary['pair']}, {summary['task']}: {' > '.join(levels)}", console, "none")
        for table in (told.forwards_table(measured_), told.pairs_table(measured_)):
            print_table(table, console)
        for line in told.verdicts(measured_):
            say(line, console, "none")
        console.print(
            "Theory: exact laws of lengths from the measured acceptance (`theory.keeps_middle`); a head's catching up with"
            " its base, and drafts that come out short, are left out.", style="dim"
        )  # fmt: skip
        place(summary["folder"], console)


def levels_of(method: str) -> list[str]:
    """The levels of a method's chain, from the target down to what drafts: a model, or a kind of head, or prompt lookup."""
    from specbench.presets import preset

    table = preset("method", method).table
    proposer = table.get("proposer")
    levels = [table["scorers"] if isinstance(table.get("scorers"), str) else "target"]
    while isinstance(proposer, dict) and proposer.get("name") == "chain":
        levels.append(proposer["model"])
        proposer = proposer["proposer"]
    if len(levels) < 2 or not isinstance(proposer, dict):
        raise ConfigError(f"{method} is no chain of models; polybasic is one")
    return [*levels, proposer["model"] if proposer["name"] == "model" else proposer["name"]]


def pairings(levels: list[str], pair: "Pair", gamma: int) -> list[str]:
    """Methods for every level alone and every pair of levels, made known as presets. Without a head for a base, not those."""
    from specbench.presets import Preset, add
    from specbench.report.profile import alone, under

    def known(name: str, table: dict[str, Any]) -> str:
        add("method", Preset(name, Path("profile"), {"description": name, "baseline": BASELINE, **table}), listed=False)
        return name

    last = {"target": {"name": "last"}}
    names = [known(alone(level), {"name": "autoregressive", "scorers": level, **last}) for level in levels[1:-1]]
    for level in levels:
        if level not in ("eagle", "pld"):
            pair.group(level)
    for i, high in enumerate(levels):
        for low in levels[i + 1 :]:
            proposer: dict[str, Any] = {"name": "model", "model": low, "gamma": gamma}
            if low == "eagle":
                if low is levels[i + 1]:
                    pair.head_of("eagle", high)  # without which there is no chain
                elif not any((head.kind, head.base) == ("eagle", high) for head in pair.heads.values()):
                    continue
                proposer = {"name": "eagle", "base": high, "gamma": gamma}
            elif low == "pld":
                proposer = {"name": "pld", "gamma": gamma}
            names.append(
                known(under(low, high), {"name": "speculative", "proposer": proposer, "scorers": high, **last})
            )
    return names
