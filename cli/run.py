"""`specbench run`: measure methods on a pair and tasks, beside their baselines."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.errors import ConfigError

if TYPE_CHECKING:
    from specbench.options import Options
    from specbench.pair import Pair
    from specbench.task import Data, Task

SOME_FAILED = 3
INTERRUPTED = 130
PLAIN_SECONDS = 10.0  # between progress lines where there is no terminal


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Dtype(StrEnum):
    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


def run(
    method: Annotated[
        list[str] | None, typer.Option("--method", "-m", help="A method, or a TOML file; repeat for several. [se]")
    ] = None,
    pair: Annotated[str, typer.Option("--pair", "-p", help="A pair of models, or a TOML file.")] = "tiny",
    task: Annotated[
        list[str] | None, typer.Option("--task", "-t", help="A task, or a TOML file; repeat for several. [all]")
    ] = None,
    data: Annotated[str, typer.Option(help="hub, synthetic, or a JSONL file. [the pair's, else hub]")] = "",
    limit: Annotated[int | None, typer.Option("--limit", "-n", help="Only the first N samples; 0 is all.")] = None,
    gamma: Annotated[str, typer.Option(help="Draft length N, or one a model, N,N.... [by the models' sizes]")] = "",
    max_new_tokens: Annotated[int | None, typer.Option(help="Most tokens to generate. [the task's]")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Fixed length: no EOS, no stop strings.")] = False,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy. [1 for ensembles, else 0]")] = None,
    top_k: Annotated[int, typer.Option(help="Keep the k likeliest tokens; 0 is off.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep the smallest set of this mass; 1 is off.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Repeat r uses seed + r.")] = 0,
    repeats: Annotated[int, typer.Option(help="How often each prompt is decoded by each method.")] = 3,
    device: Annotated[Device, typer.Option(help="auto takes CUDA where there is one.")] = Device.auto,
    dtype: Annotated[Dtype, typer.Option(help="auto: float32 on a CPU, bfloat16 on a GPU.")] = Dtype.auto,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where run folders go.")] = Path("results"),
    set_: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="Override a key: method.target.mu=0.2, task.shots=0.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure anew what is already measured.")] = False,
) -> None:
    """Measure methods on a pair and tasks, each beside its baseline, and print the table.

    The run folder is named by everything that the numbers depend on, so the same command resumes after an interruption and
    reports when there is nothing left to do.
    """
    from specbench.options import Options, parse_override

    options = Options(
        gamma=_lengths(gamma),
        data=data,
        limit=limit,
        max_new_tokens=max_new_tokens,
        ignore_eos=ignore_eos,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        repeats=repeats,
        device=device,
        dtype=dtype,
        overrides=tuple(map(parse_override, set_ or [])),
    )
    try:
        code = _run(_words(method) or ["se"], pair, _words(task), options, out, fresh)
    except KeyboardInterrupt:
        print("interrupted; the same command resumes", file=sys.stderr)
        code = INTERRUPTED
    sys.exit(code)


def _run(names: list[str], pair_name: str, task_names: list[str], options: "Options", out: Path, fresh: bool) -> int:
    import specbench.tasks  # noqa: F401  (registers the tasks)
    from specbench import arms, models, runner, suite
    from specbench.cli.report import show, terminal
    from specbench.report.summary import SUMMARY, summarise

    found_pair, pair = suite.read_pair(pair_name, options)
    base, device = found_pair.path.parent, models.device_of(options.device)
    roles = arms.roles_of(names, pair, options)
    tasks = _tasks(task_names, pair, options)
    found = models.find(pair, roles, base, device, options.dtype)
    groups = arms.arms(names, pair, {role: each.parameters for role, each in found.items()}, options)
    loaded, failed, console = None, False, terminal()
    for task_name, task, data in tasks:
        for group in groups:
            cell = suite.cell(group, found_pair.name, found, task_name, task, data, options, str(device))
            folder = out / cell.folder
            if fresh or not runner.is_complete(cell, folder):
                if loaded is None:
                    with _status(f"loading {', '.join(roles)}"):
                        loaded = models.load(found, base, device)
                recorder = runner.prepare(cell, folder, fresh)
                with _progress(cell.folder, cell.generations, len(recorder.done)) as advance:
                    for _ in runner.measure(cell, loaded, task, data, recorder):
                        advance()
            summary = summarise(folder)
            runner.write(folder / SUMMARY, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
            show([summary], console)
            console.print(f"{folder}", style="dim", highlight=False)
            failed |= any(row["failed"] for row in summary["methods"])
    return SOME_FAILED if failed else 0


def _tasks(names: list[str], pair: "Pair", options: "Options") -> list[tuple[str, "Task", "Data"]]:
    """The tasks with their samples, all read before anything is measured. Unless named, those that the source does not suit
    are left out."""
    from specbench import presets, suite

    source, out, refused = suite.source_of(pair, options), [], []
    for name in names or presets.names("task"):
        try:
            task_name, task = suite.read_task(name, pair, options)
            out.append((task_name, task, suite.limited(task.data(source), pair, options)))
        except ConfigError as error:
            if names:
                raise
            refused.append(error)
    if not out:
        raise refused[0]
    return out


@contextmanager
def _status(text: str) -> Iterator[None]:
    """Says what is being waited for: a spinner on a terminal, else a line."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        print(text, file=sys.stderr, flush=True)
        yield
        return
    with console.status(text):
        yield


@contextmanager
def _progress(label: str, total: int, done: int) -> Iterator[Callable[[], None]]:
    """Counts finished generations: a bar on a terminal, else a line every ten seconds."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    if done:
        print(f"resuming {label}: {done} of {total} are there", file=sys.stderr)
    console = Console(stderr=True)
    if not console.is_terminal:
        last = time.monotonic()

        def line() -> None:
            nonlocal done, last
            done += 1
            if time.monotonic() - last > PLAIN_SECONDS or done == total:
                print(f"{label}: {done}/{total}", file=sys.stderr, flush=True)
                last = time.monotonic()

        yield line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        shown = bar.add_task(label, total=total, completed=done)
        yield lambda: bar.advance(shown)


def _words(values: list[str] | None) -> list[str]:
    """Repeated options and comma lists alike."""
    return [word.strip() for value in values or [] for word in value.split(",") if word.strip()]


def _lengths(text: str) -> tuple[int, ...]:
    try:
        lengths = tuple(int(word) for word in text.split(",") if word.strip())
    except ValueError:
        raise ConfigError(f"--gamma {text}: write it as N or N,N") from None
    if lengths and min(lengths) < 1:
        raise ConfigError(f"--gamma {text}: a draft length is at least 1")
    return lengths
