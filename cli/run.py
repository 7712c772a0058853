"""`specbench run`: measure methods on a pair and tasks, beside their baselines."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specbench.cli.choices import Chat, Device, Dtype, Engine, Overflow, Plugins, SandboxKind, with_plugins
from specbench.cli.progress import Interrupts, progress, status
from specbench.errors import ConfigError, MissingAsset

if TYPE_CHECKING:
    from specbench.options import Options
    from specbench.pair import Pair
    from specbench.sandbox import Sandbox
    from specbench.task import Data, Task


SOME_FAILED = 3
INTERRUPTED = 130


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
    sample: Annotated[
        int, typer.Option(help="Only N samples, drawn at random, the same ones every time; overrules --limit.")
    ] = 0,
    gamma: Annotated[str, typer.Option(help="Draft length N, or one a model, N,N.... [by the models' sizes]")] = "",
    max_new_tokens: Annotated[int | None, typer.Option(help="Most tokens to generate. [the task's]")] = None,
    on_overflow: Annotated[
        Overflow | None, typer.Option(help="What becomes of a prompt that is too long. [the task's]")
    ] = None,
    chat: Annotated[Chat | None, typer.Option(help="Whether the models' chat template is used. [the task's]")] = None,
    allow_code_execution: Annotated[
        bool, typer.Option("--allow-code-execution", help="Run what models wrote, in a sandbox, to score it.")
    ] = False,
    sandbox: Annotated[
        SandboxKind, typer.Option(help="How generated code is kept in; none is no protection.")
    ] = SandboxKind.auto,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Fixed length: no EOS, no stop strings.")] = False,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy. [1 for ensembles, else 0]")] = None,
    top_k: Annotated[int, typer.Option(help="Keep the k likeliest tokens; 0 is off.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep the smallest set of this mass; 1 is off.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Repeat r uses seed + r.")] = 0,
    repeats: Annotated[int, typer.Option(help="How often each prompt is decoded by each method.")] = 3,
    device: Annotated[Device, typer.Option(help="auto takes CUDA where there is one.")] = Device.auto,
    dtype: Annotated[Dtype, typer.Option(help="auto: float32 on a CPU, bfloat16 on a GPU.")] = Dtype.auto,
    engine: Annotated[
        Engine, typer.Option(help="eager: transformers' modules; lean: ours; graph: ours, as CUDA graphs.")
    ] = Engine.auto,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where run folders go.")] = Path("results"),
    set_: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="Override a key: method.target.mu=0.2, task.shots=0.")
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over", help="Sweep a key, a variant a value: method.target.alpha=[0.1, 0.3], lossy.bonus=[...]."
        ),
    ] = None,
    head: Annotated[
        list[str] | None,
        typer.Option("--head", help="Another head than the pair's: sprinter=FOLDER, eagle@middle=FOLDER."),
    ] = None,
    plugin: Plugins = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure anew what is already measured.")] = False,
) -> None:
    """Measure methods on a pair and tasks, each beside its baseline, and print the table.

    The run folder is named by everything that the numbers depend on, so the same command resumes after an interruption and
    reports when there is nothing left to do.
    """
    from specbench.options import Options, parse_head, parse_override

    options = Options(
        gamma=_lengths(gamma),
        data=data,
        limit=limit,
        sample=sample,
        max_new_tokens=max_new_tokens,
        ignore_eos=ignore_eos,
        on_overflow=on_overflow or "",
        chat=chat or "",
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        repeats=repeats,
        device=device,
        dtype=dtype,
        engine=engine,
        overrides=tuple(map(parse_override, set_ or [])),
        over=tuple(map(parse_override, over or [])),
        heads=tuple(map(parse_head, head or [])),
        plugins=with_plugins(plugin),
    )
    kind = sandbox if allow_code_execution else None
    try:
        code = measure(_words(method) or ["se"], pair, _words(task), options, out, fresh, kind)
    except KeyboardInterrupt:
        print("interrupted; the same command resumes", file=sys.stderr)
        code = INTERRUPTED
    sys.exit(code)


def measure(
    names: list[str],
    pair_name: str,
    task_names: list[str],
    options: "Options",
    out: Path,
    fresh: bool,
    kind: SandboxKind | None,
) -> int:
    """Everything that `run` does behind its options: measured, scored and told. Returns the exit code."""
    from specbench.cli.report import overview, show, terminal

    summaries, refused = measured(names, pair_name, task_names, options, out, fresh, kind)
    console = terminal()
    if len(summaries) > 1:
        overview(summaries, console)
        console.print("more of each: specbench report FOLDER", style="dim", highlight=False)
    else:
        show(summaries, console)
    for summary in summaries:
        console.print(str(out / summary["run"]), style="dim", highlight=False)
    if refused:
        raise refused
    return SOME_FAILED if any(row["failed"] for summary in summaries for row in summary["methods"]) else 0


def measured(
    names: list[str],
    pair_name: str,
    task_names: list[str],
    options: "Options",
    out: Path,
    fresh: bool,
    kind: SandboxKind | None,
) -> tuple[list[dict[str, Any]], MissingAsset | None]:
    """The cells measured and scored, as far as they were not: their summaries, and what could not be scored for want of
    something."""
    import specbench.tasks  # noqa: F401  (registers the tasks)
    from specbench import arms, cells, models, runner, scorer
    from specbench.found import device_of, find, find_heads
    from specbench.records import write
    from specbench.report.summary import SUMMARY, summarise

    found_pair, pair = cells.read_pair(pair_name, options)
    base, device = found_pair.path.parent, device_of(options.device)
    roles = arms.roles_of(names, pair, options)
    tasks = _tasks(task_names, pair, options)
    box, refused = _sandbox(kind, [task for _, task, _ in tasks])
    found = find(pair, roles, base, device, options.dtype, options.engine)
    heads = find_heads(pair, arms.heads_of(names, pair, options), base)
    groups = arms.arms(names, pair, {role: each.parameters for role, each in found.items()}, options)
    if not task_names and len(tasks) > 1:
        wanted = sum(len(data.samples) for *_, data in tasks) * sum(map(len, groups)) * options.repeats
        print(f"{len(tasks)} tasks, {wanted} generations; -t, -n and --repeats make it fewer", file=sys.stderr)
    loaded, summaries, interrupts = None, [], Interrupts()
    for task_name, task, data in tasks:
        for group in groups:
            cell = cells.cell(group, found_pair.name, pair, found, task_name, task, data, options, str(device), heads)
            folder = out / cell.folder
            if fresh or not runner.is_complete(cell, folder):
                if loaded is None:
                    with status(f"loading {', '.join(roles)}"):
                        loaded = models.load(found, base, device, heads)
                recorder = runner.prepare(cell, folder, fresh)
                with progress(cell.folder, cell.generations, len(recorder.done)) as advance:
                    for _ in runner.measure(cell, loaded, task, data, recorder):
                        advance()
                        interrupts.check()
            if not scorer.is_scored(folder, task, box):
                try:
                    with progress(f"scoring {cell.folder}", cell.generations) as advance:
                        scorer.score(folder, task, data, box, advance)
                except MissingAsset as error:  # the other tasks are still to be measured
                    refused = error
            summaries.append(summarise(folder))
            write(folder / SUMMARY, json.dumps(summaries[-1], indent=2, ensure_ascii=False) + "\n")
    return summaries, refused


def _sandbox(kind: SandboxKind | None, tasks: list["Task"]) -> tuple["Sandbox | None", MissingAsset | None]:
    """What generated code is run in, where a task needs it and the user allows it.

    Where none works, a run of that task alone is refused at once; among others it is measured, and refused at the end.
    """
    from specbench.sandbox import Sandbox

    if kind is None or not any(task.executes_code for task in tasks):
        return None, None
    try:
        return Sandbox.find(kind.value), None
    except MissingAsset as error:
        if len(tasks) == 1:
            raise
        return None, error


def _tasks(names: list[str], pair: "Pair", options: "Options") -> list[tuple[str, "Task", "Data"]]:
    """The tasks with their samples, all read before anything is measured. Unless named, those that the source does not suit
    are left out."""
    from specbench import cells, presets

    source, out, refused = cells.source_of(pair, options), [], []
    suited = pair.defaults.tasks if cells.suits(pair, options) else ()
    for name in names or suited or presets.names("task", variants=False):
        try:
            task_name, task = cells.read_task(name, pair, options)
            out.append((task_name, task, cells.limited(task.data(source), pair, options)))
        except ConfigError as error:
            if names or suited:
                raise
            refused.append(error)
    if not out:
        raise refused[0]
    return out


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
