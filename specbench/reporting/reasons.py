"""Why a method has its speed, and which settings or other runs may give another one: sentences of a conclusion."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from specbench.analysis.baseline import SlowBaseline
from specbench.analysis.intervals import FEWEST
from specbench.analysis.metric import metric_of
from specbench.analysis.number_format import CHANGE, COUNT, HUNDREDTHS, PERCENT, TENTHS, TIMES
from specbench.analysis.ranking import fewest_prompts
from specbench.analysis.run_summary import MethodSummary, RunSummary
from specbench.note import Note
from specbench.reporting.setup_lines import counted
from specbench.runs.run_spec import DataSpec

MOSTLY = 0.5  # share of prefill at which decoding times are not explained
OTHER_LOAD = 0.05  # share of the machine's processors at which other programs count
MACHINE_DRIFT = 0.2  # of a method's speed, between the first and the last repeat
SPEEDUP_DRIFT = 0.1  # of a speedup, if it is more than its interval contains
MOST_LOSSES = 6  # methods whose loss is explained
PAUSE = 10.0  # times the median time per token, which no prompt explains
REPEAT_SPREAD = 0.1  # of the baseline's time for the same tokens
LARGE_LOSS = 0.85  # factor between two steps from theory to the measured speedup, below which it is named
UNRELATED = 0.1  # acceptance of first draft tokens below which the drafter may not belong to the target
STEPS = {  # from one step to the next -> what it adds
    "rounds": "drafts that end early or are accepted at varying rates", "drafting": "the time of drafting",
    "blocks": "verifying several tokens at once", "host": "time outside forwards", "prefill": "prefill",
}  # fmt: skip


def reasons(
    summary: RunSummary, leading: MethodSummary, rows: Sequence[MethodSummary], is_doubtful: bool = False
) -> Iterator[Note]:
    """Yield why the leading method has its speed, why others are slower than the baseline, and two predictions.

    The predictions are the break-even points and the best draft length of the leading method. With `is_doubtful`, a sentence
    says that another run may not confirm the times on which they depend.
    """
    yield from reason(summary, leading)
    yield from _largest_loss(leading)
    yield from _unrelated(summary, leading)
    yield from _losses(summary, [row for row in rows if row is not leading])
    predictions = [*_break_even(summary, leading), *_draft_length(summary, leading)]
    yield from predictions
    if predictions and is_doubtful:
        text = "These predictions rest on the times of this run, which another run may not confirm."
        yield Note("doubtful predictions", text)


def _round_cost(summary: RunSummary, row: MethodSummary) -> float | None:
    """Return how many tokens of the baseline take as long as a round of a method; None if it has no rounds."""
    base = next((each for each in summary.measured_methods if each.method == summary.baseline), None)
    length, ours = row.accepted_length, row.tokens_per_second
    if base is None or base.tokens_per_second is None or not length or not ours or row.acceptance_rate is None:
        return None
    return length * base.tokens_per_second / ours


def _decoded_round(summary: RunSummary, row: MethodSummary) -> tuple[float, float] | None:
    """Return the tokens that a round commits and the baseline's tokens that take as long; None if prefill takes most time."""
    cost, length = _round_cost(summary, row), row.accepted_length
    if cost is None or not length or (row.number("prefill_share") or 0.0) > MOSTLY:
        return None
    return length, cost


def _losses(summary: RunSummary, rows: Sequence[MethodSummary]) -> Iterator[Note]:
    """Yield why methods are significantly slower than the baseline: tokens of a round against its time."""
    texts = []
    for row in rows:
        is_slower = row.speedup is not None and row.speedup.high is not None and row.speedup.high < 1.0
        if is_slower and (found := _decoded_round(summary, row)):
            length, cost = map(HUNDREDTHS.number, found)
            texts.append(f"{row.label} {length} (as long as {cost})")
    if texts:
        more = f", and {len(texts) - MOST_LOSSES} more" if len(texts) > MOST_LOSSES else ""
        yield Note(
            "slower methods",
            f"While decoding, these are slower than {summary.baseline}. Tokens that a round commits, and the tokens of"
            f" {summary.baseline} that take as long: {', '.join(texts[:MOST_LOSSES])}{more}.",
        )


