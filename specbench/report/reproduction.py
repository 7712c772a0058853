"""How much of the papers is reproduced: every table and figure, on what models, and the command."""

import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from specbench.config.suite import TINY
from specbench.report.tables import Table
from specbench.runs.suite_index import Index

WEIGHTS, BUNDLED, MADE_UP, NOT_YET = "the paper's weights", "tiny", "dummy + synthetic", "not yet"
BY_TESTS = "by tests"  # what is no measurement
PARTLY = ", in part"


@dataclass(frozen=True)
class Item:
    """A table or figure of a paper, and what stands for it."""

    paper: str
    shows: str
    what: str
    state: str
    command: str


def papers(results: Path) -> list[Item]:
    """Every table and figure of the papers, with its state by what lies in a results folder."""
    text = (resources.files("specbench.configs") / "papers.toml").read_text(encoding="utf-8")
    return [_item(each, results) for each in tomllib.loads(text)["item"]]


def _item(told: dict[str, Any], results: Path) -> Item:
    place = (told["paper"], told["shows"], told["what"])
    if "suite" in told:
        state, suite = state_of(told["suite"], results)
        return Item(*place, state, f"specbench run --suite {suite}")
    if "evidence" in told:
        there = (results / told["evidence"]).exists()
        return Item(*place, BUNDLED if there else NOT_YET, told["command"])
    return Item(*place, BY_TESTS, told["tests"])


def state_of(suite: str, results: Path) -> tuple[str, str]:
    """What a suite was measured on, best first, and the suite to run for it: itself, or its twin."""
    own, changed = Index.of(suite, results), Index.of(suite, results, changed=True)
    real = [cell for cell in own.done if not cell["made_up"]]
    if not changed.swaps:
        real += [cell for cell in changed.done if not cell["made_up"]]
    if real:
        return WEIGHTS + ("" if own.complete and not any(cell["made_up"] for cell in own.done) else PARTLY), suite
    twin = Index.of(suite + TINY, results)
    if twin.done:
        return BUNDLED + ("" if twin.complete else PARTLY), suite + TINY
    if any(cell["made_up"] for cell in (*own.done, *changed.done)):
        return MADE_UP + ("" if own.complete else PARTLY), suite
    return NOT_YET, suite


def papers_table(items: list[Item]) -> Table:
    heads = ["paper", "shows", "what", "reproduced on", "by"]
    return Table("", heads, [[item.paper, item.shows, item.what, item.state, item.command] for item in items])
