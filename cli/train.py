"""`specbench train`: train SPRINTER's verifier, the heads of SpecDec++ and DSL, or an EAGLE head; fine-tune a model."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from specbench.analysis.intervals import FEWEST, Estimate
from specbench.cli import params
from specbench.cli.console import TerminalObserver, printable
from specbench.cli.interrupts import interrupted
from specbench.cli.params import words
from specbench.config.construct import Table
from specbench.config.pair import FEATURES, TAU, Answers, HeadKind, drafts
from specbench.config.presets import parse_override
from specbench.config.request import Access
from specbench.errors import ConfigError
from specbench.reporting.column import HUNDREDTHS, TIMES
from specbench.reporting.reasons import reason
from specbench.reporting.standings import speedup_of
from specbench.training.recipes import RECIPES, TrainKind, keys_of
from specbench.vocabulary import Device, Dtype

if TYPE_CHECKING:
    from specbench.features.train.head_trial import Gain, HeadTrial
    from specbench.features.train.train_head import DraftRequest, FinetuneRequest, TrainingResult
    from specbench.training.texts import TaskSource


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

    With finetune, a model of the pair is trained on a task's training rows instead, with transformers' Trainer. With draft, a
    draft model is made of some layers of the target and trained on the target's outputs: specbench train draft -p
    target=PATH.
    """
    # imports torch
    from specbench.features.train.train_head import DraftRequest, FinetuneRequest, TrainRequest, train_head

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
    from specbench.features.train.train_head import make_draft  # imports torch

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
    from specbench.features.train.train_head import finetune_model  # imports torch

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


def show_head(trained: "TrainingResult", arguments: Sequence[str]) -> None:
    """Print the measurements of a head, its trial, and how to use it.

    `arguments` are the arguments of `train` that a run of the head needs too, such as the pair.
    """
    print(_texts(trained.base, trained.report))
    _measurements(trained.kind, trained.report)
    print(f"saved {printable(trained.folder)}")
    if trained.trial:
        _trial(trained, trained.trial, arguments)
    elif trained.method:
        print(f"No trial was run. To measure the head: {_command(trained, trained.sources[0], None, arguments)}")


def _texts(base: str, report: Table) -> str:
    """Return the sentence on the answers that a head was trained and evaluated on."""
    if report["answers"] == Answers.reference:
        return "trained and evaluated on the reference answers of the data"
    source = base if "overlap" in report else "models"
    return f"trained and evaluated on outputs of the {source} at T = {report['temperature']:g}"


def _measurements(kind: HeadKind, report: Table) -> None:
    """Print what was measured on the test texts."""
    if drafts(kind):
        print(
            f"trained on {report['train_texts']} texts for {report['steps']} steps ({report['epochs']:g} epochs);"
            f" {report['test_texts']} unseen texts: loss {report['loss']:.3f},"
            f" cross-entropy {report['cross_entropy']:.3f} nats"
        )
        if "acceptance" in report:
            count, length = report["decoded_texts"], report["draft_length"]
            print(
                f"decoding {count} unseen prompts at T = {report['decoding_temperature']:g} with drafts of {length}:"
                f" acceptance rate {_interval(_acceptance(report))}"
            )
        return
    every = report.get("all", [report])
    for measurement in every if isinstance(every, list) else ():
        label = (
            f"{measurement['features']:<16} tau {measurement['tau_train']:g}"
            if "features" in measurement
            else kind.value
        )
        saved = all(measurement.get(key) == report.get(key) for key in ("features", "tau_train"))
        print(
            f"{label}: AUC {measurement['auc']:.3f} [{measurement['auc_low']:.3f}, {measurement['auc_high']:.3f}],"
            f" eta_TP {measurement['eta_tp']:.3f}, eta_FP {measurement['eta_fp']:.3f},"
            f" base rate {measurement['base_rate']:.3f}"
            + (
                f", predicted distance from the target {measurement['predicted_tv']:.3f}"
                if "predicted_tv" in measurement
                else ""
            )
            + (" <- saved" if saved else "")
        )
    if "split" in report:
        print(
            f"{report['rows']} rows; split by rows as by SPRINTER's authors, which leaks: other rows of their texts train"
        )
    else:
        print(f"{report['rows']} rows from {report['texts']} unseen texts; intervals: 95 % over texts")


