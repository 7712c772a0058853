"""Advice for a pair, a task and a machine: which method to speculate with, found by replay and few measurements.

The prompts are divided into parts. On the first, the baseline and a few methods of every kind are run, which gives prices.
The baseline's outputs are recorded, and every candidate is replayed on them. The candidates with the highest predicted speed
are run on the second part, and the faster half of them on the third. The winner is run on the last part, which is held out,
and twice more there, each time in a new process, since a speedup differs between processes and between times. Every part is
an ordinary run in the output folder, so that the command resumes.

Each part has new prompts, since the fastest of several candidates looks better on the prompts that selected it. With four
finalists and 40 prompts: 10 prompts give the prices, 5 compare four candidates, 5 compare two, and 20 measure the winner.

With a largest allowed drop of the score, methods that are not lossless are measured too, from the second part on.
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from specbench.analysis.intervals import Estimate
from specbench.analysis.length_predictions import is_covered
from specbench.analysis.predictions import break_even
from specbench.analysis.quality import bounded_score_change, scores_by_prompt, scores_of
from specbench.analysis.run_metrics import complete
from specbench.analysis.run_summary import RunSummary
from specbench.analysis.summary import summary_of
from specbench.config.options import Access, Options, Request
from specbench.decoding.method import Method
from specbench.errors import ConfigError
from specbench.experiment.batch import BatchFailed, RequestBatch, measure_in_new_process
from specbench.experiment.loaded_models import LoadedModels
from specbench.experiment.pipeline import MeasureOptions, measure, summarize_run, threads_of
from specbench.experiment.runner import (
    check_prompts,
    has_timed_blocks,
    open_recorder,
    other_conditions,
    recorded_threads,
    time_blocks,
)
from specbench.features.advise import MINUTES, PROMPTS
from specbench.features.advise.advice_work import (
    FEWEST_PROMPTS,
    FINALISTS,
    PARTS,
    PROCESSES,
    TIMED_SHARE,
    AdviceWork,
    timed_tokens,
)
from specbench.features.advise.candidate_set import (
    BASELINE,
    drafter_of,
    lossy_candidates,
    pilots_of,
    register_candidates,
    tables_of,
)
from specbench.features.advise.candidates import Advice, Candidate, CandidateResult, later_speedup, prices_of
from specbench.features.advise.recordings import predict_all
from specbench.machine.threads import ThreadChoice, using
from specbench.models.loaded_pair import LoadedPair
from specbench.observer import Observer
from specbench.resolution.methods import method_on
from specbench.resolution.resolve import resolve, sizes_of
from specbench.resolution.run_plan import PairPlan, PlannedRun, plan_of_folder
from specbench.resolution.selection import read_pair
from specbench.runs.locking import locked
from specbench.runs.run_folder import read, runs_in, timed_forwards
from specbench.sandbox import Sandbox
from specbench.vocabulary import SandboxKind

LOSSY_FINALISTS = 2  # of the methods that are not lossless, after their first part


@dataclass(frozen=True, kw_only=True)
class AdviceRequest:
    """A pair and a task to advise on.

    No part is begun that would probably end after `seconds`. With `max_drop`, in [0, 1], methods that are not lossless are
    candidates too. One of them is selected only if the interval of its main score excludes a larger drop. Generated code is
    executed for scores in a sandbox of the kind `sandbox`; None: not at all. `parts` are disjoint shards of the prompts.
    """

    pair: str
    task: str
    options: Options
    out: Path = Path("results")
    access: Access = field(default_factory=Access)
    sandbox: SandboxKind | None = None
    seconds: float = 60.0 * MINUTES
    max_drop: float | None = None
    parts: tuple[str, str, str, str] = PARTS

    def __post_init__(self) -> None:
        if self.max_drop is not None and not 0.0 <= self.max_drop <= 1.0:
            raise ConfigError(f"max_drop = {self.max_drop:g} must be a share of the score, from 0 to 1")

    @classmethod
    def of(cls, request: Request, minutes: float = MINUTES, max_drop: float | None = None) -> "AdviceRequest":
        """Return the request for a pair's only or default task. Raises ConfigError without one, or for several."""
        tasks = request.tasks or read_pair(request.pair, request.options)[1].defaults.tasks[:1]
        if not tasks:
            raise ConfigError(f"pair {request.pair} has no default task for the prompts; help: -t TASK")
        if len(tasks) > 1:
            raise ConfigError(
                f"advise takes one task, not {', '.join(tasks)}: advice on one says nothing about another"
            )
        return cls(
            pair=request.pair, task=tasks[0], options=request.options, out=request.out, access=request.access,
            sandbox=request.sandbox, seconds=60.0 * minutes, max_drop=max_drop,
        )  # fmt: skip


