"""Advice for a pair, a task and a machine: which method to speculate with, found by replay and few measurements.

The prompts are divided into parts. On the first, the baseline and a few methods of every kind are run, which gives prices.
The baseline's outputs are recorded, and every candidate is replayed on them. The candidates with the highest predicted speed
are run on the second part, and the better half of them on the third. The winner is run on the last part, which is held out.
Every part is an ordinary run in the output folder, so that the command resumes.
"""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from specbench.analysis.draft_lengths import is_covered
from specbench.analysis.intervals import Estimate
from specbench.analysis.predictions import BreakEven, break_even
from specbench.analysis.prices import Drafter, Prices, predicted_speedup, prices_of
from specbench.analysis.run_metrics import Records, complete, seconds, token_count
from specbench.analysis.run_summary import MethodSummary, RunSummary
from specbench.config.options import Access, Options, Request
from specbench.decoding.method import Method
from specbench.errors import ConfigError
from specbench.experiment.pipeline import MeasureOptions, measure
from specbench.experiment.recording import Recording, count_missing, record_outputs
from specbench.methods.replays import Replay, replay_of
from specbench.models.placed import tensor_placement
from specbench.observer import Observer
from specbench.resolution.candidates import (
    BASELINE,
    TARGET,
    Candidate,
    drafters_of,
    pilots_of,
    register_candidates,
)
from specbench.resolution.plan import PairPlan, PlannedRun
from specbench.resolution.resolve import resolve
from specbench.resolution.selection import read_pair
from specbench.runs.run_folder import read, timed_forwards

# Parts of the prompts, as shards: prices, two eliminations, and the winner's gain, on half of the prompts
PARTS = ("1/4", "3/8", "7/8", "2/2")
FEWEST_PROMPTS = 10  # for which the last part has an interval
FINALISTS = 4
PROMPTS = 48


@dataclass(frozen=True, kw_only=True)
class AdviceRequest:
    """A pair and a task to advise on.

    After `seconds`, no other part is begun. `parts` are disjoint shards of the prompts.
    """

    pair: str
    task: str
    options: Options
    out: Path = Path("results")
    access: Access = field(default_factory=Access)
    seconds: float = 600.0
    parts: tuple[str, str, str, str] = PARTS


