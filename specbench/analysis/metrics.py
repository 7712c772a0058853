"""Every number of a table, as one pure function over records.

`rows` are the complete records of one method on one task; `base` those of its baseline on the same prompts. Seconds are
decoding seconds unless a name says end to end. Intervals are percentile bootstraps over prompts, all repeats of a prompt
together, 95 %.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set

import numpy as np

from specbench.analysis.bootstrap import Estimate, bootstrap, bootstrap_sums, by_prompt, wilson
from specbench.analysis.theory import Cost
from specbench.runs.record import Record
from specbench.scoring import metric
from specbench.scoring.metric import Scored

Rows = Sequence[Record]
MEASURED = ("score", "threshold")  # of a sequence cascade: values, not counts


def complete(records: Rows, method: str) -> list[Record]:
    """The records of one method that did not fail."""
    return [r for r in records if r.method == method and r.error is None]


def paired(rows: Rows, base: Rows) -> tuple[list[Record], list[Record]]:
    """Those generations that both sides completed, in one order."""
    ours, theirs = ({(r.sample, r.repeat): r for r in side} for side in (rows, base))
    keys = [key for key in ours if key in theirs]
    return [ours[key] for key in keys], [theirs[key] for key in keys]


def seconds(row: Record, end_to_end: bool = False) -> float:
    """Seconds of a generation that came through, on the driver's clock: of decoding, or from the prompt on (prefill too)."""
    assert row.decode_seconds is not None and row.prefill_seconds is not None
    return row.decode_seconds + (row.prefill_seconds if end_to_end else 0.0)


def tokens_per_second(rows: Rows, end_to_end: bool = False) -> float:
    """Total tokens over total seconds."""
    return sum(len(r.tokens) for r in rows) / sum(seconds(r, end_to_end) for r in rows)


def speedup(rows: Rows, base: Rows, end_to_end: bool = False) -> Estimate:
    """Ratio of sums: the method's tokens per second over the baseline's, paired by prompt."""
    ours, theirs = paired(rows, base)
    table = by_prompt(
        (len(a.tokens), seconds(a, end_to_end), len(b.tokens), seconds(b, end_to_end), a.sample)
        for a, b in zip(ours, theirs, strict=True)
    )
    return bootstrap_sums(table, lambda s: (s[..., 0] / s[..., 1]) / (s[..., 2] / s[..., 3]))


def relative_latency(rows: Rows, base: Rows) -> Estimate:
    """Seconds an answer, end to end, over the baseline's: the cascades paper's axis. Below 1 is faster."""
    ours, theirs = paired(rows, base)
    table = by_prompt((seconds(a, True), seconds(b, True), a.sample) for a, b in zip(ours, theirs, strict=True))
    return bootstrap_sums(table, lambda s: s[..., 0] / s[..., 1])


def completion_speedup(rows: Rows, base: Rows) -> Estimate:
    """SPRINTER's speedup: the baseline's completion time over the method's, paired by prompt.

    Completion times run end to end, from the prompt to the last token, so this is the ratio of the mean milliseconds of a
    generation: 0.92 s / 0.56 s = 1.64 in the paper's Table 2. Tokens do not enter it, so a shorter answer is a faster one.
    """
    ours, theirs = paired(rows, base)
    table = by_prompt((seconds(a, True), seconds(b, True), a.sample) for a, b in zip(ours, theirs, strict=True))
    return bootstrap_sums(table, lambda s: s[..., 1] / s[..., 0])


def geometric_mean_speedup(rows: Rows, base: Rows) -> Estimate:
    """Geometric mean over prompts of the ratios of tokens per second: every prompt counts alike."""
    ours, theirs = paired(rows, base)
    table = by_prompt(
        (len(a.tokens), seconds(a), len(b.tokens), seconds(b), a.sample) for a, b in zip(ours, theirs, strict=True)
    )
    logs = np.log((table[:, 0] / table[:, 1]) / (table[:, 2] / table[:, 3]))
    return bootstrap_sums(np.stack([logs, np.ones(len(logs))], axis=1), lambda s: np.exp(s[..., 0] / s[..., 1]))


def papers_speedup(rows: Rows, base: Rows, later_turns: bool = False) -> float:
    """SE's and Spec-Bench's averaging: mean over questions of tokens per second end to end, then the ratio.

    With `later_turns`, as Spec-Bench's own script does, tokens and seconds are summed over the turns of a question first;
    every repeat of a question counts.
    """
    ours, theirs = paired(rows, base)
    firsts = first_turns({r.sample for r in (*rows, *base)}) if later_turns else {}
    rates = []
    for side in (ours, theirs):
        table = by_prompt((len(r.tokens), seconds(r, True), (firsts.get(r.sample, r.sample), r.repeat)) for r in side)
        rates.append(np.mean(table[:, 0] / table[:, 1]))
    return float(rates[0] / rates[1])


