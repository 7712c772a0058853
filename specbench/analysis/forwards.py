"""Model forwards: their number, their seconds, and the share of decoding that they take."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from specbench.analysis.rows import Rows, round_count, seconds, token_count
from specbench.analysis.run_metrics import Context, metric, metric_in_context, register
from specbench.analysis.theory import Cost


def forwards_per_token(rows: Rows) -> dict[str, float]:
    """Forwards of each model, including its first, / committed tokens."""
    total = token_count(rows)
    forwards: dict[str, int] = defaultdict(int)
    for r in rows:
        for role, usage in r.models.items():
            forwards[role] += usage["forwards"] + (1 if usage["prefill_fed"] else 0)
    return {role: count / total for role, count in forwards.items()}


@metric_in_context("forwards/token")
def target_calls(rows: Rows, context: Context) -> float | None:
    """Forwards of the target / committed tokens. SpecCascade's Figure 1 has them on its x axis."""
    return forwards_per_token(rows).get(context.target)


@metric("share")
def outside_forwards(rows: Rows) -> float:
    """Share of decoding seconds outside model forwards: sampling, verification, bookkeeping, communication."""
    inside: float = sum(usage["seconds"] - usage["beside"] for r in rows for usage in r.models.values())
    return 1.0 - inside / sum(seconds(r) for r in rows)


class Traffic(NamedTuple):
    """The bytes that a decoding forward reads at least: of weights, and of the cache per position."""

    forward: float
    position: float


def bound_share(rows: Rows, traffic: Mapping[str, Traffic], bandwidth: float) -> float:
    """(Bytes of weights and cache that the forwards had to read / speed of a plain copy) / decoding seconds.

    Every forward reads its model's weights and its cache once. The share is above 1 if the weights fit into a processor's
    cache. Heads are left out.
    """
    read: float = sum(
        usage["forwards"] * traffic[role].forward + usage["read"] * traffic[role].position
        for r in rows
        for role, usage in r.models.items()
        if role in traffic
    )
    return read / bandwidth / sum(seconds(r) for r in rows)


def _bound_share(rows: Rows, context: Context) -> float:
    traffic = {role: Traffic(model.forward_bytes, model.position_bytes) for role, model in context.models.items()}
    return bound_share(rows, traffic, context.bandwidth)


register("bound_share", "share", bound_share, _bound_share, lambda *_: True)


def forward_seconds(rows: Rows) -> dict[str, dict[int, float]]:
    """Mean seconds of a decoding forward, by model and by the number of tokens fed."""
    sums: dict[str, dict[int, list[float]]] = defaultdict(dict)
    for r in rows:
        for role, usage in r.models.items():
            for fed, (count, spent) in usage["by_fed"].items():
                entry = sums[role].setdefault(int(fed), [0.0, 0.0])
                entry[0] += count
                entry[1] += spent
    return {role: {fed: s / n for fed, (n, s) in sorted(sizes.items())} for role, sizes in sums.items()}


def cost_of(roles: Sequence[str], costs: dict[str, dict[int, float]], single: dict[str, float]) -> Cost:
    """Return the measured cost(i, k) in seconds. Missing k are interpolated. `single` replaces the cost for k = 1."""

    def cost(i: int, k: int) -> float:
        measured = costs.get(roles[i], {}) | {1: single[roles[i]]}
        return float(np.interp(k, sorted(measured), [measured[fed] for fed in sorted(measured)]))

    return cost


def round_milliseconds(rows: Rows) -> dict[str, float]:
    """Milliseconds per round of each model's forwards; `host` is everything else."""
    rounds = round_count(rows)
    sums: dict[str, float] = defaultdict(float)
    for r in rows:
        for role, usage in r.models.items():
            sums[role] += usage["seconds"] - usage["beside"]
    sums["host"] = sum(map(seconds, rows)) - sum(sums.values())
    return {role: 1e3 * spent / rounds for role, spent in sums.items()}