@dataclass(frozen=True, kw_only=True)
class CandidateResult:
    """A candidate, its predicted and its measured decoding speedup. `why` says why there is no prediction.

    `parts` is the number of parts after the first that it was measured on; `measured` is that of the last one.
    """

    candidate: Candidate
    predicted: Estimate | None = None
    why: str = ""
    measured: Estimate | None = None
    parts: int = 0

    @property
    def speedup(self) -> float:
        """The best estimate of the speedup: measured, else predicted, else 1."""
        estimate = self.measured or self.predicted
        return estimate.value if estimate else 1.0


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The advised candidate and what the advice rests on.

    `results` are all candidates, the selected one first. `gain` is its measured decoding speedup on held-out prompts; None if
    it was not measured there. `pilot` is the run that gave the prices, `pilot_row` its first method, `final` the last run.
    """

    results: list[CandidateResult]
    gain: Estimate | None
    pilot: RunSummary
    pilot_row: MethodSummary
    break_even: BreakEven | None
    block_price: float | None
    final: RunSummary
    is_out_of_time: bool

    @property
    def best(self) -> CandidateResult:
        """The advised candidate."""
        return self.results[0]

    @property
    def pays(self) -> bool | None:
        """Whether the selected candidate is faster than the baseline; None if its interval does not tell."""
        gain = self.gain or self.best.measured
        if gain is None or gain.low is None or gain.high is None:
            return None
        return True if gain.low > 1.0 else False if gain.high < 1.0 else None


def advise(request: AdviceRequest, observer: Observer | None = None) -> Advice:
    """Return advice on a pair and a task.

    Raises what `resolve` does, and ConfigError for fewer than FEWEST_PROMPTS prompts.
    """
    observer, begin = observer or Observer(), time.monotonic()
    options = replace(request.options, limit=request.options.limit or PROMPTS)
    _, pair = read_pair(request.pair, options)
    candidates = register_candidates(pair, options.temperature or 0.0)
    parts = _Parts(replace(request, options=options), observer)
    methods, unsupported = parts.open(candidates)
    candidates = [each for each in candidates if each in methods]
    pilots = pilots_of(candidates)
    pilot = parts.measure(1, [each.name for each in pilots], profile=True)
    results = {each.candidate.name: each for each in _predictions(parts, methods, pilots, drafters_of(pair))}
    names = _best(results, candidates, FINALISTS)
    results |= {each.candidate.name: each for each in unsupported}
    final, gain, is_out_of_time = pilot, None, False
    for part in range(2, len(PARTS) + 1):
        spent = time.monotonic() - begin
        if spent + parts.slowest > request.seconds:
            is_out_of_time = True
            break
        final = parts.measure(part, names)
        for name in names:
            row = next(row for row in final.methods if row.method == name)
            results[name] = replace(results[name], measured=row.speedup, parts=results[name].parts + 1)
        if part == len(PARTS):
            gain = results[names[0]].measured
        elif all(_is_slower(results[name].measured) for name in names):
            names = sorted(names, key=lambda name: -results[name].speedup)[:1]
            break
        else:
            keep = max(len(names) // 2, 1) if part < len(PARTS) - 1 else 1
            names = sorted(names, key=lambda name: -results[name].speedup)[:keep]
    return _advice(results, names[0], gain, is_out_of_time, pilot, pilots[0], final)


def _is_slower(speedup: Estimate | None) -> bool:
    return speedup is not None and speedup.high is not None and speedup.high < 1.0


class _Parts:
    """The runs of advice, one per part of the prompts, with models that are loaded once."""

    def __init__(self, request: AdviceRequest, observer: Observer) -> None:
        self.request, self.observer = request, observer
        self.slowest = 0.0  # seconds of the slowest part so far
        self.plan: PairPlan | None = None
        self.run: PlannedRun | None = None

    def open(self, candidates: Sequence[Candidate]) -> tuple[dict[Candidate, Method], list[CandidateResult]]:
        """Load the models, and return the methods of the candidates and those that an engine does not support.

        Raises ConfigError for fewer than FEWEST_PROMPTS prompts, and for models whose tensors are split.
        """
        request, names = self.request, tuple(each.name for each in candidates)
        resolved = resolve(
            Request(methods=names, pair=request.pair, tasks=(request.task,), options=request.options, out=request.out)
        )
        (plan,) = resolved.plans
        (run,) = plan.runs
        prompts = sum(not sample.after for sample in run.data.samples)
        if prompts < FEWEST_PROMPTS:
            raise ConfigError(
                f"advise needs at least {FEWEST_PROMPTS} prompts, and there are {prompts}; help: -n, --data"
            )
        if tensor_placement(plan.models):
            raise ConfigError("advise does not run models whose tensors are split; help: specbench run")
        with self.observer.status(f"loading {', '.join(plan.roles)}"):
            loaded = plan.load()
        methods, unsupported = dict[Candidate, Method](), list[CandidateResult]()
        for candidate in candidates:
            method = run.methods[candidate.name]
            try:
                loaded.require_defined(candidate.name, method)
                methods[candidate] = method
            except ConfigError as error:
                unsupported.append(CandidateResult(candidate=candidate, why=str(error).partition("; help")[0]))
        self.plan = plan
        return methods, unsupported

    def measure(self, part: int, methods: Sequence[str], profile: bool = False) -> RunSummary:
        """Measure methods on a part of the prompts, and summarize them."""
        begin, request = time.monotonic(), self.request
        options = replace(request.options, shard=request.parts[part - 1])
        resolved = resolve(
            Request(
                methods=tuple(methods), pair=request.pair, tasks=(request.task,), options=options,
                out=request.out, access=request.access,
            )
        )  # fmt: skip
        (plan,) = resolved.plans
        if self.plan is not None:
            plan.borrow(self.plan)
            self.plan.release()  # one plan's models at a time
        self.plan, (self.run,) = plan, plan.runs
        (summary,) = measure(
            plan, plan.runs, MeasureOptions(access=request.access, profile=profile), self.observer
        ).summaries
        if any(not row.measured for row in summary.methods):
            raise ConfigError(f"no prompt was decoded by every method; help: specbench report {summary.folder}")
        self.slowest = max(self.slowest, time.monotonic() - begin)
        return summary


def _best(results: Mapping[str, CandidateResult], candidates: Sequence[Candidate], count: int) -> list[str]:
    """Return the candidates to measure: those with the highest predicted speed, then those that cannot be predicted."""
    unpredicted = [each.name for each in candidates if results[each.name].predicted is None]
    predicted = [each.name for each in candidates if results[each.name].predicted is not None]
    unpredicted = unpredicted[: count - 1] if predicted else unpredicted[:count]
    return [*sorted(predicted, key=lambda name: -results[name].speedup)[: count - len(unpredicted)], *unpredicted]


def _predictions(
    parts: _Parts, methods: Mapping[Candidate, Method], pilots: Sequence[Candidate], drafters: Sequence[str]
) -> list[CandidateResult]:
    """Return all candidates with their predicted speedups, from the pilot's run."""
    plan, run = parts.plan, parts.run
    assert plan is not None and run is not None
    records = list(read(run.folder))
    base = complete(records, BASELINE)
    timed = timed_forwards(run.folder)
    others: dict[Drafter, Records] = {
        each.kind: complete(records, each.name) for each in pilots if each.kind and each.kind != "model"
    }
    prices = dict[str, Prices]()
    for pilot in pilots:
        theory, rows = run.spec.methods[pilot.name].traits.theory, complete(records, pilot.name)
        if pilot.kind == "model" and is_covered(theory, rows, base) and theory and pilot.drafter not in prices:
            shorter = [each.name for each in pilots if each.drafter == pilot.drafter and each.kind == "model"]
            more = [row for name in shorter if name != pilot.name for row in complete(records, name)]
            prices[pilot.drafter] = prices_of(theory, rows, base, timed, more, others)
    recordings = list[Recording]()
    if prices:
        with parts.observer.progress("recording outputs", count_missing(run, drafters)) as advance:
            recordings = record_outputs(plan, run, drafters, advance)
    of_base = _seconds_by_output(base, recordings)
    corrections = defaultdict[tuple[str, str], dict[int, float]](dict)  # by kind and drafter, and by draft length
    out = []
    for candidate in sorted(methods, key=lambda each: each not in pilots):  # pilots first: they correct the others
        replayed = replay_of(methods[candidate], (TARGET,), run.spec.decoding.temperature)
        priced = prices.get(candidate.drafter) or next(iter(prices.values()), None)
        if isinstance(replayed, str) or priced is None or candidate.kind is None:
            out.append(
                CandidateResult(
                    candidate=candidate, why=replayed if isinstance(replayed, str) else "no draft model was run"
                )
            )
        elif replayed.method.proposer.nodes + 1 > priced.largest:
            out.append(CandidateResult(candidate=candidate, why="its blocks are larger than the timed ones"))
        else:
            found = _replayed(replayed, candidate.kind, priced, recordings)
            known = corrections[candidate.kind, candidate.drafter]
            if candidate in pilots:
                outputs = [each.record for each in recordings]
                predicted = sum(found.seconds.values()) / token_count(outputs)
                known[candidate.gamma] = _per_token(complete(records, candidate.name)) / predicted
            if known:
                lengths = sorted(known)
                factor = np.interp(candidate.gamma, lengths, [known[length] for length in lengths])
                found = replace(found, factor=float(factor))
            out.append(CandidateResult(candidate=candidate, predicted=found.speedup(of_base, priced, recordings)))
    return out


