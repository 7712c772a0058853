"""`specbench train`: the trained parts of methods: SPRINTER's verifier, SpecDec++'s and DSL's heads, an EAGLE head."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli import params as choices
from specbench.cli.arguments import options_of, words
from specbench.cli.params import HeadKind, known
from specbench.cli.progress import Terminal, interrupted
from specbench.config.options import Access
from specbench.config.overrides import parse_override
from specbench.config.pair import FEATURES, TAU

if TYPE_CHECKING:
    from specbench.experiment.head_training import TrainedHead


def train(
    kind: Annotated[HeadKind, typer.Argument(help="Which head.")],
    pair: choices.Pair = "tiny",
    task: Annotated[
        list[str] | None,
        typer.Option("--task", "-t", help="A task; repeat for several. [the pair's]", autocompletion=known("task")),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="hub or synthetic, whose training split is taken, or a JSONL file; TASK=... for one task. [the pair's]"
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", help="Texts to train on; 0 is all. [by the head]")
    ] = None,
    skip: Annotated[int, typer.Option(help="Leave out the first N rows of each task: to measure on them later.")] = 0,
    base: Annotated[str, typer.Option(help="The model whose states are read. [draft; of an EAGLE head target]")] = "",
    features: Annotated[
        str, typer.Option(help="sprinter: what the verifier sees, e.g. state or state+q+entropy.")
    ] = FEATURES,
    tau: Annotated[float, typer.Option(help="sprinter: acceptable is q(x) <= tau p(x).")] = TAU,
    seed: Annotated[int, typer.Option(help="Of texts, draws, splits and weights.")] = 0,
    device: choices.OnDevice = choices.Device.auto,
    dtype: choices.InDtype = choices.Dtype.auto,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The head's folder. [heads/PAIR/KIND]")] = None,
    rows: Annotated[Path | None, typer.Option(help="Where what the models said is kept. [OUT/collected]")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="Override a key: recipe.rate=1e-3, task.shots=0.")
    ] = None,
    plugin: choices.Plugins = None,
    wait: choices.Wait = False,
    break_lock: choices.BreakLock = False,
) -> None:
    """Train a head for a pair, and measure it on unseen texts.

    What the models say of the texts is collected first, into the head's folder; an interrupted training goes on from there.
    """
    from specbench.experiment.head_training import TrainRequest, train_head

    overrides = tuple(map(parse_override, set_ or []))
    recipe = {key.removeprefix("recipe."): value for key, value in overrides if key.startswith("recipe.")}
    options = options_of(
        data=data, device=device, dtype=dtype, plugin=plugin,
        set_=[text for text in set_ or [] if not text.startswith("recipe.")],
    )  # fmt: skip
    request = TrainRequest(
        kind=kind, pair=pair, tasks=tuple(words(task)), options=options, count=limit, skip=skip, base=base,
        features=features, tau=tau, seed=seed, recipe=recipe, out=out, collected=rows,
        access=Access(wait=wait, break_lock=break_lock),
    )  # fmt: skip
    try:
        trained = train_head(request, Terminal())
    except KeyboardInterrupt:
        interrupted()
    _show(trained, pair)


def _show(trained: "TrainedHead", pair: str) -> None:
    """Print what the head is worth, and how to use it."""
    kind, report = trained.kind, trained.report
    if kind == HeadKind.eagle:
        print(
            f"unseen texts: a first drafted token after their own would be accepted {report['overlap']:.3f} of the time at"
            f" T = 1 (overlap of the distributions); smooth L1 {report['smooth_l1']:.4f}, cross-entropy"
            f" {report['cross_entropy']:.3f} nats"
        )
    else:
        every = report.get("all", [report])
        for each in every if isinstance(every, list) else ():
            label = f"{each['features']:<16} tau {each['tau_train']:g}" if "features" in each else kind.value
            saved = all(each.get(key) == report.get(key) for key in ("features", "tau_train"))
            print(
                f"{label}: AUC {each['auc']:.3f} [{each['auc_low']:.3f}, {each['auc_high']:.3f}],"
                f" eta_TP {each['eta_tp']:.3f}, eta_FP {each['eta_fp']:.3f}, base rate {each['base_rate']:.3f}"
                + (f", predicted distance from the target {each['predicted_tv']:.3f}" if "predicted_tv" in each else "")
                + (" <- saved" if saved else "")
            )
        print(f"{report['rows']} rows from {report['texts']} unseen texts; intervals: 95 %, bootstrapped over texts")
    print(f"saved {trained.folder}")
    method = "polybasic" if kind == HeadKind.eagle and trained.base != "target" else kind.value
    head = f"{kind.value}@{trained.base}={trained.folder}"
    print(f"to use it: specbench run -m {method} -p {pair} -t {trained.tasks[0]} --head {head}")
