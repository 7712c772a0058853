"""Speeds, speedups and latencies.

Seconds are decoding seconds unless a name says end to end.
"""

from collections import defaultdict
from collections.abc import Mapping, Set

import numpy as np

from specbench.analysis.intervals import Estimate, Spread, by_prompt, by_repeat, interval_of_ratio
from specbench.analysis.method_records import Records, paired, seconds, token_count
from specbench.analysis.metric import Clock, Direction, Metric, Over, comparison, has_sd, is_compared, metric, register
from specbench.analysis.number_format import CHANGE, MILLISECONDS, PERCENT, TENTHS, TIMES


@metric(Metric(heading="tokens/s", unit="tokens/s", format=TENTHS, clock=Clock.decoding, better=Direction.higher))
def tokens_per_second(rows: Records, end_to_end: bool = False) -> float:
    """Total tokens / total decoding seconds."""
    return token_count(rows) / sum(seconds(r, end_to_end) for r in rows)


@metric(Metric(heading="tokens/s", unit="tokens/s", format=TENTHS, clock=Clock.end_to_end, better=Direction.higher))
def end_to_end_tokens_per_second(rows: Records) -> float:
    """Total tokens / total seconds, including prefill."""
    return tokens_per_second(rows, end_to_end=True)


@comparison(
    Metric(
        heading="speedup",
        unit="x",
        format=TIMES,
        clock=Clock.decoding,
        better=Direction.higher,
        is_ranked=True,
        over=Over.baseline,
        is_ratio=True,
        papers="papers_speedup",
        by_group=True,
    )
)
def speedup(rows: Records, base: Records, end_to_end: bool = False) -> Estimate:
    """(The method's tokens / its seconds) / (the baseline's tokens / its seconds), over the generations both completed."""
    ours, theirs = paired(rows, base)
    table = by_repeat(
        (len(a.tokens), seconds(a, end_to_end), len(b.tokens), seconds(b, end_to_end), a.prompt, a.repeat)
        for a, b in zip(ours, theirs, strict=True)
    )
    return interval_of_ratio(table, lambda s: (s[..., 0] / s[..., 1]) / (s[..., 2] / s[..., 3]))


@comparison(
    Metric(
        heading="speedup",
        unit="x",
        format=TIMES,
        clock=Clock.end_to_end,
        better=Direction.higher,
        is_ranked=True,
        over=Over.baseline,
        is_ratio=True,
    )
)
def end_to_end_speedup(rows: Records, base: Records) -> Estimate:
    """The speedup over the baseline by end-to-end time, which includes prefill."""
    return speedup(rows, base, end_to_end=True)


@comparison(
    Metric(
        heading="relative latency",
        unit="x",
        clock=Clock.end_to_end,
        better=Direction.lower,
        over=Over.baseline,
        is_ratio=True,
    )
)
def relative_latency(rows: Records, base: Records) -> Estimate:
    """Seconds per answer, end to end, divided by the baseline's. Below 1 is faster. This is SpecCascade's latency axis."""
    ours, theirs = paired(rows, base)
    return interval_of_ratio(_completion_times(ours, theirs), lambda s: s[..., 0] / s[..., 1])


@comparison(
    Metric(
        heading="geometric mean speedup",
        unit="x",
        format=TIMES,
        clock=Clock.decoding,
        better=Direction.higher,
        is_ranked=True,
        over=Over.baseline,
        is_ratio=True,
    )
)
def geometric_mean_speedup(rows: Records, base: Records) -> Estimate:
    """Geometric mean over prompts of the ratios of tokens per decoding second. Every prompt has the same weight."""
    ours, theirs = paired(rows, base)
    table = by_prompt(
        (len(a.tokens), seconds(a), len(b.tokens), seconds(b), a.prompt) for a, b in zip(ours, theirs, strict=True)
    )
    logs = np.log((table[:, 0] / table[:, 1]) / (table[:, 2] / table[:, 3]))
    return interval_of_ratio(np.stack([logs, np.ones(len(logs))], axis=1), lambda s: np.exp(s[..., 0] / s[..., 1]))


def _completion_times(ours: Records, theirs: Records) -> np.ndarray:
    """Return the end-to-end seconds of both sides, (prompts, repeats, 2)."""
    return by_repeat(
        (seconds(a, True), seconds(b, True), a.prompt, a.repeat) for a, b in zip(ours, theirs, strict=True)
    )


