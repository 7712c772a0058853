"""The acceptance profile of served speculation as JSON, as `report -f acceptance` writes it for methods."""

from collections.abc import Sequence

import msgspec

from specbench.errors import ConfigError
from specbench.features.servers.load.server_run import ServerRun
from specbench.features.servers.served import SpeculationCounts, total
from specbench.reporting.formats.acceptance_report import (
    RATE_DIGITS,
    Acceptance,
    AcceptanceReport,
    Position,
    Share,
    flags_for_llamacpp,
    rates_for_vllm,
    written,
)


def acceptance_reports_of(runs: Sequence[ServerRun]) -> str:
    """Return the profiles of runs as JSON. Raises ConfigError if a server reports no counts by position."""
    return written([_report(run) for run in runs])


def _report(run: ServerRun) -> AcceptanceReport:
    by_level = {
        f"concurrency {level.concurrency}": counts for level in run.levels if (counts := level.acceptance.counts)
    }
    whole = total(list(by_level.values()))
    if whole is None or any(not counts.shares_by_position for counts in by_level.values()):
        raise ConfigError(f"{run.name}: the server reports no acceptance by position, so there is no report")
    overall = _acceptance(whole)
    rates = rates_for_vllm([each.survival.value for each in overall.positions], (overall.tokens_per_round or 1.0) - 1.0)
    return AcceptanceReport(
        pair=run.on.label,
        simulated=False,
        models={"target": {"source": run.on.weights}, "draft": {"source": run.on.speculation.draft}},
        task=run.load.task,
        method=run.on.speculation.method,
        draft_length=run.on.speculation.length or len(overall.positions),
        temperature=run.load.sampling.temperature,
        top_k=run.load.sampling.top_k,
        top_p=run.load.sampling.top_p,
        **msgspec.structs.asdict(overall),
        groups={name: _acceptance(counts) for name, counts in by_level.items()},
        vllm=rates,
        llamacpp=flags_for_llamacpp(rates),
    )


def _acceptance(counts: SpeculationCounts) -> Acceptance:
    """Return the acceptance per token, per round and by position. Servers report sums, so there are no intervals."""
    rounds, by = counts.rounds or 0, counts.by_position or ()
    before = (rounds, *by[:-1])
    tested = sum(before) if by else 0
    return Acceptance(
        acceptance_rate=round(counts.accepted / tested, RATE_DIGITS) if tested else None,
        tokens_per_round=round(1.0 + counts.accepted / rounds, RATE_DIGITS),
        positions=[
            Position(
                position=i + 1,
                drafts=before[i],
                survival=_value(by[i] / rounds),
                conditional=_value(by[i] / before[i] if before[i] else 0.0),
            )
            for i in range(len(by))
        ],
    )


def _value(share: float) -> Share:
    return Share(value=round(share, RATE_DIGITS))
