"""Acceptance profiles: the acceptance of a method's drafts as JSON for other tools, overall and by group of prompts.

At each position of a draft there are two rates with 95 % intervals over prompts. The survival is the share of all drafts
whose tokens up to this one were accepted. The conditional rate is the share among the drafts whose earlier tokens were
accepted. If the first token of 80 of 100 drafts is accepted, and the second of 60, the survival is 0.8 and 0.6, and the
conditional rate 0.8 and 0.75.

vLLM and llama.cpp take the survival as synthetic acceptance: `--speculative-config` with `synthetic_acceptance_rates`, and
`--spec-synth-rates`. Both require rates that do not increase. Both draft in every round, so their rates are shares of all
rounds, including rounds without a draft. The tokens per round are then the measured ones.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec
import numpy as np
from msgspec import UNSET, Struct, UnsetType

from specbench.analysis.acceptance import acceptance_rate, accepted_length, position_counts
from specbench.analysis.intervals import Estimate, by_repeat, interval_of_ratio
from specbench.analysis.method_records import Records, complete
from specbench.analysis.quality import groups_of, scores_of
from specbench.analysis.run_summary import MethodSummary, RunSummary
from specbench.runs.record import Record
from specbench.runs.run_folder import read

SCHEMA = 1
RATE_DIGITS = 4


class Share(Struct, kw_only=True):
    """A rate with its 95 % interval, if it has one."""

    value: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, estimate: Estimate) -> "Share":
        """Return an estimate, rounded."""
        return cls(value=round(estimate.value, RATE_DIGITS), low=rounded(estimate.low), high=rounded(estimate.high))


class Position(Struct, kw_only=True):
    """A position of a draft, from 1 on, and the number of drafts that were tested there."""

    position: int
    drafts: int
    survival: Share
    conditional: Share


class Acceptance(Struct, kw_only=True):
    """The acceptance of drafts: accepted / tested tokens, tokens per round with the target's own one, and by position.

    Servers do not say how many prompts there were.
    """

    prompts: int | UnsetType = UNSET
    acceptance_rate: float | None
    tokens_per_round: float | None
    positions: list[Position]


class VllmRates(Struct, kw_only=True):
    """A chain as `--speculative-config` of vLLM, with synthetic acceptance."""

    num_speculative_tokens: int
    rejection_sample_method: str = "synthetic"
    synthetic_acceptance_rates: list[float]


class AcceptanceReport(Struct, kw_only=True):
    """The acceptance of one method with the conditions that it was measured under.

    `vllm` and `llamacpp` are unset for trees, which these tools cannot simulate.
    """

    pair: str
    simulated: str | bool
    models: Mapping[str, Mapping[str, object]]
    task: str
    method: str
    draft_length: str | int | None
    rejection: str | UnsetType = UNSET
    temperature: float
    top_k: int | None
    top_p: float | None
    prompts: int | UnsetType
    acceptance_rate: float | None
    tokens_per_round: float | None
    positions: list[Position]
    groups: Mapping[str, Acceptance]
    vllm: VllmRates | UnsetType = UNSET
    llamacpp: list[str] | UnsetType = msgspec.field(name="llama.cpp", default=UNSET)


def reports(summaries: Sequence[RunSummary]) -> str:
    """Return the profiles of runs as JSON, one per method with tested drafts."""
    return written([report for run in summaries for report in _reports_of(run)])


def written(profiles: Sequence[AcceptanceReport]) -> str:
    """Return profiles as JSON."""
    return json.dumps({"schema": SCHEMA, "profiles": msgspec.to_builtins(profiles)}, indent=2) + "\n"


def rounded(value: float | None) -> float | None:
    """Return a rate or a length with the digits of profiles."""
    return None if value is None else round(value, RATE_DIGITS)


def rates_for_vllm(survival: Sequence[float], accepted_per_round: float) -> VllmRates:
    """Return the survival of a chain as options of vLLM, which drafts in every round.

    Rounds without a draft, which prompt lookup has, lower the rates: their sum is the number of accepted tokens per round.
    """
    scale = min(accepted_per_round / sum(survival), 1.0) if sum(survival) else 1.0
    rates = [round(rate * scale, RATE_DIGITS) for rate in survival]
    return VllmRates(num_speculative_tokens=len(rates), synthetic_acceptance_rates=rates)


def flags_for_llamacpp(rates: VllmRates) -> list[str]:
    """Return the same rates as options of llama.cpp's server."""
    values = rates.synthetic_acceptance_rates
    return ["--spec-draft-n-max", str(len(values)), "--spec-synth-rates", ",".join(map(str, values))]


def _reports_of(summary: RunSummary) -> Iterator[AcceptanceReport]:
    records = list(read(Path(summary.folder)))
    for row in summary.measured_methods:
        rows = complete(records, row.method)
        if acceptance_rate(rows) is not None:
            yield _report(summary, row, rows)


def _report(summary: RunSummary, row: MethodSummary, rows: Records) -> AcceptanceReport:
    traits, decoding = summary.traits(row), summary.decoding
    rejection = summary.spec.methods[row.method].options.get("rejection")
    groups = groups_of(scores_of(Path(summary.folder)))
    overall = acceptance_of(rows)
    is_tree = any(entry.siblings for record in rows for entry in record.rounds)
    rates: VllmRates | UnsetType = UNSET
    rounds = [entry for record in rows for entry in record.rounds]
    if not is_tree and rounds:
        accepted = sum(entry.accepted for entry in rounds) / len(rounds)
        rates = rates_for_vllm([each.survival.value for each in overall.positions], accepted)
    return AcceptanceReport(
        pair=summary.pair,
        simulated=summary.simulated,
        models={role: asdict(source) for role, source in summary.models.items() if role in traits.roles},
        task=summary.task,
        method=row.method,
        draft_length=traits.draft_length,
        rejection=str(rejection["name"]) if isinstance(rejection, dict) else "token",
        temperature=decoding.temperature,
        top_k=decoding.top_k,
        top_p=decoding.top_p,
        **msgspec.structs.asdict(overall),
        groups={
            group: acceptance_of(part)
            for group in sorted(set(groups.values()))
            if (part := [record for record in rows if groups.get(record.prompt) == group])
            and acceptance_rate(part) is not None
        },
        vllm=rates,
        llamacpp=UNSET if rates is UNSET else flags_for_llamacpp(rates),
    )


def acceptance_of(rows: Records) -> Acceptance:
    """Return the acceptance of records: of all tested tokens, per round, and by position."""
    cells = [(record, position_counts([record])) for record in rows]
    longest = max((entry.drafted for record in rows for entry in record.rounds if not entry.siblings), default=0)
    longest = max(longest, *(len(counts) for _, counts in cells))  # the depth of trees
    return Acceptance(
        prompts=len({record.prompt for record in rows}),
        acceptance_rate=rounded(acceptance_rate(rows)),
        tokens_per_round=rounded(accepted_length(rows)),
        positions=[
            Position(
                position=i + 1,
                drafts=sum(counts[i][0] for _, counts in cells if i < len(counts)),
                survival=_share(cells, i, of=0),
                conditional=_share(cells, i, of=i),
            )
            for i in range(longest)
        ],
    )


def _share(cells: Sequence[tuple[Record, list[tuple[int, int]]]], position: int, of: int) -> Share:
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
    return Share.of(estimate.within(0.0, 1.0))