@dataclass(frozen=True)
class _Replayed:
    """The predicted seconds of a method by output, and those in blocks of each size.

    `factor` corrects them: the measured seconds of methods that draft in the same way over their predicted ones.
    """

    seconds: Mapping[tuple[str, int], float]
    blocks: Mapping[int, float]
    factor: float = 1.0

    def speedup(
        self, base: Mapping[tuple[str, int], float], prices: Prices, recordings: Sequence[Recording]
    ) -> Estimate:
        """Return the predicted speedup over the baseline's seconds by output."""
        ours, theirs = defaultdict[str, float](float), defaultdict[str, float](float)
        for record in (each.record for each in recordings):
            key = record.sample, record.repeat
            ours[record.prompt] += self.factor * self.seconds[key]
            theirs[record.prompt] += base[key]
        prompts = [prompt for prompt in ours if ours[prompt] > 0.0]
        return predicted_speedup(
            [theirs[each] for each in prompts], [ours[each] for each in prompts], self.blocks, prices.measured
        )


def _replayed(replayed: Replay, kind: Drafter, prices: Prices, recordings: Sequence[Recording]) -> _Replayed:
    """Return the predicted seconds of a method on recorded outputs."""
    shape = replayed.method.proposer.shape or ()
    spent, blocks = dict[tuple[str, int], float](), defaultdict[int, float](float)
    for recording in recordings:
        rounds = replayed.rounds(recording.output)
        spent[recording.record.sample, recording.record.repeat] = prices.seconds(rounds, kind, shape)
        for k, count in enumerate(rounds.drafted.sum(axis=0)):
            blocks[k + 1] += float(count) * float(prices.verifier[k + 1])
    return _Replayed(spent, blocks)


