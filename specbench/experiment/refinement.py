"""Coarse-to-fine measurement of curves: few prompts at every setting, then all prompts at those that may be chosen."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from specbench.analysis.frontier import candidates, frontier_of
from specbench.analysis.intervals import FEWEST
from specbench.analysis.points import swept
from specbench.config.suite import Line, Suite, SuiteRequest
from specbench.errors import ConfigError, ExitCode
from specbench.experiment.suite_runner import run_suite
from specbench.observer import Observer
from specbench.resolution.grid import resolve_grid
from specbench.resolution.plan import Plan
from specbench.runs.run_folder import CONFIG

Kept = dict[tuple[str, str], set[float]]  # by method and name of the swept key: the values that remain


def run_refined(request: SuiteRequest, prompts: int, observer: Observer) -> tuple[Suite, ExitCode]:
    """Measure a suite coarse to fine. Returns the suite with the settings that were measured on all prompts.

    First `prompts` prompts are measured once at every setting. Then all prompts are measured at the settings that either
    summary of a curve chose in a resample of those prompts, and at their neighbors. Raises ConfigError for a suite without
    quality-latency curves, and for too few prompts.
    """
    first = coarse(request.suite, prompts)
    observer.message(f"{prompts} prompts at every setting")
    code = run_suite(replace(request, suite=first), observer)
    if code == ExitCode.MISSING:
        return first, code
    suite = refined(request, first)
    observer.message("all prompts at the settings that may be chosen")
    fine = run_suite(replace(request, suite=suite, changes=(*request.changes, f"refine = {prompts}")), observer)
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
    """Return the suite of a request without the settings that the runs of the coarse suite exclude."""
    plans = [part.plan for part in resolve_grid(first, request.out, request.sandbox).parts]
    grid = [
        Line(
            methods=line.methods,
            pairs=(pair,),
            tasks=(task,),
            options=replace(line.options, over=_narrowed(line, plan)),
        )
        for (line, pair, task), plan in zip(request.suite.parts(), plans, strict=True)
    ]
    return replace(request.suite, grid=tuple(grid))


def _narrowed(line: Line, plan: Plan | None) -> tuple[tuple[str, Any], ...]:
    """Return the sweeps of a line with the values that remain. A line that was not measured keeps all of them."""
    candidates_by_key = _kept([run.folder for run in plan.runs] if plan else [])
    sweeps = []
    for key, values in line.options.over:
        method, name = key.split(".", 1)[0], key.rpartition(".")[2]
        numbers = candidates_by_key.get((method, name))
        sweeps.append((key, [each for each in values if numbers is None or _number(each) in numbers]))
    return tuple(sweeps)


def _kept(folders: Sequence[Path]) -> Kept:
    numbers: Kept = defaultdict(set)
    for folder in folders:
        curves = frontier_of(folder) if (folder / CONFIG).exists() else None  # a run that failed excludes nothing
        for label, settings in (candidates(curves) if curves else {}).items():
            for setting in settings:
                number, name = swept(setting)[0], setting.partition("=")[0]
                if number is not None:
                    numbers[label.partition("(")[0], name].add(number)
    return numbers


def _number(value: Any) -> float:
    return float(value[0] if isinstance(value, list) else value)
