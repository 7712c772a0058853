"""`specbench advise`: whether to speculate with a pair on a task and this machine, and how."""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli import params
from specbench.cli.console import TerminalObserver, output_console, print_path, print_table, say
from specbench.cli.interrupts import interrupted
from specbench.cli.params import pair_of_models
from specbench.config.request import Access, request_of
from specbench.errors import ConfigError
from specbench.features.advise import MINUTES, PROMPTS, default_repeats
from specbench.vocabulary import SandboxKind

if TYPE_CHECKING:
    from specbench.features.advise.candidates import Advice

POINT = 0.01


@params.with_shared_options("sample", "ignore_eos", "over", "shard", "gamma", "sampling")
def advise(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RUN]",
            help="A run folder with the target alone and a draft model: predict other methods from it, and decode nothing.",
            show_default=False,
        ),
    ] = None,
    *,
    pair: params.PairOrTiny = None,
    target: params.Target = "",
    draft: params.Draft = "",
    task: Annotated[
        list[str] | None, params.preset_option("task", "The task that the prompts are from. [the pair's first task]")
    ] = None,
    shared: params.SharedOptions,
    limit: Annotated[
        int,
        typer.Option(
            "--limit",
            "-n",
            min=10,
            help="Number of prompts: a quarter to measure costs, half for the final measurement.",
        ),
    ] = PROMPTS,
    repeats: Annotated[
        int | None,
        typer.Option(min=1, help="Number of times that each prompt is decoded. [2; above temperature 0, 4]"),
    ] = None,
    minutes: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Time limit: fewer prompts and shorter outputs are measured if all parts would take longer, and no part is"
            " started that may end later. The first part always runs.",
        ),
    ] = MINUTES,
    max_drop: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=100.0,
            help="Compare methods that are not lossless too, and advise one if the score drops by at most this many points"
            " out of 100.",
            show_default=False,
        ),
    ] = None,
    allow_code_execution: params.CodeExecution = False,
    sandbox: params.SandboxOption = SandboxKind.auto,
    head: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=FOLDER replaces a head of the pair; a folder or hub id alone is compared with the pair's heads. Repeat"
            " for several.",
        ),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            help="With RUN: predict the speed of a drafter with this acceptance at the costs of RUN."
            " A speculation_profile.json, a saved /metrics page, a run or a result of `server run`.",
            show_default=False,
        ),
    ] = None,
    write: Annotated[Path | None, typer.Option(help="Write the advised method to this TOML file.")] = None,
    out: params.Out = Path("results"),
    fresh: params.Fresh = False,
    wait: params.Wait = False,
    break_lock: params.BreakLock = False,
    as_json: params.Json = False,
) -> None:
    """Advise whether to speculate with a pair, on this machine and task, and how.

    Runs the target alone and each draft model at two draft lengths on a quarter of the prompts. From recorded probabilities
    and forward times, predicts the speed of other draft lengths, rejection rules, stop rules, static trees, EAGLE heads,
    chains and prompt lookup. Measures the four with the highest prediction on other prompts, then the better two, then the
    winner. Speedups are of decoding time. The same command resumes.
    """
    from specbench.features.advise.advice_runs import AdviceRequest  # imports torch
    from specbench.features.advise.advising import advise, advise_on
    from specbench.features.advise.named_heads import with_heads

    observer = TerminalObserver()
    if write is not None and not write.parent.is_dir():
        raise ConfigError(f"--write {write}: no folder {write.parent}")
    named, compared_heads = (
        [word for word in head or [] if "=" in word],
        [word for word in head or [] if "=" not in word],
    )
    options = shared.options(limit=limit, repeats=repeats or default_repeats(shared["temperature"]), head=named)
    try:
        if run is not None:
            given = limit != PROMPTS or repeats or shared.arguments() or fresh or head or max_drop is not None
            if pair or target or draft or task or given:
                raise ConfigError(
                    "advise takes a run folder, or a pair and its options with -p; with RUN, only --profile, --write and"
                    " --json"
                )
            if profile is not None:
                if write is not None:
                    raise ConfigError("--profile has no method to --write: the profile's drafter is not here")
                _show_profile(run, profile, as_json)
                return
            advice, command = advise_on(run, observer), []
        else:
            if profile is not None:
                raise ConfigError("--profile needs the costs of a run; help: specbench advise RUN --profile FILE")
            compared = with_heads(options, compared_heads) if compared_heads else options
            whole = request_of(
                pair=pair_of_models(pair, draft, target) or "", tasks=task or (), options=compared, out=out,
                access=Access(fresh=fresh, wait=wait, break_lock=break_lock),
                sandbox=sandbox if allow_code_execution else None,
            )  # fmt: skip
            request = AdviceRequest.of(whole, minutes, None if max_drop is None else max_drop * POINT)
            advice = advise(request, observer)
            models = ["--target", target, *(["--draft", draft] if draft else [])] if target else ["-p", request.pair]
            added = compared.heads[len(options.heads) :]
            named = [word for name, path in added for word in ("--head", f"{name}={path}")]
            command = [*models, "-t", request.task, *shared.arguments(), *named]
    except KeyboardInterrupt:
        interrupted(fresh)
    _show(advice, write, command, as_json)


def _show_profile(run: Path, path: Path, as_json: bool) -> None:
    """Print the predicted speeds of the drafts of a profile at the costs of a run."""
    from specbench.features.advise.profile_advice import advise_on_profile, lengths_table, profile_answer, profile_row
    from specbench.features.exchange.profile_sources import profiles_of

    for profile in profiles_of(path):
        advice = advise_on_profile(run, profile)
        if as_json:
            print(json.dumps(profile_row(advice), indent=2))
            continue
        console = output_console()
        print_table(lengths_table(advice), console)
        say(profile_answer(advice), console, "none")


def _show(advice: "Advice", path: Path | None, command: list[str], as_json: bool) -> None:
    """Print advice, and write its method to a TOML file if it may be used. `command` are the words that `run` takes."""
    from specbench.features.advise.answer import (
        advice_row,
        answer,
        candidates_table,
        conditions_of,
        deciding_numbers,
        toml_of,
    )

    writes = path is not None and advice.is_usable
    if path is not None and writes:
        path.write_text(toml_of(advice) + "\n", encoding="utf-8")
    if as_json:
        print(json.dumps(advice_row(advice), indent=2))
        return
    console = output_console()
    print_table(candidates_table(advice), console)
    for note in conditions_of(advice):
        say(note, console)
    for line in (*deciding_numbers(advice), *answer(advice)):
        say(line, console, "none")
    if path is not None and not writes:
        say(f"not written: {path}, since no method is advised", console)
    elif path is not None:
        words = shlex.join(["specbench", "run", "-m", str(path), *command])
        say(f"wrote {path}" + (f"; next: {words}" if command else ""), console)
    print_path(advice.final.folder, console)
