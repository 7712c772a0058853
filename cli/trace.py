"""`specbench trace`: one prompt decoded, round by round, each token shown by where it came from."""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

import specbench.tasks  # noqa: F401  (registers the tasks)
from specbench.analysis.token_origin import MEANING, of_round
from specbench.cli import params as choices
from specbench.cli.arguments import options_of
from specbench.cli.params import known
from specbench.cli.progress import status
from specbench.config.options import Options
from specbench.config.presets import require_known
from specbench.data.prompting import encode, pieces
from specbench.data.task import Data, Sample
from specbench.errors import ConfigError
from specbench.report.trace import Line, closing, lines, plain, visible
from specbench.runs.record import Record, Round

if TYPE_CHECKING:
    from specbench.decoding.round import Step
    from specbench.experiment.plan import Bench, Job

STYLES = {"a": "green", "d": "cyan", "r": "bold yellow", "b": "bold blue", "m": "", "x": "red strike"}  # by origin


def trace(
    prompt: Annotated[str | None, typer.Argument(help="What to continue; else a sample of --task.")] = None,
    method: choices.Method = "se",
    pair: choices.Pair = "tiny",
    task: Annotated[
        str | None, typer.Option("--task", "-t", help="A task, or a TOML file.", autocompletion=known("task"))
    ] = None,
    index: Annotated[int, typer.Option("--sample-index", min=0, help="Which sample of the task, from 0.")] = 0,
    data: choices.Data = "",
    gamma: choices.Gamma = "",
    max_new_tokens: choices.MaxNewTokens = None,
    temperature: choices.Temperature = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same tokens.")] = 0,
    device: choices.OnDevice = choices.Device.auto,
    dtype: choices.InDtype = choices.Dtype.auto,
    engine: choices.ByEngine = choices.Engine.auto,
    set_: choices.Sets = None,
    head: choices.Heads = None,
    plugin: choices.Plugins = None,
    as_json: choices.Json = False,
) -> None:
    """Decode one prompt and show the origin of each token.

    Round by round: what was drafted, kept, refused and replaced, and which model drafted it.

    Coloured on a terminal; elsewhere, or with NO_COLOR, a letter before each run of tokens says where they came from.
    """
    if (prompt is None) == (task is None):
        raise ConfigError(
            "name one of the two: a prompt, or a task whose sample is decoded (-t gsm8k --sample-index 3)"
        )
    if data and prompt is not None:
        raise ConfigError("--data is where a --task's samples are from, and a prompt was given")
    options = options_of(
        gamma=gamma, set_=set_, head=head, plugin=plugin, data=data, limit=index + 1, max_new_tokens=max_new_tokens,
        temperature=temperature, seed=seed, device=device, dtype=dtype, engine=engine,
    )  # fmt: skip
    require_known([method], pair, [task] if task else [])
    bench, job = _settled(method, pair, task, prompt, index, options)
    record, rounds = _decoded(bench, job)
    told = {
        "method": record.method,
        "pair": job.cell.pair,
        "temperature": job.cell.arms[-1].temperature,
        "seed": record.seed,
    }
    if as_json:
        spent = {"forwards": {name: calls["forwards"] for name, calls in record.models.items()}}
        ended = {"prompt_tokens": record.prompt_tokens, "tokens": record.tokens, "finish": record.finish}
        print(json.dumps({**told, **ended, **spent, "text": record.text, "rounds": rounds}, indent=2))
        return
    _show(told, record, rounds)


