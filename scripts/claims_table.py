"""Write the table of the papers' claims with their outcomes on the bundled models, results/claims.md: `make claims`.

A row is an expectation of a suite. Its outcomes are those of the kept measurements, by cell. *Before* are the outcomes of the
cells that the suite measured earlier, on pairs with other costs, as the ledger has them.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from specbench.features.archive.run_archive import unpacked_results
from specbench.features.suites.papers.claims_ledger import LedgerEntry, ledger
from specbench.features.suites.papers.expectations import ExpectationVerdict, Outcome
from specbench.features.suites.suite import read_suite
from specbench.features.suites.suite_report import collect
from specbench.files import write
from specbench.reporting.escaping import markdown_cell

PAGES, OUT = Path("results/suites"), Path("results/claims.md")
HEADS = ["suite", "claim", "cells", "confirmed", "trend for", "trend against", "contradicted", "not decided", "before"]
SHOWN = (Outcome.confirmed, Outcome.expected, Outcome.other, Outcome.contradicted)
SHORT = {
    Outcome.confirmed: "confirmed", Outcome.expected: "for", Outcome.other: "against",
    Outcome.contradicted: "contradicted",
}  # fmt: skip
INTRODUCTION = """# The papers' claims on the bundled models

Each row is a claim of a paper, with the number of cells (pair, task, temperature, setting) by outcome: decided either way by
a 95 % interval, or within the noise on one side. *Not decided* are cells without an interval, and those that the stand-ins
decide by their costs or acceptance. *Before* are the outcomes of cells that the suite measured earlier, on models with other
costs. Suites with *new* before their name were measured on stand-ins with the papers' costs. Made by `make claims`."""


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    out = parser.parse_args().out
    sections: dict[str, list[list[str]]] = defaultdict(list)
    for name, kept in ledger().items():
        suite = read_suite(name)
        with unpacked_results(PAGES / name / "runs.zip.xz") as results:
            collected = collect(suite, results)
        is_new = any(model.cost for summary in collected.summaries for model in summary.models.values())
        for verdict in collected.judged:
            if verdict.expected.source == "paper" and suite.is_of_paper:
                entry = kept.expectations.get(verdict.expected.id)
                label = f"{'new: ' if is_new else ''}{suite.of}"
                sections[suite.paper].append(_row(label, verdict, entry))
    tables = (f"## {paper}\n\n{_table([HEADS, *rows])}" for paper, rows in sections.items())
    write(out, "\n\n".join([INTRODUCTION, *tables]) + "\n")


def _row(label: str, verdict: ExpectationVerdict, entry: LedgerEntry | None) -> list[str]:
    counts = Counter(point.outcome for point in verdict.outcomes)
    undecided = counts.total() - sum(counts[outcome] for outcome in SHOWN)
    numbers = (str(counts[outcome] or "–") for outcome in SHOWN)
    return [label, verdict.expected.says, str(counts.total()), *numbers, str(undecided or "–"), _before(entry)]


def _before(entry: LedgerEntry | None) -> str:
    """Return the outcomes of cells that are no longer measured, `2 confirmed, 1 contradicted`; empty without any."""
    former = Counter(outcome for gone in (entry.former if entry else ()) for outcome in gone.outcomes.values())
    return ", ".join(_counted(former)) or "–"


def _counted(former: Mapping[str, int]) -> Iterable[str]:
    names = {str(outcome): word for outcome, word in SHORT.items()}
    return (f"{count} {names.get(outcome, 'not decided')}" for outcome, count in former.items())


def _table(rows: list[list[str]]) -> str:
    head, *body = rows
    align = [":--", ":--", *["--:"] * 6, ":--"]
    return "\n".join(f"| {' | '.join(map(markdown_cell, row))} |" for row in (head, align, *body))


if __name__ == "__main__":
    main()
