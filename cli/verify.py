"""`specbench verify` and `specbench enumerate`: whether a method follows its declared distribution.

`verify` decodes with a pair on a device. `enumerate` computes exactly, on lookup tables, and loads no model.
"""

import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from specbench.cli import params
from specbench.cli.app import wrapped
from specbench.cli.console import TerminalObserver, output_console, printable
from specbench.cli.params import Method, Plugins, SharedOptions, pair_of_models, words
from specbench.config.presets import require_presets
from specbench.features.exactness.outcome import Outcome
from specbench.features.verify import CUTS, PROMPTS, TOKENS
from specbench.reporting import escaping

if TYPE_CHECKING:
    from specbench.features.verify.verification_run import Verification


@params.with_shared_options("sample", "ignore_eos", "top_k", "top_p", "sampling", "over", "shard")
def verify(
    *,
    method: params.Method,
    pair: params.PairOrTiny = None,
    target: params.Target = "",
    draft: params.Draft = "",
    task: Annotated[
        list[str] | None,
        params.preset_option("task", "A task, or a TOML file; repeat for several. [the pair's, else gsm8k]"),
    ] = None,
    shared: params.SharedOptions,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Number of prompts, alternating between the tasks.")
    ] = PROMPTS,
    repeats: Annotated[
        int, typer.Option(min=1, help="Number of positions per prompt at which tokens are sampled.")
    ] = CUTS,
    max_new_tokens: Annotated[int, typer.Option(help="Maximum number of tokens per generation.")] = TOKENS,
    temperature: Annotated[
        float | None, typer.Option(help="Temperature of the sampled checks; 0 skips them. [2; 0 for a greedy method]")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same verdict.")] = 0,
    json_: params.Json = False,
) -> None:
    """Test whether a method is lossless, or follows the other distribution that it declares.

    Compares its tokens with that distribution, computed independently with the modules of transformers.

    Greedy tokens must be the most likely ones, except for near-ties. Sampled tokens must follow the distribution, by a test
    with a false alarm rate of 1 in 1000 that also has to reject a control. Drafts must be accepted at the expected rate.

    Exit code 5 if a check fails; 6 if the control was not rejected, or if the method declares no distribution.
    """
    options = shared.options(limit=limit, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    pair = pair_of_models(pair, draft, target) or "tiny"
    require_presets([method], pair, words(task))
    # imports torch, after names are checked
    from specbench.features.verify.verification_run import VerifyRequest, verify_method

    request = VerifyRequest(method=method, pair=pair, tasks=tuple(words(task)), options=options, cuts=repeats)
    verification = verify_method(request, TerminalObserver())
    _show(verification, json_)
    sys.exit(verification.verdict.outcome.exit_code)


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
        table |= {
            "options": spec.options,
            "outcome": verdict.outcome,
            "lossless": verdict.is_lossless,
            "line": verdict.line,
        }
        power = None if verdict.power is None else dataclasses.asdict(verdict.power)
        table |= {"checks": [dataclasses.asdict(check) for check in verdict.checks], "power": power}
        print(json.dumps(table, indent=2))


def enumerate_(
    method: Method,
    pair: Annotated[str, params.preset_option("pair", "The pair that names the models.")] = "tiny",
    set_: Annotated[list[str] | None, typer.Option("--set", "-s", help="Override a key: method.target.mu=0.2.")] = None,
    plugin: Plugins = None,
) -> None:
    """Compare a method's exact output distribution with the declared one.

    Enumerates every output of three tokens on small lookup-table models, at draft lengths of 1 and 2, and every first round
    at a draft length of 5; with --set, both at the draft length that it gives. The last line shows the longest draft.

    Exit code 5 if they differ, 6 if nothing was drafted or if random numbers do not come from the sampler, 2 if the method
    declares no distribution.
    """
    plain = SharedOptions({"set": set_, "plugin": plugin}).options()
    # imports torch
    from specbench.features.verify.enumerated import enumerated
    from specbench.features.verify.enumeration import LENGTH
    from specbench.resolution.methods import Methods
    from specbench.resolution.selection import read_pair, unused_options

    source, roles = read_pair(pair, plain)
    unused = unused_options(source, pair, (), plain) | Methods((method,), roles, plain).unused_options(pair)
    for error in unused.values():
        raise error
    found = enumerated(method, roles, plain)
    if found.findings:
        print(
            f"{escaping.terminal(found.label)}: total variation from its declared distribution, {LENGTH} tokens, the maximum"
            " over several models"
        )
    for finding in found.findings.values():
        print(f"  {finding.setting:<20} {finding.distance:.1e}  {finding.words}")
    if found.scope:
        print(found.scope)
    if found.outcome is Outcome.inconclusive:
        print(wrapped(f"inconclusive: {escaping.terminal(found.undecided)}"))
    sys.exit(found.outcome.exit_code)
