"""`specbench train`: train heads that draft or stop a draft, make a draft model of target layers, or fine-tune a model."""

import inspect
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli import params
from specbench.cli.app import STYLE, PanelCommand
from specbench.cli.console import TerminalObserver, printable
from specbench.cli.interrupts import interrupted
from specbench.cli.params import words
from specbench.cli.trained_head import show_head
from specbench.config.construct import Table
from specbench.config.options import Options
from specbench.config.pair import FEATURES, TAU, Answers, HeadKind
from specbench.config.presets import parse_override
from specbench.config.request import Access
from specbench.errors import ConfigError
from specbench.training.recipes import RECIPES, TrainKind, keys_of
from specbench.vocabulary import Device, Dtype

if TYPE_CHECKING:
    from specbench.features.train.whole_models import DraftRequest, FinetuneRequest

train = typer.Typer(name="train", no_args_is_help=True, help="Train heads and draft models for a pair.", **STYLE)
MEANINGS = {  # of the kinds of heads: what is trained, and what it does
    HeadKind.sprinter: ("SPRINTER's verifier", "It decides when the target tests a draft."),
    HeadKind.specdec: ("SpecDec++'s head", "It predicts whether a drafted token will be accepted."),
    HeadKind.dsl: ("DSL's head", "It predicts how many drafted tokens will be accepted."),
    HeadKind.eagle: ("an EAGLE head", "It drafts from the last hidden states of the target."),
    HeadKind.eagle3: ("an EAGLE-3 head", "It drafts from hidden states of several layers of the target."),
    HeadKind.dflash: ("a DFlash head", "It drafts a block of tokens in one forward."),
    HeadKind.dspark: ("a DSpark head", "It drafts a block of tokens in one forward, and corrects them in order."),
}
OF_SPRINTER = ("features", "tau")  # options of the verifier alone
HEADS, MODELS = "Heads", "Models"

