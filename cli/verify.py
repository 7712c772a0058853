"""`specbench verify`: test whether a method follows its declared distribution on a pair and a device."""

import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from specbench.cli import params
from specbench.cli.app import wrapped
from specbench.cli.console import output_console, printable
from specbench.cli.params import preset_names, words
from specbench.cli.progress import TerminalObserver
from specbench.config.presets import require_presets
from specbench.errors import ExitCode

if TYPE_CHECKING:
    from specbench.verification.run import Verification

OUTCOMES = {
    "differs": ExitCode.REGRESSION, "inconclusive": ExitCode.INCONCLUSIVE, "no distribution": ExitCode.INCONCLUSIVE
}  # fmt: skip


@params.with_shared_options("sample", "ignore_eos", "top_k", "top_p", "over", "shard")
def verify(
    *,
    method: params.Method,
    pair: params.Pair = "tiny",
    task: Annotated[
        list[str] | None,
        typer.Option(
            "--task",
            "-t",
            help="A task, or a TOML file; repeat for several. [the pair's, else gsm8k]",
            autocompletion=preset_names("task"),
        ),
    ] = None,
    shared: params.SharedOptions,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Number of prompts, alternating between the tasks.")
    ] = 6,
    repeats: Annotated[
        int, typer.Option(min=1, help="Number of positions per prompt at which tokens are sampled.")
    ] = 6,
    max_new_tokens: Annotated[int, typer.Option(help="Maximum number of tokens per generation.")] = 24,
    temperature: Annotated[
        float | None, typer.Option(help="Temperature of the sampled checks; 0 skips them. [2; 0 for a greedy method]")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same verdict.")] = 0,
    json_: params.Json = False,
) -> None:
    """Test whether a method is lossless on a pair and device.

    Compares its tokens with the distribution that it declares, computed independently with the modules of transformers.

    Greedy tokens must be the most likely ones, except for near-ties. Sampled tokens must follow the distribution, by a test
    with a false alarm rate of 1 in 1000 that also has to reject a control. Drafts must be accepted at the expected rate.

    Exit code 5 if a check fails; 6 if the control was not rejected, or if the method declares no distribution.
    """
    options = shared.options(limit=limit, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    require_presets([method], pair, words(task))
    # imports torch, after names are checked
    from specbench.verification.run import VerifyRequest, verify_method

    request = VerifyRequest(method=method, pair=pair, tasks=tuple(words(task)), options=options, cuts=repeats)
    verification = verify_method(request, TerminalObserver())
    _show(verification, json_)
    sys.exit(OUTCOMES.get(verification.verdict.outcome, ExitCode.OK))


def _show(verification: "Verification", as_json: bool) -> None:
    """Print the checks as a table, and the verdict. With `as_json` both go to stderr, and JSON to stdout."""
    verdict, console = verification.verdict, output_console(sys.stderr if as_json else None)
    if verdict.checks:
        words_of = {True: "passed", False: "FAILED", None: "not defined"}
        drawn = Table(box=box.SIMPLE_HEAD)
        for head in ("check", "found", "p or gap", "verdict"):
            drawn.add_column(head, overflow="fold")
        for check in verdict.checks:
            drawn.add_row(check.name, check.found, check.measure, words_of[check.passed])
        console.print(drawn, markup=False)
    print(wrapped(printable(verdict.line)), file=sys.stderr if as_json else sys.stdout)
    if as_json:
        spec = verification.spec
        table = {
            key: value for key, value in dataclasses.asdict(verification).items() if key not in ("spec", "verdict")
        }
        table |= {"options": spec.options, "outcome": verdict.outcome, "line": verdict.line}
        print(json.dumps({**table, "checks": [dataclasses.asdict(check) for check in verdict.checks]}, indent=2))
