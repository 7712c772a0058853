"""The trial of a trained head: the method that uses it, measured on prompts that the head was not trained on."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch

from specbench.analysis.acceptance import acceptance_interval
from specbench.analysis.intervals import FEWEST, Estimate
from specbench.analysis.method_records import complete, paired
from specbench.analysis.run_summary import MethodSummary, RunSummary
from specbench.analysis.speed import speedup
from specbench.config.options import Options
from specbench.config.pair import HeadKind, drafts
from specbench.config.request import Access, Request
from specbench.data.task import Data
from specbench.decoding.loop import decode
from specbench.decoding.targets import Last
from specbench.experiment import pipeline
from specbench.experiment.loaded_models import LoadedModels
from specbench.machine.threads import ThreadChoice
from specbench.methods.block_drafts import BlockDraft
from specbench.methods.proposers import Eagle
from specbench.methods.speculative import Speculative
from specbench.models.heads import BlockHead, DraftHead
from specbench.models.heads.head import kind_named
from specbench.models.loaded_pair import LoadedPair
from specbench.observer import Observer
from specbench.resolution import selection
from specbench.resolution.methods import Methods
from specbench.resolution.resolve import Choice, plan_on
from specbench.resolution.selection import SelectedTask
from specbench.runs.run_folder import load
from specbench.training.texts import TaskSource, Text, Texts, limits_of, sampler_of

FOLDER = "trial"  # in the head's folder
SD, AR = "sd", "ar"
MOST_TOKENS = 128  # per output
MOST_TEXTS = 40  # whose acceptance is measured
NAME = "trained"  # of the head in the loaded pair


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
    sources: Sequence[TaskSource]
    seed: int
    prompts: int


@dataclass(frozen=True)
class Gain:
    """The speedup on a task that a head gives over decoding without it: measured, or predicted for a draft length `gamma`."""

    summary: RunSummary
    speedup: Estimate
    gamma: int | None = None

    @property
    def is_certain(self) -> bool:
        """Whether the interval lies above 1. Fewer than FEWEST prompts have no interval."""
        return self.speedup.low is not None and self.speedup.low > 1.0


@dataclass(frozen=True)
class HeadTrial:
    """The runs of a trial, one per task, and the method that used the head.

    `against` is what the head replaces: `ar` for a head that drafts, and `sd` for one that decides how a draft model's drafts
    are used. `gains` are the speedups of the method over it, one per run where both completed. `acceptance` is the acceptance
    rate of the method's drafts on all prompts.
    """

    method: str
    against: str
    summaries: tuple[RunSummary, ...]
    gains: tuple[Gain, ...]
    acceptance: Estimate | None = None

    def row(self, summary: RunSummary) -> MethodSummary | None:
        """Return the method's row of a run; None if it was not measured."""
        return next((row for row in summary.measured_methods if row.method == self.method), None)

    def best(self) -> Gain | None:
        """Return the best measured gain whose interval lies above 1, else the best such predicted gain; None without both.

        The best gain has the largest lower bound of its interval. Speedups are by the clock of the run. Draft lengths are
        predicted for decoding time only.
        """
        predicted = [gain for measured in self.gains for gain in self._predicted(measured.summary)]
        for gains in (self.gains, predicted):
            if certain := [gain for gain in gains if gain.is_certain]:
                return max(certain, key=lambda gain: gain.speedup.low or 0.0)
        return None

    def _predicted(self, summary: RunSummary) -> list[Gain]:
        """Return the predicted speedups at other draft lengths over the run's baseline.

        There are none for a run that is compared end to end, or with another method.
        """
        row = self.row(summary)
        if row is None or summary.end_to_end or self.against != summary.baseline:
            return []
        theory = summary.traits(row).theory
        used = theory.gamma if theory else ()
        return [
            Gain(summary, prediction.speedup, prediction.gamma)
            for prediction in row.predicted_lengths
            if prediction.gamma not in used
        ]


def method_of(kind: HeadKind, base: str) -> str:
    """Return the bundled method that uses a kind of head on a base; empty if there is none."""
    if drafts(kind):
        return {"target": kind.value, "middle": "polybasic" if kind == HeadKind.eagle else ""}.get(base, "")
    return kind.value if base == "draft" else ""


def against_of(kind: HeadKind) -> str:
    """Return the method that a kind of head is to speed up: `ar` for a head that drafts, `sd` for others."""
    return AR if drafts(kind) else SD


def try_head(request: TrialRequest, observer: Observer) -> HeadTrial | None:
    """Measure the method of a head, and the method that it is to speed up, on held-out prompts, into the head's folder.

    Returns None if no bundled method uses the head, or if no prompt was held out. Raises ConfigError and MissingAsset if the
    method needs a model or a head that the pair lacks.
    """
    method, selected = method_of(request.kind, request.base), _select_tasks(request)
    if not method or not selected:
        return None
    against = against_of(request.kind)
    head = (f"{request.kind.value}@{request.base}", str(request.folder))
    options = replace(request.options, heads=(head,), repeats=1)
    names = (method,) if against == AR else (method, against)
    out = request.folder / FOLDER
    choice = Choice.of(Request(methods=names, pair=request.pair, options=options, out=out))
    pair = choice.pair.on(selected[0].name) if len(selected) == 1 else choice.pair
    plan = plan_on(selected, choice, pair)
    models = LoadedModels()
    try:  # code is not executed: the trial is about speed
        steps = pipeline.MeasureOptions(access=Access(fresh=True), threads=ThreadChoice(request.options.threads))
        results = pipeline.measure(plan, plan.runs, models, steps, observer)
    finally:
        models.release()
    return trial_of(method, against, results.summaries)