Task = Annotated[list[str] | None, params.preset_option("task", "A task; repeat for several. [the pair's]", None)]
OneTask = Annotated[list[str] | None, params.preset_option("task", "The task. [required]", None)]
Data = Annotated[
    list[str] | None,
    typer.Option(
        help="hub or synthetic (the training split), or a file or a data set of the hub, as for specbench run;"
        " TASK=... for one task. [the pair's]"
    ),
]
Limit = Annotated[int | None, typer.Option("--limit", "-n", help="Number of texts to train on; 0: all.")]
Skip = Annotated[int, typer.Option(help="Exclude the first N rows of each task, for later measurements.")]
Seed = Annotated[int, typer.Option(help="Random seed of texts, sampling, splits and weights.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="The folder to write. [heads/PAIR/KIND]")]
ModelOut = Annotated[Path | None, typer.Option("--out", "-o", help="The folder to write. [models/PAIR/NAME]")]
ModelMinutes = Annotated[float, typer.Option(min=0.0, help="Time limit; 0: none.")]
Minutes = Annotated[
    float,
    typer.Option(
        min=0.0, help="Time limit; 0: none. Half is for collecting outputs, the rest for fitting a head that drafts."
    ),
]
Set = Annotated[list[str] | None, typer.Option("--set", "-s", help="Override a key: recipe.rate=1e-3, task.shots=0.")]


def _head(
    kind: HeadKind,
    *,
    pair: params.Pair = "tiny",
    task: Task = None,
    data: Data = None,
    limit: Limit = None,
    skip: Skip = 0,
    answers: Annotated[
        Answers,
        typer.Option(
            help="The text after each prompt that the head is trained and evaluated on: outputs of the models,"
            " or the data's reference answers."
        ),
    ] = Answers.outputs,
    base: Annotated[
        str, typer.Option(help="The model whose hidden states the head reads. [draft; target for a head that drafts]")
    ] = "",
    features: Annotated[
        str, typer.Option(help="The features of the verifier, such as state or state+q+entropy.")
    ] = FEATURES,
    tau: Annotated[float, typer.Option(help="A draft token is labeled acceptable if q(x) <= tau p(x).")] = TAU,
    seed: Seed = 0,
    device: params.OnDevice = Device.auto,
    dtype: params.InDtype = Dtype.auto,
    out: Out = None,
    minutes: Minutes = 10.0,
    trial: Annotated[
        int, typer.Option(min=0, help="Held-out prompts to measure the head on, at least 5 per task; 0: no trial.")
    ] = 20,
    rows: Annotated[Path | None, typer.Option(help="Folder of the collected model outputs. [OUT/collected]")] = None,
    set_: Set = None,
    plugin: params.Plugins = None,
    wait: params.Wait = False,
    break_lock: params.BreakLock = False,
) -> None:
    # imports torch
    from specbench.features.train.train_head import TrainRequest, train_head

    options, recipe = _options(data, device, dtype, plugin, set_)
    request = TrainRequest(
        kind=kind, pair=pair, tasks=tuple(words(task)), options=options, count=limit, skip=skip,
        answers=answers, base=base, features=features, tau=tau, seed=seed, recipe=recipe, out=out, collected=rows,
        minutes=minutes, trial=trial, access=Access(wait=wait, break_lock=break_lock),
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


def _command_of(kind: HeadKind) -> Callable[..., None]:
    """Return the command that trains a kind of heads, with the options that the kind reads."""
    read = [
        parameter
        for name, parameter in inspect.signature(_head).parameters.items()
        if name != "kind" and (kind is HeadKind.sprinter or name not in OF_SPRINTER)
    ]

    def command(**values: object) -> None:
        partial(_head, kind)(**values)  # type: ignore[arg-type]  # as the signature below says

    command.__signature__ = inspect.Signature(read)  # type: ignore[attr-defined]  # what Typer reads
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in read}
    name, meaning = MEANINGS[kind]
    command.__doc__ = f"""Train {name}.

    {meaning} The models' outputs are first collected in its folder. Afterwards, held-out prompts are decoded with and without
    it, which shows whether it speeds up decoding. The same command resumes an interrupted training run.
    """
    return command


def _recipe(kind: HeadKind | TrainKind) -> str:
    """Return the keys of a kind's recipe, for `--help`."""
    lines = [f"  {key} = {default}: {meaning}" for key, (default, meaning) in keys_of(kind).items()]
    title = f"Keys of --set recipe.KEY=VALUE, with defaults; a pair may set others under [defaults.train.{kind.value}]:"
    return f"{title}\n\n" + "\n".join(["\b", *lines])


for _kind in RECIPES:
    train.command(_kind.value, cls=PanelCommand, rich_help_panel=HEADS, epilog=_recipe(_kind))(_command_of(_kind))


@train.command(cls=PanelCommand, rich_help_panel=MODELS, epilog=_recipe(TrainKind.draft))
def draft(
    pair: params.Pair = "tiny",
    task: OneTask = None,
    data: Data = None,
    limit: Limit = 600,
    skip: Skip = 0,
    layers: Annotated[int, typer.Option(min=0, help="Number of target layers to keep; 0: one sixth.")] = 0,
    seed: Seed = 0,
    device: params.OnDevice = Device.auto,
    dtype: params.InDtype = Dtype.auto,
    out: ModelOut = None,
    minutes: ModelMinutes = 10.0,
    set_: Set = None,
    plugin: params.Plugins = None,
    wait: params.Wait = False,
    break_lock: params.BreakLock = False,
) -> None:
    """Make a draft model from some of the target's layers.

    It is trained on the target's outputs. Example: specbench train draft -p target=PATH -t gsm8k.
    """
    from specbench.features.train.whole_models import DraftRequest  # imports torch

    options, recipe = _options(data, device, dtype, plugin, set_)
    _draft(
        DraftRequest(
            pair=pair, task=_one(words(task)), layers=layers, options=options, count=limit or 0, skip=skip, seed=seed,
            recipe=recipe, out=out, minutes=minutes, access=Access(wait=wait, break_lock=break_lock),
        )
    )  # fmt: skip


@train.command(cls=PanelCommand, rich_help_panel=MODELS, epilog=_recipe(TrainKind.finetune))
def finetune(
    pair: params.Pair = "tiny",
    task: OneTask = None,
    data: Data = None,
    limit: Limit = None,
    skip: Skip = 0,
    base: Annotated[str, typer.Option(help="The model of the pair that is trained.")] = "target",
    seed: Seed = 0,
    device: params.OnDevice = Device.auto,
    dtype: params.InDtype = Dtype.auto,
    out: ModelOut = None,
    minutes: ModelMinutes = 10.0,
    set_: Set = None,
    plugin: params.Plugins = None,
    wait: params.Wait = False,
    break_lock: params.BreakLock = False,
) -> None:
    """Fine-tune a model of a pair on a task.

    Trains on the task's training rows, with the Trainer of transformers.
    """
    from specbench.features.train.whole_models import FinetuneRequest  # imports torch

    options, recipe = _options(data, device, dtype, plugin, set_)
    _finetune(
        FinetuneRequest(
            pair=pair, role=base, task=_one(words(task)), options=options, count=limit or 0, skip=skip, seed=seed,
            recipe=recipe, out=out, minutes=minutes, access=Access(wait=wait, break_lock=break_lock),
        )
    )  # fmt: skip


def _options(
    data: list[str] | None, device: Device, dtype: Dtype, plugin: list[str] | None, set_: list[str] | None
) -> tuple[Options, Table]:
    """Return the options of a request, and the keys of its recipe."""
    keys = [text for text in set_ or [] if not text.startswith("recipe.")]
    shared = params.SharedOptions({"data": data, "device": device, "dtype": dtype, "plugin": plugin, "set": keys})
    overrides = tuple(map(parse_override, set_ or []))
    recipe = {key.removeprefix("recipe."): value for key, value in overrides if key.startswith("recipe.")}
    return shared.options(), recipe


def _one(tasks: Sequence[str]) -> str:
    """Return the only task. Raises ConfigError for none or several."""
    if len(tasks) != 1:
        raise ConfigError("one task is needed; help: -t TASK")
    return tasks[0]


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
