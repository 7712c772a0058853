"""Add the first verdicts of expectations to the ledger, configs/expectations.json: `make ledger`, after `make suites`.

An expectation whose comparison changed, or that was removed, after its verdict was recorded is an error. Quote the paper's
sentence and the reason in a decision, and name it: `make ledger ARGS="--decision 0037"`. The old comparison then stays in the
ledger, and a line on the suite's page shows it permanently.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from specbench.features.archive.run_archive import unpacked_results
from specbench.features.suites.papers.claims_ledger import LEDGER, EarlierComparison, LedgerEntry, ledger
from specbench.features.suites.papers.expectations import ExpectationVerdict, verdict_text
from specbench.features.suites.suite import read_suite
from specbench.features.suites.suite_report import collect

PAGES, OUT = Path("results/suites"), Path("configs") / LEDGER


def main() -> None:
    """Write the ledger."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decision", default="", help="number of the decision that explains changed comparisons")
    decision, out = parser.parse_args().decision, {}
    for name in sorted({*ledger(), *(path.parent.name for path in PAGES.glob("*/runs.zip.xz"))}):
        archive = PAGES / name / "runs.zip.xz"
        if not archive.exists():
            sys.exit(f"{name}: in the ledger, but without {archive}; help: restore it")
        with unpacked_results(archive) as results:
            collected = collect(read_suite(name), results)
        date = max(str(summary.environment.get("date", "")) for summary in collected.summaries)[:10]
        if entries := with_verdicts(name, ledger().get(name, {}), collected.judged, date, decision):
            out[name] = entries
    content = {name: {key: asdict(entry) for key, entry in entries.items()} for name, entries in out.items()}
    OUT.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def with_verdicts(
    suite: str,
    entries: Mapping[str, LedgerEntry],
    verdicts: Sequence[ExpectationVerdict],
    date: str,
    decision: str,
) -> dict[str, LedgerEntry]:
    """Return a suite's entries, with an entry for each expectation without one, and with changed comparisons recorded.

    Exits with a message for a changed or removed comparison without a decision.
    """
    now = {verdict.expected.id: verdict for verdict in verdicts}
    out: dict[str, LedgerEntry] = {}
    for key, entry in entries.items():
        if not entry.comparison or (key in now and now[key].expected.fingerprint == entry.comparison):
            out[key] = entry
        elif not decision:
            sys.exit(f"{suite}: the comparison of '{key}' changed; help: --decision NUMBER, which quotes the paper")
        else:
            was = EarlierComparison(entry.says, entry.verdict, time.strftime("%Y-%m-%d"), decision)
            out[key] = LedgerEntry("", "", "", "", (*entry.earlier, was))
    for key, verdict in now.items():
        entry, expected = out.get(key, LedgerEntry("", "", "", "")), verdict.expected
        if verdict.outcomes and not entry.comparison:
            out[key] = replace(
                entry, comparison=expected.fingerprint, says=expected.says, verdict=verdict_text(verdict), date=date
            )
    return out


if __name__ == "__main__":
    main()
