"""Add the first verdicts of expectations to the ledger, configs/expectations.json: `make ledger`, after `make suites`.

A comparison, a grid or a cell that changed or left after its verdict was recorded is an error. Quote the paper's sentence
and the reason in a decision, and name both: `make ledger ARGS="--decision 0037 --reason 'the pairs have other costs'"`. What
was there before stays in the ledger, and a line on the suite's page shows it permanently.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from specbench.config.pair import BUNDLED, folder
from specbench.data.hub import local_checksum
from specbench.features.archive.run_archive import unpacked_results
from specbench.features.suites.papers.claims_ledger import (
    LEDGER,
    EarlierComparison,
    EarlierGrid,
    FormerCells,
    LedgerEntry,
    SuiteLedger,
    ledger,
    measured_hash,
    outcomes_by_cell,
)
from specbench.features.suites.papers.expectations import ExpectationVerdict
from specbench.features.suites.papers.outcome_texts import verdict_text
from specbench.features.suites.papers.stand_ins import pairs_with_earlier_costs
from specbench.features.suites.suite import read_suite
from specbench.features.suites.suite_report import Collected, collect

PAGES, OUT = Path("results/suites"), Path("configs") / LEDGER
NEW = LedgerEntry("", "", "", "")


@dataclass(frozen=True)
class Change:
    """The decision that explains changes, and the reason in one sentence; both are empty if nothing may change."""

    decision: str = ""
    reason: str = ""

    def require(self, what: str) -> None:
        """Exit with a message unless a change may be recorded."""
        if not (self.decision and self.reason):
            sys.exit(f"{what}; help: --decision NUMBER, which quotes the paper, and --reason SENTENCE")


def main() -> None:
    """Write the ledger."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="suites to read; by default all that have a page")
    parser.add_argument("--decision", default="", help="number of the decision that explains what changed")
    parser.add_argument("--reason", default="", help="why, in a sentence")
    args = parser.parse_args()
    change, out = Change(args.decision, args.reason), dict[str, SuiteLedger]()
    if unknown := sorted({*args.suites} - {*ledger(), *(path.name for path in PAGES.iterdir())}):
        sys.exit(f"no page and no entry of {', '.join(unknown)}; help: names such as se-table2-tiny")
    for name in sorted({*ledger(), *(path.parent.name for path in PAGES.glob("*/runs.zip.xz"))}):
        if args.suites and name not in args.suites:
            out |= {name: ledger()[name]} if name in ledger() else {}
            continue
        archive, suite = PAGES / name / "runs.zip.xz", read_suite(name)
        if not archive.exists():
            sys.exit(f"{name}: in the ledger, but without {archive}; help: restore it")
        with unpacked_results(archive) as results:
            collected = collect(suite, results)
        if earlier := measured_earlier(collected):
            if name in args.suites:
                sys.exit(f"{name}: measured with {earlier}; help: measure it again")
            print(f"{name}: left as it is, since it was measured with {earlier}", file=sys.stderr)
            out |= {name: ledger()[name]} if name in ledger() else {}
            continue
        if suite.expect or name in ledger():
            date = max(str(summary.environment.get("date", "")) for summary in collected.summaries)[:10]
            kept = ledger().get(name, SuiteLedger())
            out[name] = with_verdicts(
                name, with_grid(name, kept, measured_hash(suite), change), collected.judged, date, change
            )
    content = {name: asdict(entries) for name, entries in out.items()}
    OUT.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def measured_earlier(collected: Collected) -> str:
    """Return what changed since a suite was measured: its definition, the costs of a pair, or bundled weights; or nothing."""
    if collected.index.definition != collected.suite.definition:
        return "an earlier definition of the suite"
    if pairs := pairs_with_earlier_costs(collected.suite, collected.summaries):
        return f"earlier costs of {', '.join(pairs)}"
    for summary in collected.summaries:
        for role, model in summary.spec.pair.models.items():
            bundled = folder(model.source, Path()) if model.source.startswith(BUNDLED) else None
            if bundled and model.checksum and local_checksum(bundled) != model.checksum:
                return f"earlier weights of {summary.pair}: {role}"
    return ""


def with_grid(suite: str, kept: SuiteLedger, measured: str, change: Change) -> SuiteLedger:
    """Return a suite's entries with what it measures now. Exits with a message for a change without a decision."""
    if kept.measured in ("", measured):
        return replace(kept, measured=measured)
    change.require(f"{suite}: what is measured changed")
    was = EarlierGrid(kept.measured, time.strftime("%Y-%m-%d"), change.reason, change.decision)
    return replace(kept, measured=measured, earlier=(*kept.earlier, was))


def with_verdicts(
    suite: str, kept: SuiteLedger, verdicts: Sequence[ExpectationVerdict], date: str, change: Change
) -> SuiteLedger:
    """Return a suite's entries, with an entry for each expectation without one, and with what changed or left recorded.

    Exits with a message for a changed or removed comparison, or for a cell that left, without a decision.
    """
    now = {verdict.expected.id: verdict for verdict in verdicts}
    out: dict[str, LedgerEntry] = {}
    for key, entry in kept.expectations.items():
        is_same = key in now and now[key].expected.fingerprint == entry.comparison
        if entry.comparison and not is_same:
            change.require(f"{suite}: the comparison of '{key}' changed")
        current = outcomes_by_cell(now[key]) if is_same else {}
        entry = _without_former_cells(f"{suite}: {key}", entry, current, change)
        if entry.comparison and not is_same:
            was = EarlierComparison(entry.says, entry.verdict, time.strftime("%Y-%m-%d"), change.decision)
            entry = replace(NEW, earlier=(*entry.earlier, was), former=entry.former)
        out[key] = entry
    for key, verdict in now.items():
        entry, expected = out.get(key, NEW), verdict.expected
        if verdict.outcomes and not entry.comparison:
            entry = replace(
                entry, comparison=expected.fingerprint, says=expected.says, verdict=verdict_text(verdict), date=date
            )
        if entry.comparison:
            out[key] = replace(entry, cells={**outcomes_by_cell(verdict), **entry.cells})
    return replace(kept, expectations=out)


def _without_former_cells(what: str, entry: LedgerEntry, now: dict[str, str], change: Change) -> LedgerEntry:
    """Return an entry whose cells are still measured; others are recorded as former ones."""
    gone = {cell: outcome for cell, outcome in entry.cells.items() if cell not in now}
    if not gone:
        return entry
    change.require(f"{what}: {len(gone)} cells with a verdict are no longer measured, such as {min(gone)}")
    former = FormerCells(gone, time.strftime("%Y-%m-%d"), change.reason, change.decision, entry.says)
    cells = {cell: outcome for cell, outcome in entry.cells.items() if cell in now}
    return replace(entry, cells=cells, former=(*entry.former, former))


if __name__ == "__main__":
    main()
