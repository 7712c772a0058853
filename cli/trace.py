"""`specbench trace`: decode one prompt and print its rounds, with the origin of each token."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.console import Console
from rich.text import Text

from specbench.analysis.acceptance import ORIGINS, TracedRound, acceptance_rate, accepted_length
from specbench.analysis.metric import metric_of
from specbench.cli import params
from specbench.cli.console import TerminalObserver
from specbench.config.presets import require_presets
from specbench.errors import ConfigError
from specbench.runs.record import Record

if TYPE_CHECKING:
    from specbench.experiment.generation import Trace

STYLES = {"a": "green", "d": "cyan", "r": "bold yellow", "b": "bold blue", "m": "", "x": "red strike"}  # by origin
INDENT = "    "
Span = tuple[str, list[str]]  # a letter of ORIGINS, and neighboring tokens of that origin


class TraceLine(NamedTuple):
    """One round: its number and counts, and its tokens. Nested rounds are indented."""

    label: str
    spans: list[Span]


@params.with_shared_options("limit", "sample", "repeats", "over", "shard")
def trace(
    *,
    prompt: Annotated[str | None, typer.Argument(help="The prompt; without it, a sample of --task.")] = None,
    method: params.MethodOrDefault = None,
    pair: params.PairOrTiny = None,
    draft: params.Draft = "",
    target: params.Target = "",
    task: Annotated[str | None, params.preset_option("task", "A task, or a TOML file.", None)] = None,
    index: Annotated[int, typer.Option("--sample-index", min=0, help="Index of the sample of the task, from 0.")] = 0,
    shared: params.SharedOptions,
    seed: Annotated[int, typer.Option(help="The same seed gives the same tokens.")] = 0,
    as_json: params.Json = False,
) -> None:
    """Decode one prompt and show the origin of each token.

    Each line is a round: the drafting models, the numbers of drafted, tested and accepted tokens, and the tokens.

    Origins are colors on a terminal. Otherwise, or with NO_COLOR, a letter before each group of tokens gives their origin.
    """
    if (prompt is None) == (task is None):
        raise ConfigError("give either a prompt, or a task and a sample of it; help: -t gsm8k --sample-index 3")
    if shared["data"] and prompt is not None:
        raise ConfigError("--data has no effect on a prompt; help: leave it out, or name a --task")
    options = shared.options(limit=index + 1, seed=seed)
    pair = params.pair_of_models(pair, draft, target) or "tiny"
    require_presets([method] if method else [], pair, [task] if task else [])
    # imports torch, after names are checked
    from specbench.experiment.generation import TraceRequest, trace_prompt

    request = TraceRequest(method=method or "", pair=pair, prompt=prompt, task=task or "", index=index, options=options)
    traced = trace_prompt(request, TerminalObserver())
    record = traced.record
    about = {"method": record.method, "pair": traced.pair, "temperature": traced.temperature, "seed": record.seed}
    if as_json:
        forwards = {"forwards": {name: usage.forwards for name, usage in record.models.items()}}
        rounds = [round_.to_json() for round_ in traced.rounds]
        outcome = {"prompt_tokens": record.prompt_tokens, "tokens": record.tokens, "finish": record.finish}
        print(json.dumps({**about, **outcome, **forwards, "text": record.text, "rounds": rounds}, indent=2))
        return
    _show(traced)


def _show(traced: "Trace") -> None:
    """Print a legend, the rounds, their totals, and the whole text."""
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    colored = console.is_terminal and not console.no_color
    record = traced.record
    console.print(visible(f"{record.method} on {traced.pair}, T = {traced.temperature:g}, seed {record.seed}"))
    shown = list(lines(traced.rounds))
    used = {origin for line in shown for origin, _ in line.spans}
    if not shown:
        console.print("nothing was drafted: every token was sampled from a model")
    elif colored:
        _print_colored(console, shown, {origin: ORIGINS[origin] for origin in ORIGINS if origin in used})
    else:
        console.print("; ".join(f"{origin}: {ORIGINS[origin]}" for origin in ORIGINS if origin in used))
        for line in shown:
            console.print(plain(line))
    for words in closing(record):
        console.print(words)
    console.print()
    console.print(visible(record.text, allowed="\n\t"))


def _print_colored(console: Console, shown: list[TraceLine], legend: dict[str, str]) -> None:
    """Print a legend and the rounds, with the tokens colored by origin."""
    entries = [Text(meaning, STYLES[origin]) for origin, meaning in legend.items()]
    console.print(Text("; ").join(entries))
    for label, spans in shown:
        tokens = [(token, STYLES[origin]) for origin, tokens in spans for token in tokens]
        drawn = Text().append(f"{label}  ", "dim")
        for number, styled in enumerate(tokens):
            drawn.append("|" if number else "", "dim").append(*styled)
        console.print(drawn)


def lines(rounds: Sequence[TracedRound], depth: int = 0, above: str = "") -> Iterator[TraceLine]:
    """Yield a line for each round, followed by the lines of the rounds that made its draft."""
    width = len(str(len(rounds)))
    for number, round_ in enumerate(rounds, 1):
        position = f"{above}{number:>{0 if above else width}}"
        yield TraceLine(f"{INDENT * depth}{position}  {counts(round_)}", spans(round_))
        yield from lines(round_.inner, depth + 1, f"{position.strip()}.")


def counts(traced: TracedRound) -> str:
    """Return the models that drafted, and the numbers of drafted, tested, accepted and untested tokens."""
    record, tally = traced.record, Counter[str](traced.record.proposers)
    drafters = ", ".join(f"{name} {count}" if len(tally) > 1 else name for name, count in tally.items())
    words = f"{record.drafted} drafted, {record.tested} tested, {record.accepted} accepted"
    untested = f", {record.untested} untested" if record.untested else ""
    return f"{drafters}: {words}{untested}" if drafters else f"{words}{untested}"


def spans(traced: TracedRound) -> list[Span]:
    """Return the tokens of a round, grouped by origin. Rejected drafts precede the tokens that replaced them."""
    out: list[Span] = []
    drafted = traced.record.untested + traced.record.accepted
    rejected = [("x", visible(traced.rejected))] if traced.rejected else []
    shown = [
        (origin, visible(piece) or f"<{id_}>")  # of special tokens and parts of characters
        for origin, piece, id_ in zip(traced.origins, traced.pieces, traced.ids, strict=True)
    ]
    for origin, text in shown[:drafted] + rejected + shown[drafted:]:
        if out and out[-1][0] == origin:
            out[-1][1].append(text)
        else:
            out.append((origin, [text]))
    return out


def plain(line: TraceLine) -> str:
    """Return a line without colors, with a letter before the tokens of each origin: `a[ the| cat] x[ sat] r[ ran]`."""
    parts = [f"{origin}[{'|'.join(tokens)}]" for origin, tokens in line.spans]
    return f"{line.label}  {' '.join(parts)}"


def closing(record: Record) -> list[str]:
    """Return the totals of a generation: tokens, rounds, mean acceptance length, acceptance rate, and forwards by model."""
    rounds = len(record.rounds) or len(record.tokens)
    rate = acceptance_rate([record])
    acceptance = "" if rate is None else f", acceptance rate {metric_of('acceptance_rate').format.text(rate)}"
    forwards = ", ".join(f"{name} {usage.forwards}" for name, usage in record.models.items())
    ended = f"{record.finish} of '{record.window_of}'" if record.window_of else record.finish
    length = f"mean acceptance length {metric_of('accepted_length').format.text(accepted_length([record]))}"
    return [
        f"{len(record.tokens)} tokens, {rounds} rounds, {length}{acceptance}, ended by {ended}",
        f"forwards: {forwards}",
    ]


def visible(text: str, allowed: str = "") -> str:
    """Return the text on one line with control characters escaped, except those in `allowed`."""
    return "".join(c if c.isprintable() or c in allowed else c.encode("unicode_escape").decode() for c in text)