def first_turns(samples: Set[str]) -> dict[str, str]:
    """Each later turn of a conversation, with the sample that is its first turn.

    A run folder names the turns of question `81` as `81`, `81.2`, `81.3`: turn n >= 2 follows a turn n - 1 that is there.
    """
    firsts: dict[str, str] = {}
    for sample in samples:
        question, _, turn = sample.rpartition(".")
        if question in samples and turn.isdecimal() and int(turn) >= 2:
            before = (f"{question}.{n}" for n in range(2, int(turn)))
            if all(each in samples for each in before):
                firsts[sample] = question
    return firsts


def quality(scored: Sequence[Scored], combine: str) -> Estimate | None:
    """A metric over prompts, all repeats of a prompt together; None where it is undefined, as pass@k of fewer than k."""
    rows, whole = metric.table(combine, scored), metric.combiner(combine).whole
    ones = np.stack([rows[:, 0], np.ones(len(rows))], axis=1)
    found = bootstrap_sums(ones, lambda s: s[..., 0] / s[..., 1]) if combine == "mean" else bootstrap(rows, whole)
    if np.isnan(found.value):
        return None
    share = rows.shape[1] == 2 and set(rows[:, 0].tolist()) in ({0.0}, {1.0})  # all are right, or all are wrong
    return wilson(found.value, len(rows)) if share and found.low is not None else found


def accepted_length(rows: Rows) -> float:
    """Committed tokens a verification round, replacement and bonus included; 1.00 without drafting."""
    rounds = sum(len(r.rounds) or len(r.tokens) for r in rows)
    return sum(len(r.tokens) for r in rows) / rounds


def acceptance_rate(rows: Rows) -> float | None:
    """Accepted over tested draft tokens; None where nothing was tested. Drafted and never tested tokens do not count."""
    tested = sum(x["tested"] for r in rows for x in r.rounds)
    return sum(x["accepted"] for r in rows for x in r.rounds) / tested if tested else None


def acceptance_by_position(rows: Rows) -> list[float]:
    """Acceptance rate at the 1st, 2nd, ... token that a round tests, given that all before it were accepted."""
    tested: dict[int, int] = defaultdict(int)
    accepted: dict[int, int] = defaultdict(int)
    for x in (x for r in rows for x in r.rounds):
        for position in range(x["tested"]):
            tested[position] += 1
            accepted[position] += position < x["accepted"]
    return [accepted[position] / tested[position] for position in sorted(tested)]


def acceptance_by_model(rows: Rows) -> dict[str, float]:
    """Acceptance rate of each model's proposals."""
    tested: dict[str, int] = defaultdict(int)
    accepted: dict[str, int] = defaultdict(int)
    for x in (x for r in rows for x in r.rounds):
        for position, role in enumerate(x["by"]):
            tested[role] += 1
            accepted[role] += position < x["accepted"]
    return {role: accepted[role] / tested[role] for role in tested}


def noted(rows: Rows) -> dict[str, float]:
    """What the methods counted in their rounds (`Step.noted`), summed over all generations."""
    sums: dict[str, float] = defaultdict(float)
    for x in (x for r in rows for x in r.rounds):
        for key, value in x.get("noted", {}).items():
            if key not in MEASURED:
                sums[key] += value
    return dict(sums)


def rule_rate(rows: Rows) -> float | None:
    """Deferrals over the positions that a rule was asked about; a sequence counts as one. None without a rule.

    The cascades paper's other axis, large-model calls a committed token, is `forwards_per_token`.
    """
    sums = noted(rows)
    return sums["deferrals"] / sums["positions"] if sums.get("positions") else None


def communication_share(rows: Rows) -> float | None:
    """Share of decoding time that parallel models spent on being asked and gathered; None where none ran in parallel."""
    sums = noted(rows)
    return sums["communication_seconds"] / sum(map(seconds, rows)) if "communication_seconds" in sums else None


def moved_per_token(rows: Rows) -> float | None:
    """Bytes that went between the processes of parallel models, a committed token; None where there was one process."""
    sums = noted(rows)
    return sums["moved_bytes"] / sum(len(r.tokens) for r in rows) if "moved_bytes" in sums else None


