"""`specbench verify`: does a method, as implemented, follow the law that it declares, on this pair and this device?"""

import dataclasses
import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specbench.cli import params as choices
from specbench.cli.arguments import options_of, words
from specbench.cli.params import known
from specbench.cli.progress import progress, status
from specbench.config.options import Options
from specbench.config.presets import preset, require_known
from specbench.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from specbench.config.pair import Pair
    from specbench.models.loader import LoadedPair
    from specbench.verification import Verdict

TEMPERATURE = 2.0  # small models are sure of themselves, and where a law is nearly certain nothing can be told apart
TASK = "gsm8k"  # where the pair names none that suits it
OUTCOMES = {
    "differs": ExitCode.REGRESSION, "inconclusive": ExitCode.INCONCLUSIVE, "no law": ExitCode.INCONCLUSIVE
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
    data: choices.Data = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Prompts, from the tasks in turn.")] = 6,
    repeats: Annotated[
        int, typer.Option(min=1, help="How often each prompt is broken off somewhere and sampled from.")
    ] = 6,
    gamma: choices.Gamma = "",
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
    if temperature is None:
        options = replace(options, temperature=0.0 if _is_greedy(method) else TEMPERATURE)
    told, verdict = _verified(method, pair, words(task), options, repeats)
    _show(told, verdict, json_)
    sys.exit(OUTCOMES.get(verdict.outcome, ExitCode.OK))


def _is_greedy(method: str) -> bool:
    """Whether a method has no meaning but at T = 0."""
    import specbench.methods  # noqa: F401  (registers the methods)
    from specbench.decoding.method import Method

    found = Method.members.get(preset("method", method).table.get("name", ""))
    return found is not None and found.greedy_only


def _verified(
    name: str, pair_name: str, task_names: list[str], options: Options, repeats: int
) -> tuple[dict[str, Any], "Verdict"]:
    """What was held against what, and the verdict."""
    import torch

    from specbench import verification as verifying
    from specbench.experiment import method_resolution as arms
    from specbench.experiment import run_spec as cells
    from specbench.models import loader as models
    from specbench.models.resolve import device_of, find, find_heads

    found_pair, pair = cells.read_pair(pair_name, options)
    base, device = found_pair.path.parent, device_of(options.device)
    if pair.logits != "real":
        raise ConfigError(f"pair {found_pair.name}: synthetic logits say nothing of its models; leave pair.logits real")
    found = find(pair, arms.roles_of([name], pair, options), base, device, options.dtype, options.engine)
    sizes = {role: each.parameters for role, each in found.items()}
    group = arms.arms([name], pair, sizes, options)[0]
    arm, baseline = group[-1], group[0].method
    needed = {role: each for role, each in found.items() if role in arm.method.roles()}
    told: dict[str, Any] = {
        "method": arm.name,
        "table": arm.table,
        "pair": found_pair.name,
        "device": str(device),
        "dtype": ", ".join(dict.fromkeys(each.dtype for each in needed.values())),
        "engine": ", ".join(dict.fromkeys(each.engine for each in needed.values())),
        "temperature": options.temperature,
        "seed": options.seed,
    }
    if arm.method.law() is None:
        return told, verifying.lawless(arm.method, arm.name)
    with status(f"loading {', '.join(needed)}, twice"):
        loaded = models.load(needed, base, device, find_heads(pair, arms.heads_of([name], pair, options), base))
        eager = find(pair, tuple(needed), base, device, options.dtype, "eager")
        reference = models.load(eager, base, device)
    prompts, told["tasks"] = _prompts(task_names, pair, loaded, options)
    coarsest: torch.dtype = max((getattr(torch, f.dtype) for f in needed.values()), key=lambda d: torch.finfo(d).eps)
    how = verifying.Decoding(options.max_new_tokens or 1, options.seed)
    case = verifying.Case(arm.method, loaded, reference, coarsest, prompts, how, options.temperature or 0.0, repeats)
    loaded.prepare(max(map(len, prompts)) + how.new, arm.method.most_fed)
    with progress(f"verify {arm.name} on {found_pair.name}", verifying.outputs(case)) as advance:
        return told, verifying.verify(case, arm.name, baseline, advance)


def _prompts(
    names: list[str], pair: "Pair", loaded: "LoadedPair", options: Options
) -> tuple[list[list[int]], list[str]]:
    """The first prompts of each task in turn, as token ids, and the tasks. Raises ConfigError for one that does not fit."""
    import specbench.tasks  # noqa: F401  (registers the tasks)
    from specbench.data.prompting import encode
    from specbench.experiment import run_spec as cells
    from specbench.experiment.plan import tasks_of

    asked = tasks_of(names or ([] if cells.suits(pair, options) and pair.defaults.tasks else [TASK]), pair, options)
    rows = [
        (task, data.samples[i]) for i in range(options.limit or 1) for _, task, data in asked if i < len(data.samples)
    ]
    firsts = [(task, sample) for task, sample in rows if not sample.after][: options.limit]
    try:
        ids = [encode(loaded.tokenizer, task, sample, [], loaded.window).ids for task, sample in firsts]
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if not ids:
        raise ConfigError(f"{', '.join(names)}: no prompt to begin with")
    return ids, [name for name, *_ in asked]


def _show(told: dict[str, Any], verdict: "Verdict", as_json: bool) -> None:
    """A table and one line; or everything, as JSON on stdout, and that on stderr."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(stderr=as_json)
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
        checks = [dataclasses.asdict(check) for check in verdict.checks]
        print(json.dumps({**told, "outcome": verdict.outcome, "line": verdict.line, "checks": checks}, indent=2))