def losing_rounds(measured: Sequence[tuple[RunSummary, MethodSummary]]) -> Iterator[Note]:
    """Yield why a method is not faster than the baseline in several runs: the ranges of the tokens and time of a round."""
    rounds = [found for summary, row in measured if (found := _decoded_round(summary, row))]
    if rounds:
        lengths, costs = zip(*rounds, strict=True)
        summary, row = measured[0]
        yield Note(
            "losing rounds",
            f"While decoding, a round of {row.label} commits {_range(lengths)} tokens and costs as much time as"
            f" {_range(costs)} tokens of {summary.baseline}.",
            subject=row.label,
        )


def _range(values: Sequence[float]) -> str:
    low, high = HUNDREDTHS.number(min(values)), HUNDREDTHS.number(max(values))
    return low if low == high else f"{low} to {high}"


def reason(summary: RunSummary, leading: MethodSummary) -> Iterator[Note]:
    """Yield why the leading method has its speed: tokens per round against the time of a round."""
    length, rate, cost = leading.accepted_length, leading.acceptance_rate, _round_cost(summary, leading)
    if cost is None or length is None or rate is None:
        return
    if (leading.number("prefill_share") or 0.0) > MOSTLY:
        yield Note("prefill", f"Prefill takes most of the time of {leading.label}, so its decoding time says little.")
        return
    yield Note(
        "round",
        f"Each round of {leading.label} commits {HUNDREDTHS.number(length)} tokens (acceptance rate"
        f" {HUNDREDTHS.number(rate)}) and costs as much time as"
        f" {HUNDREDTHS.number(cost)} tokens of {summary.baseline}{', while decoding' if summary.end_to_end else ''}.",
    )
    share = leading.number("measured_over_corrected")
    if share is not None:
        yield Note(
            "share of theory",
            f"The {'decoding ' if summary.end_to_end else ''}speedup is {100 * share:.0f} % of the theoretical one at the"
            " measured acceptance and costs.",
        )


def _largest_loss(leading: MethodSummary) -> Iterator[Note]:
    """Yield which part of a round costs the most of the theoretical speedup, if it costs much."""
    theory = leading.number("predicted")
    if leading.steps is None or theory is None:
        return
    speedups = [theory, *vars(leading.steps).values()]
    factors = {name: after / before for name, before, after in zip(STEPS, speedups, speedups[1:], strict=False)}
    name = min(factors, key=lambda part: factors[part])
    if factors[name] < LARGE_LOSS:
        yield Note(
            "largest loss",
            f"Of the {TIMES.text(theory)} that theory gives at this acceptance, {STEPS[name]} causes the largest loss:"
            f" a factor of {HUNDREDTHS.number(factors[name])}.",
        )


def _unrelated(summary: RunSummary, leading: MethodSummary) -> Iterator[Note]:
    """Yield a warning about drafts of a model or head that are accepted nearly as rarely as random ones.

    There is none for few generations, nor for a draft model with another tokenizer.
    """
    rates, traits = leading.acceptance_by_position, summary.traits(leading)
    is_translated = leading.number("undraftable") is not None  # which a note explains
    if is_translated or leading.generations < FEWEST:
        return
    if rates and rates[0] < UNRELATED and (traits.heads or len(traits.roles) > 1):
        yield Note(
            "unrelated draft",
            f"Only {PERCENT.number(rates[0])} of the first draft tokens of {leading.label} are accepted: check that the"
            " drafter or head was trained for this target, with its chat template",
        )


def _draft_length(summary: RunSummary, leading: MethodSummary) -> Iterator[Note]:
    """Yield the draft length that is predicted to be the fastest."""
    theory, lengths = summary.traits(leading).theory, leading.predicted_lengths
    measured = {
        row_theory.gamma[0]
        for row in summary.measured_methods
        if (row_theory := summary.traits(row).theory)
        and row_theory.gamma
        and summary.spec.methods[row.method].preset == summary.spec.methods[leading.method].preset
    }
    if not lengths or theory is None or len(measured) > 1:
        return
    best = max(lengths, key=lambda length: (length.is_faster, length.speedup.value))
    ratio = metric_of("cost_ratio").format.text(leading.number("cost_ratio"))
    is_slow = leading.speedup is not None and leading.speedup.value <= 1.0
    if is_slow and all(length.speedup.high is not None and length.speedup.high <= 1.0 for length in lengths):
        text = f"No draft length from 1 to {lengths[-1].gamma} is predicted to be faster than {summary.baseline}."
        yield Note("draft length", text)
    elif best.is_faster:
        text = f"A draft length of {best.gamma} is predicted to be {TIMES.text(best.gain)} as fast as {theory.gamma[0]}"
        yield Note("draft length", text, help=f"--gamma {best.gamma}")
    else:
        yield Note(
            "draft length",
            f"No other draft length from 1 to {lengths[-1].gamma} is predicted to be clearly faster (a draft forward of one"
            f" token costs {ratio} of the target's).",
        )


