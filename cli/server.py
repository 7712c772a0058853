"""`specbench server`: model servers, whether their speculation is exact, and whether it pays (docs/servers.md)."""

import asyncio
import dataclasses
import json
import sys
from collections.abc import Coroutine
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich import box
from rich.table import Table

import specbench.tasks  # noqa: F401  (registers the tasks)
from specbench.cli import params
from specbench.cli.app import STYLE, PanelCommand, wrapped
from specbench.cli.console import TerminalObserver, output_console, print_path, print_table, printable, say
from specbench.cli.interrupts import interrupted
from specbench.cli.params import SharedOptions, words
from specbench.config.presets import require_presets
from specbench.errors import ConfigError, ExitCode
from specbench.http_client import KEY, Server

if TYPE_CHECKING:
    from specbench.features.servers.exactness.stored_verdict import ServerVerification
    from specbench.features.servers.load.server_run import ServerRun
    from specbench.features.servers.prompts import PromptSource
    from specbench.features.servers.request_key import PromptKind
    from specbench.features.servers.served import ServedSampling

server = typer.Typer(
    name="server", no_args_is_help=True, help="Verify and measure model servers with speculative decoding.", **STYLE
)
TASK = "gsm8k"
T = TypeVar("T")


class ReferenceDtype(StrEnum):
    """The dtypes of the reference forward."""

    float32 = "float32"
    float64 = "float64"


On = Annotated[str, typer.Option("--on", help="URL of the server to test, such as http://localhost:8000.")]
Off = Annotated[str, typer.Option("--off", help="URL of a server of the same model without speculation.")]
ServedModel = Annotated[str, typer.Option("--model", help="The model's name on the server, if it serves several.")]
KeyEnv = Annotated[str, typer.Option("--key-env", help="Environment variable with the server's key.")]
Timeout = Annotated[float, typer.Option(min=0.1, help="Longest duration of one request, in seconds.")]
Task = Annotated[
    list[str] | None, params.preset_option("task", f"A task, or a TOML file; repeat for several. [{TASK}]")
]
Data = Annotated[list[str] | None, typer.Option("--data", help="Data of the tasks: hub, synthetic, or a file.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder of logs and verdicts.")]
Page = Annotated[Path | None, typer.Option("--page", help="Also write a Markdown page to this file.")]


@server.command(cls=PanelCommand)
def describe(
    url: Annotated[str, typer.Argument(help="URL of a server.")],
    model: ServedModel = "",
    key_env: KeyEnv = KEY,
    timeout: Timeout = 60.0,
    json_: params.Json = False,
) -> None:
    """Show what a server says about itself: backend, version, model, context, sampling defaults, speculation."""
    from specbench.features.servers.endpoint import connected  # imports aiohttp
    from specbench.features.servers.readiness import Patience

    async def described() -> dict[str, Any]:
        address = _server(url, key_env, timeout)
        patience = Patience(seconds=timeout, observer=TerminalObserver())
        async with connected(address, model, patience=patience) as endpoint:
            return {**dataclasses.asdict(endpoint.description), "backend_tested_on": endpoint.backend.tested_on}

    table = asyncio.run(described())
    if json_:
        print(json.dumps(table, indent=2))
        return
    drawn = Table(box=box.SIMPLE_HEAD, show_header=False)
    for key, value in table.items():
        if value not in ("", None, {}):
            drawn.add_row(key.replace("_", " "), printable(_words(value)))
    output_console().print(drawn, markup=False)