def _per_token(rows: Records) -> float:
    """Return decoding seconds / tokens."""
    return sum(map(seconds, rows)) / token_count(rows)


def _seconds_by_output(rows: Records, recordings: Sequence[Recording]) -> dict[tuple[str, int], float]:
    """Return the decoding seconds of each recorded output; at temperature 0, the mean over the repeats of its prompt."""
    repeats = defaultdict[str, list[float]](list)
    for record in rows:
        repeats[record.sample].append(seconds(record))
    of_output = {(record.sample, record.repeat): seconds(record) for record in rows}
    greedy = all(each.record.repeat == 0 for each in recordings)
    keys = [(each.record.sample, each.record.repeat) for each in recordings if each.record.sample in repeats]
    return {key: float(np.mean(repeats[key[0]])) if greedy else of_output[key] for key in keys}


def _advice(
    results: Mapping[str, CandidateResult], best: str, gain: Estimate | None, is_out_of_time: bool,
    pilot: RunSummary, first: Candidate, final: RunSummary,
) -> Advice:  # fmt: skip
    folder = Path(pilot.folder)
    records = list(read(folder))
    rows, base = complete(records, first.name), complete(records, BASELINE)
    theory = pilot.spec.methods[first.name].traits.theory
    others = sorted(
        (each for name, each in results.items() if name != best), key=lambda each: (-each.parts, -each.speedup)
    )
    block_price = None
    if theory and is_covered(theory, rows, base):
        verifier = prices_of(theory, rows, base, timed_forwards(folder)).verifier
        block_price = float(verifier[theory.gamma[0] + 1] / verifier[1])
    return Advice(
        results=[results[best], *others],
        gain=gain,
        pilot=pilot,
        pilot_row=next(row for row in pilot.methods if row.method == first.name),
        break_even=break_even(theory, rows, base),
        block_price=block_price,
        final=final,
        is_out_of_time=is_out_of_time,
    )
