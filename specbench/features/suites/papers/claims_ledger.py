"""The ledger of expectations: the first verdict of each, and everything that was changed after a verdict was seen.

`configs/expectations.json` holds an entry for each suite whose page is in this repository: a hash of what it measures, and
for each expectation its comparison, its first verdict, and the outcome of each cell. `scripts/expectation_ledger.py` adds
entries and records changes, each with the decision that explains it. A changed comparison, a changed grid and a cell that is
no longer measured keep a line on the page permanently.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from specbench.analysis.points import Point
from specbench.config.presets import UNMEASURED, preset
from specbench.features.suites.papers.expectation import Expectation
from specbench.features.suites.papers.expectations import ExpectationVerdict
from specbench.features.suites.papers.outcome_texts import verdict_text
from specbench.features.suites.papers.stand_ins import RULE
from specbench.features.suites.suite import Suite
from specbench.files import parse_json

LEDGER = "expectations.json"  # in configs/
MEASURED_OF_PAIRS = (
    "models",
    "heads",
    "ensemble",
    "weights",
    "logits",
    "defaults",
)  # keys of pairs that results depend on


@dataclass(frozen=True)
class EarlierComparison:
    """A comparison that was replaced: its wording and verdict, its last day, and the decision that explains the change."""

    says: str
    verdict: str
    until: str
    decision: str


@dataclass(frozen=True)
class FormerCells:
    """Cells that are no longer compared: their outcomes by cell, the day of the change, why they left, and the decision.

    `says` is the comparison that they had; empty in older entries, for the comparison of that day.
    """

    outcomes: dict[str, str]
    until: str
    reason: str
    decision: str
    says: str = ""


@dataclass(frozen=True)
class LedgerEntry:
    """An expectation's comparison, by its fingerprint, with its wording, its first verdict and the date of that.

    `cells` are the first outcomes by cell. `earlier` are the comparisons that it replaced, and `former` the cells that are no
    longer measured. An expectation that was removed has no fingerprint.
    """

    comparison: str
    says: str
    verdict: str
    date: str
    earlier: tuple[EarlierComparison, ...] = ()
    cells: dict[str, str] = field(default_factory=dict)
    former: tuple[FormerCells, ...] = ()


@dataclass(frozen=True)
class EarlierGrid:
    """What a suite measured until a day: a hash of it, why it changed, and the decision that explains the change."""

    measured: str
    until: str
    reason: str
    decision: str


@dataclass(frozen=True)
class SuiteLedger:
    """A suite's entries by the ids of expectations, and a hash of what it measures; `earlier` is what it measured before."""

    measured: str = ""
    earlier: tuple[EarlierGrid, ...] = ()
    expectations: dict[str, LedgerEntry] = field(default_factory=dict)


Ledger = Mapping[str, SuiteLedger]  # by suite


@cache
def ledger() -> Ledger:
    """Return the ledger of the bundled suites."""
    text = (resources.files("specbench.configs") / LEDGER).read_text(encoding="utf-8")
    return parse_json(text, dict[str, SuiteLedger], LEDGER)


def measured_hash(suite: Suite) -> str:
    """Return a hash of what a suite measures: its grid and options, what it trains, its methods, and its pairs' models."""
    pairs = {name: preset("pair", name).table for line in suite.grid for name in line.pairs}
    methods = {name: preset("method", name).table for line in suite.grid for name in line.methods}
    table = {
        "definition": suite.definition,
        "rule of stand-ins": RULE,
        "pairs": {name: {key: each[key] for key in MEASURED_OF_PAIRS if key in each} for name, each in pairs.items()},
        "methods": {
            name: {key: value for key, value in each.items() if key not in UNMEASURED} for name, each in methods.items()
        },
    }
    return hashlib.sha256(json.dumps(table, sort_keys=True, default=str).encode()).hexdigest()[:16]


def outcomes_by_cell(verdict: ExpectationVerdict) -> dict[str, str]:
    """Return the outcomes of an expectation by cell: the outcome that was found, also where it is not counted.

    A cell is a comparison of two points, or of a point with a number. The setting is not part of its name where the best or
    the lowest of several settings is compared, so that another choice in a later measurement is the same cell.
    """
    expected = verdict.expected
    is_chosen = expected.take != "each" or bool(expected.at_score_of)
    is_other_chosen = (expected.bound_take or expected.take) != "each"
    cells: dict[str, list[str]] = defaultdict(list)
    for found in verdict.outcomes:
        names = [_named(found.sides[0], expected, is_chosen)]
        names += [_named(other, expected, is_other_chosen) for other in found.sides[1:]]
        cells[" against ".join(names)].append(str(found.found or found.outcome))
    return {cell: " / ".join(outcomes) for cell, outcomes in cells.items()}


def _named(point: Point, expected: Expectation, is_chosen: bool) -> str:
    """Return the pair, task, method, setting and temperature of a point; of a chosen one, what it was chosen for."""
    setting = ", ".join(str(point.dimension(name)) for name in expected.by) if is_chosen else point.setting
    words = [word for word in (point.pair, point.task, point.group, point.method, setting) if word]
    return f"{' '.join(dict.fromkeys(words))} at T = {point.T:g}"


def change_lines(suite: str, verdicts: Sequence[ExpectationVerdict], entries: Ledger) -> list[str]:
    """Return a line for each comparison, grid and cell of a suite that was changed or removed after its verdict was seen."""
    kept = entries.get(suite, SuiteLedger())
    today = {verdict.expected.id: verdict_text(verdict) for verdict in verdicts}
    lines = [
        f"the grid or the rule for stand-ins was changed after verdicts were seen, on {was.until}: {was.reason}"
        f" (decision {was.decision})"
        for was in kept.earlier
    ]
    for key, entry in kept.expectations.items():
        lines += _changed_comparisons(key, entry, today)
        lines += _former_cells(entry)
    return lines


def _changed_comparisons(key: str, entry: LedgerEntry, today: Mapping[str, str]) -> Iterator[str]:
    first_verdicts = [*(was.verdict for was in entry.earlier[1:]), entry.verdict]
    for was, after in zip(entry.earlier, first_verdicts[: len(entry.earlier)], strict=True):
        now = f"first verdict after the change: '{after}'" if key in today else "it was removed"
        if was is entry.earlier[-1] and today.get(key, after) != after:
            now += f"; of these measurements: '{today[key]}'"
        yield (
            f"changed after its verdict was seen: until {was.until}, '{was.says}' had another definition or another source,"
            f" and the verdict '{was.verdict}'; {now} (decision {was.decision})"
        )


def _former_cells(entry: LedgerEntry) -> Iterator[str]:
    latest = entry.says or (entry.earlier[-1].says if entry.earlier else "")
    for gone in entry.former:
        says = gone.says or latest
        cells: dict[str, list[str]] = defaultdict(list)
        for cell, outcome in gone.outcomes.items():
            cells[outcome].append(cell)
        listed = "; ".join(f"{outcome}: {', '.join(names)}" for outcome, names in cells.items())
        yield f"no longer compared since {gone.until}, for '{says}': {listed}. {gone.reason} (decision {gone.decision})"
