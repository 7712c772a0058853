"""The result of a judge in one or two sentences."""

from specbench.analysis.win_rate import win_rates
from specbench.reporting.column import TENTHS_OF_PERCENT
from specbench.reporting.notes import counted
from specbench.runs.scores import Judged


def judged_conclusion(judged: Judged) -> list[str]:
    """Return how often the judge preferred each method, and whether that differs from chance."""
    rates, text = win_rates(judged["rows"]), TENTHS_OF_PERCENT.text
    if rates.equal == rates.comparisons:
        both = f"{judged['of']} and {judged['against']}"
        return [f"All {counted(rates.comparisons, 'text')} of {both} are equal, so the judge was not called."]
    out = [
        f"{judged['label']} prefers {judged['of']} in {text(rates.wins)} and {judged['against']} in {text(rates.losses)} of"
        f" {counted(rates.comparisons, 'comparison')}; {text(rates.ties)} are ties."
    ]
    decided = rates.decided
    if decided is None:
        out.append("All comparisons are ties, so this judge shows no difference between the methods.")
    elif decided.low is None or decided.high is None:
        out.append("Intervals need more prompts.")
    elif decided.low <= 0.5 <= decided.high:
        out.append(f"Without ties, {judged['of']} wins {text(decided)}, which cannot be distinguished from 50 %.")
    else:
        more = "more" if decided.value > 0.5 else "less"
        out.append(f"Without ties, {judged['of']} wins {text(decided)}, significantly {more} than half.")
    if rates.equal:
        out.append(f"{counted(rates.equal, 'comparison')} had equal texts: ties, without a call of the judge.")
    if rates.unclear:
        out.append(f"{counted(rates.unclear, 'answer')} of the judge named no letter and counted as a tie.")
    return out
