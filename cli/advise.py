"""`specbench advise`: whether to speculate with a pair on a task and this machine, and how."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specbench.analysis.intervals import Estimate
from specbench.cli import params
from specbench.cli.console import output_console, print_path, print_table, say
from specbench.cli.params import pair_of_models
from specbench.cli.progress import TerminalObserver, interrupted
from specbench.config.options import Access
from specbench.errors import ConfigError
from specbench.reporting.column import HUNDREDTHS, TIMES
from specbench.reporting.notes import SHARD, short_notes
from specbench.reporting.reasons import caution
from specbench.reporting.tables import Table

if TYPE_CHECKING:
    from specbench.experiment.advice import Advice, CandidateResult

MINUTE = 60.0
CANNOT_TELL = "It cannot be decided: the selected candidate,"
DIFFER = "Prediction and measurement differ by more than their intervals: a busy machine, or too few prompts."


@params.with_shared_options("sample", "ignore_eos", "over", "shard", "gamma")
def advise(
    *,
    pair: params.PairOrTiny = None,
    target: params.Target = "",
    draft: params.Draft = "",
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            "-t",
            help="The task that the prompts are from. [the pair's first task]",
            autocompletion=params.preset_names("task"),
            rich_help_panel=params.WHAT,
        ),
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
    ] = 48,
    repeats: Annotated[int, typer.Option(help="Number of times that each prompt is decoded.")] = 2,
    minutes: Annotated[
        float,
        typer.Option(
            min=0.0, help="Do not start another part if it may end after this many minutes. The first part always runs."
        ),
    ] = 10.0,
    write: Annotated[Path | None, typer.Option(help="Write the advised method to this TOML file.")] = None,
    out: params.Out = Path("results"),
    fresh: params.Fresh = False,
    wait: params.Wait = False,
    break_lock: params.BreakLock = False,
    as_json: params.Json = False,
) -> None:
    """Advise whether to speculate with a pair, on this machine and task, and how.

    Runs the target alone and each draft model at two draft lengths on a quarter of the prompts. From recorded probabilities
    and forward times, predicts the speed of other draft lengths, rejection rules, stop rules, static trees and prompt lookup.
    Measures the four with the highest prediction on other prompts, then the better two, then the winner. Speedups are of
    decoding time. The same command resumes.
    """
    from specbench.experiment.advice import AdviceRequest, advise  # imports torch
    from specbench.resolution.selection import read_pair

    name = pair_of_models(pair, draft, target) or "tiny"
    options = shared.options(limit=limit, repeats=repeats)
    _, spec = read_pair(name, options)
    tasks = [task] if task else list(spec.defaults.tasks[:1])
    if not tasks:
        raise ConfigError(f"pair {name} has no default task for the prompts; help: -t TASK")
    access = Access(fresh=fresh, wait=wait, break_lock=break_lock)
    request = AdviceRequest(pair=name, task=tasks[0], options=options, out=out, access=access, seconds=minutes * MINUTE)
    try:
        advice = advise(request, TerminalObserver())
    except KeyboardInterrupt:
        interrupted(fresh)
    if write and advice.pays:
        write.write_text(toml_of(advice.best, name, tasks[0]) + "\n", encoding="utf-8")
    if as_json:
        print(json.dumps(json_of(advice), indent=2))
        return
    console = output_console()
    print_table(candidates_table(advice), console)
    for note in conditions_of(advice):
        say(note, console)
    for line in (*deciding_numbers(advice), *answer(advice, name, tasks[0])):
        say(line, console, "none")
    if write and advice.pays:
        say(f"wrote {write}; next: specbench run -m {write} -p {name} -t {tasks[0]}", console)
    print_path(advice.final.folder, console)


def candidates_table(advice: "Advice") -> Table:
    """Return the candidates as a table, the best first."""
    rows = [
        [
            each.candidate.name, TIMES.text(each.predicted), TIMES.text(each.measured),
            str(each.parts) if each.parts else HUNDREDTHS.text(None), each.why,
        ]
        for each in advice.results
    ]  # fmt: skip
    title = f"{advice.pilot.pair}, {advice.pilot.task}: decoding speedup over the target alone"
    return Table(title, ["method", "predicted", "measured", "parts", "note"], rows)


def conditions_of(advice: "Advice") -> list[str]:
    """Return the conditions of the first part and warnings about it, and what may make the last part's speeds differ."""
    notes = [note for note in short_notes([advice.pilot]) if not note.startswith(SHARD)]
    return [*notes, *(f"! {sentence}" for sentence in caution(advice.final))]