def per_question_speedup(rows: Records, base: Records, later_turns: bool = False) -> Estimate:
    """Mean over questions of tokens per second, end to end, then the ratio. The averaging of SE and Spec-Bench.

    With `later_turns`, tokens and seconds are first summed over the turns of a question within each repeat, as in
    Spec-Bench's script.
    """
    ours, theirs = paired(rows, base)
    firsts = first_turns({r.sample for r in (*rows, *base)}) if later_turns else {}
    prompts = {r.sample: r.prompt for r in ours}
    rates = [_rates(side, firsts) for side in (ours, theirs)]  # by question and repeat
    table = ((rates[0][key], rates[1][key], 1.0, prompts.get(key[0], key[0]), key[1]) for key in rates[0])
    return interval_of_ratio(by_repeat(table), lambda s: s[..., 0] / s[..., 1])


def _rates(rows: Records, firsts: Mapping[str, str]) -> dict[tuple[str, int], float]:
    """Return tokens per second, end to end, of each question and repeat, with all of its turns."""
    tokens: dict[tuple[str, int], int] = defaultdict(int)
    spent: dict[tuple[str, int], float] = defaultdict(float)
    for row in rows:
        key = (firsts.get(row.sample, row.sample), row.repeat)
        tokens[key] += len(row.tokens)
        spent[key] += seconds(row, end_to_end=True)
    return {key: tokens[key] / spent[key] for key in tokens}


register(
    Metric(
        name="papers_speedup",
        heading="papers' average",
        unit="x",
        format=TIMES,
        clock=Clock.end_to_end,
        better=Direction.higher,
        is_ranked=True,
        over=Over.baseline,
        is_ratio=True,
        by_group=True,
    ),
    per_question_speedup,
    lambda rows, of: per_question_speedup(rows, of.baseline, of.later_turns),
    is_compared,
)


def first_turns(samples: Set[str]) -> dict[str, str]:
    """Return the first turn of each later turn of a conversation, by sample.

    A run folder names the turns of question `81` as `81`, `81.2`, `81.3`.
    A sample counts as turn n >= 2 only if the turn before it exists.
    """
    firsts: dict[str, str] = {}
    for sample in samples:
        question, _, turn = sample.rpartition(".")
        if question in samples and turn.isdecimal() and int(turn) >= 2:
            before = (f"{question}.{n}" for n in range(2, int(turn)))
            if all(earlier in samples for earlier in before):
                firsts[sample] = question
    return firsts


def completion_speedup(rows: Records, base: Records) -> Estimate:
    """Completion time of `sd` / the method's, end to end, over the generations both completed. SPRINTER's speedup.

    Equals the ratio of the mean milliseconds per generation: 0.92 s / 0.56 s = 1.64 in the paper's Table 2. The number of
    tokens does not enter, so a shorter answer is a faster one.
    """
    ours, theirs = paired(rows, base)
    return interval_of_ratio(_completion_times(ours, theirs), lambda s: s[..., 1] / s[..., 0])


def speedup_over_lossless(rows: Records, lossless: Records) -> Estimate:
    """Tokens per second, end to end, over those of the fastest lossless method other than the baseline."""
    return speedup(rows, lossless, end_to_end=True)


register(
    Metric(
        name="over_lossless",
        heading="speedup over the fastest lossless method",
        unit="x",
        format=TIMES,
        clock=Clock.end_to_end,
        better=Direction.higher,
    ),
    speedup_over_lossless,
    lambda rows, of: speedup_over_lossless(rows, of.lossless),
    lambda rows, of: bool(paired(rows, of.lossless)[0]),
)
register(
    Metric(
        name="over_sd",
        heading="speedup over sd",
        unit="x",
        format=TIMES,
        clock=Clock.end_to_end,
        better=Direction.higher,
        is_ranked=True,
        over=Over.reference,
        is_ratio=True,
    ),
    completion_speedup,
    lambda rows, of: completion_speedup(rows, of.sd),
    has_sd,
)


@comparison(Metric(heading="same output", unit="share", format=PERCENT))
def identical_output(rows: Records, base: Records) -> float:
    """Share of generations whose tokens equal the baseline's. 100 % for a lossless method at T = 0 in float32."""
    ours, theirs = paired(rows, base)
    return sum(a.tokens == b.tokens for a, b in zip(ours, theirs, strict=True)) / len(ours)


