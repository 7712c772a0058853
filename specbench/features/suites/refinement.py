"""Short runs that choose what a longer run measures: the settings of a curve, and the draft lengths of a sweep.

Most settings of a sweep are far from the best. A few prompts exclude such settings, so that only the others are measured on
all prompts.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from specbench.analysis.intervals import FEWEST
from specbench.config.presets import AUTO_LENGTH, preset, stem, sweep_of
from specbench.config.request import Request
from specbench.errors import ConfigError, ExitCode
from specbench.experiment.pipeline import run
from specbench.features.suites.frontier import candidates, frontier_of
from specbench.features.suites.grid import resolve_grid
from specbench.features.suites.suite import GridLine, Suite, SuiteRequest
from specbench.features.suites.suite_runner import run_suite
from specbench.observer import Observer
from specbench.resolution.resolve import Choice
from specbench.resolution.run_plan import PairPlan
from specbench.runs.run_folder import CONFIG
from specbench.runs.settings import swept_number

Remaining = dict[tuple[str, str], set[float]]  # the values that remain, by method and name of the swept key
PILOT_LENGTH = 5  # draft length of the short run, at which acceptance is known for five positions
PILOT_PROMPTS = 8
REACH = 2  # lengths on each side of the predicted one


def run_refined(request: SuiteRequest, prompts: int, observer: Observer) -> tuple[Suite, ExitCode]:
    """Measure a suite coarse to fine. Returns the suite with the settings that were measured on all prompts.

    First, `prompts` prompts are measured once at every setting. Then all prompts are measured at the settings that
    `frontier.candidates` keeps: often chosen ones and their neighbors. For example, if resamples of the first prompts choose
    the thresholds 0.3 and 0.4 of 0.0, 0.1, ..., 1.0, the second pass measures 0.2 to 0.5. Raises ConfigError for a suite
    without quality-latency curves, and for too few prompts.
    """
    first = coarse(request.suite, prompts)
    observer.message(f"{prompts} prompts at every setting")
    code = run_suite(replace(request, suite=first), observer)
    if code == ExitCode.MISSING:
        return first, code
    suite = refined(request, first)
    observer.message("all prompts at the settings that may be chosen")
    fine = run_suite(replace(request, suite=suite, replaced={**request.replaced, "refine": prompts}), observer)
    return suite, max(code, fine)


def coarse(suite: Suite, prompts: int) -> Suite:
    """Return a suite with this many drawn prompts, measured once. Raises ConfigError as `run_refined` does."""
    if not suite.frontier:
        raise ConfigError(f"--refine has no effect: suite {suite.name} has no quality-latency curves")
    if prompts < FEWEST:
        raise ConfigError(f"--refine {prompts}: at least {FEWEST} prompts are needed")
    grid = tuple(
        replace(line, options=replace(line.options, sample=prompts, limit=None, repeats=1)) for line in suite.grid
    )
    return replace(suite, name=f"{suite.name}-coarse", grid=grid)


def refined(request: SuiteRequest, first: Suite) -> Suite:
    """Return the suite of a request without the settings that the runs of the coarse suite `first` exclude."""
    plans = [part.plan for part in resolve_grid(first, request.out, request.sandbox).parts]
    grid = [
        GridLine(
            methods=line.methods,
            pairs=(pair,),
            tasks=(task,),
            options=replace(line.options, over=_narrowed(line, plan)),
        )
        for (line, pair, task), plan in zip(request.suite.parts(), plans, strict=True)
    ]
    return replace(request.suite, grid=tuple(grid))


def _narrowed(line: GridLine, plan: PairPlan | None) -> tuple[tuple[str, Any], ...]:
    """Return the sweeps of a line with the values that remain. A line that was not measured keeps all of them."""
    candidates_by_key = _remaining([run.folder for run in plan.runs] if plan else [])
    sweeps = []
    for key, values in line.options.over:
        method, name = key.split(".", 1)[0], key.rpartition(".")[2]
        numbers = candidates_by_key.get((method, name))
        sweeps.append((key, [value for value in values if numbers is None or _number(value) in numbers]))
    return tuple(sweeps)


def _remaining(folders: Sequence[Path]) -> Remaining:
    numbers: Remaining = defaultdict(set)
    for folder in folders:
        curves = frontier_of(folder) if (folder / CONFIG).exists() else None  # a run that failed excludes nothing
        for key, remaining in candidates(curves) if curves else ():
            for settings in remaining:
                number, name, _ = swept_number(settings)
                if number is not None:
                    numbers[key.method, name].add(number)
    return numbers


def _number(value: Any) -> float:
    return float(value[0] if isinstance(value, list) else value)


def with_grids(request: Request, words: Sequence[str], observer: Observer) -> Request:
    """Return a request with the grids that AUTO and AUTO_LENGTH stand for.

    AUTO is the grid of each method's preset, AUTO_LENGTH the draft lengths around the predicted one. Raises ConfigError for
    a method without a grid or a prediction.
    """
    sweeps = list(request.options.over)
    for word in words:
        if word == AUTO_LENGTH:
            predicted = lengths_around(request, observer)
            sweeps += [(f"{name}.gamma", lengths) for name, lengths in predicted.items()]
        else:
            grids = {name: sweep_of(name) for name in Choice.of(request).methods.names}
            sweeps += [(f"{stem(name)}.{key}", values) for name, (key, values) in grids.items()]
    return replace(request, options=replace(request.options, over=tuple(sweeps)))


def lengths_around(request: Request, observer: Observer) -> dict[str, list[int]]:
    """Return for each method the draft lengths around the predicted one, from a run of a few prompts at length PILOT_LENGTH.

    The best length of each run of a method is predicted. The returned lengths reach from REACH below the shortest to REACH
    above the longest of them: 2 to 7 for predictions of 4 and 5. The run is stored in the request's output folder, and later
    calls reuse it. Raises ConfigError for a method without a prediction, such as one that does not draft a fixed length.
    """
    request = replace(request, methods=Choice.of(request).methods.names)
    options = request.options
    limit = min(PILOT_PROMPTS, options.limit or PILOT_PROMPTS)
    pilot = replace(options, gamma=(("", (PILOT_LENGTH,)),), over=(), repeats=1, limit=limit, sample=0)
    results = run(replace(request, options=pilot, sandbox=None), observer)
    predicted: dict[str, list[int]] = {}
    for summary in results.summaries:
        for row in summary.measured_methods:
            if row.predicted_lengths:
                best = max(row.predicted_lengths, key=lambda prediction: prediction.speedup.value).gamma
                predicted.setdefault(summary.spec.methods[row.method].preset, []).append(best)
    if missing := [name for name in request.methods if preset("method", name).name not in predicted]:
        why = (
            f"its short run has {limit} of at most {PILOT_PROMPTS} prompts, too few to know the cost of blocks; help:"
            f" -n {PILOT_PROMPTS}, or"
            if limit < PILOT_PROMPTS
            else "it drafts no fixed length, or its outputs are too short to know the cost of blocks; help:"
        )
        raise ConfigError(
            f"--over gamma=auto: no draft length can be predicted for {', '.join(missing)}: {why} --over gamma=[1, 3, 5]"
        )
    return {name: list(range(max(min(best) - REACH, 1), max(best) + REACH + 1)) for name, best in predicted.items()}