def deciding_numbers(advice: "Advice") -> Iterator[str]:
    """Yield lines on what decides: acceptance, cost ratio, price of a block, and where speculation would break even."""
    row, even = advice.pilot_row, advice.break_even
    cost_ratio = row.number("cost_ratio")
    if row.acceptance_rate is None or cost_ratio is None:
        return
    gamma = advice.pilot.traits(row).draft_length
    block = "" if advice.block_price is None else f", and verifying {gamma} tokens {advice.block_price:.2f}"
    yield (
        f"Measured with {row.method}: acceptance {row.acceptance_rate:.2f}; relative to a token of the target, a draft token"
        f" costs {cost_ratio:.2f}{block}."
    )
    if even is None:
        return
    if even.acceptance is None:
        yield f"At these costs, no acceptance makes drafts of {even.gamma} tokens faster than the target alone."
    else:
        yield f"At these costs, drafts of {even.gamma} tokens break even at an acceptance rate of {even.acceptance:.2f}."
    if even.cost_ratio is not None:
        yield f"At this acceptance, they break even if a draft token costs {even.cost_ratio:.2f} of a token of the target."


def answer(advice: "Advice", pair: str, task: str) -> Iterator[str]:
    """Yield the advice: what to use and its TOML, the gain, and how other engines name it."""
    best, gain = advice.best, advice.gain or advice.best.measured
    name = best.candidate.name
    if gain is None:
        yield (
            f"The time limit was reached before any candidate was measured. {name} has the highest prediction,"
            f" {TIMES.text(best.predicted)}. Help: --minutes."
        )
        return
    where = "on held-out prompts" if advice.gain else "on the prompts used for selection"
    if advice.pays is None:
        yield f"{CANNOT_TELL} {name}, reaches {TIMES.text(gain)} {where}. Help: -n for more prompts."
    elif not advice.pays:
        yield f"Do not speculate here: the selected candidate, {name}, reaches {TIMES.text(gain)} {where}."
    else:
        yield f"Use {name}: {TIMES.text(gain)}, measured {where}."
    if differs(best.predicted, gain):
        yield DIFFER
    if advice.pays:
        yield toml_of(best, pair, task)
        yield from flags(best)


def differs(predicted: Estimate | None, measured: Estimate) -> bool:
    """Return whether two estimates exclude each other."""
    return predicted is not None and not predicted.overlaps(measured)


def toml_of(result: "CandidateResult", pair: str, task: str) -> str:
    """Return the method of a candidate as the text of a TOML file."""
    import tomli_w  # imported here to keep `--help` fast

    head = f"# Chosen by specbench advise on {pair}, {task}.\n"
    table = {
        "description": f"{result.candidate.name}, chosen by specbench advise",
        "baseline": "ar",
        **result.candidate.table,
    }
    return head + tomli_w.dumps(table).rstrip()


def flags(result: "CandidateResult") -> Iterator[str]:
    """Yield the options of other engines for a method that they have; speeds there are not measured here."""
    proposer = result.candidate.proposer
    if proposer["name"] == "model" and "stop" not in proposer:
        gamma, rule = proposer["gamma"], result.candidate.table.get("rejection")
        config = {"model": "DRAFT", "num_speculative_tokens": gamma} | (
            {"rejection_sample_method": "block"} if rule else {}
        )
        yield f"vLLM, not measured there: --speculative-config '{json.dumps(config)}'"
        if not rule:
            yield (
                "SGLang, not measured there: --speculative-algorithm STANDALONE --speculative-draft-model-path DRAFT"
                f" --speculative-num-steps {gamma} --speculative-eagle-topk 1 --speculative-num-draft-tokens {gamma + 1}"
            )
            yield f"llama.cpp, not measured there: --spec-draft-model DRAFT.gguf --spec-draft-n-max {gamma}"
    if proposer["name"] == "pld":
        config = {
            "method": "ngram",
            "num_speculative_tokens": proposer["gamma"],
            "prompt_lookup_max": proposer.get("ngram", 3),
        }
        yield f"vLLM, not measured there: --speculative-config '{json.dumps(config)}'"


def json_of(advice: "Advice") -> dict[str, Any]:
    """Return the advice as built-in containers."""
    best = advice.best
    return {
        "pair": advice.pilot.pair,
        "task": advice.pilot.task,
        "pays": advice.pays,
        "method": best.candidate.name,
        "table": best.candidate.table,
        "gain": asdict(advice.gain) if advice.gain else None,
        "out_of_time": advice.is_out_of_time,
        "acceptance": advice.pilot_row.acceptance_rate,
        "cost_ratio": advice.pilot_row.number("cost_ratio"),
        "block_price": advice.block_price,
        "break_even_acceptance": advice.break_even.acceptance if advice.break_even else None,
        "candidates": [
            {
                "method": each.candidate.name,
                "predicted": asdict(each.predicted) if each.predicted else None,
                "measured": asdict(each.measured) if each.measured else None,
                "parts": each.parts,
                "why": each.why,
            }
            for each in advice.results
        ],
    }