def rejections_per_token(rows: Rows) -> float | None:
    """Refused draft tokens a committed token; None where nothing was tested."""
    if not any(x["tested"] for r in rows for x in r.rounds):
        return None
    refused: int = sum(x["tested"] - x["accepted"] for r in rows for x in r.rounds)
    return refused / sum(len(r.tokens) for r in rows)


def wasted_share(rows: Rows) -> float | None:
    """Drafted tokens that were never committed, refused ones included, over drafted tokens."""
    drafted = sum(x["drafted"] for r in rows for x in r.rounds)
    return (
        1.0 - sum(x["accepted"] + x.get("untested", 0) for r in rows for x in r.rounds) / drafted if drafted else None
    )


def forwards_per_token(rows: Rows) -> dict[str, float]:
    """Forwards of each model, its first included, a committed token."""
    total = sum(len(r.tokens) for r in rows)
    forwards: dict[str, int] = defaultdict(int)
    for r in rows:
        for role, calls in r.models.items():
            forwards[role] += calls["forwards"] + (1 if calls["prefill_fed"] else 0)
    return {role: count / total for role, count in forwards.items()}


def outside_forwards(rows: Rows) -> float:
    """Share of decoding time that is not spent in model forwards: sampling, verification, bookkeeping, communication."""
    inside: float = sum(calls["seconds"] - calls["beside"] for r in rows for calls in r.models.values())
    return 1.0 - inside / sum(seconds(r) for r in rows)


def bound_share(rows: Rows, traffic: Mapping[str, Mapping[str, float]], bandwidth: float) -> float:
    """The least time that the memory allows for what was read, over the decoding time that was taken.

    Every forward reads its model's weights and the cache behind it once, at the bandwidth of a plain copy. It is above 1
    where the weights fit into a processor's cache.
    """
    read: float = sum(
        calls["forwards"] * traffic[role]["forward"] + calls["read"] * traffic[role]["position"]
        for r in rows
        for role, calls in r.models.items()
        if role in traffic  # heads are read too, and left out
    )
    return read / bandwidth / sum(seconds(r) for r in rows)


def forward_seconds(rows: Rows) -> dict[str, dict[int, float]]:
    """Mean seconds of a decoding forward, by model and by tokens fed."""
    sums: dict[str, dict[int, list[float]]] = defaultdict(dict)
    for r in rows:
        for role, calls in r.models.items():
            for fed, (count, spent) in calls["by_fed"].items():
                entry = sums[role].setdefault(int(fed), [0.0, 0.0])
                entry[0] += count
                entry[1] += spent
    return {role: {fed: s / n for fed, (n, s) in sorted(sizes.items())} for role, sizes in sums.items()}


def cost_of(roles: Sequence[str], prices: dict[str, dict[int, float]], single: dict[str, float]) -> Cost:
    """cost(i, k) as measured; a k that never occurred is interpolated. `single` overrules k = 1."""

    def cost(i: int, k: int) -> float:
        measured = prices.get(roles[i], {}) | {1: single[roles[i]]}
        return float(np.interp(k, sorted(measured), [measured[fed] for fed in sorted(measured)]))

    return cost


def identical_share(rows: Rows, base: Rows) -> float:
    """Share of generations whose tokens equal the baseline's: 1 for a lossless method at T = 0 in float32."""
    ours, theirs = paired(rows, base)
    return sum(a.tokens == b.tokens for a, b in zip(ours, theirs, strict=True)) / len(ours)


def drift(rows: Rows) -> float | None:
    """Tokens per second of the last repeat over the first's, minus 1: what the machine did. None with one repeat."""
    repeats = sorted({r.repeat for r in rows})
    first, last = ([r for r in rows if r.repeat == repeat] for repeat in (repeats[0], repeats[-1]))
    return tokens_per_second(last) / tokens_per_second(first) - 1.0 if len(repeats) > 1 else None


def first_token_seconds(rows: Rows) -> float:
    """Median seconds from the prompt to the first committed tokens."""
    return float(np.median([r.first_token_seconds or 0.0 for r in rows]))


def round_milliseconds(rows: Rows) -> dict[str, float]:
    """Milliseconds a round: of each model's forwards, and under `host` of everything else."""
    rounds = sum(len(r.rounds) or len(r.tokens) for r in rows)
    sums: dict[str, float] = defaultdict(float)
    for r in rows:
        for role, calls in r.models.items():
            sums[role] += calls["seconds"] - calls["beside"]
    sums["host"] = sum(map(seconds, rows)) - sum(sums.values())
    return {role: 1e3 * spent / rounds for role, spent in sums.items()}
