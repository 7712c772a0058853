"""Why a method has its speed, and which settings would give it another one: sentences of a conclusion."""

from collections.abc import Iterator

from specbench.analysis.run_summary import MethodSummary, RunSummary
from specbench.reporting.column import HUNDREDTHS, TIMES
from specbench.reporting.columns import column_of

MOSTLY = 0.5  # share of prefill from which on decoding times are not explained


def reasons(summary: RunSummary, leading: MethodSummary, with_advice: bool = True) -> Iterator[str]:
    """Yield the tokens and time of a round and the share of the theoretical speedup.

    With advice, also yield the break-even points and the best draft length.
    """
    yield from _reason(summary, leading)
    if with_advice:
        yield from _break_even(summary, leading)
        yield from _draft_length(summary, leading)


def _reason(summary: RunSummary, leading: MethodSummary) -> Iterator[str]:
    """Yield why the leading method has its speed: tokens per round against the time of a round."""
    base = next((row for row in summary.measured if row.method == summary.baseline), None)
    length, rate, ours = leading.accepted_length, leading.acceptance_rate, leading.tokens_per_second
    if base is None or base.tokens_per_second is None or not length or not ours or rate is None:
        return
    if (leading.number("prefill_share") or 0.0) > MOSTLY:
        yield f"Prefill takes most of the time of {leading.label}, so its decoding time says little."
        return
    cost = length * base.tokens_per_second / ours  # in tokens of the baseline
    yield (
        f"Each round of {leading.label} commits {HUNDREDTHS.number(length)} tokens (acceptance rate"
        f" {HUNDREDTHS.number(rate)}) and takes as long as"
        f" {HUNDREDTHS.number(cost)} tokens of {base.method}{', while decoding' if summary.end_to_end else ''}."
    )
    share = leading.number("measured_over_corrected")
    if share is not None:
        yield (
            f"The {'decoding ' if summary.end_to_end else ''}speedup is {100 * share:.0f} % of the theoretical one at the"
            " measured acceptance and costs."
        )


def _draft_length(summary: RunSummary, leading: MethodSummary) -> Iterator[str]:
    """Yield the draft length that is predicted to be the fastest."""
    theory, lengths = summary.traits(leading).theory, leading.predicted_lengths
    measured = {
        each.gamma[0]
        for row in summary.measured
        if (each := summary.traits(row).theory)
        and each.gamma
        and row.method.partition("(")[0] == leading.method.partition("(")[0]
    }
    if not lengths or theory is None or len(measured) > 1:
        return
    best = max(lengths, key=lambda each: each.speedup.value)
    ratio = column_of("cost_ratio").format.text(leading.number("cost_ratio"))
    is_slow = leading.speedup is not None and leading.speedup.value <= 1.0
    if is_slow and all(each.speedup.high is not None and each.speedup.high <= 1.0 for each in lengths):
        yield f"No draft length from 1 to {lengths[-1].gamma} is predicted to be faster than {summary.baseline}."
    elif best.is_faster:
        yield (
            f"A draft length of {best.gamma} is predicted to be {TIMES.text(best.gain)} as fast as {theory.gamma[0]};"
            f" help: --gamma {best.gamma}"
        )
    else:
        yield (
            f"No other draft length from 1 to {lengths[-1].gamma} is predicted to be clearly faster (a draft forward costs"
            f" {ratio} of a target forward)."
        )


def _break_even(summary: RunSummary, leading: MethodSummary) -> Iterator[str]:
    """Yield from which acceptance rate, and up to which cost of a draft token, speculation is faster."""
    found = leading.break_even
    if found is None:
        return
    parts = []
    if found.acceptance is not None:
        measured = HUNDREDTHS.number(found.measured_acceptance)
        parts.append(f"at an acceptance rate of {HUNDREDTHS.number(found.acceptance)} (measured: {measured})")
    if found.cost_ratio is not None:
        measured = HUNDREDTHS.number(found.measured_cost_ratio)
        parts.append(
            f"with draft tokens that cost {HUNDREDTHS.number(found.cost_ratio)} of a target forward (measured: {measured})"
        )
    at, clock = f"a draft length of {found.gamma}", " by decoding time" if summary.end_to_end else ""
    if parts:
        yield f"With {at}, {leading.label} would break even{clock} {', or '.join(parts)}."
    else:
        yield (
            f"With {at}, {leading.label} cannot break even{clock}: not if all drafts were accepted at these costs, and not"
            " if drafts were free at this acceptance rate."
        )
