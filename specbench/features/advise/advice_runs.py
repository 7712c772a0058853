"""The runs of advice: its request, and a run of some candidates for each part of the prompts."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from specbench.analysis.intervals import Estimate
from specbench.analysis.run_summary import RunSummary
from specbench.analysis.summary import summary_of
from specbench.config.options import Options
from specbench.config.presets import preset
from specbench.config.request import Access, Request
from specbench.config.shard import Shard
from specbench.decoding.method import Method
from specbench.errors import ConfigError
from specbench.experiment.batch import BatchFailed, RequestBatch, measure_in_new_process
from specbench.experiment.loaded_models import LoadedModels
from specbench.experiment.pipeline import MeasureOptions, measure
from specbench.experiment.runner import (
    check_prompts,
    recorded_threads,
)
from specbench.features.advise import MINUTES
from specbench.features.advise.advice_work import (
    FEWEST_PROMPTS,
    PARTS,
    PROCESSES,
    TIMED_SHARE,
    AdviceWork,
    timed_tokens,
)
from specbench.features.advise.candidate_set import heads_in, tables_of
from specbench.features.advise.candidates import Candidate, CandidateResult
from specbench.machine.threads import ThreadChoice
from specbench.models.loaded_pair import LoadedPair
from specbench.observer import Observer
from specbench.resolution.resolve import resolve
from specbench.resolution.run_plan import PairPlan, PlannedRun
from specbench.resolution.selection import read_pair
from specbench.runs.run_folder import runs_in
from specbench.sandbox import Sandbox
from specbench.vocabulary import SandboxKind


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
    parts: tuple[Shard, Shard, Shard, Shard] = PARTS

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


class AdviceRuns:
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
        methods, unsupported = supported_by(loaded, run, candidates)
        if unsupported:
            self.whole, _ = self._plan([candidate.name for candidate in methods], request.options)
        return methods, unsupported

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
        request, named = self.request, set[str]()
        for method in methods:
            named |= {*heads_in(preset("method", method).table)}
        # A head KIND/LABEL that no method reads would be an error
        heads = tuple(
            (name, path) for name, path in options.heads if "/" not in (own := name.rpartition(":")[2]) or own in named
        )
        options = replace(options, heads=heads)
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