def _acceptance(report: Table) -> Estimate:
    """Return the acceptance rate of an EAGLE head's drafts in a report."""
    value = _number(report, "acceptance")
    assert value is not None
    return Estimate(value, _number(report, "acceptance_low"), _number(report, "acceptance_high"))


def _number(report: Table, key: str) -> float | None:
    """Return a number of a report; None if it is missing."""
    value = report.get(key)
    return value if isinstance(value, int | float) else None


def _interval(value: Estimate) -> str:
    """Return a value with its interval, if it has one."""
    return f"{value.value:.3f}" + ("" if value.low is None else f" [{value.low:.3f}, {value.high:.3f}]")


def _trial(trained: "TrainingResult", trial: "HeadTrial", arguments: Sequence[str]) -> None:
    """Print the speedups of a trial with their baselines, and the command to use the head if it speeds up decoding."""
    prompts = sum(summary.data.samples for summary in trial.summaries)
    folder = printable(trained.folder / "trial")
    print(f"\nTrial of {trial.method} on {prompts} held-out {'prompt' if prompts == 1 else 'prompts'} ({folder}):")
    for gain in trial.gains:
        print(f"  {gain.summary.spec.task.name}: {_speeds(trial, gain)}")
    if trial.acceptance:
        expected = (
            f"; {_interval(_acceptance(trained.report))} after training" if "acceptance" in trained.report else ""
        )
        print(f"  acceptance rate {_interval(trial.acceptance)}{expected}")
    print(_verdict(trial))
    best = trial.best()
    if best is None:
        if any(gain.speedup.low is not None for gain in trial.gains):
            for line in _advice(trained, trial):
                print(line)
        return
    source = next(source for source in trained.sources if source.name == best.summary.spec.task.name)
    command = _command(trained, source, best.gamma, arguments)
    if best.gamma is None:
        print(f"To use the head: {command}")
    else:
        print(f"Predicted at draft length {best.gamma}: {TIMES.text(best.speedup)}. To measure it: {command}")
    if source.is_file and not trained.skip:
        print("The rows of this file are also training rows. Measure on another file, or train with --skip N.")


def _verdict(trial: "HeadTrial") -> str:
    """Return the sentence on whether the head speeds up decoding."""
    name, faster = f"{trial.method} with this head", [gain for gain in trial.gains if gain.is_certain]
    slower = [gain for gain in trial.gains if gain.speedup.high is not None and gain.speedup.high < 1.0]
    if not trial.gains:
        return f"{name} completed no prompt that {trial.against} completed."
    for kind, gains in (("faster", faster), ("slower", slower)):
        if len(gains) == len(trial.gains):
            return f"{name} is {kind} than {trial.against}."
    if faster:
        tasks = ", ".join(gain.summary.spec.task.name for gain in faster)
        return f"{name} is faster than {trial.against} on {tasks}, {len(faster)} of {len(trial.gains)} tasks."
    if all(gain.speedup.low is None for gain in trial.gains):
        return f"At least {FEWEST} held-out prompts are needed to compare {name} with {trial.against}; help: -n"
    return f"{name} is not shown to be faster than {trial.against}{'' if len(trial.gains) == 1 else ' on any task'}."


def _advice(trained: "TrainingResult", trial: "HeadTrial") -> Iterator[str]:
    """Yield what could make a head without a speedup faster, and last, why it is not faster in the trial."""
    summary = trial.gains[0].summary
    row = trial.row(summary)
    why = next(reason(summary, row), "") if row else ""
    yield from filter(None, (_longer_training(trained, trial, bool(why)), why))