def advise(request: AdviceRequest, observer: Observer | None = None) -> Advice:
    """Return advice on a pair and a task.

    Raises what `resolve` raises, and ConfigError for fewer than FEWEST_PROMPTS prompts.
    """
    observer, begin = observer or Observer(), time.monotonic()
    temperature = request.options.temperature or 0.0  # presets have defaults of their own
    options = replace(request.options, limit=request.options.limit or PROMPTS, temperature=temperature)
    _, pair = read_pair(request.pair, options)
    lossless = register_candidates(pair, temperature)
    lossy = lossy_candidates(pair, options) if request.max_drop is not None else []
    parts = _Parts(replace(request, options=options), observer)
    methods, unsupported = parts.open([*lossless, *lossy])
    lossless, lossy = _among(lossless, methods), _among(lossy, methods)
    pilots = pilots_of(lossless)
    parts.fit(len(pilots), begin + request.seconds)
    pilot = parts.measure(1, [candidate.name for candidate in pilots], profile=True)
    assert parts.plan is not None and parts.run is not None
    of_lossless = {candidate: methods[candidate] for candidate in lossless}
    recorded = recorded_threads(parts.run.folder)
    with using(recorded.count if recorded else 0):
        predicted = predict_all(partial(parts.models.of, parts.plan), parts.run, of_lossless, pilots, observer)
    predicted += [CandidateResult(candidate=candidate, why="not lossless") for candidate in lossy]
    results = {result.candidate.name: result for result in predicted}
    names, others = _best(results, lossless, FINALISTS), [candidate.name for candidate in lossy]
    halving = _SuccessiveHalving(results, names, others, request.max_drop or 0.0, pilot)
    results |= {result.candidate.name: result for result in unsupported}
    halving.run(parts, begin + request.seconds)
    if not any(result.measured for result in results.values()):  # out of time: the first part has measured some of them
        _add_measurements(results, pilot, [candidate.name for candidate in pilots])
        results |= {each.name: replace(results[each.name], parts=0) for each in pilots}
        halving.names = [candidate.name for candidate in pilots]
    best = halving.best
    is_last = halving.part == len(PARTS)
    repeats = parts.repeated(results[best].candidate, begin + request.seconds) if is_last else []
    gain = later_speedup(repeats) if repeats else results[best].measured
    return replace(
        _advice(results, best, pilot, pilots[0].name, halving.final),
        gain=gain if is_last else None,
        repeats=repeats,
        is_out_of_time=halving.is_out_of_time,
        max_drop=request.max_drop,
    )