def _settled(
    method: str, pair_name: str, task_name: str | None, prompt: str | None, index: int, options: Options
) -> tuple["Bench", "Job"]:
    """The method and one prompt as a cell of one sample, on a bench whose models are loaded."""
    from specbench.experiment import plan as bench  # imports torch
    from specbench.experiment import run_spec as cells

    found, pair = cells.read_pair(pair_name, options)
    if prompt is None:
        ((name, task, data),) = bench.tasks_of([task_name or ""], pair, options)
        samples = [sample for sample in data.samples if not sample.after][index:]
        if not samples:
            raise ConfigError(f"--sample-index {index}: {name} has {len(data.samples)} samples here")
    else:
        name, task = cells.read_task("prompts", pair, options)
        samples = [Sample("0", prompt)]
        data = Data(samples, "command line", None, hashlib.sha256(prompt.encode()).hexdigest(), 1)
    asked = [(name, task, Data(samples[:1], data.source, data.revision, data.sha256, data.total))]
    made = bench.settle([method], found.name, lambda: asked, pair, found.path.parent, options, Path())
    with status(f"loading {', '.join(made.roles)}"):
        made.load()
    return made, made.jobs[0]


def _decoded(bench: "Bench", job: "Job") -> tuple[Record, list[dict[str, Any]]]:
    """What the method generated, and its rounds with their tokens' text. Raises ConfigError where the prompt does not fit."""
    from specbench.experiment import runner  # imports torch

    cell, task, sample = job.cell, job.task, job.data.samples[0]
    pair, decoding = bench.load().only(cell.roles, cell.spread), cell.config["decoding"]
    record = Record(method=cell.arms[-1].name, sample=sample.id, repeat=0, seed=decoding["seed"], order=0)
    try:
        prompt = encode(pair.tokenizer, task, sample, [], pair.window).ids
        arm = runner.piloted(cell.arms[-1], pair, task, [sample], decoding)
        pair.prepare(len(prompt) + decoding["max_new_tokens"], arm.method.most_fed)
        out = runner.generate(record, arm, pair, task, sample, [], decoding)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    rounds, before = [], [] if pair.encoder_decoder else prompt
    for told, step in zip(record.rounds, out.rounds, strict=bool(record.rounds)):
        rounds.append(_spelled(told, step, before, pair.tokenizer))
        before = before + step.tokens
    return record, rounds


def _spelled(told: Round, step: "Step", before: list[int], tokenizer: Any) -> dict[str, Any]:
    """A round as it is recorded, with what its tokens, and those of the rounds that made its draft, are and whence."""
    spelled = {**told, "origins": of_round(told), "ids": step.tokens, "refused": tokenizer.decode(step.refused)}
    spelled["pieces"] = pieces(tokenizer, before, step.tokens, encoder_decoder=False)
    inner = []
    for each, made in zip(told.get("inner", []), step.inner, strict=True):
        inner.append(_spelled(each, made, before, tokenizer))
        before = before + made.tokens
    return {**spelled, "inner": inner}


def _show(told: dict[str, Any], record: Record, rounds: list[dict[str, Any]]) -> None:
    """A legend, the rounds, what they came to, and the text whole."""
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    coloured = console.is_terminal and not console.no_color
    console.print(visible("{method} on {pair}, T = {temperature:g}, seed {seed}".format(**told)))
    shown = list(lines(rounds))
    used = {origin for line in shown for origin, _ in line.spans}
    if not shown:
        console.print("nothing was drafted: each token is a model's own")
    elif coloured:
        _print_colours(console, shown, {origin: MEANING[origin] for origin in MEANING if origin in used})
    else:
        console.print("; ".join(f"{origin}: {MEANING[origin]}" for origin in MEANING if origin in used))
        for line in shown:
            console.print(plain(line))
    for words in closing(record):
        console.print(words)
    console.print()
    console.print(visible(record.text, kept="\n\t"))


def _print_colours(console: Any, shown: list[Line], legend: dict[str, str]) -> None:
    told = [Text(meaning, STYLES[origin]) for origin, meaning in legend.items()]
    console.print(Text("; ").join(told))
    for label, spans in shown:
        tokens = [(token, STYLES[origin]) for origin, tokens in spans for token in tokens]
        drawn = Text().append(f"{label}  ", "dim")
        for number, each in enumerate(tokens):
            drawn.append("|" if number else "", "dim").append(*each)
        console.print(drawn)
