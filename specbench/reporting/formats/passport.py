"""The acceptance of drafts as JSON that other tools read: `report -f passport`.

For each method that drafts, overall and by group of prompts: at each position of a draft, the survival, which is the share of
drafts of which all tokens up to there were accepted, and the conditional rate, given that all before were. Both have 95 %
intervals over prompts. vLLM and llama.cpp take the survival as synthetic acceptance: `--speculative-config` with
`synthetic_acceptance_rates`, and `--spec-synth-rates`. Both require that it does not increase.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from specbench.analysis.acceptance import acceptance_rate, accepted_length, position_counts
from specbench.analysis.intervals import Estimate, by_repeat, interval_of_ratio
from specbench.analysis.quality import groups_of, scores_of
from specbench.analysis.run_metrics import Records, complete
from specbench.analysis.run_summary import MethodSummary, RunSummary
from specbench.runs.record import Record
from specbench.runs.run_folder import read

SCHEMA = 1
DIGITS = 4


def of_runs(summaries: Sequence[RunSummary]) -> str:
    """Return the passports of runs as JSON, one per method with tested drafts."""
    return (
        json.dumps(
            {"schema": SCHEMA, "passports": [passport for run in summaries for passport in _of_run(run)]}, indent=2
        )
        + "\n"
    )


def _of_run(summary: RunSummary) -> Iterable[dict[str, Any]]:
    records = list(read(Path(summary.folder)))
    for row in summary.measured_methods:
        rows = complete(records, row.method)
        if acceptance_rate(rows) is not None:
            yield _passport(summary, row, rows)


def _passport(summary: RunSummary, row: MethodSummary, rows: Records) -> dict[str, Any]:
    traits, decoding = summary.traits(row), summary.decoding
    rejection = summary.spec.methods[row.method].options.get("rejection")
    groups = groups_of(scores_of(Path(summary.folder)))
    overall = _acceptance(rows)
    rates = [position["survival"]["value"] for position in overall["positions"]]
    is_tree = any(entry.get("siblings") for record in rows for entry in record.rounds)
    others = {} if is_tree else _for_other_tools(rates)
    return {
        "pair": summary.pair,
        "simulated": summary.simulated,
        "models": {role: asdict(source) for role, source in summary.models.items() if role in traits.roles},
        "task": summary.task,
        "method": row.method,
        "draft_length": traits.draft_length,
        "rejection": rejection["name"] if isinstance(rejection, dict) else "token",
        "temperature": decoding.temperature,
        "top_k": decoding.top_k,
        "top_p": decoding.top_p,
        **overall,
        "groups": {
            group: _acceptance(part)
            for group in sorted(set(groups.values()))
            if (part := [record for record in rows if groups.get(record.prompt) == group])
            and acceptance_rate(part) is not None
        },
        **others,
    }


def _for_other_tools(rates: Sequence[float]) -> dict[str, Any]:
    """Return the survival of a chain as options of vLLM and llama.cpp."""
    return {
        "vllm": {
            "num_speculative_tokens": len(rates),
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_rates": rates,
        },
        "llama.cpp": ["--spec-draft-n-max", str(len(rates)), "--spec-synth-rates", ",".join(map(str, rates))],
    }


def _acceptance(rows: Records) -> dict[str, Any]:
    """Return the acceptance of records: of all tested tokens, per round, and by position."""
    cells = [(record, position_counts([record])) for record in rows]
    longest = max(
        (entry["drafted"] for record in rows for entry in record.rounds if not entry.get("siblings")), default=0
    )
    longest = max(longest, *(len(counts) for _, counts in cells))  # the depth of trees
    return {
        "prompts": len({record.prompt for record in rows}),
        "acceptance_rate": _rounded(acceptance_rate(rows)),
        "tokens_per_round": _rounded(accepted_length(rows)),
        "positions": [
            {
                "position": i + 1,
                "drafts": sum(counts[i][0] for _, counts in cells if i < len(counts)),
                "survival": _share(cells, i, of=0),
                "conditional": _share(cells, i, of=i),
            }
            for i in range(longest)
        ],
    }


def _share(cells: Sequence[tuple[Record, list[tuple[int, int]]]], position: int, of: int) -> dict[str, float | None]:
    """Return accepted tokens at a position / tested tokens at another, with the interval over prompts."""

    def count(counts: list[tuple[int, int]], at: int, which: int) -> int:
        return counts[at][which] if at < len(counts) else 0

    table = by_repeat(
        (count(counts, position, 1), count(counts, of, 0), len(record.tokens), record.prompt, record.repeat)
        for record, counts in cells
    )

    def ratio(sums: np.ndarray) -> np.ndarray:
        return np.asarray(sums[..., 0] / sums[..., 1])

    whole = table.sum(axis=(0, 1))
    estimate = interval_of_ratio(table, ratio) if whole[0] else Estimate(0.0, None, None)
    bounded = estimate.within(0.0, 1.0)
    return {key: _rounded(value) for key, value in asdict(bounded).items()}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)
