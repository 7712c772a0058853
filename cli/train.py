"""`specbench train`: train SPRINTER's verifier, the heads of SpecDec++ and DSL, or an EAGLE head."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli import params
from specbench.cli.arguments import options_of, words
from specbench.cli.params import HeadKind, known
from specbench.cli.progress import Terminal, interrupted
from specbench.config.options import Access
from specbench.config.overrides import parse_override
from specbench.config.pair import FEATURES, TAU

if TYPE_CHECKING:
    from specbench.experiment.head_training import TrainedHead


def train(
    kind: Annotated[HeadKind, typer.Argument(help="The kind of head.")],
    pair: params.Pair = "tiny",
    task: Annotated[
        list[str] | None,
        typer.Option("--task", "-t", help="A task; repeat for several. [the pair's]", autocompletion=known("task")),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="hub or synthetic (the training split), or a JSONL file; TASK=... for one task. [the pair's]"
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", help="Number of texts to train on; 0: all. [by the kind of head]")
    ] = None,
    skip: Annotated[int, typer.Option(help="Exclude the first N rows of each task, for later measurements.")] = 0,
    base: Annotated[
        str, typer.Option(help="The model whose hidden states the head reads. [draft; target for an EAGLE head]")
    ] = "",
    features: Annotated[
        str, typer.Option(help="sprinter: the features of the verifier, such as state or state+q+entropy.")
    ] = FEATURES,
    tau: Annotated[
        float, typer.Option(help="sprinter: a draft token is labeled acceptable if q(x) <= tau p(x).")
    ] = TAU,
    seed: Annotated[int, typer.Option(help="Random seed of texts, sampling, splits and weights.")] = 0,
    device: params.OnDevice = params.Device.auto,
    dtype: params.InDtype = params.Dtype.auto,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The head's folder. [heads/PAIR/KIND]")] = None,
    rows: Annotated[Path | None, typer.Option(help="Folder of the collected model outputs. [OUT/collected]")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="Override a key: recipe.rate=1e-3, task.shots=0.")
    ] = None,
    plugin: params.Plugins = None,
    wait: params.Wait = False,
    break_lock: params.BreakLock = False,
) -> None:
    """Train a head for a pair, and measure it on unseen texts.

    The models' outputs are first collected in the head's folder. The same command resumes an interrupted training run.
    """
    from specbench.experiment.head_training import TrainRequest, train_head  # imports torch

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
    """Print the measurements of a head, and how to use it."""
    kind, report = trained.kind, trained.report
    if kind == HeadKind.eagle:
        print(
            f"unseen texts: the first drafted token is accepted with probability {report['overlap']:.3f} at"
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