@server.command(cls=PanelCommand)
def verify(
    on: On,
    weights: Annotated[
        str, typer.Option("--weights", help="The served model, a folder or a hub id, for the reference forward.")
    ] = "",
    off: Off = "",
    draft: Annotated[
        str, typer.Option("--draft", help="The drafting model, for one more test: folder or hub id.")
    ] = "",
    model: ServedModel = "",
    task: Task = None,
    data: Data = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Number of prompts.")] = 16,
    outputs: Annotated[int, typer.Option(min=1, help="Number of outputs of each kind of sampled requests.")] = 64,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of tokens per output.")] = 32,
    max_prompt_tokens: Annotated[
        int, typer.Option(min=2, help="Longer prompts are truncated to their last N tokens.")
    ] = 160,
    temperature: Annotated[
        list[str] | None, typer.Option("--temperature", "-T", help="Temperatures. [0, 1, and 0.7 with top-p 0.95]")
    ] = None,
    top_p: Annotated[float, typer.Option(help="Top-p of the temperatures above 0.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Top-k of the temperatures above 0; 0: off.")] = 0,
    min_p: Annotated[float, typer.Option(help="Min-p of the temperatures above 0.")] = 0.0,
    concurrency: Annotated[
        list[str] | None, typer.Option("--concurrency", "-c", help="Requests in flight. [1, 8]")
    ] = None,
    seeds: Annotated[bool, typer.Option("--seeds/--no-seeds", help="Test requests with seeds too.")] = True,
    prompts: Annotated[
        list[str] | None, typer.Option("--prompts", help="Kinds of prompts: raw, cached, chat. [all]")
    ] = None,
    dtype: Annotated[ReferenceDtype, typer.Option(help="Dtype of the reference forward.")] = ReferenceDtype.float32,
    seed: Annotated[int, typer.Option(help="Base seed of requests and of where prompts are cut.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of the reference forward.")] = 1,
    key_env: KeyEnv = KEY,
    timeout: Timeout = 600.0,
    out: Out = Path("results/servers"),
    page: Page = None,
    plugin: params.Plugins = None,
    json_: params.Json = False,
) -> None:
    """Test whether the outputs of a server follow its model, with speculation on.

    Greedy tokens must be the most likely ones of the reference, except for near-ties. Sampled tokens must follow its
    distribution, by martingale tests with a false alarm rate of 1 in 1000 that also have to reject a control. The first token
    of an output is never drafted, so it separates faults of speculation from faults of the model or the sampler.

    The same command resumes. Exit code 5 if outputs differ, 6 if nothing was decided.
    """
    params.import_plugins(plugin)
    require_presets([], "tiny", words(task))
    if not weights and not off:
        raise ConfigError("a reference is missing; help: --weights FOLDER of the served model, or --off URL")
    from specbench.features.servers.exactness.server_verification import verify_server
    from specbench.features.servers.exactness.verify_request import ServerVerifyRequest

    samplings = _samplings(words(temperature), top_p, top_k, min_p)
    concurrencies = _numbers(words(concurrency) or ["1", "8"], "--concurrency")
    kinds = _kinds(words(prompts))
    source = _source(task, data, limit, plugin)
    request = ServerVerifyRequest(
        on=_server(on, key_env, timeout),
        weights=weights,
        off=_server(off, key_env, timeout) if off else None,
        model=model,
        draft=draft,
        dtype=dtype.value,
        prompts=source.read(),
        source=source,
        samplings=samplings,
        concurrencies=concurrencies,
        seeds=seeds,
        kinds=kinds,
        outputs=outputs,
        max_tokens=max_new_tokens,
        max_prompt_tokens=max_prompt_tokens,
        seed=seed,
        threads=threads,
    )
    found, folder = _until_interrupted(verify_server(request, out, TerminalObserver()))
    _show(found, folder, json_, page, key_env)
    sys.exit(found.outcome.exit_code)


