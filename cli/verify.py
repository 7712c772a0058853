"""`specbench verify` and `specbench enumerate`: whether a method follows its declared distribution.

`verify` decodes with a pair on a device. `enumerate` computes exactly, on lookup tables, and loads no model.
"""

import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich import box
from rich.table import Table

from specbench.cli import params
from specbench.cli.app import wrapped
from specbench.cli.console import TerminalObserver, output_console, printable
from specbench.cli.params import Method, Plugins, SharedOptions, pair_of_models, words
from specbench.config.presets import require_presets
from specbench.features.verify import CUTS, PROMPTS, TOKENS

if TYPE_CHECKING:
    from specbench.features.exactness.exactness_verdict import ExactnessResult


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
    _end(verification, json_)


def _end(result: "ExactnessResult", as_json: bool) -> NoReturn:
    """Print the checks as a table, and the verdict, and exit. With `as_json` both go to stderr, and JSON to stdout."""
    stream = sys.stderr if as_json else sys.stdout
    if result.checks:
        drawn = Table(box=box.SIMPLE_HEAD)
        for head in ("check", "found", "p, gap or distance", "verdict"):
            drawn.add_column(head, overflow="fold")
        for check in result.checks:
            drawn.add_row(check.name, check.found, check.measure, check.word)
        output_console(stream).print(drawn, markup=False)
    print(wrapped(printable(result.line)), file=stream)
    if as_json:
        print(json.dumps(dataclasses.asdict(result), indent=2))
    sys.exit(result.outcome.exit_code)


def enumerate_(
    method: Method,
    pair: Annotated[str, params.preset_option("pair", "The pair that names the models.")] = "tiny",
    set_: Annotated[list[str] | None, typer.Option("--set", "-s", help="Override a key: method.target.mu=0.2.")] = None,
    plugin: Plugins = None,
    json_: params.Json = False,
) -> None:
    """Compare a method's exact output distribution with the declared one.

    Enumerates every output of three tokens on small lookup-table models, at draft lengths of 1 and 2, and every first round
    at a draft length of 5; with --set, both at the draft length that it gives. The table shows the total variation between
    the two distributions, the largest of several models. The last line shows the longest draft.

    Exit code 5 if they differ, 6 if nothing was drafted or if random numbers do not come from the sampler, 2 if the method
    declares no distribution.
    """
    plain = SharedOptions({"set": set_, "plugin": plugin}).options()
    # imports torch
    from specbench.features.verify.enumerated import enumerated
    from specbench.resolution.methods import Methods
    from specbench.resolution.selection import read_pair, unused_options

    source, roles = read_pair(pair, plain)
    unused = unused_options(source, pair, (), plain) | Methods((method,), roles, plain).unused_options(pair)
    for error in unused.values():
        raise error
    _end(enumerated(method, roles, plain).result, json_)
