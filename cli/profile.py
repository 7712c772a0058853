"""`specbench profile`: measure forward times and acceptance of a chain's models, and predict which to keep."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from specbench.analysis.run_summary import RunSummary
from specbench.cli import params
from specbench.cli.console import TerminalObserver, output_console, print_path, print_table, say
from specbench.cli.interrupts import interrupted
from specbench.cli.report import conclude
from specbench.config.request import Access, Request
from specbench.errors import ConfigError
from specbench.features.profile.chain_profile import GAMMA, ChainCandidate, Profile, candidates, weights_seconds
from specbench.features.profile.chain_tables import (
    NOTE,
    candidates_table,
    conclusion_of,
    costs_table,
    forwards_table,
    method_toml,
    pairs_table,
    verdicts,
)
from specbench.features.profile.forwards_table import NOTE as NOTE_ON_LINES
from specbench.features.profile.forwards_table import (
    cost_sentences,
    lines_of,
    lines_table,
    residuals_table,
    slow_single_forwards,
)
from specbench.note import warnings_of
from specbench.reporting.notes import notes_of
from specbench.runs.run_folder import timed_forwards


@params.with_shared_options("sample", "ignore_eos", "sampling", "over", "shard")
def profile(
    *,
    pair: params.Pair = "tiny-polybasic",
    method: Annotated[
        str | None, params.preset_option("method", "The method whose chain of models is measured. [polybasic]")
    ] = None,
    task: Annotated[
        list[str] | None, params.preset_option("task", "The task that the prompts are from. [the pair's first task]")
    ] = None,
    middle: Annotated[
        list[str] | None,
        typer.Option(
            help="A candidate for the middle model, a role of the pair; repeat for several. [the method's]",
            rich_help_panel=params.WHAT,
        ),
    ] = None,
    forwards: Annotated[
        bool,
        typer.Option(
            "--forwards",
            help="Decode with each model of the pair alone, and time its forwards by the number of tokens that they read.",
        ),
    ] = False,
    write: Annotated[
        Path | None, typer.Option(help="Write the fastest predicted chain as a method to this TOML file.")
    ] = None,
    shared: params.SharedOptions,
    limit: Annotated[int, typer.Option("--limit", "-n", help="Number of prompts; 0: all.")] = 8,
    gamma: Annotated[
        int | None, typer.Option(min=1, help=f"Draft length at which pairs of models are measured. [{GAMMA}]")
    ] = None,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; 0 is greedy.")] = 0.0,
    repeats: Annotated[int, typer.Option(help="Number of times that each prompt is decoded.")] = 1,
    max_new_tokens: Annotated[int, typer.Option(help="Number of tokens per generation.")] = 64,
    out: params.Out = Path("results"),
    fresh: params.Fresh = False,
    wait: params.Wait = False,
    break_lock: params.BreakLock = False,
) -> None:
    """Measure the forward times and acceptance rates of the models of a chain.

    Prints the forward time of each model and the mean acceptance length of each pair, as Table 1 of the Polybasic paper does,
    and whether each middle model shortens the predicted decoding time. Then compares the chains with each candidate for the
    middle model and without one, by Theorem 3.2 as printed and as corrected, and by exact theory.

    With --forwards, any pair: prints the time of a forward by the number of tokens that it reads, with a line per model.
    """
    # imports torch
    from specbench.experiment.pipeline import run
    from specbench.features.profile.pairings import levels_of, models_alone, pairings
    from specbench.resolution.selection import read_pair

    length = gamma or GAMMA
    options = shared.options(
        limit=limit,
        temperature=temperature,
        repeats=repeats,
        max_new_tokens=max_new_tokens,
        ignore_eos=True,
    )
    if not forwards:
        options = replace(options, gamma=(("", (length,)),))
    _, spec = read_pair(pair, options)
    if forwards and (method or middle or write or gamma):
        raise ConfigError("--forwards compares no chains; help: leave out --method, --middle, --gamma and --write")
    levels = [] if forwards else levels_of(method or "polybasic")
    chains = [[levels[0], model, *levels[2:]] for model in middle] if middle else [levels]
    tasks = task or list(spec.defaults.tasks[:1])
    if not tasks:
        raise ConfigError(f"pair {pair} has no default task for the prompts; help: -t TASK")
    if forwards and len(tasks) > 1:
        raise ConfigError(f"--forwards takes one task, not {', '.join(tasks)}; help: -t {tasks[0]}")
    listed = [models_alone(spec)] if forwards else [pairings(chain, spec, length) for chain in chains]
    methods = tuple(dict.fromkeys(name for names in listed for name in names))
    access = Access(fresh=fresh, wait=wait, break_lock=break_lock)
    request = Request(methods=methods, pair=pair, tasks=tuple(tasks), options=options, out=out, access=access)
    try:
        results = run(request, TerminalObserver(), profile=True)
    except KeyboardInterrupt:
        interrupted(fresh)
    console = output_console()
    for summary in results.summaries:
        if forwards:
            _print_forwards(summary, console)
        else:
            choice = _print_chains(summary, [Profile.of(summary, chain) for chain in chains], length, console)
            if write and choice:
                write.write_text(method_toml(choice[0], summary.task, summary.pair), encoding="utf-8")
                say(f"wrote {write}; next: specbench run -m {write} -p {pair} -t {tasks[0]}", console)
        print_path(summary.folder, console)


def _print_chains(summary: RunSummary, profiles: list[Profile], gamma: int, console: Console) -> list[ChainCandidate]:
    """Print the tables of the measured chains, and return the chains of three models and fewer, the fastest first."""
    for measured in profiles:
        say(f"{summary.pair}, {summary.task}: {' > '.join(measured.levels)}", console, "none")
        for table in (forwards_table, pairs_table, costs_table):
            print_table(table(measured), console)
    choice = candidates([measured for measured in profiles if len(measured.levels) == 3], gamma)
    if choice:
        print_table(candidates_table(choice), console)
        console.print(NOTE, style="dim")
    console.print(
        "Predictions: exact distributions of mean acceptance lengths at the measured acceptance rates"
        " (`theory.keeps_middle`), without the forwards in which a head catches up with its base, and without shortened"
        " drafts.", style="dim"
    )  # fmt: skip
    found = dict.fromkeys(verdict for measured in profiles for verdict in verdicts(measured))
    for verdict in found:
        console.print(verdict.details, style="dim", highlight=False)
    conclude([*([conclusion_of(choice)] if choice else []), *(verdict.text for verdict in found)], console)
    return choice


def _print_forwards(summary: RunSummary, console: Console) -> None:
    timed = timed_forwards(Path(summary.folder))
    lines = lines_of(timed)
    say(f"{summary.pair}: forwards after the first prompt of {summary.task}", console, "none")
    for table in (lines_table(lines, weights_seconds(summary)), residuals_table(timed, lines)):
        print_table(table, console)
    console.print(NOTE_ON_LINES, style="dim")
    for warning in [*slow_single_forwards(lines), *warnings_of(notes_of([summary]))]:
        say(warning, console)
    conclude(cost_sentences(lines), console)
