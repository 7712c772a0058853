"""Model forwards: their number, the share of decoding that they take, and how near they are to the memory's limit."""

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from specbench.analysis.costs import host_seconds, sizes_of
from specbench.analysis.intervals import Estimate, by_repeat, interval_of_ratio
from specbench.analysis.method_records import Records, paired, round_count, seconds, token_count
from specbench.analysis.metric import (
    Clock,
    Context,
    Direction,
    Metric,
    declare,
    is_compared,
    metric,
    metric_in_context,
    register,
)
from specbench.analysis.number_format import PERCENT, TENTHS, TENTHS_OF_PERCENT, THOUSANDTHS, TIMES
from specbench.runs.record import Record

LIMIT = 0.85  # share of the read bandwidth that a forward of one token reaches at the limit


def forwards_per_token(rows: Records) -> dict[str, float]:
    """Return the forwards of each model, including its first, / committed tokens."""
    total = token_count(rows)
    forwards: dict[str, int] = defaultdict(int)
    for r in rows:
        for role, usage in r.models.items():
            forwards[role] += usage.forwards + (1 if usage.prefill_fed else 0)
    return {role: count / total for role, count in forwards.items()}


@metric_in_context(
    Metric(heading="target forwards/token", unit="forwards/token", format=THOUSANDTHS, better=Direction.lower)
)
def target_calls(rows: Records, context: Context) -> float | None:
    """Forwards of the target / committed tokens. SpecCascade's Figure 1 has them on its x axis."""
    return forwards_per_token(rows).get(context.target)


@metric(Metric(heading="outside forwards", unit="share", format=TENTHS_OF_PERCENT, clock=Clock.other))
def outside_forwards(rows: Records) -> float:
    """Share of decoding seconds outside model forwards: sampling, verification, bookkeeping, communication."""
    inside: float = sum(usage.own_seconds for r in rows for usage in r.models.values())
    return 1.0 - inside / sum(seconds(r) for r in rows)


class Traffic(NamedTuple):
    """The bytes that a decoding forward reads at least: of weights, and of the cache per position."""

    forward_bytes: float
    position_bytes: float


def bound_share(rows: Records, traffic: Mapping[str, Traffic], bandwidth: float) -> float:
    """(Bytes of weights and cache that the forwards had to read / measured read bandwidth) / decoding seconds.

    Every forward reads its model's weights and its cache once. The share is above 1 if the weights fit into a processor's
    cache. Heads are left out. `bandwidth` is in bytes per second.
    """
    read: float = sum(
        usage.forwards * traffic[role].forward_bytes + usage.read * traffic[role].position_bytes
        for r in rows
        for role, usage in r.models.items()
        if role in traffic
    )
    return read / bandwidth / sum(seconds(r) for r in rows)


def _traffic(context: Context) -> dict[str, Traffic]:
    return {role: Traffic(model.forward_bytes, model.position_bytes) for role, model in context.models.items()}


register(
    Metric(
        name="bound_share",
        heading="of memory bandwidth",
        unit="share",
        format=PERCENT,
        clock=Clock.other,
        definition=(
            "(Bytes of weights and cache that the forwards had to read / read bandwidth, measured at the start) / "
            "decoding seconds. Runs without a read bandwidth are compared with the copy bandwidth, and the "
            "heading says so. Above 100 % if weights fit into a processor's cache. A slow baseline gets a "
            "warning."
        ),
    ),
    bound_share,
    lambda rows, of: bound_share(rows, _traffic(of), of.bandwidth.bytes_per_second),
)


def speedup_at_limit(rows: Records, base: Records, traffic: Mapping[str, Traffic], bandwidth: float) -> Estimate:
    """The decoding speedup if no forward of one token took longer than its bytes at 85 % of the read bandwidth.

    Both sides' forwards of one token are replaced. Everything else stays as measured: blocks, which a faster engine would
    speed up too, models without known bytes, and the time outside forwards.
    """
    ours, theirs = paired(rows, base)
    table = by_repeat(
        (
            len(a.tokens), _seconds_at_limit(a, traffic, bandwidth),
            len(b.tokens), _seconds_at_limit(b, traffic, bandwidth), a.prompt, a.repeat,
        )
        for a, b in zip(ours, theirs, strict=True)
    )  # fmt: skip
    return interval_of_ratio(table, lambda s: (s[..., 0] / s[..., 1]) / (s[..., 2] / s[..., 3]))


def _seconds_at_limit(row: Record, traffic: Mapping[str, Traffic], bandwidth: float) -> float:
    """Return the decoding seconds of a generation with its forwards of one token at the limit, where they are slower."""
    saved = 0.0
    for role in row.models.keys() & traffic.keys():
        usage = row.models[role]
        count, spent = sizes_of([row], role).get(1, (0.0, 0.0))
        if count:
            positions = usage.read / usage.forwards  # the mean over all forwards
            size = traffic[role].forward_bytes + positions * traffic[role].position_bytes
            saved += max(spent - count * size / (LIMIT * bandwidth), 0.0)
    return seconds(row) - saved


def _has_limit(rows: Records, context: Context) -> bool:
    """Return whether the read bandwidth is known, and whether the seconds of forwards add up: none ran beside another."""
    overlapping = any(usage.overlapped_seconds for row in (*rows, *context.baseline) for usage in row.models.values())
    return context.bandwidth.kind == "read" and is_compared(rows, context) and not overlapping


register(
    Metric(
        name="speedup_at_limit",
        heading="roofline bound",
        unit="x",
        format=TIMES,
        clock=Clock.other,
        better=Direction.higher,
        definition=(
            "What would remain of the speedup if no forward of one token, of the baseline or of the method, took "
            "longer than its bytes at 85 % of the read bandwidth. A lower bound with respect to blocks, which "
            "keep their measured times although a faster engine would speed them up too."
        ),
    ),
    speedup_at_limit,
    lambda rows, of: speedup_at_limit(rows, of.baseline, _traffic(of), of.bandwidth.bytes_per_second),
    _has_limit,
)


def round_milliseconds(rows: Records) -> dict[str, float]:
    """Return the milliseconds per round of each model's forwards; `host` is everything else."""
    rounds = round_count(rows)
    sums: dict[str, float] = defaultdict(float)
    for r in rows:
        for role, usage in r.models.items():
            sums[role] += usage.own_seconds
    sums["host"] = sum(map(host_seconds, rows))
    return {role: 1e3 * spent / rounds for role, spent in sums.items()}


declare(
    Metric(
        name="forwards_per_token", heading="forwards/token",
        definition="Forwards of each model, including its first, / committed tokens.",
    )
)  # fmt: skip
declare(
    Metric(
        name="round_milliseconds", heading="ms/round", unit="ms", format=TENTHS, clock=Clock.other,
        definition="Milliseconds of each model's forwards per round; `host` is everything else.",
    )
)  # fmt: skip