@server.command(cls=PanelCommand)
def run(
    on: Annotated[str, typer.Option("--on", help="URL of the server with speculation.")] = "",
    off: Off = "",
    start: Annotated[
        Path | None,
        typer.Option(
            "--start", help="Instead of URLs: a TOML file with commands that start the servers, one at a time."
        ),
    ] = None,
    model: ServedModel = "",
    task: Task = None,
    data: Data = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Number of prompts.")] = 32,
    concurrency: Annotated[
        list[str] | None,
        typer.Option("--concurrency", "-c", help="Requests in flight, one level after the other. [1,4,16]"),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of tokens per output.")] = 64,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Outputs of exactly --max-new-tokens tokens; they are not scored.")
    ] = False,
    chat: Annotated[bool, typer.Option("--chat", help="Send prompts as chats, which the server renders.")] = False,
    temperature: Annotated[float, typer.Option("--temperature", "-T", min=0.0, help="Temperature.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Top-p.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Top-k; 0: off.")] = 0,
    min_p: Annotated[float, typer.Option(help="Min-p.")] = 0.0,
    seconds: Annotated[float, typer.Option(min=0.1, help="Measured window of a block, in seconds.")] = 5.0,
    ramp: Annotated[float, typer.Option(min=0.0, help="Seconds before the window, which are not measured.")] = 1.0,
    together: Annotated[
        bool, typer.Option("--together", help="Measure both servers at the same time: each on a machine of its own.")
    ] = False,
    pairs: Annotated[
        int, typer.Option(min=0, help="Pairs of blocks per level. 0: 6, then as many as +- 5 % needs, up to 24.")
    ] = 0,
    aa_pairs: Annotated[
        int, typer.Option(min=0, help="A/A test: pairs of two blocks of the server without speculation, per level.")
    ] = 6,
    seed: Annotated[int, typer.Option(help="Base seed of sampled requests.")] = 0,
    key_env: KeyEnv = KEY,
    timeout: Timeout = 600.0,
    out: Out = Path("results/servers"),
    page: Page = None,
    plots: Annotated[
        Path | None, typer.Option("--plots", help="Write a plot of the predictions to this folder.")
    ] = None,
    plot_format: params.PlotFormats = None,
    plugin: params.Plugins = None,
    json_: params.Json = False,
) -> None:
    """Measure whether speculation pays under load: two servers in alternating blocks, with intervals.

    Each block keeps a number of requests in flight. Speedups are ratios of neighbouring blocks, so that slow changes of the
    machine cancel. Pairs of two blocks without speculation show the noise. Without --together, the servers are not measured
    at the same time.

    The same command resumes. Exit code 3 if requests failed.
    """
    params.import_plugins(plugin)
    require_presets([], "tiny", words(task))
    if start is not None and (on or off):
        raise ConfigError("--start and --on or --off cannot be combined")
    if start is not None and together:
        raise ConfigError("--start runs one server at a time, so --together cannot be combined with it")
    if start is None and not (on and off):
        raise ConfigError("two servers are needed; help: --on URL --off URL, or --start FILE.toml")
    from specbench.features.servers.load.blocks import Pace  # imports torch
    from specbench.features.servers.load.managed import read_commands
    from specbench.features.servers.load.server_load import run_servers
    from specbench.features.servers.load.server_run import Load, ServerRunRequest
    from specbench.features.servers.prompts import hash_of
    from specbench.features.servers.served import ServedSampling

    source = _source(task, data, limit, plugin)
    try:
        sampling = ServedSampling(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    commands = read_commands(start) if start else None
    servers = [_server(each.url, key_env, timeout) for each in (commands.on, commands.off)] if commands else []
    servers = servers or [_server(url, key_env, timeout) for url in (on, off)]
    prompts = source.read()
    request = ServerRunRequest(
        on=servers[0],
        off=servers[1],
        commands=commands,
        model=model,
        prompts=prompts,
        source=source,
        load=Load(
            task=", ".join(source.tasks),
            prompts=hash_of(prompts),
            sampling=sampling,
            max_tokens=max_new_tokens,
            ignore_eos=ignore_eos,
            chat=chat,
            pace=Pace(ramp, seconds),
            seed=seed,
        ),
        concurrencies=_numbers(words(concurrency) or ["1", "4", "16"], "--concurrency"),
        pairs=pairs,
        aa_pairs=aa_pairs,
        together=together,
    )
    formats = params.plot_formats(plot_format, plots)
    measured, folder = _until_interrupted(run_servers(request, out, TerminalObserver()))
    _show_run(measured, folder, json_, page)
    if plots:
        from specbench.features.servers.load.load_plot import plots_of  # imports numpy

        for path in plots_of(measured, plots, formats):
            print_path(path, output_console(sys.stderr if json_ else sys.stdout))
    sys.exit(ExitCode.SOME_FAILED if any(measured.failures.values()) else ExitCode.OK)


def _show_run(measured: "ServerRun", folder: Path, as_json: bool, page: Path | None) -> None:
    """Print the levels, times, predictions, notes and the answer of a run under load."""
    from specbench.features.servers import served_results
    from specbench.features.servers.load.load_table import facts_of, tables_of

    stream = sys.stderr if as_json else sys.stdout
    console = output_console(stream)
    for shown in tables_of(measured):
        print_table(shown, console)
    for note in measured.notes:
        say(note, console)
    print(wrapped(printable(measured.answer)), file=stream)
    print_path(folder, console)
    if page:
        from specbench.features.servers.page import page_of

        title, facts = f"Load on {measured.on.label}", facts_of(measured)
        page.write_text(page_of(title, measured.answer, tables_of(measured), measured.notes, facts), "utf-8")
    if as_json:
        print(served_results.as_json(measured), end="")


def _until_interrupted(work: Coroutine[Any, Any, T]) -> T:
    """Return the value of a coroutine. After Ctrl-C, its requests and servers are ended first."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        interrupted()


def _server(url: str, key_env: str, timeout: float) -> Server:
    try:
        return Server(url, key_env, timeout)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _source(task: list[str] | None, data: list[str] | None, limit: int, plugin: list[str] | None) -> "PromptSource":
    """Return where prompts come from."""
    from specbench.features.servers.prompts import PromptSource  # imports torch

    options = SharedOptions({"data": data, "plugin": plugin}).options(limit=limit)
    tasks = tuple(words(task) or [TASK])
    return PromptSource(tasks=tasks, limit=limit, data=options.data, plugins=tuple(plugin or ()))


def _samplings(temperatures: list[str], top_p: float, top_k: int, min_p: float) -> "tuple[ServedSampling, ...]":
    """Return the sampling parameters to test. Filters apply to temperatures above 0."""
    from specbench.features.servers.exactness.kinds import SAMPLINGS
    from specbench.features.servers.served import ServedSampling

    if not temperatures and (top_p, top_k, min_p) == (1.0, 0, 0.0):
        return SAMPLINGS
    found = []
    for word in temperatures or ["0", "1"]:
        try:
            value = float(word)
            filters = {"top_p": top_p, "top_k": top_k, "min_p": min_p} if value else {}
            found.append(ServedSampling(temperature=value, **filters))  # type: ignore[arg-type]  # top_k is an int
        except ValueError as error:
            raise ConfigError(f"--temperature {word}: {error}") from None
    return tuple(dict.fromkeys(found))


def _numbers(given: list[str], flag: str) -> tuple[int, ...]:
    if bad := next((word for word in given if not word.isdecimal() or not int(word)), None):
        raise ConfigError(f"{flag} {bad}: numbers of at least 1, such as 1,4,16")
    return tuple(dict.fromkeys(map(int, given)))


def _kinds(given: list[str]) -> "tuple[PromptKind, ...]":
    from specbench.errors import hint
    from specbench.features.servers.request_key import PromptKind

    if bad := next((word for word in given if word not in tuple(PromptKind)), None):
        raise ConfigError(f"--prompts {bad}{hint(bad, tuple(PromptKind))}")
    return tuple(map(PromptKind, given)) or tuple(PromptKind)


def _show(found: "ServerVerification", folder: Path, as_json: bool, page: Path | None, key_env: str) -> None:
    """Print the checks by kind of request, notes, the smallest request that differs, and the verdict."""
    from specbench.features.servers import served_results
    from specbench.features.servers.exactness.verdict_table import facts_of, table_of
    from specbench.features.servers.page import page_of

    stream = sys.stderr if as_json else sys.stdout
    console = output_console(stream)
    print_table(table_of(found), console)
    for note in found.notes:
        say(note, console)
    shown = ""
    if smallest := found.smallest_request:
        times = "" if smallest.times == 1 else f"; sent {smallest.times} times"
        times += f", p = {smallest.p:.1g}" if smallest.p and smallest.times > 1 else ""
        wanted = (
            ""
            if smallest.expected is None
            else f"; the last token is {smallest.found}, the reference's {smallest.expected}"
        )
        command = smallest.curl(found.description.url, key_env)
        shown = f"smallest request that shows it{times}{wanted}: {command}"
        print(shown, file=stream)
    print(wrapped(printable(found.line)), file=stream)
    print_path(folder, console)
    if page:
        facts = facts_of(found) + ([shown] if shown else [])
        title = f"Verification of {found.subject}"
        page.write_text(page_of(title, found.line, [table_of(found)], found.notes, facts), "utf-8")
    if as_json:
        print(served_results.as_json(found), end="")


def _words(value: object) -> str:
    """Return a value of a description as words."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_words(each)}" for key, each in value.items() if each not in ("", None, {}))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
