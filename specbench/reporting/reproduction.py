"""Coverage of the papers: every table, figure, algorithm and theorem, what it was reproduced on, and the command."""

import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import NotRequired, TypedDict

from specbench.config.pair import PACKAGE
from specbench.config.suite import TINY, read_suite, suites
from specbench.files import checked
from specbench.runs.suite_index import SUITES, Index

WEIGHTS, BUNDLED, MADE_UP, NOT_YET = "the paper's weights", "tiny", "dummy + synthetic", "not yet"
BY_TESTS, EXPLAINED, SHOWN = "by tests", "explained", "shown"  # of items that are not measurements
NUMBERED = ("table", "figure", "algorithm")
PARTLY, OUTDATED = ", in part", ", with an earlier definition"


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


def kept_results() -> Path | None:
    """Return the folder of kept results: `results` here, else that of the checkout that the package runs from.

    None if there is neither, as in an installed package.
    """
    checkout = PACKAGE.parent
    folders = [Path("results"), *([checkout / "results"] if (checkout / "pyproject.toml").is_file() else [])]
    return next((each for each in folders if (each / SUITES).is_dir()), None)


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
    return [_item(each, results) for each in checked(tomllib.loads(text), _Paper, "papers.toml")["item"]]


def _item(item: _Item, results: Path | None) -> Item:
    kind = item["kind"]
    shows = f"{kind.title()} {item['shows']}" if kind in NUMBERED and item["shows"][0].isdigit() else item["shows"]
    place = (item["paper"], kind, shows, item["what"])
    if "suite" in item:
        state, suite = state_of(item["suite"], results)
        return Item(*place, state, f"specbench run --suite {suite}")
    if "tests" in item:
        return Item(*place, BY_TESTS, f"pytest {item['tests']}")
    if "docs" in item:
        return Item(*place, EXPLAINED, item["docs"])
    return Item(*place, SHOWN, item["command"])


def state_of(suite: str, results: Path | None) -> tuple[str, str]:
    """Return the best models that a suite was measured on, and the suite to run for it: itself, or the one on tiny models."""
    if results is None:
        return NOT_YET, suite
    own, changed = Index.of(suite, results), Index.of(suite, results, changed=True)
    real = [run for run in own.done if not run.simulated]
    if not changed.swaps:
        real += [run for run in changed.done if not run.simulated]
    if real:
        partly = any(run.simulated for run in own.done)
        return WEIGHTS + _marks(own, suite, partly), suite
    tiny = Index.of(suite + TINY, results)
    if tiny.done:
        return BUNDLED + _marks(tiny, suite + TINY), suite + TINY
    if any(run.simulated for run in (*own.done, *changed.done)):
        return MADE_UP + _marks(own, suite), suite
    return NOT_YET, suite


def _marks(index: Index, suite: str, partly: bool = False) -> str:
    """Return that only a part of a suite was measured, and that its definition has changed since then."""
    changed = index.definition and suite in suites() and index.definition != read_suite(suite).definition
    return (PARTLY if partly or not index.complete else "") + (OUTDATED if changed else "")
