"""Coverage of the papers: every table, figure, algorithm and theorem, what it was reproduced on, and the command."""

import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import NotRequired, TypedDict

from specbench.config.pair import PACKAGE
from specbench.config.presets import preset
from specbench.features.suites.suite import TINY, Suite, read_suite, suites
from specbench.features.suites.suite_index import SUITES, Index
from specbench.files import checked

WEIGHTS, BUNDLED, MADE_UP, NOT_YET = "the paper's weights", "tiny", "dummy + synthetic", "not yet"
BY_TESTS, EXPLAINED, SHOWN = "by tests", "explained", "shown"  # of items that are not measurements
NUMBERED = ("table", "figure", "algorithm")
PARTLY, OUTDATED = ", in part", ", with an earlier definition"
SAME = "the same grid, other models"
STANDS_FOR = "stands_for"  # the key of a pair that stands for one of the paper
Swept = dict[str, list[object]]


class _Item(TypedDict):
    """An item of configs/papers.toml: one of `suite`, `tests`, `docs` and `command`."""

    paper: str
    kind: str
    shows: str
    what: str
    suite: NotRequired[str]
    tests: NotRequired[str]
    docs: NotRequired[str]
    command: NotRequired[str]


class _Paper(TypedDict):
    item: list[_Item]


def results_folder() -> Path | None:
    """Return the folder of kept results: `results` here, else `results` in the checkout that the package runs from.

    None if there is neither, as in an installed package.
    """
    checkout = PACKAGE.parent
    folders = [Path("results"), *([checkout / "results"] if (checkout / "pyproject.toml").is_file() else [])]
    return next((folder for folder in folders if (folder / SUITES).is_dir()), None)


@dataclass(frozen=True)
class Item:
    """An item of a paper, the state of its reproduction, and the command that reproduces it, or the page that explains it.

    `kind` is table, figure, algorithm, theorem or claim.
    """

    paper: str
    kind: str
    shows: str
    what: str
    state: str
    command: str


def papers(results: Path | None) -> list[Item]:
    """Return every item of the papers, with its state according to a results folder, if there is one."""
    text = (resources.files("specbench.configs") / "papers.toml").read_text(encoding="utf-8")
    return [_item(item, results) for item in checked(tomllib.loads(text), _Paper, "papers.toml")["item"]]


def _item(item: _Item, results: Path | None) -> Item:
    kind = item["kind"]
    shows = f"{kind.title()} {item['shows']}" if kind in NUMBERED and item["shows"][0].isdigit() else item["shows"]
    labels = (item["paper"], kind, shows, item["what"])
    if "suite" in item:
        state, suite = state_of(item["suite"], results)
        return Item(*labels, state, f"specbench run --suite {suite}")
    if "tests" in item:
        return Item(*labels, BY_TESTS, f"pytest {item['tests']}")
    if "docs" in item:
        return Item(*labels, EXPLAINED, item["docs"])
    return Item(*labels, SHOWN, item["command"])


def state_of(suite: str, results: Path | None) -> tuple[str, str]:
    """Return the best models that a suite was measured on, and the suite to run for it: itself, or the one on tiny models."""
    if results is None:
        return NOT_YET, suite
    index, changed = Index.of(suite, results), Index.of(suite, results, changed=True)
    real = [run for run in index.done if not run.simulated]
    if not changed.swaps:
        real += [run for run in changed.done if not run.simulated]
    if real:
        partly = any(run.simulated for run in index.done)
        return WEIGHTS + _marks(index, suite, partly), suite
    tiny = Index.of(suite + TINY, results)
    if tiny.done:
        return BUNDLED + _marks(tiny, suite + TINY), suite + TINY
    if any(run.simulated for run in (*index.done, *changed.done)):
        return MADE_UP + _marks(index, suite), suite
    return NOT_YET, suite


def _marks(index: Index, suite: str, partly: bool = False) -> str:
    """Return the marks of a suite of which only a part was measured, or whose definition has changed since then."""
    changed = index.definition and suite in suites() and index.definition != read_suite(suite).definition
    return (PARTLY if partly or not index.complete else "") + (OUTDATED if changed else "")


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
    """Yield the differences between two grids in pairs, tasks, methods, temperatures, swept values and sizes of ensembles."""
    stands_for = {str(preset("pair", name).table.get(STANDS_FOR, "")) for name in _pairs(tiny)}
    if any(stands_for) and (absent := [name for name in _pairs(paper) if name not in stands_for]):
        yield f"without {', '.join(absent)}"
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
    temperatures = [list(dict.fromkeys(line.options.temperature for line in suite.grid)) for suite in (tiny, paper)]
    if set(temperatures[0]) != set(temperatures[1]):
        words = [
            ", ".join("the methods' own" if t is None else f"{t:g}" for t in of_suite) for of_suite in temperatures
        ]
        yield f"temperatures {words[0]} instead of {words[1]}"
    tiny_swept, swept = _swept(tiny), _swept(paper)
    for key, values in swept.items():
        if not _is_numeric(values) or tiny_swept.get(key) == values or key.partition(".")[0] in less:
            continue
        shared = sum(value in values for value in tiny_swept.get(key, []))
        others = len(tiny_swept.get(key, [])) - shared
        yield f"{shared} of the {len(values)} values of {key}" + (f", and {others} others" if others else "")
    largest, of = (max(map(_ensemble_size, _pairs(suite))) for suite in (tiny, paper))
    if largest < of:
        yield f"no ensemble of {of} models"


def _tasks(suite: Suite) -> list[str]:
    """Return the tasks of a grid, without variants of prompts, which the bundled models cannot read."""
    return _unique(task.partition(":")[0] for line in suite.grid for task in line.tasks)


def _methods(suite: Suite) -> list[str]:
    return _unique(name for line in suite.grid for name in line.methods)


def _pairs(suite: Suite) -> list[str]:
    return _unique(name for line in suite.grid for name in line.pairs)


def _ensemble_size(pair: str) -> int:
    """Return the number of models in a pair's ensemble."""
    return len(preset("pair", pair).table.get("ensemble", ("draft", "target")))


def _swept(suite: Suite) -> Swept:
    """Return the values of each swept key in all lines of a grid."""
    swept: Swept = {}
    for line in suite.grid:
        for key, values in line.options.over:
            collected = swept.setdefault(key, [])
            collected += [value for value in values if value not in collected]
    return swept


def _is_numeric(value: object) -> bool:
    """Return whether a value is a number, or holds numbers only. Names of models and heads differ in any case."""
    if isinstance(value, list | tuple):
        return all(map(_is_numeric, value))
    return isinstance(value, int | float)


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
