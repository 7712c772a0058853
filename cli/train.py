"""`specbench train`: train SPRINTER's verifier, the heads of SpecDec++ and DSL, or an EAGLE head; fine-tune a model."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli import params
from specbench.cli.console import TerminalObserver, printable
from specbench.cli.interrupts import interrupted
from specbench.cli.params import words
from specbench.cli.trained_head import show_head
from specbench.config.construct import Table
from specbench.config.pair import FEATURES, TAU, Answers, HeadKind
from specbench.config.presets import parse_override
from specbench.config.request import Access
from specbench.errors import ConfigError
from specbench.training.recipes import RECIPES, TrainKind, keys_of
from specbench.vocabulary import Device, Dtype

if TYPE_CHECKING:
    from specbench.features.train.whole_models import DraftRequest, FinetuneRequest


def train(
    kind: Annotated[
        TrainKind,
        typer.Argument(
            metavar="KIND",
            help=f"The kind of head, {', '.join(RECIPES)}; finetune: a whole model, --base, on one task; draft: a"
            " draft model made of layers of the target, on one task.",
        ),
    ],
    pair: params.Pair = "tiny",
    task: Annotated[
        list[str] | None, params.preset_option("task", "A task; repeat for several. [the pair's]", None)
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="hub or synthetic (the training split), or a file or a data set of the hub, as for specbench run;"
            " TASK=... for one task. [the pair's]"
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", help="Number of texts to train on; 0: all. [by the kind of head]")
    ] = None,
    skip: Annotated[int, typer.Option(help="Exclude the first N rows of each task, for later measurements.")] = 0,
    answers: Annotated[
        Answers,
        typer.Option(
            help="The text after each prompt that the head is trained and evaluated on: outputs of the models,"
            " or the data's reference answers."
        ),
    ] = Answers.outputs,
    base: Annotated[
        str, typer.Option(help="The model whose hidden states the head reads. [draft; target for an EAGLE head]")
    ] = "",
    layers: Annotated[int, typer.Option(min=0, help="draft: number of target layers to keep; 0: one sixth.")] = 0,
    features: Annotated[
        str, typer.Option(help="sprinter: the features of the verifier, such as state or state+q+entropy.")
    ] = FEATURES,
    tau: Annotated[
        float, typer.Option(help="sprinter: a draft token is labeled acceptable if q(x) <= tau p(x).")
    ] = TAU,
    seed: Annotated[int, typer.Option(help="Random seed of texts, sampling, splits and weights.")] = 0,
    device: params.OnDevice = Device.auto,
    dtype: params.InDtype = Dtype.auto,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The head's folder. [heads/PAIR/KIND]")] = None,
    minutes: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Time limit; 0: none. Half is for collecting outputs, the rest for fitting a head that drafts.",
        ),
    ] = 10.0,
    trial: Annotated[
        int, typer.Option(min=0, help="Held-out prompts to measure the head on, at least 5 per task; 0: no trial.")
    ] = 20,
    rows: Annotated[Path | None, typer.Option(help="Folder of the collected model outputs. [OUT/collected]")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="Override a key: recipe.rate=1e-3, task.shots=0.")
    ] = None,
    plugin: params.Plugins = None,
    wait: params.Wait = False,
    break_lock: params.BreakLock = False,
) -> None:
    """Train a head for a pair, and measure on held-out prompts whether it speeds up decoding.

    The models' outputs are first collected in the head's folder. The same command resumes an interrupted training run.

    With finetune, a model of the pair is trained on a task's training rows instead, with transformers' Trainer. With draft, a
    draft model is made of some layers of the target and trained on the target's outputs: specbench train draft -p
    target=PATH.
    """
    # imports torch
    from specbench.features.train.train_head import TrainRequest, train_head
    from specbench.features.train.whole_models import DraftRequest, FinetuneRequest

    overrides = tuple(map(parse_override, set_ or []))
    recipe = {key.removeprefix("recipe."): value for key, value in overrides if key.startswith("recipe.")}
    keys = [text for text in set_ or [] if not text.startswith("recipe.")]
    shared = params.SharedOptions({"data": data, "device": device, "dtype": dtype, "plugin": plugin, "set": keys})
    options = shared.options()
    access = Access(wait=wait, break_lock=break_lock)
    of_heads = {
        "--answers": answers != Answers.outputs, "--features": features != FEATURES, "--tau": tau != TAU,
        "--rows": rows is not None,
    }  # fmt: skip
    if kind == TrainKind.draft:
        _require_unused(kind, {**of_heads, "--base": bool(base)})
        _draft(
            DraftRequest(
                pair=pair, task=_one(words(task)), layers=layers, options=options, count=600 if limit is None else limit,
                skip=skip, seed=seed, recipe=recipe, out=out, minutes=minutes, access=access,
            )
        )  # fmt: skip
        return
    _require_unused(kind, {"--layers": bool(layers)})
    if kind == TrainKind.finetune:
        _require_unused(kind, of_heads)
        _finetune(
            FinetuneRequest(
                pair=pair, role=base or "target", task=_one(words(task)), options=options, count=limit or 0, skip=skip,
                seed=seed, recipe=recipe, out=out, minutes=minutes, access=access,
            )
        )  # fmt: skip
        return
    request = TrainRequest(
        kind=HeadKind(kind), pair=pair, tasks=tuple(words(task)), options=options, count=limit, skip=skip,
        answers=answers, base=base, features=features, tau=tau, seed=seed, recipe=recipe, out=out, collected=rows,
        minutes=minutes, trial=trial, access=access,
    )  # fmt: skip
    try:
        trained = train_head(request, TerminalObserver())
    except KeyboardInterrupt:
        interrupted()
    length = recipe.get("length")  # of the blocks of a head
    same = {
        "-p": pair, "--gamma": str(length) if length else None, "--data": data,
        "--set": [text for text in set_ or [] if not text.startswith("recipe.")],
        "--device": device if device != Device.auto else None,
        "--dtype": dtype if dtype != Dtype.auto else None, "--plugin": plugin,
    }  # fmt: skip
    show_head(trained, _arguments(same))


def _one(tasks: Sequence[str]) -> str:
    """Return the only task. Raises ConfigError for none or several."""
    if len(tasks) != 1:
        raise ConfigError("finetune and draft take one task; help: -t TASK")
    return tasks[0]


def _require_unused(kind: TrainKind, options: Mapping[str, bool]) -> None:
    """Raise ConfigError for options that a kind does not read."""
    if conflicting := [option for option, has_value in options.items() if has_value]:
        raise ConfigError(f"{', '.join(conflicting)} have no effect on {kind}; leave them out")


def _draft(request: "DraftRequest") -> None:
    """Make and train a draft model, and print its losses and how to use it."""
    from specbench.features.train.whole_models import make_draft

    given = request.options.data_for(request.task)
    data = f" --data {shlex.quote(given)}" if given else ""
    try:
        made = make_draft(request, TerminalObserver())
    except KeyboardInterrupt:
        interrupted()
    print(
        f"kept layers {', '.join(map(str, made.layers))} of {printable(made.target)}\n{_losses(made.report)}\nsaved"
        f" {printable(made.folder)}\nnext: specbench advise --target {shlex.quote(made.target)} --draft"
        f" {shlex.quote(str(made.folder))} -t {request.task}{data}"
    )


def _losses(report: Table) -> str:
    """Return a sentence on the training of a whole model."""
    before = "" if report["loss_before"] is None else f", {report['loss_before']:.3f} before"
    return (
        f"trained on {report['train_texts']} texts for {report['steps']} steps; loss on {report['test_texts']} unseen texts:"
        f" {report['loss']:.3f} nats per token{before}"
    )


def _finetune(request: "FinetuneRequest") -> None:
    """Fine-tune a model, and print its losses and how to use it."""
    from specbench.features.train.whole_models import finetune_model

    try:
        model = finetune_model(request, TerminalObserver())
    except KeyboardInterrupt:
        interrupted()
    print(
        f"{_losses(model.report)}\nsaved {printable(model.folder)}\nTo use it, add to the pair's"
        f' [models.{model.role}]: by_task = {{ "{model.task}" = "{printable(model.folder)}" }}'
    )


def _arguments(options: Mapping[str, Sequence[str] | str | None]) -> list[str]:
    """Return the options that have a value as command-line arguments."""
    arguments = []
    for option, values in options.items():
        for value in [values] if isinstance(values, str) else values or []:
            arguments += [option, value]
    return arguments


def _recipes() -> str:
    """Return the keys of every kind's recipe, for `--help`."""
    paragraphs = ["Keys of --set recipe.KEY=VALUE, with defaults; a pair may set others under [defaults.train.KIND]:"]
    for kind in TrainKind:
        lines = [f"  {key} = {default}: {meaning}" for key, (default, meaning) in keys_of(kind).items()]
        paragraphs.append("\n".join(["\b", f"{kind.value}:", *lines]))
    return "\n\n".join(paragraphs)


EPILOG = _recipes()