def _longer_training(trained: "TrainingResult", trial: "HeadTrial", has_reason: bool) -> str:
    """Return whether more training could help; empty if no sign of that is found and the trial has another reason."""
    report = trained.report
    if (least := _least_cost(trial)) is not None:
        return (
            f"Even the cheapest round takes as long as {HUNDREDTHS.number(least.cost)} tokens of {trial.against}, but commits"
            f" at most {least.tokens}, so more training cannot make it faster at this draft length."
        )
    if report.get("falling"):
        epochs = f"--set recipe.epochs={2 * round(_number(report, 'epochs') or 1)}"
        longer = "a larger --minutes" if report["ended"] == "minutes" else epochs
        return f"The validation loss was still falling when training ended; train for longer: {longer}"
    if trained.texts_omitted:
        return f"The time limit left out {trained.texts_omitted} texts; a larger --minutes collects more."
    if has_reason:
        return ""
    more = "--limit 0 or --data" if trained.is_limited else "--data"
    if report.get("falling") is None:
        return f"More texts may help: {more}"
    return f"The validation loss no longer falls; more texts may help: {more}"


class _Cost(NamedTuple):
    """The time of a round, in units of one baseline token, and the maximum number of tokens that it commits."""

    cost: float
    tokens: int


def _least_cost(trial: "HeadTrial") -> _Cost | None:
    """Return the cost of the cheapest rounds over all runs, if even there a fully accepted draft is not worth its time.

    None for drafts of varying length, and for a method that is not compared with its run's baseline.
    """
    costs = []
    for summary in trial.summaries:
        row = trial.row(summary)
        base = next((row for row in summary.measured_methods if row.method == trial.against), None)
        theory = summary.traits(row).theory if row else None
        if not row or not base or not theory or trial.against != summary.baseline or summary.end_to_end:
            return None
        if not row.accepted_length or not row.tokens_per_second or not base.tokens_per_second:
            return None
        costs.append(_Cost(row.accepted_length * base.tokens_per_second / row.tokens_per_second, theory.gamma[0] + 1))
    least = min(costs, default=None)
    return least if least and least.cost >= least.tokens else None


def _speeds(trial: "HeadTrial", gain: "Gain") -> str:
    """Return a run's measured speedups with their baselines: over what the head replaces, and over the run's baseline."""
    speeds = [f"{TIMES.text(gain.speedup)} as fast as {trial.against}"]
    row, base = trial.row(gain.summary), gain.summary.baseline
    over_base = speedup_of(gain.summary, row) if row else None
    if base != trial.against and over_base:
        speeds.append(f"{TIMES.text(over_base)} as fast as {base}")
    return ", ".join(speeds)


def _command(trained: "TrainingResult", source: "TaskSource", gamma: int | None, arguments: Sequence[str]) -> str:
    """Return the command that measures the head's method on a task, on rows that it was not trained on if there are any."""
    head = f"{trained.kind.value}@{trained.base}={trained.folder}"
    unseen = ["-n", str(trained.skip)] if source.is_file and trained.skip else []
    length = ["--gamma", str(gamma)] if gamma else []
    return shlex.join(
        ["specbench", "run", "-m", trained.method, "-t", source.word, *arguments, "--head", head, *length, *unseen]
    )


def _recipes() -> str:
    """Return the keys of every kind's recipe, for `--help`."""
    paragraphs = ["Keys of --set recipe.KEY=VALUE, with defaults; a pair may set others under [defaults.train.KIND]:"]
    for kind in TrainKind:
        lines = [f"  {key} = {default}: {meaning}" for key, (default, meaning) in keys_of(kind).items()]
        paragraphs.append("\n".join(["\b", f"{kind.value}:", *lines]))
    return "\n\n".join(paragraphs)


EPILOG = _recipes()