@dataclass
class _SuccessiveHalving:
    """The candidates that are still measured: lossless ones in `names`, the others in `others`.

    `results` holds the result of every candidate, also of dropped ones. `final` is the last run, and `part` the number of its
    part of the prompts. One of `others` may lose at most `max_drop` of the score.
    """

    results: dict[str, CandidateResult]
    names: list[str]
    others: list[str]
    max_drop: float
    final: RunSummary
    part: int = 1
    is_out_of_time: bool = False

    def run(self, parts: "_Parts", deadline: float) -> None:
        """Measure the candidates on the remaining parts, and drop slow ones after each part but the last.

        Ends early if all candidates are slower than the baseline. No part is begun that would probably end after `deadline`,
        in seconds of `time.monotonic`.
        """
        while self.part < len(PARTS):
            if time.monotonic() + parts.slowest > deadline:
                self.is_out_of_time = True
                return
            self.part += 1
            measured = [*self.names, *self.others]
            self.final = parts.measure(self.part, measured)
            _add_measurements(self.results, self.final, measured)
            if all(_is_slower(self.results[name].measured) for name in measured):
                return
            if self.part < len(PARTS):
                self._keep_fastest()

    def _keep_fastest(self) -> None:
        """Drop the slower half of the lossless candidates; before the last part, keep only the fastest.

        Of the others, drop candidates that lose too much of the score, and keep the fastest LOSSY_FINALISTS; before the last
        part, only the fastest. The last part has one of each kind, so a lossless one is left if the other loses too much.
        """
        is_last = self.part == len(PARTS) - 1
        self.names = _fastest(self.results, self.names, 1 if is_last else max(len(self.names) // 2, 1))
        allowed = [name for name in self.others if not self.results[name].loses_score(self.max_drop)]
        self.others = _fastest(self.results, allowed, 1 if is_last else LOSSY_FINALISTS)

    @property
    def best(self) -> str:
        """The fastest remaining candidate that is lossless or keeps the score."""
        return _selected(
            self.results,
            [*self.names, *(name for name in self.others if self.results[name].keeps_score(self.max_drop))],
        )


def _add_measurements(results: dict[str, CandidateResult], run: RunSummary, names: Iterable[str]) -> None:
    """Replace the speedups and score changes in the results of these candidates with the values of a run.

    Scores are not compared if the baseline scores 0, since they cannot drop then.
    """
    rows = {row.method: row for row in run.methods}
    score = run.score(rows[run.baseline])
    is_scored = score is not None and score.value > 0.0
    folder = Path(run.folder)
    prompts = {record.sample: record.prompt for record in read(folder)}
    scores = scores_by_prompt(scores_of(folder), prompts) if is_scored else None
    for name in names:
        change = bounded_score_change(name, run.baseline, scores) if scores else None
        results[name] = replace(
            results[name],
            measured=rows[name].speedup,
            score_change=change,
            parts=results[name].parts + 1,
        )


def _fastest(results: Mapping[str, CandidateResult], names: Sequence[str], count: int) -> list[str]:
    return sorted(names, key=lambda name: -results[name].speedup)[:count]


def _selected(results: Mapping[str, CandidateResult], names: Sequence[str]) -> str:
    """Return the fastest of these candidates. One without an estimate is returned only if no candidate has an estimate."""
    estimated = [name for name in names if results[name].measured or results[name].predicted]
    return _fastest(results, estimated or names, 1)[0]


def _is_slower(speedup: Estimate | None) -> bool:
    return speedup is not None and speedup.high is not None and speedup.high < 1.0


class _Parts:
    """The runs of advice, one per part of the prompts. The models of all candidates are loaded once."""

    def __init__(self, request: AdviceRequest, observer: Observer) -> None:
        self.request, self.observer = request, observer
        self.threads = ThreadChoice(request.options.threads)
        self.slowest = self.opening = 0.0  # seconds of the slowest part so far, and of loading the models
        self.models = LoadedModels()
        self.whole: PairPlan | None = None  # of all candidates
        self.plan: PairPlan | None = None
        self.run: PlannedRun | None = None
        self.sandbox: Sandbox | None = None

    def open(self, candidates: Sequence[Candidate]) -> tuple[dict[Candidate, Method], list[CandidateResult]]:
        """Load the models. Return the methods of the candidates, and the candidates that an engine does not support.

        Raises ConfigError for fewer than FEWEST_PROMPTS prompts, and with `max_drop` for a task whose scores execute code
        without a sandbox.
        """
        request = self.request
        self.whole, run = self._plan([candidate.name for candidate in candidates], request.options)
        prompts = sum(not sample.after for sample in run.data.samples)
        if prompts < FEWEST_PROMPTS:
            raise ConfigError(
                f"advise needs at least {FEWEST_PROMPTS} prompts, and there are {prompts}; help: -n, --data"
            )
        if request.max_drop is not None and run.task.executes_code and request.sandbox is None:
            raise ConfigError(
                f"--max-drop needs scores, and those of {request.task} execute code; help: --allow-code-execution"
            )
        begin = time.monotonic()
        with self.observer.status(f"loading {', '.join(self.whole.roles)}"):
            loaded = self.models.of(self.whole)
        self.opening = time.monotonic() - begin
        return supported_by(loaded, run, candidates)

    def fit(self, pilots: int, deadline: float) -> None:
        """Reduce repeats, prompts and new tokens until all parts will probably end before `deadline`.

        The time is estimated from the first tokens that the target generates after one prompt. `deadline` is in seconds of
        `time.monotonic`. A message names what was reduced.
        """
        assert self.whole is not None
        (run,) = self.whole.runs
        loaded = self.models.of(self.whole)
        check_prompts(run, loaded)
        prefill, token = timed_tokens(loaded, run)
        options = self.request.options
        prompts = sum(not sample.after for sample in run.data.samples)
        chosen = AdviceWork(prompts, options.repeats, run.task.max_new_tokens)
        work, budget = chosen, deadline - time.monotonic()
        for smaller in chosen.smaller():
            if work.seconds(pilots, prefill, token, self.request.seconds) <= budget:
                break
            work = smaller
        needed = work.seconds(pilots, prefill, token, self.request.seconds)
        if needed > budget:
            self.observer.message(f"all parts would take about {needed / 60.0:.0f} minutes; help: --minutes")
        if work == chosen:
            return
        self.observer.message(
            f"a token takes {1e3 * token:.0f} ms: measuring {work.prompts} prompts of {chosen.prompts}, {work.repeats} of"
            f" {chosen.repeats} repeats and {work.tokens} of {chosen.tokens} tokens; help: --minutes"
        )
        reduced = replace(options, limit=work.prompts, repeats=work.repeats, max_new_tokens=work.tokens)
        self.request = replace(self.request, options=reduced)

    def measure(self, part: int, methods: Sequence[str], profile: bool = False) -> RunSummary:
        """Measure methods on a part of the prompts, and summarize them.

        Raises ConfigError if every prompt failed for some method, and if `max_drop` needs scores and there are none.
        """
        begin, request = time.monotonic(), self.request
        self.plan, self.run = plan, _ = self._plan(methods, replace(request.options, shard=request.parts[part - 1]))
        steps = MeasureOptions(
            access=request.access, threads=self.threads, sandbox=self.sandbox, profile=profile,
            profile_seconds=TIMED_SHARE * request.seconds,
        )  # fmt: skip
        results = measure(plan, plan.runs, self.models, steps, self.observer)
        (summary,) = results.summaries
        if any(not row.is_measured for row in summary.methods):
            raise ConfigError(f"no prompt was decoded by every method; help: specbench report {summary.folder}")
        if request.max_drop is not None and all(row.score_change is None for row in summary.methods):
            raise results.unscored or ConfigError(f"--max-drop needs scores, and {request.task} has none")
        self.slowest = max(self.slowest, time.monotonic() - begin)
        return summary

    def repeated(self, candidate: Candidate, deadline: float) -> list[Estimate]:
        """Return the speedups of a candidate on the last part, each measured in a new process.

        Returns an empty list if the measurements would probably end after `deadline`, in seconds of `time.monotonic`, if one
        fails or has no speedup, and with plugins, which a new process lacks.
        """
        if self.request.options.plugins or time.monotonic() + PROCESSES * (self.slowest + self.opening) > deadline:
            return []
        self.models.release()  # for the other process
        try:
            speedups = self._repeated(candidate)
        except BatchFailed as failed:
            self.observer.message(f"{candidate.name} was not measured again in another process: {failed.reason}")
            return []
        return speedups if len(speedups) == PROCESSES else []

    def _repeated(self, candidate: Candidate) -> list[Estimate]:
        request = self._request([candidate.name], replace(self.request.options, shard=self.request.parts[-1]))
        recorded = recorded_threads(self.run.folder) if self.run else None
        batch = RequestBatch(
            requests=[request], threads=recorded.count if recorded else 0, sandbox=request.sandbox,
            methods=tables_of([candidate]), access=request.access,
        )  # fmt: skip
        speedups = []
        for number in range(1, PROCESSES + 1):
            out = request.out / "again" / str(number)
            with self.observer.status(f"measuring {candidate.name} again in another process, {number} of {PROCESSES}"):
                measure_in_new_process(batch, out, quiet=True)
            rows = [row for folder in runs_in(out) for row in summary_of(folder).methods]
            speedups += [row.speedup for row in rows if row.method == candidate.name]
        return [speedup for speedup in speedups if speedup is not None]

    def _plan(self, methods: Sequence[str], options: Options) -> tuple[PairPlan, PlannedRun]:
        resolved = resolve(self._request(methods, options))
        self.sandbox = resolved.sandbox
        (plan,) = resolved.plans
        (run,) = plan.runs
        return plan, run

    def _request(self, methods: Sequence[str], options: Options) -> Request:
        request = self.request
        return Request(
            methods=tuple(methods), pair=request.pair, tasks=(request.task,), options=options, out=request.out,
            access=request.access, sandbox=request.sandbox,
        )  # fmt: skip


def supported_by(
    loaded: LoadedPair, run: PlannedRun, candidates: Sequence[Candidate]
) -> tuple[dict[Candidate, Method], list[CandidateResult]]:
    """Return the methods of the candidates, and those candidates that an engine does not support, with the reason."""
    methods, unsupported = dict[Candidate, Method](), list[CandidateResult]()
    for candidate in candidates:
        method = run.methods[candidate.name]
        try:
            loaded.require_defined(candidate.name, method)
            methods[candidate] = method
        except ConfigError as error:
            unsupported.append(CandidateResult(candidate=candidate, why=str(error).partition("; help")[0]))
    return methods, unsupported


def _among(candidates: Sequence[Candidate], methods: Mapping[Candidate, Method]) -> list[Candidate]:
    return [candidate for candidate in candidates if candidate in methods]


def _best(results: Mapping[str, CandidateResult], candidates: Sequence[Candidate], count: int) -> list[str]:
    """Return `count` candidates to measure: those with the highest predicted speed, then those without a prediction.

    Candidates without a prediction get up to half of the places, since only a measurement can show that they are fast.
    """
    unpredicted = [candidate.name for candidate in candidates if results[candidate.name].predicted is None]
    predicted = [candidate.name for candidate in candidates if results[candidate.name].predicted is not None]
    unpredicted = unpredicted[: count // 2] if predicted else unpredicted[:count]
    return [*_fastest(results, predicted, count - len(unpredicted)), *unpredicted]


def _advice(
    results: Mapping[str, CandidateResult], best: str, pilot: RunSummary, first: str, final: RunSummary
) -> Advice:
    """Return the advice to use the candidate `best`, with the costs that the method `first` of the run `pilot` shows."""
    folder = Path(pilot.folder)
    records = list(read(folder))
    rows, base = complete(records, first), complete(records, pilot.baseline)
    theory = pilot.spec.methods[first].traits.theory
    others = [result for name, result in results.items() if name != best]
    block_price = None
    if theory and is_covered(theory, rows, base):
        verifier = prices_of(theory, rows, base, timed_forwards(folder)).verifier
        block_price = verifier.of(theory.gamma[0] + 1) / verifier.of(1)
    return Advice(
        results=[results[best], *sorted(others, key=lambda result: (-result.parts, -result.speedup))],
        gain=None,
        pilot=pilot,
        pilot_row=next(row for row in pilot.methods if row.method == first),
        break_even=break_even(theory, rows, base),
        block_price=block_price,
        final=final,
    )


def advise_on(folder: Path, observer: Observer | None = None) -> Advice:
    """Return advice from a run of the target alone and of a draft model, without decoding with a candidate.

    Blocks of tokens are timed, and the probabilities of the outputs are recorded in the folder, unless it has them already.
    Raises what `plan_of_folder` raises, and ConfigError for a run that lacks one of these methods, that is not timed, or that
    was measured under other conditions, such as another machine or number of threads.
    """
    observer = observer or Observer()
    folder = _run_in(folder)
    plan = plan_of_folder(folder)
    (run,) = plan.runs
    measured = _measured_in(run)
    pilots = [candidate for candidate in measured if candidate.kind]
    models = _pilots_of_models(run, pilots)
    new = _unmeasured(plan, run, measured.values(), {"", *(model.drafter for model in models)})
    threads = threads_of(plan, run, MeasureOptions(access=Access(), profile=True), is_lacking=False)
    with locked([folder], Access()) as locks, using(threads.count):
        if changed := other_conditions(folder):
            raise ConfigError(
                f"{folder} was measured under other conditions ({'; '.join(changed)}); help: the machine, the versions and"
                " the number of threads of the run"
            )
        open_recorder(run, locks[folder], Access())
        if not summary_of(folder).is_timed:
            raise ConfigError(f"{folder} was not timed; help: specbench run without --jobs")
        with observer.status(f"loading {', '.join(plan.roles)}"):
            loaded = LoadedModels().of(plan)
            if not has_timed_blocks(run):
                time_blocks(loaded, run)
        predicted = predict_all(lambda: loaded, run, measured | new, pilots, observer)
        summary = summarize_run(folder)
    results = {result.candidate.name: result for result in predicted}
    _add_measurements(results, summary, [candidate.name for candidate in measured])
    results = {name: replace(result, parts=0) for name, result in results.items()}  # a run has no parts
    return _advice(results, _selected(results, list(results)), summary, models[0].name, summary)


def _measured_in(run: PlannedRun) -> dict[Candidate, Method]:
    """Return the lossless methods of a run as candidates."""
    return {
        Candidate(label, method.options, drafter_of(method.options)): run.methods[label]
        for label, method in run.spec.methods.items()
        if method.lossless
    }


def _pilots_of_models(run: PlannedRun, pilots: Sequence[Candidate]) -> list[Candidate]:
    """Return the pilots that draft with a model or head. Raises ConfigError without one, or if the baseline is not `ar`."""
    models = [
        candidate for candidate in pilots if candidate.kind in ("model", "head") and "rejection" not in candidate.table
    ]
    if run.spec.baseline != BASELINE or not models:
        raise ConfigError(
            f"{run.folder}: advise needs a run of {BASELINE} and of a draft model or head at a fixed draft length, without a"
            " stop rule; help: specbench run -m sd"
        )
    return models


def _run_in(folder: Path) -> Path:
    """Return the only run in a folder. Raises ConfigError if there is none, or more than one."""
    folders = runs_in(folder) if folder.is_dir() else []
    if len(folders) > 1:
        raise ConfigError(f"advise: {folder} has {len(folders)} runs; help: name one of them")
    if not folders:
        raise ConfigError(f"advise: no run in {folder}; help: -p PAIR")
    return folders[0]


def _unmeasured(
    plan: PairPlan, run: PlannedRun, measured: Collection[Method], drafters: Collection[str]
) -> dict[Candidate, Method]:
    """Return the candidates with prices that draft with one of these models and that a run has not measured.

    A candidate with the name of a method of the run is left out.
    """
    pair, sizes = plan.pair.pair, sizes_of(plan.models)
    unmeasured = dict[Candidate, Method]()
    for candidate in register_candidates(pair, run.spec.decoding.temperature):
        if candidate.kind is None or candidate.name in run.spec.methods or candidate.drafter not in drafters:
            continue
        resolved = method_on(candidate.name, pair, Options(), sizes)
        if resolved and resolved.method not in measured:
            unmeasured[candidate] = resolved.method
    return unmeasured
