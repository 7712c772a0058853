"""What `specbench train` prints: the measurements of a head, its trial, and the command that uses it."""

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from specbench.cli.console import printable
from specbench.cli.params import HeadKind
from specbench.config.construct import Table
from specbench.report.conclusion import conclusion
from specbench.report.formats import TIMES

if TYPE_CHECKING:
    from specbench.experiment.head_training import TrainedHead
    from specbench.experiment.head_trial import HeadTrial
    from specbench.training.texts import Source


def show(trained: "TrainedHead", arguments: Sequence[str]) -> None:
    """Print the measurements of a head, its trial, and how to use it.

    `arguments` are those of `train` that a run of the head needs too, such as the pair.
    """
    _measurements(trained.kind, trained.report)
    print(f"saved {printable(trained.folder)}")
    if trained.trial:
        _trial(trained, trained.trial, arguments)
    elif trained.method:
        print(f"No trial was run. To measure the head: {_command(trained, trained.sources[0], None, arguments)}")


def _measurements(kind: HeadKind, report: Table) -> None:
    """Print what was measured on the test texts."""
    if kind == HeadKind.eagle:
        interval = (
            "" if report["overlap_low"] is None else f" [{report['overlap_low']:.3f}, {report['overlap_high']:.3f}]"
        )
        print(
            f"trained on {report['train_texts']} texts for {report['steps']} steps ({report['epochs']:g} epochs).\n"
            f"{report['test_texts']} unseen texts: the first draft token is accepted with probability"
            f" {report['overlap']:.3f}{interval} at T = 1 (overlap of the distributions);"
            f" smooth L1 {report['smooth_l1']:.4f}, cross-entropy {report['cross_entropy']:.3f} nats"
        )
        return
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
    print(f"{report['rows']} rows from {report['texts']} unseen texts; intervals: 95 % over texts")


def _trial(trained: "TrainedHead", trial: "HeadTrial", arguments: Sequence[str]) -> None:
    """Print the conclusion of a trial, and the command to use the head if it speeds up decoding."""
    prompts = sum(summary.data.samples for summary in trial.summaries)
    folder = printable(trained.folder / "trial")
    print(f"\nTrial of {trial.method} on {prompts} held-out {'prompt' if prompts == 1 else 'prompts'} ({folder}):")
    for sentence in conclusion(trial.summaries):
        print(f"  {sentence}")
    best = trial.best()
    if best is None:
        longer = ", or train for longer (--minutes 60)" if trained.kind == HeadKind.eagle else ""
        print(f"The trial shows no speedup with this head. Train on more texts (--limit 0 or --data){longer}.")
        return
    source = next(each for each in trained.sources if each.name == best.summary.spec.task.name)
    command = _command(trained, source, best.gamma, arguments)
    if best.gamma is None:
        print(f"To use the head: {command}")
    else:
        print(f"Predicted at draft length {best.gamma}: {TIMES.text(best.speedup)}. To measure it: {command}")
    if source.is_file and not trained.skip:
        print("The rows of this file are also training rows. Measure on another file, or train with --skip N.")


def _command(trained: "TrainedHead", source: "Source", gamma: int | None, arguments: Sequence[str]) -> str:
    """Return the command that measures the head's method on a task, on rows that it was not trained on if there are any."""
    head = f"{trained.kind.value}@{trained.base}={trained.folder}"
    unseen = ["-n", str(trained.skip)] if source.is_file and trained.skip else []
    length = ["--gamma", str(gamma)] if gamma else []
    return shlex.join(
        ["specbench", "run", "-m", trained.method, "-t", source.word, *arguments, "--head", head, *length, *unseen]
    )