def trial_of(method: str, against: str, summaries: Sequence[RunSummary]) -> HeadTrial:
    """Return the trial that runs make up, from their records."""
    gains, counts = [], []
    for summary in summaries:
        records = load(Path(summary.folder)).records
        ours, theirs = complete(records, method), complete(records, against)
        if paired(ours, theirs)[0]:
            gains.append(Gain(summary, speedup(ours, theirs, summary.end_to_end)))
        task = summary.spec.task.name
        counts += [
            (sum(x.accepted for x in row.rounds), sum(x.tested for x in row.rounds), f"{task}/{row.sample}")
            for row in ours
        ]
    return HeadTrial(method, against, tuple(summaries), tuple(gains), acceptance_interval(counts))


def _select_tasks(request: TrialRequest) -> list[SelectedTask]:
    """Return the held-out prompts of each task."""
    selected = []
    share = max(-(-request.prompts // len(request.sources)), FEWEST)
    texts = request.texts.held_out(request.seed)
    for source in request.sources:
        samples = [text.sample for text in texts if text.task == source.name][:share]
        if samples:
            data = Data(samples, f"held-out rows of {source.source}", None, "", len(samples))
            task = replace(source.task, max_new_tokens=min(source.task.max_new_tokens, MOST_TOKENS))
            selected.append(SelectedTask(source.name, task, replace(data, sha256=data.prompts_sha256)))
    return selected


@dataclass(frozen=True)
class HeadDrafting:
    """The drafts of a head: the proposer that uses it, and the temperature."""

    proposer: Eagle | BlockDraft
    temperature: float


def drafting_of(kind: HeadKind, pair: str, options: Options, base: str, folder: Path) -> HeadDrafting:
    """Return the drafts of a head on a base: as in its own method on the target, else default drafts at T = 0."""
    is_block = kind in (HeadKind.dflash, HeadKind.dspark)
    default = HeadDrafting(BlockDraft(head=NAME, base=base) if is_block else Eagle(head=NAME, base=base), 0.0)
    if base != "target":
        return default
    with_head = replace(options, heads=((f"{kind.value}@{base}", str(folder)),))
    _, models = selection.read_pair(pair, with_head)
    method = Methods((kind.value,), models, with_head).groups({})[0][-1]
    proposer = method.method.proposer if isinstance(method.method, Speculative) else None
    return HeadDrafting(proposer, method.temperature) if isinstance(proposer, Eagle | BlockDraft) else default


class MeasuredAcceptance(NamedTuple):
    """The acceptance rate of drafts, accepted / tested tokens, and that of each position after accepted tokens."""

    rate: Estimate
    by_position: list[float]


def measure_acceptance(
    pair: LoadedPair, kind: HeadKind, folder: Path, drafting: HeadDrafting, texts: Sequence[Text], observer: Observer
) -> MeasuredAcceptance | None:
    """Decode prompts with the head in a folder and its base, and return the acceptance of the drafts.

    This is the quantity that a trial measures, along the base's own outputs. Returns None if no token was tested.
    """
    base, head = drafting.proposer.base, kind_named(kind.value).read(folder)
    assert isinstance(head, DraftHead)
    model = pair.models[base].transformers()
    pair.heads[NAME] = head.goes_with(model.get_input_embeddings().weight, model.config)
    proposer = replace(drafting.proposer, head=NAME)
    if isinstance(head, BlockHead):
        proposer = replace(proposer, gamma=min(proposer.gamma, head.block.length))
    method = Speculative(proposer=proposer, scorers=(base,), target=Last())
    counts, positions = [], Counter[tuple[int, bool]]()
    texts = texts[:MOST_TEXTS]
    with observer.progress("measuring acceptance", len(texts)) as advance:
        for text in texts:
            limits = limits_of(pair, text)
            limits = replace(limits, max_new_tokens=min(limits.max_new_tokens, MOST_TOKENS))
            sampler = sampler_of(pair, text, 0, drafting.temperature)
            with torch.inference_mode():
                rounds = decode(method, pair.open(text.prompt), sampler, limits).rounds
            counts.append((sum(r.accepted for r in rounds), sum(r.tested for r in rounds), str(text.number)))
            positions.update((i, i < r.accepted) for r in rounds for i in range(r.tested))
            advance()
    rate = acceptance_interval(counts)
    if rate is None:
        return None
    depth = 1 + max(i for i, _ in positions)
    return MeasuredAcceptance(
        rate, [positions[i, True] / (positions[i, True] + positions[i, False]) for i in range(depth)]
    )
