"""`specbench train`: train SPRINTER's verifier, the heads of SpecDec++ and DSL, or an EAGLE head; fine-tune a model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli import params
from specbench.cli.arguments import words
from specbench.cli.console import printable
from specbench.cli.params import HeadKind, known
from specbench.cli.progress import Terminal, interrupted
from specbench.config.options import Access
from specbench.config.overrides import parse_override
from specbench.config.pair import FEATURES, TAU, Answers
from specbench.errors import ConfigError
from specbench.training.recipes import TrainKind, keys_of

if TYPE_CHECKING:
    from specbench.experiment.training import FinetuneRequest


def train(
    kind: Annotated[TrainKind, typer.Argument(help="The kind of head; finetune: a whole model, --base, on one task.")],
    pair: params.Pair = "tiny",
    task: Annotated[
        list[str] | None,
        typer.Option("--task", "-t", help="A task; repeat for several. [the pair's]", autocompletion=known("task")),
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
    minutes: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Time limit; 0: none. Half is for collecting outputs, the rest for fitting an EAGLE head.",
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

    With finetune, a model of the pair is trained on a task's training rows instead, with transformers' Trainer.
    """
    # imports torch
    from specbench.cli.trained_head import show
    from specbench.experiment.training import FinetuneRequest, TrainRequest, train_head

    overrides = tuple(map(parse_override, set_ or []))
    recipe = {key.removeprefix("recipe."): value for key, value in overrides if key.startswith("recipe.")}
    keys = [text for text in set_ or [] if not text.startswith("recipe.")]
    shared = params.SharedOptions(data=data, device=device, dtype=dtype, plugin=plugin, set_=keys)
    options = shared.options()
    access = Access(wait=wait, break_lock=break_lock)
    if kind == TrainKind.finetune:
        _finetune(
            FinetuneRequest(
                pair=pair, role=base or "target", task=_one(words(task)), options=options, count=limit or 0, skip=skip,
                seed=seed, recipe=recipe, out=out, minutes=minutes, access=access,
            ),
            {
                "--answers": answers != Answers.outputs, "--features": features != FEATURES, "--tau": tau != TAU,
                "--rows": rows is not None,
            },
        )  # fmt: skip
        return
    request = TrainRequest(
        kind=HeadKind(kind), pair=pair, tasks=tuple(words(task)), options=options, count=limit, skip=skip,
        answers=answers, base=base, features=features, tau=tau, seed=seed, recipe=recipe, out=out, collected=rows,
        minutes=minutes, trial=trial, access=access,
    )  # fmt: skip
    try:
        trained = train_head(request, Terminal())
    except KeyboardInterrupt:
        interrupted()
    same = {
        "-p": pair, "--data": data, "--set": [text for text in set_ or [] if not text.startswith("recipe.")],
        "--device": device if device != params.Device.auto else None,
        "--dtype": dtype if dtype != params.Dtype.auto else None, "--plugin": plugin,
    }  # fmt: skip
    show(trained, _arguments(same))


def _one(tasks: Sequence[str]) -> str:
    """Return the only task. Raises ConfigError for none or several."""
    if len(tasks) != 1:
        raise ConfigError("finetune takes one task; help: -t TASK")
    return tasks[0]


def _finetune(request: "FinetuneRequest", unused: Mapping[str, bool]) -> None:
    """Fine-tune a model, and print its losses and how to use it. Raises ConfigError for options of heads."""
    from specbench.experiment.training import finetune_model  # imports torch

    if given := [option for option, is_given in unused.items() if is_given]:
        raise ConfigError(f"{', '.join(given)} have no effect on finetune; leave them out")
    try:
        model = finetune_model(request, Terminal())
    except KeyboardInterrupt:
        interrupted()
    report = model.report
    before = "" if report["loss_before"] is None else f", {report['loss_before']:.3f} before"
    print(
        f"trained on {report['train_texts']} texts for {report['steps']} steps; loss on {report['test_texts']} unseen texts:"
        f" {report['loss']:.3f} nats per token{before}\nsaved {printable(model.folder)}\nTo use it, add to the pair's"
        f' [models.{model.role}]: by_task = {{ "{model.task}" = "{printable(model.folder)}" }}'
    )


def _arguments(given: Mapping[str, Sequence[str] | str | None]) -> list[str]:
    """Return options as arguments, without those that have no value."""
    arguments = []
    for option, value in given.items():
        for each in [value] if isinstance(value, str) else value or []:
            arguments += [option, each]
    return arguments


def _recipes() -> str:
    """Return the keys of every kind's recipe, for `--help`."""
    paragraphs = ["Keys of --set recipe.KEY=VALUE, with defaults; a pair may set others under [defaults.train.KIND]:"]
    for kind in TrainKind:
        lines = [f"  {key} = {default}: {meaning}" for key, (default, meaning) in keys_of(kind).items()]
        paragraphs.append("\n".join(["\b", f"{kind.value}:", *lines]))
    return "\n\n".join(paragraphs)


EPILOG = _recipes()
