"""`specbench trace`: one prompt decoded, round by round, each token shown by where it came from."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specbench.cli import params as choices
from specbench.cli.arguments import options_of
from specbench.cli.params import known
from specbench.cli.progress import Terminal
from specbench.config.presets import require_known
from specbench.errors import ConfigError

if TYPE_CHECKING:
    from specbench.experiment.prompt_trace import Trace
    from specbench.report.trace import Line

STYLES = {"a": "green", "d": "cyan", "r": "bold yellow", "b": "bold blue", "m": "", "x": "red strike"}  # by origin


def trace(
    prompt: Annotated[str | None, typer.Argument(help="What to continue; else a sample of --task.")] = None,
    method: choices.Method = "se",
    pair: choices.Pair = "tiny",
    task: Annotated[
        str | None, typer.Option("--task", "-t", help="A task, or a TOML file.", autocompletion=known("task"))
    ] = None,
    index: Annotated[int, typer.Option("--sample-index", min=0, help="Which sample of the task, from 0.")] = 0,
    data: choices.Data = None,
    gamma: choices.Gamma = None,
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
    """Decode one prompt, and show what became of each drafted token.

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
    from specbench.experiment.prompt_trace import TraceRequest, trace_prompt

    request = TraceRequest(method=method, pair=pair, prompt=prompt, task=task or "", index=index, options=options)
    traced = trace_prompt(request, Terminal())
    record = traced.record
    about = {"method": record.method, "pair": traced.pair, "temperature": traced.temperature, "seed": record.seed}
    if as_json:
        spent = {"forwards": {name: usage["forwards"] for name, usage in record.models.items()}}
        ended = {"prompt_tokens": record.prompt_tokens, "tokens": record.tokens, "finish": record.finish}
        print(json.dumps({**about, **ended, **spent, "text": record.text, "rounds": traced.rounds}, indent=2))
        return
    _show(traced)


def _show(traced: "Trace") -> None:
    """Print a legend, the rounds, their totals, and the whole text."""
    from rich.console import Console

    from specbench.analysis.token_origin import MEANING
    from specbench.report.trace import closing, lines, plain, visible

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    coloured = console.is_terminal and not console.no_color
    record = traced.record
    console.print(visible(f"{record.method} on {traced.pair}, T = {traced.temperature:g}, seed {record.seed}"))
    shown = list(lines(traced.rounds))
    used = {origin for line in shown for origin, _ in line.spans}
    if not shown:
        console.print("nothing was drafted: every token comes from a model directly")
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


def _print_colours(console: Any, shown: list["Line"], legend: dict[str, str]) -> None:
    from rich.text import Text

    told = [Text(meaning, STYLES[origin]) for origin, meaning in legend.items()]
    console.print(Text("; ").join(told))
    for label, spans in shown:
        tokens = [(token, STYLES[origin]) for origin, tokens in spans for token in tokens]
        drawn = Text().append(f"{label}  ", "dim")
        for number, each in enumerate(tokens):
            drawn.append("|" if number else "", "dim").append(*each)
        console.print(drawn)