@metric(Metric(heading="ms to first token", unit="s", format=MILLISECONDS, clock=Clock.other, better=Direction.lower))
def first_token_seconds(rows: Records) -> float:
    """Median time from the prompt to the first committed tokens."""
    return float(np.median([r.first_token_seconds or 0.0 for r in rows]))


@metric(Metric(heading="ms/generation", unit="ms", format=TENTHS, clock=Clock.end_to_end, better=Direction.lower))
def generation_milliseconds(rows: Records) -> Spread:
    """Mean ± standard deviation over generations of the time from the prompt to the last token."""
    spent = [1e3 * seconds(r, end_to_end=True) for r in rows]
    return Spread(float(np.mean(spent)), float(np.std(spent)))


@metric(
    Metric(
        heading="drift",
        unit="share",
        format=CHANGE,
        clock=Clock.other,
        definition=(
            "Last repeat's tokens/s / first repeat's, minus 1: the drift of the machine. Beyond 10 % it gets a warning."
        ),
    )
)
def drift(rows: Records) -> float | None:
    """Last repeat's tokens/s / first repeat's, minus 1: the drift of the machine.

    None for a single repeat.
    """
    repeats = sorted({r.repeat for r in rows})
    first, last = ([r for r in rows if r.repeat == repeat] for repeat in (repeats[0], repeats[-1]))
    return tokens_per_second(last) / tokens_per_second(first) - 1.0 if len(repeats) > 1 else None


@metric(Metric(unit="share", clock=Clock.other))
def repeat_spread(rows: Records) -> float | None:
    """Standard deviation over repeats of the seconds of a generation / their mean; median over generations.

    Of end-to-end seconds, over the repeats of a sample that have the same tokens. None if there are none.
    """
    same: dict[tuple[str, tuple[int, ...]], list[float]] = defaultdict(list)
    for r in rows:
        same[r.sample, tuple(r.tokens)].append(seconds(r, end_to_end=True))
    spreads = [np.std(times, ddof=1) / np.mean(times) for times in same.values() if len(times) > 1]
    return float(np.median(spreads)) if spreads else None


LONG = 8  # tokens of an output at which its seconds per token hardly depend on its length


@metric(Metric(unit="times", clock=Clock.other))
def longest_generation(rows: Records) -> float | None:
    """Largest ratio of a generation's decoding seconds per token to the median, of outputs of at least 8 tokens."""
    rates = [seconds(r) / len(r.tokens) for r in rows if len(r.tokens) >= LONG]
    median = float(np.median(rates)) if rates else 0.0
    return max(rates) / median if median > 0.0 else None


@metric(Metric(unit="share", clock=Clock.other))
def prefill_share(rows: Records) -> float:
    """Share of end-to-end seconds that are prefill: the first forward of each model."""
    return 1.0 - sum(map(seconds, rows)) / sum(seconds(r, end_to_end=True) for r in rows)


@comparison(Metric(unit="share", clock=Clock.other))
def speedup_drift(rows: Records, base: Records) -> float | None:
    """Speedup in the last repeat / in the first, minus 1.

    None for a single repeat.
    """
    ours, theirs = paired(rows, base)
    repeats = sorted({r.repeat for r in ours})
    if len(repeats) < 2:
        return None
    first, last = (
        tokens_per_second([r for r in ours if r.repeat == at])
        / tokens_per_second([r for r in theirs if r.repeat == at])
        for at in (repeats[0], repeats[-1])
    )
    return last / first - 1.0


@metric(Metric(unit="processors", clock=Clock.other))
def other_load(rows: Records) -> float | None:
    """Processors that other programs used on average while the method decoded.

    None where it was not measured.
    """
    loads = [(r.other_cpu_seconds, seconds(r, end_to_end=True)) for r in rows if r.other_cpu_seconds is not None]
    return max(sum(used for used, _ in loads) / sum(spent for _, spent in loads), 0.0) if loads else None


@metric(Metric(unit="tokens", better=Direction.lower))
def wrong_tokens(rows: Records) -> int | None:
    """Greedy tokens that the declared distribution excludes, near-ties not counted.

    None where tokens were not compared: for sampled outputs, and for methods that are not lossless.
    """
    counts = [r.wrong_tokens for r in rows if r.wrong_tokens is not None]
    return sum(counts) if counts else None


# The ranking of a run's methods by speed
