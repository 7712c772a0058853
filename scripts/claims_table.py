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
from specbench.features.suites.papers.outcome_texts import NOT_COMPARED, together_lines
from specbench.features.suites.suite import read_suite
from specbench.features.suites.suite_report import collect
from specbench.files import write
from specbench.reporting.escaping import markdown_cell

PAGES, OUT = Path("results/suites"), Path("results/claims.md")
HEADS = [
    "suite", "claim", "comparisons", "confirmed", "trend for", "trend against", "contradicted", "not counted", "before",
]  # fmt: skip
SHOWN = (Outcome.confirmed, Outcome.expected, Outcome.other, Outcome.contradicted)
SHORT = {
    Outcome.confirmed: "confirmed", Outcome.expected: "for", Outcome.other: "against",
    Outcome.contradicted: "contradicted",
}  # fmt: skip
INTRODUCTION = """# The papers' claims on the bundled models

Each row is a claim of a paper, with the number of comparisons (pair, task, temperature, setting) by outcome: decided either
way by a 95 % interval, or within the noise on one side. *Not counted* are comparisons without an interval, with too few
rejected tokens, and those that follow from the costs or acceptance of the bundled models; in parentheses is what they would
be. *Before* are the outcomes of comparisons that the suite made earlier, on models with other costs or in another form.
Comparisons that were removed are listed whether the paper or this project made them. Cells that left before 2026-11-29 are
counted once where several of them had the same outcome. *Trend for* and *trend against* are outcomes within the noise on the
expected and on the other side. A row without numbers says how often claims hold together. Made by `make claims`."""


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
        for verdict in collected.judged:
            if verdict.expected.source == "paper" and suite.is_of_paper:
                entry = kept.expectations.get(verdict.expected.id)
                sections[suite.paper].append(_row(_link(name, suite.of), verdict, entry))
        for together in together_lines(suite.together, collected.judged) if suite.is_of_paper else ():
            sections[suite.paper].append([_link(name, suite.of), together, *["–"] * 7])
        today = {verdict.expected.id for verdict in collected.judged}
        removed = {key: entry for key, entry in kept.expectations.items() if key not in today and entry.earlier}
        for entry in removed.values() if suite.is_of_paper else ():
            was = entry.earlier[-1]
            sections[suite.paper].append(
                [_link(name, suite.of), f"{was.says} (comparison removed)", *["–"] * 6, was.verdict]
            )
    tables = (f"## {paper}\n\n{_table([HEADS, *rows])}" for paper, rows in sections.items())
    write(out, "\n\n".join([INTRODUCTION, *tables]) + "\n")


def _link(page: str, name: str) -> str:
    """Return the name of a suite with a link to its page."""
    return f"[{name}](suites/{page}/README.md)"


def _row(suite: str, verdict: ExpectationVerdict, entry: LedgerEntry | None) -> list[str]:
    counts = Counter(point.outcome for point in verdict.outcomes)
    if not counts:
        return [suite, f"{verdict.expected.says} ({NOT_COMPARED})", *["–"] * 6, _before(entry)]
    left_out = [point for point in verdict.outcomes if point.outcome not in SHOWN]
    found = Counter(str(point.found) for point in left_out if point.found)
    would_be = f" ({', '.join(_counted(found))})" if found else ""
    numbers = (str(counts[outcome] or "–") for outcome in SHOWN)
    return [
        suite, verdict.expected.says, str(counts.total()), *numbers,
        f"{len(left_out)}{would_be}" if left_out else "–", _before(entry),
    ]  # fmt: skip


def _before(entry: LedgerEntry | None) -> str:
    """Return the outcomes of comparisons that are no longer made, `2 confirmed, 1 contradicted`; a dash without any."""
    texts = (text for gone in (entry.former if entry else ()) for text in gone.outcomes.values())
    former = Counter(outcome for text in texts for outcome in text.split(" / "))
    return ", ".join(_counted(former)) or "–"


def _counted(counts: Mapping[str, int]) -> Iterable[str]:
    names = {str(outcome): word for outcome, word in SHORT.items()}
    words: Counter[str] = Counter()
    for outcome, count in counts.items():
        words[names.get(outcome, "not counted")] += count
    return (f"{count} {word}" for word, count in words.items())


def _table(rows: list[list[str]]) -> str:
    head, *body = rows
    align = [":--", ":--", *["--:"] * 6, ":--"]
    lines = ([link, *map(markdown_cell, cells)] for link, *cells in (head, align, *body))
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


if __name__ == "__main__":
    main()