def _break_even(summary: RunSummary, leading: MethodSummary) -> Iterator[Note]:
    """Yield from which acceptance rate, and up to which cost of a draft token, speculation is faster."""
    break_even = leading.break_even
    if break_even is None:
        return
    parts = []
    if break_even.acceptance is not None:
        measured = HUNDREDTHS.number(break_even.measured_acceptance)
        parts.append(f"at an acceptance rate of {HUNDREDTHS.number(break_even.acceptance)} (measured: {measured})")
    if break_even.cost_ratio is not None:
        measured = HUNDREDTHS.number(break_even.measured_cost_ratio)
        parts.append(
            f"with draft tokens that cost {HUNDREDTHS.number(break_even.cost_ratio)} of a target forward"
            f" (measured: {measured})"
        )
    at, clock = f"a draft length of {break_even.gamma}", " by decoding time" if summary.end_to_end else ""
    if parts:
        yield Note("break-even", f"With {at}, {leading.label} would break even{clock} {', or '.join(parts)}.")
    else:
        yield Note(
            "break-even",
            f"With {at}, {leading.label} cannot break even{clock}: not if all drafts were accepted at these costs, and not"
            " if drafts were free at this acceptance rate.",
        )


def overstated(summaries: Sequence[RunSummary]) -> Iterator[Note]:
    """Yield the sentence on slow baselines, over which speedups are overstated: by how much at most, and why.

    Of several runs, it has their number and the one with the largest factor, for each baseline.
    """
    slow: dict[str, list[tuple[RunSummary, SlowBaseline]]] = defaultdict(list)
    for summary in summaries:
        if (found := summary.slow_baseline) and any(row.speedup for row in summary.measured_methods):
            slow[found.method].append((summary, found))
    for method, runs in slow.items():
        worst, found = max(runs, key=lambda run: run[1].factor)
        total = sum(summary.baseline == method for summary in summaries)
        which = where = ""
        if len(summaries) > 1:
            which = f" in {len(runs)} of {counted(total, 'run')}"
            where = f" in {worst.title}"
        yield Note(
            "slow baseline",
            f"Decoding speedups over {method} are overstated{which}, by a factor of at most"
            f" {HUNDREDTHS.number(found.factor)}:"
            f" {_slowness(found, where)}.",
            values={method: found.factor},
        )


def _slowness(found: SlowBaseline, where: str) -> str:
    """Return why a baseline is slow, in the run that `where` names."""
    parts = []
    if "bandwidth" in found.reasons and found.share is not None:
        most = found.bandwidth.bytes_per_second / 1e9
        parts.append(
            f"reaches {100 * found.share:.0f} % of the measured {found.bandwidth.kind} bandwidth{where}"
            f" ({TENTHS.number(found.share * most)} of {TENTHS.number(most)} GB/s)"
            f" with {COUNT.number(found.parameters / 1e6)}M parameters"
        )
    if "reference" in found.reasons and found.reference_ratio is not None:
        at = "" if parts else where
        parts.append(
            f"takes {HUNDREDTHS.number(found.reference_ratio)} times as long for a forward of one token{at} as Transformers"
            " with the same weights"
        )
    return f"{found.method} {', and '.join(parts)}"


def location_text(summary: RunSummary) -> str:
    """Return where a speedup holds: on this machine, on the machine of the archive, or only in this run."""
    if doubts(summary):
        return "in the imported run" if summary.imported else "in this run"
    return "on the machine of the archive" if summary.imported else "on this machine"


def doubts(summary: RunSummary) -> list[str]:
    """Return the reasons why another run may give other speeds; empty if there are none."""
    found = (_load(summary), *_drift(summary), _spread(summary), _pause(summary), _single(summary))
    return [doubt for doubt in found if doubt]


