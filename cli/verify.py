"""`specbench verify`: does a method, as implemented, follow the law that it declares, on this pair and this device?"""

import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli import params as choices
from specbench.cli.arguments import options_of, words
from specbench.cli.params import known
from specbench.cli.progress import Terminal
from specbench.config.presets import require_known
from specbench.errors import ExitCode

if TYPE_CHECKING:
    from specbench.verification.run import Verification

OUTCOMES = {
    "differs": ExitCode.REGRESSION, "inconclusive": ExitCode.INCONCLUSIVE, "no distribution": ExitCode.INCONCLUSIVE
}  # fmt: skip


def verify(
    method: choices.Method,
    pair: choices.Pair = "tiny",
    task: Annotated[
        list[str] | None,
        typer.Option(
            "--task",
            "-t",
            help="A task, or a TOML file; repeat for several. [the pair's, else gsm8k]",
            autocompletion=known("task"),
        ),
    ] = None,
    data: choices.Data = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Prompts, from the tasks in turn.")] = 6,
    repeats: Annotated[
        int, typer.Option(min=1, help="How often each prompt is broken off somewhere and sampled from.")
    ] = 6,
    gamma: choices.Gamma = None,
    max_new_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 24,
    temperature: Annotated[
        float | None, typer.Option(help="Of the sampled checks; 0 leaves them out. [2; 0 for a greedy method]")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same verdict.")] = 0,
    device: choices.OnDevice = choices.Device.auto,
    dtype: choices.InDtype = choices.Dtype.auto,
    engine: choices.ByEngine = choices.Engine.auto,
    set_: choices.Sets = None,
    head: choices.Heads = None,
    plugin: choices.Plugins = None,
    json_: choices.Json = False,
) -> None:
    """Test whether a method is lossless here: this pair, this device.

    Its tokens are held against the law that it declares, computed anew by transformers' own modules.

    Greedy tokens must be that law's, near-ties apart; sampled tokens must follow it, by a test that raises a false alarm
    once in 1000 times, and must reject a control; drafts must be accepted as often as they should be. Exit code 5 where
    they are not, 6 where the control was not rejected or the method declares no law.
    """
    options = options_of(
        gamma=gamma, set_=set_, head=head, plugin=plugin, data=data, limit=limit, max_new_tokens=max_new_tokens,
        temperature=temperature, seed=seed, device=device, dtype=dtype, engine=engine,
    )  # fmt: skip
    require_known([method], pair, words(task))
    from specbench.verification.run import VerifyRequest, verify_method

    request = VerifyRequest(method=method, pair=pair, tasks=tuple(words(task)), options=options, cuts=repeats)
    verification = verify_method(request, Terminal())
    _show(verification, json_)
    sys.exit(OUTCOMES.get(verification.verdict.outcome, ExitCode.OK))


def _show(verification: "Verification", as_json: bool) -> None:
    """Print a table and one line; with JSON on stdout, on stderr."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    verdict, console = verification.verdict, Console(stderr=as_json)
    if not console.is_terminal:
        console = Console(stderr=as_json, width=160)
    if verdict.checks:
        words_of = {True: "passed", False: "FAILED", None: "not defined"}
        drawn = Table(box=box.SIMPLE_HEAD)
        for head in ("check", "found", "p or gap", "verdict"):
            drawn.add_column(head, overflow="fold")
        for check in verdict.checks:
            drawn.add_row(check.name, check.found, check.measure, words_of[check.passed])
        console.print(drawn, markup=False)
    print(verdict.line, file=sys.stderr if as_json else sys.stdout)
    if as_json:
        spec = verification.spec
        table = {
            key: value for key, value in dataclasses.asdict(verification).items() if key not in ("spec", "verdict")
        }
        table |= {"options": spec.options, "outcome": verdict.outcome, "line": verdict.line}
        print(json.dumps({**table, "checks": [dataclasses.asdict(check) for check in verdict.checks]}, indent=2))
