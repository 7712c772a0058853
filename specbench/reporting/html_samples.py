"""The samples of an HTML page: generations with the origin of each token, by run."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TypedDict

from specbench.analysis.differences import folders
from specbench.analysis.quality import scores_of
from specbench.analysis.rows import seconds
from specbench.analysis.run_summary import RunSummary
from specbench.analysis.token_origin import provenance, rejected
from specbench.reporting import escaping
from specbench.reporting.tables import ranked
from specbench.runs.record import Record
from specbench.runs.run_folder import read

MOST_SAMPLES = 1000  # generations on a page
SEPARATOR = "\x1f"  # between the pieces of a text; no tokenizer produces it


class BrowsedRun(TypedDict):
    """A run in the sample browser. `methods` are the labels of its methods, the fastest first."""

    name: str
    task: str
    baseline: str
    methods: list[str]
    prompts: dict[str, dict[str, str]]
    samples: list[dict[str, object]]


def browsed(summaries: Sequence[RunSummary]) -> tuple[list[BrowsedRun], int]:
    """Return the generations of each run in the sample browser, in the order of measurement, and how many were omitted."""
    share = max(MOST_SAMPLES // max(len(summaries), 1), 1)
    runs: list[BrowsedRun] = []
    left_out = 0
    for summary, name in zip(summaries, folders(summaries), strict=True):
        folder = Path(summary.folder)
        scores, labels = scores_of(folder), {row.method: escaping.terminal(row.label) for row in ranked(summary)}
        turns = max(share // max(len(labels), 1), 1)  # of all methods on one prompt
        complete = (record for record in read(folder) if record.error is None)
        shown = list(islice(complete, min(turns * len(labels), MOST_SAMPLES)))
        left_out += sum(row.generations for row in summary.methods) - len(shown)
        values = {(row["method"], row["sample"], row["repeat"]): row["values"] for row in scores["rows"]}
        prompts = scores.get("samples", {})
        runs.append({
            "name": escaping.terminal(name),
            "task": escaping.terminal(summary.task),
            "baseline": labels.get(summary.baseline, ""),
            "methods": list(labels.values()),
            "prompts": {each: prompts.get(each, {}) for each in dict.fromkeys(r.sample for r in shown)},
            "samples": [
                _sample(record, labels.get(record.method, ""), values.get(record.key, {}).get(scores["headline"]))
                for record in shown
            ],
        })  # fmt: skip
    return runs, left_out


def _sample(record: Record, label: str, score: float | list[float] | None) -> dict[str, object]:
    """Return a generation with short keys: its pieces as one string, the origin of each as a letter, tokens per round."""
    known = len(record.pieces) == len(record.tokens)
    return {
        "m": label,
        "s": record.sample,
        "r": record.repeat,
        "t": SEPARATOR.join(record.pieces) if known else record.text,
        "k": provenance(record) if known else "",
        "x": rejected(record) if known else [],
        "o": [each["tokens"] for each in record.rounds] or [1] * len(record.tokens),
        "n": len(record.tokens),
        "ms": round(1e3 * seconds(record, end_to_end=True), 1),
        "f": record.finish,
        **({"q": round(score, 4)} if isinstance(score, int | float) else {}),
    }