def caution(summary: RunSummary) -> Iterator[Note]:
    """Yield the sentence on why another run may give other speeds, and what would resolve it."""
    if causes := doubts(summary):
        repeats = summary.decoding.repeats
        disturbed = repeats > 1 and (
            _load(summary) or _spread(summary) or _pause(summary)
        )  # which more repeats would not change
        more = "--fresh" if disturbed else f"--repeats {3 if repeats == 1 else 2 * repeats}"
        text = f"Another run may give other speeds: {'; '.join(causes)}"
        yield Note("doubtful", text, help=f"{more} on an idle machine")


def few_prompts(summary: RunSummary) -> Iterator[Note]:
    """Yield warnings about duplicate prompts, and about too few prompts for intervals or ranks."""
    data, measured = summary.data, summary.measured_methods
    if measured:
        prompts, generations = measured[0].prompts, measured[0].generations
        if prompts < data.samples and generations == data.samples * summary.decoding.repeats:
            text = f"Only {prompts} of {data.samples} prompts are different; equal prompts count as one."
            yield Note("equal prompts", text)
    fewest, needed = min((row.prompts for row in measured), default=0), fewest_prompts(len(measured))
    if fewest < FEWEST:
        text, size = f"Intervals need at least {FEWEST} different prompts", _too_small(data, FEWEST)
        yield Note("few prompts", f"{text}; {size}") if size else Note("few prompts", text, help="-n 20")
    elif fewest < needed:
        text, size = f"{fewest} prompts are too few to rank {len(measured)} methods", _too_small(data, needed)
        if size:
            yield Note("few prompts", f"{text}; {needed} are needed, and {size}")
        else:
            yield Note("few prompts", text, help=f"-n {needed}, or more for small differences")


def _too_small(data: DataSpec, needed: int) -> str:
    """Return how many prompts a source has if these are fewer than wanted; else an empty string."""
    if data.source == "synthetic" or data.total >= needed:
        return ""
    return f"{data.source} has {counted(data.total, 'prompt')}"


def _load(summary: RunSummary) -> str:
    loads = [load for row in summary.measured_methods if (load := row.number("other_load")) is not None]
    cores, most = summary.environment["cores"], max(loads, default=0.0)
    if most <= OTHER_LOAD * cores:
        return ""
    return f"other programs used {TENTHS.number(most)} of {cores} processors"


def _drift(summary: RunSummary) -> Iterator[str]:
    for key, what, bound in (("speedup_drift", "the speedup", SPEEDUP_DRIFT), ("drift", "the speed", MACHINE_DRIFT)):
        changes = {
            row.label: change
            for row in summary.measured_methods
            if abs(change := row.number(key) or 0.0) > bound and not (key == "speedup_drift" and _contains(row, change))
        }
        if changes:
            label = max(changes, key=lambda name: abs(changes[name]))
            yield f"{what} of {label} changed by {CHANGE.number(changes[label])} from the first repeat to the last"
            return


def _contains(row: MethodSummary, change: float) -> bool:
    """Return whether the interval of a speedup is wide enough for a change of the speedup between repeats."""
    speedup = row.speedup
    if speedup is None or speedup.low is None or speedup.high is None:
        return False
    return max(1.0 + change, 1.0 / (1.0 + change)) <= speedup.high / speedup.low


def _spread(summary: RunSummary) -> str:
    """Return the sentence on a baseline whose time for the same tokens varies."""
    base = next((row for row in summary.measured_methods if row.method == summary.baseline), None)
    spread = base.number("repeat_spread") if base else None
    if base is None or spread is None or spread <= REPEAT_SPREAD:
        return ""
    return f"the time of {base.label} for the same tokens varied by {PERCENT.number(spread)} between repeats"


def _pause(summary: RunSummary) -> str:
    """Return the sentence on a generation that took many times as long as the others of its method."""
    ratios = {row.label: row.number("longest_generation") or 0.0 for row in summary.measured_methods}
    label = max(ratios, key=lambda name: ratios[name], default="")
    if not label or ratios[label] <= PAUSE:
        return ""
    return f"one generation of {label} took {COUNT.number(ratios[label])} times as long per token as its median"


def _single(summary: RunSummary) -> str:
    return "one repeat does not show drift" if summary.decoding.repeats == 1 else ""
