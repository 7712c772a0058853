"""The ledger of expectations: the first verdict of each, and every comparison that was changed after its verdict was seen.

`configs/expectations.json` holds an entry for each expectation of a suite whose page is in this repository, by the suite's
name and the expectation's id. `scripts/expectation_ledger.py` adds entries and records changes. An expectation whose
comparison changed keeps a line on its page permanently.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from specbench.features.suites.papers.expectations import ExpectationVerdict, verdict_text
from specbench.files import parse_json

LEDGER = "expectations.json"  # in configs/


@dataclass(frozen=True)
class EarlierComparison:
    """A comparison that was replaced: its wording and verdict, its last day, and the decision that explains the change."""

    says: str
    verdict: str
    until: str
    decision: str


@dataclass(frozen=True)
class LedgerEntry:
    """An expectation's comparison, by its fingerprint, with its wording, its first verdict and the date of that.

    `earlier` are the comparisons that it replaced. An expectation that was removed has no fingerprint.
    """

    comparison: str
    says: str
    verdict: str
    date: str
    earlier: tuple[EarlierComparison, ...] = ()


Ledger = Mapping[str, Mapping[str, LedgerEntry]]  # by suite and id


@cache
def ledger() -> Ledger:
    """Return the ledger of the bundled suites."""
    text = (resources.files("specbench.configs") / LEDGER).read_text(encoding="utf-8")
    return parse_json(text, dict[str, dict[str, LedgerEntry]], LEDGER)


def change_lines(suite: str, verdicts: Sequence[ExpectationVerdict], entries: Ledger) -> list[str]:
    """Return a line for each comparison of a suite that was changed or removed after its verdict was seen."""
    today = {verdict.expected.id: verdict_text(verdict) for verdict in verdicts}
    lines = []
    for key, entry in entries.get(suite, {}).items():
        first_verdicts = [*(was.verdict for was in entry.earlier[1:]), entry.verdict]
        for was, after in zip(entry.earlier, first_verdicts[: len(entry.earlier)], strict=True):
            now = f"first verdict after the change: '{after}'" if key in today else "it was removed"
            if was is entry.earlier[-1] and today.get(key, after) != after:
                now += f"; of these measurements: '{today[key]}'"
            lines.append(
                f"changed after its verdict was seen: until {was.until}, '{was.says}' was compared differently, or attributed"
                f" to a different source, with the verdict '{was.verdict}'; {now} (decision {was.decision})"
            )
    return lines
