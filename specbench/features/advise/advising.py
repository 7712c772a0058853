"""Advice for a pair, a task and a machine: which method to speculate with, found by replay and few measurements.

The prompts are divided into parts. On the first, the baseline and a few methods of every kind are run, which gives costs.
The baseline's outputs are recorded, and every candidate is replayed on them. The candidates with the highest predicted speed
are run on the second part, and the faster half of them on the third. The winner is run on the last part, which is held out,
and twice more there, each time in a new process, since a speedup differs between processes and between times. Every part is
an ordinary run in the output folder, so that the command resumes.

Each part has new prompts, since the fastest of several candidates looks better on the prompts that selected it. With four
finalists and 40 prompts: 10 prompts give the costs, 5 compare four candidates, 5 compare two, and 20 measure the winner.

With a largest allowed drop of the score, methods that are not lossless are measured too, from the second part on.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from specbench.analysis.length_predictions import is_covered
from specbench.analysis.method_records import complete
from specbench.analysis.predictions import break_even
from specbench.analysis.run_summary import RunSummary
from specbench.analysis.summary import summary_of
from specbench.config.options import Options
from specbench.config.request import Access
from specbench.decoding.method import Method
from specbench.errors import ConfigError
from specbench.experiment.loaded_models import LoadedModels
from specbench.experiment.pipeline import MeasureOptions, summarize_run, threads_of
from specbench.experiment.runner import open_recorder, other_conditions, recorded_threads
from specbench.experiment.timed_forwards import has_timed_blocks, time_blocks
from specbench.features.advise import PROMPTS
from specbench.features.advise.advice_runs import AdviceRequest, AdviceRuns
from specbench.features.advise.advice_work import (
    FINALISTS,
    PARTS,
)
from specbench.features.advise.candidate_set import (
    BASELINE,
    drafter_of,
    lossy_candidates,
    pilots_of,
    register_candidates,
)
from specbench.features.advise.candidates import Advice, Candidate, CandidateResult, later_speedup, pilot_costs
from specbench.features.advise.halving import SuccessiveHalving, add_measurements, best_of, selected
from specbench.features.advise.replay_predictions import predict_all
from specbench.machine.threads import using
from specbench.observer import Observer
from specbench.resolution.methods import method_on
from specbench.resolution.resolve import sizes_of
from specbench.resolution.run_plan import PairPlan, PlannedRun, plan_of_folder
from specbench.resolution.selection import read_pair
from specbench.runs.locking import locked
from specbench.runs.run_folder import read, runs_in, timed_forwards


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
    parts = AdviceRuns(replace(request, options=options), observer)
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
    compared = [name for name, _ in options.heads_for(request.pair) if "/" in name]  # KIND/LABEL, besides the pair's
    names, others = best_of(results, lossless, FINALISTS, compared), [candidate.name for candidate in lossy]
    halving = SuccessiveHalving(results, names, others, request.max_drop or 0.0, pilot)
    results |= {result.candidate.name: result for result in unsupported}
    halving.run(parts, begin + request.seconds)
    if not any(result.measured for result in results.values()):  # out of time: the first part has measured some of them
        add_measurements(results, pilot, [candidate.name for candidate in pilots])
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
        heads=compared,
    )


def _among(candidates: Sequence[Candidate], methods: Mapping[Candidate, Method]) -> list[Candidate]:
    return [candidate for candidate in candidates if candidate in methods]


def _advice(
    results: Mapping[str, CandidateResult], best: str, pilot: RunSummary, first: str, final: RunSummary
) -> Advice:
    """Return the advice to use the candidate `best`, with the costs that the method `first` of the run `pilot` shows."""
    folder = Path(pilot.folder)
    records = list(read(folder))
    rows, base = complete(records, first), complete(records, pilot.baseline)
    theory = pilot.spec.methods[first].traits.theory
    others = [result for name, result in results.items() if name != best]
    block_cost = None
    if theory and is_covered(theory, rows, base):
        verifier = pilot_costs(theory, rows, base, timed_forwards(folder)).verifier
        block_cost = verifier.of(theory.gamma[0] + 1) / verifier.of(1)
    return Advice(
        results=[results[best], *sorted(others, key=lambda result: (-result.parts, -result.speedup))],
        gain=None,
        pilot=pilot,
        pilot_row=next(row for row in pilot.methods if row.method == first),
        break_even=break_even(theory, rows, base),
        block_cost=block_cost,
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
            raise ConfigError(
                f"{folder} was not timed, since other runs shared its device; help: measure it again, alone, with --fresh"
            )
        with observer.status(f"loading {', '.join(plan.roles)}"):
            loaded = LoadedModels().of(plan)
            if not has_timed_blocks(run):
                time_blocks(loaded, run)
        predicted = predict_all(lambda: loaded, run, measured | new, pilots, observer)
        summary = summarize_run(folder)
    results = {result.candidate.name: result for result in predicted}
    add_measurements(results, summary, [candidate.name for candidate in measured])
    results = {name: replace(result, parts=0) for name, result in results.items()}  # a run has no parts
    return _advice(results, selected(results, list(results)), summary, models[0].name, summary)


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
    """Return the candidates with costs that draft with one of these models and that a run has not measured.

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
