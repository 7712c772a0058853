"""How the grid of a suite on the bundled models differs from that of the suite on the paper's models."""

from collections.abc import Iterable, Iterator

from specbench.config.presets import preset
from specbench.config.suite import Suite, read_suite, suites

SAME = "the same grid, other models"
Swept = dict[str, list[object]]


def counterpart(suite: Suite) -> str:
    """Return a sentence that says whose counterpart a suite on the bundled models is, and how its grid differs.

    Empty for other suites.
    """
    if not suite.is_tiny or suite.of not in suites():
        return ""
    differences = list(_differences(suite, read_suite(suite.of)))
    what = f"other models, and another grid: {'; '.join(differences)}" if differences else SAME
    return f"The counterpart of {suite.of} on the bundled tiny models and synthetic data: {what}."


def _differences(tiny: Suite, paper: Suite) -> Iterator[str]:
    """Yield the differences between two grids in tasks, methods, temperatures, swept values and sizes of ensembles."""
    ours, theirs = _tasks(tiny), _tasks(paper)
    if set(ours) < set(theirs):
        yield f"{len(ours)} of the {len(theirs)} tasks ({', '.join(ours)})"
    elif set(ours) != set(theirs):
        yield f"{'tasks' if len(ours) > 1 else 'task'} {', '.join(ours)} instead of {', '.join(theirs)}"
    ours, theirs = _methods(tiny), _methods(paper)
    if more := [name for name in ours if name not in theirs]:
        yield f"also {', '.join(more)}"
    if less := [name for name in theirs if name not in ours]:
        yield f"without {', '.join(less)}"
    temperatures = [list(dict.fromkeys(line.options.temperature for line in each.grid)) for each in (tiny, paper)]
    if set(temperatures[0]) != set(temperatures[1]):
        words = [", ".join("the methods' own" if t is None else f"{t:g}" for t in each) for each in temperatures]
        yield f"temperatures {words[0]} instead of {words[1]}"
    own, swept = _swept(tiny), _swept(paper)
    for key, values in swept.items():
        if not _is_numeric(values) or own.get(key) == values or key.partition(".")[0] in less:
            continue
        shared = sum(value in values for value in own.get(key, []))
        others = len(own.get(key, [])) - shared
        yield f"{shared} of the {len(values)} values of {key}" + (f", and {others} others" if others else "")
    largest, of = (max(map(_models, _pairs(each))) for each in (tiny, paper))
    if largest < of:
        yield f"no ensemble of {of} models"


def _tasks(suite: Suite) -> list[str]:
    """Return the tasks of a grid, without variants of prompts, which the bundled models cannot read."""
    return _unique(task.partition(":")[0] for line in suite.grid for task in line.tasks)


def _methods(suite: Suite) -> list[str]:
    return _unique(name for line in suite.grid for name in line.methods)


def _pairs(suite: Suite) -> list[str]:
    return _unique(name for line in suite.grid for name in line.pairs)


def _models(pair: str) -> int:
    """Return the number of models in a pair's ensemble."""
    return len(preset("pair", pair).table.get("ensemble", ("draft", "target")))


def _swept(suite: Suite) -> Swept:
    """Return the values of each swept key in all lines of a grid."""
    found: Swept = {}
    for line in suite.grid:
        for key, values in line.options.over:
            known = found.setdefault(key, [])
            known += [value for value in values if value not in known]
    return found


def _is_numeric(value: object) -> bool:
    """Return whether a value is a number, or holds numbers only. Names of models and heads differ in any case."""
    if isinstance(value, list | tuple):
        return all(map(_is_numeric, value))
    return isinstance(value, int | float)


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
