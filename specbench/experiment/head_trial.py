"""The trial of a trained head: the method that uses it, measured on prompts that the head was not trained on."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from specbench.analysis.intervals import FEWEST, Estimate
from specbench.analysis.run_summary import MethodSummary, RunSummary
from specbench.config.options import Access, Options
from specbench.config.pair import HeadKind
from specbench.data.task import Data
from specbench.errors import MissingAsset
from specbench.experiment import pipeline, selection
from specbench.experiment.plan import make_plan
from specbench.experiment.selection import Selected
from specbench.observer import Observer
from specbench.report.conclusion import speedup_of
from specbench.runs.locking import locked
from specbench.training.texts import Source, Texts

MOST_TOKENS = 128  # per output
FOLDER = "trial"  # in the head's folder


@dataclass(frozen=True, kw_only=True)
class TrialRequest:
    """A head to try: its kind and base, its folder, and the texts that it was trained from.

    `prompts` is how many held-out prompts are decoded, in equal shares of the tasks, but at least FEWEST of each.
    """

    kind: HeadKind
    base: str
    folder: Path
    pair: str
    options: Options
    texts: Texts
    sources: Sequence[Source]
    seed: int
    prompts: int


@dataclass(frozen=True)
class Gain:
    """A speedup of a head on a task: measured, or predicted for another draft length `gamma`."""

    summary: RunSummary
    speedup: Estimate
    gamma: int | None = None

    @property
    def is_certain(self) -> bool:
        """Whether the interval lies above 1. Fewer than FEWEST prompts have no interval."""
        return self.speedup.low is not None and self.speedup.low > 1.0


@dataclass(frozen=True)
class HeadTrial:
    """The runs of a trial, one per task, and the method that used the head."""

    method: str
    summaries: tuple[RunSummary, ...]

    def best(self) -> Gain | None:
        """Return the largest measured speedup whose interval lies above 1, else the largest predicted one; None without both.

        Speedups are by the clock of the run. Draft lengths are predicted for decoding time only.
        """
        measured, predicted = [], []
        for summary in self.summaries:
            row = next((each for each in summary.measured if each.method == self.method), None)
            if row and (speedup := speedup_of(summary, row)):
                measured.append(Gain(summary, speedup))
                predicted += _predicted(summary, row)
        for gains in (measured, predicted):
            if certain := [gain for gain in gains if gain.is_certain]:
                return max(certain, key=lambda gain: gain.speedup.low or 0.0)
        return None


def _predicted(summary: RunSummary, row: MethodSummary) -> list[Gain]:
    """Return the predicted speedups at other draft lengths; none for a run that is compared end to end."""
    theory = summary.traits(row).theory
    used = theory.gamma if theory else ()
    lengths = [] if summary.end_to_end else row.predicted_lengths
    return [Gain(summary, each.speedup, each.gamma) for each in lengths if each.gamma not in used]


def method_of(kind: HeadKind, base: str) -> str:
    """Return the bundled method that uses a kind of head on a base; empty if there is none."""
    if kind == HeadKind.eagle:
        return {"target": "eagle", "middle": "polybasic"}.get(base, "")
    return kind.value if base == "draft" else ""


def try_head(request: TrialRequest, observer: Observer) -> HeadTrial | None:
    """Measure the method of a head against its baseline on held-out prompts, into the head's folder.

    Returns None if no bundled method uses the head, or if no prompt was held out. Raises ConfigError and MissingAsset if the
    method needs a model or a head that the pair lacks.
    """
    method, selected = method_of(request.kind, request.base), _selected(request)
    if not method or not selected:
        return None
    head = (f"{request.kind.value}@{request.base}", str(request.folder))
    options = replace(request.options, heads=(head,), repeats=1)
    preset, pair = selection.read_pair(request.pair, options)
    of = (preset.name, preset.path.parent, pair)
    plan = make_plan([method], of, lambda: selected, options, request.folder / FOLDER)
    summaries = []
    try:
        with locked((each.folder for each in plan.runs), Access()) as locks:
            for run in plan.runs:
                pipeline.decode(plan, run, locks[run.folder], Access(fresh=True), observer)
                with suppress(MissingAsset):  # code is not executed: the trial is about speed
                    pipeline.score(run, None, observer)
                summaries.append(pipeline.summarised(run.folder))
    finally:
        plan.release()
    return HeadTrial(method, tuple(summaries))


def _selected(request: TrialRequest) -> list[Selected]:
    """Return the held-out prompts of each task."""
    found = []
    share = max(-(-request.prompts // len(request.sources)), FEWEST)
    for each in request.sources:
        samples = request.texts.held_out(each.name, request.seed)[:share]
        if samples:
            data = Data(samples, f"held-out rows of {each.source}", None, "", len(samples))
            task = replace(each.task, max_new_tokens=min(each.task.max_new_tokens, MOST_TOKENS))
            found.append(Selected(each.name, task, replace(data, sha256=data.prompts_sha256)))
    return found
