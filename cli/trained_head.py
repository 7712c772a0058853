"""What `specbench train` prints about a trained head."""

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from specbench.analysis.intervals import FEWEST, Estimate
from specbench.analysis.number_format import HUNDREDTHS, TIMES
from specbench.cli.console import printable
from specbench.config.construct import Table
from specbench.config.pair import Answers, HeadKind, drafts
from specbench.reporting.reasons import reason
from specbench.reporting.standings import speedup_of

if TYPE_CHECKING:
    from specbench.features.train.head_trial import Gain, HeadTrial
    from specbench.features.train.train_head import TrainingResult
    from specbench.training.texts import TaskSource


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
        if isinstance(rates := report.get("acceptance_by_position"), list):
            by_position = " ".join(f"{rate:.2f}" for rate in rates)
            print(f"acceptance by position, if the tokens before it are accepted: {by_position}")
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
            f"Even the cheapest round costs as much time as {HUNDREDTHS.number(least.cost)} tokens of {trial.against}, but"
            f" commits at most {least.tokens}, so more training cannot make it faster at this draft length."
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
