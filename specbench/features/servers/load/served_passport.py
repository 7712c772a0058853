"""Passports of served speculation: its acceptance as JSON for other tools, as `report -f passport` writes it for methods."""

import json
from collections.abc import Sequence
from typing import Any

from specbench.errors import ConfigError
from specbench.features.servers.load.server_run import ServerRun
from specbench.features.servers.served import SpeculationCounts, total
from specbench.reporting.formats.export import PASSPORT_SCHEMA, RATE_DIGITS, settings_for_other_tools


def passports_of(runs: Sequence[ServerRun]) -> str:
    """Return the passports of runs as JSON. Raises ConfigError if a server reports no counts by position."""
    return json.dumps({"schema": PASSPORT_SCHEMA, "passports": [_passport(run) for run in runs]}, indent=2) + "\n"


def _passport(run: ServerRun) -> dict[str, Any]:
    by_level = {
        f"concurrency {level.concurrency}": counts for level in run.levels if (counts := level.acceptance.counts)
    }
    whole = total(list(by_level.values()))
    if whole is None or any(not counts.shares_by_position for counts in by_level.values()):
        raise ConfigError(f"{run.name}: the server reports no acceptance by position, so there is no passport")
    overall = _acceptance(whole)
    survival = [position["survival"]["value"] for position in overall["positions"]]
    return {
        "pair": run.on.label,
        "simulated": False,
        "models": {"target": {"source": run.on.weights}, "draft": {"source": run.on.speculation.draft}},
        "task": run.load.task,
        "method": run.on.speculation.method,
        "draft_length": run.on.speculation.length or len(survival),
        "temperature": run.load.sampling.temperature,
        "top_k": run.load.sampling.top_k,
        "top_p": run.load.sampling.top_p,
        **overall,
        "groups": {name: _acceptance(counts) for name, counts in by_level.items()},
        **settings_for_other_tools(survival, overall["tokens_per_round"]),
    }


def _acceptance(counts: SpeculationCounts) -> dict[str, Any]:
    """Return the acceptance per token, per round and by position. Servers report sums, so there are no intervals."""
    rounds, by = counts.rounds or 0, counts.by_position or ()
    before = (rounds, *by[:-1])
    return {
        "acceptance_rate": round(counts.accepted / counts.drafted, RATE_DIGITS) if counts.drafted else None,
        "tokens_per_round": round(1.0 + counts.accepted / rounds, RATE_DIGITS),
        "positions": [
            {
                "position": i + 1,
                "drafts": before[i],
                "survival": _value(by[i] / rounds),
                "conditional": _value(by[i] / before[i] if before[i] else 0.0),
            }
            for i in range(len(by))
        ],
    }


def _value(share: float) -> dict[str, float | None]:
    return {"value": round(share, RATE_DIGITS), "low": None, "high": None}
