"""The outcomes of a suite's expectations in words: a line for each expectation, and sentences that count them."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from specbench.analysis.metric import metric_of
from specbench.features.suites.papers.expectations import DECIDED, ExpectationVerdict, Outcome

SOURCES = {
    "": ("expected outcome", "expected outcomes"),
    "paper": (
        "comparison of speed, quality or acceptance that the paper makes",
        "comparisons of speed, quality or acceptance that the paper makes",
    ),
    "project": ("comparison that this project adds", "comparisons that this project adds"),
    "identity": ("check of the implementation", "checks of the implementation"),
}  # what a page counts apart: one, and several
ERRORS = (
    "Each is decided by a 95 % interval over prompts. It does not cover a run at another time, and is not corrected for the"
    " number of comparisons."
)
SELECTION = (
    "Where the best or the lowest of several settings is compared, it is chosen on the same prompts on which it is judged."
    " This biases the best upward and the lowest downward, and the intervals are not corrected for it."
)

EXPECTED = (Outcome.confirmed, Outcome.expected)
MOST_NEEDED = 100_000  # prompts that could be measured
NOT_COMPARED = "not compared, since no run has both sides"


def outcome_lines(verdicts: Sequence[ExpectationVerdict]) -> list[str]:
    """Return a line for each expectation: the number of points with each outcome."""
    return list(map(_line, verdicts))


def together_lines(groups: Sequence[Sequence[str]], verdicts: Sequence[ExpectationVerdict]) -> list[str]:
    """Return a line for each group of expectations, by their ids: at how many points all of them hold at once."""
    lines = []
    for group in groups:
        chosen = [verdict for verdict in verdicts if verdict.expected.id in group]
        found = [{(p.sides[0].run, p.sides[0].name): p.outcome for p in verdict.outcomes} for verdict in chosen]
        places = [place for place in found[0] if all(place in each for each in found)] if found else []
        shared = [[each[place] for each in found] for place in places]
        if shared:
            confirmed = sum(all(outcome is Outcome.confirmed for outcome in each) for each in shared)
            expected = sum(all(outcome in EXPECTED for outcome in each) for each in shared)
            says = " and ".join(f"'{verdict.expected.says}'" for verdict in chosen)
            lines.append(
                f"{says}, both at once: confirmed in {confirmed} of {len(shared)} comparisons, on the expected side in"
                f" {expected}"
            )
    return lines


def outcome_counts(verdicts: Sequence[ExpectationVerdict], is_of_paper: bool = True) -> list[str]:
    """Return sentences that count the outcomes: the paper's comparisons, this project's, and checks of the implementation.

    `is_of_paper` says whether the suite reproduces a paper at all. Returns an empty list without an outcome.
    """
    by_source: dict[str, Counter[Outcome]] = defaultdict(Counter)
    for verdict in verdicts:
        by_source[verdict.expected.source if is_of_paper else ""].update(verdict.counted)
    sentences = [_counts(by_source[source], source) for source in SOURCES if by_source[source].total()]
    left_out = Counter(point.outcome for verdict in verdicts for point in verdict.outcomes)
    absent = sum(not verdict.outcomes for verdict in verdicts)
    reasons = {
        "follow from the costs or acceptance rates of the bundled models": left_out[Outcome.stand_in],
        "too few rejected tokens": left_out[Outcome.few_rejections],
        "no interval or no difference": left_out[Outcome.undecided],
    }
    if parts := [f"{count} ({reason})" for reason, count in reasons.items() if count]:
        sentences.append(f"Not counted: {', '.join(parts)}.")
    if absent:
        sentences.append(f"Not compared, since no run has both sides: {absent} of {len(verdicts)} claims.")
    return sentences


def outcome_caveats(verdicts: Sequence[ExpectationVerdict]) -> list[str]:
    """Return sentences on the errors of the outcomes: those of many comparisons, and of the choice of the best setting."""
    several = [ERRORS] if sum(len(verdict.counted) for verdict in verdicts) > 1 else []
    return several + ([SELECTION] if any(each.expected.selects and each.counted for each in verdicts) else [])


def _counts(counts: Counter[Outcome], source: str) -> str:
    """Return a sentence: how many outcomes are decided, which way, and the trend of the others."""
    total, (singular, plural) = counts.total(), SOURCES[source]
    if total == 1:
        (outcome,) = counts
        return f"The {singular} is {outcome}."
    decided = sum(counts[outcome] for outcome in DECIDED)
    texts = [f"{counts[outcome]} {outcome}" for outcome in DECIDED if counts[outcome]]
    sentence = f"{decided} of {total} {plural} ({decided / total:.0%}) {'is' if decided == 1 else 'are'} decided"
    sentence += f": {' and '.join(texts)}" if texts else ""
    open_ones = [
        f"{counts[outcome]} {'is' if counts[outcome] == 1 else 'are'} {outcome}"
        for outcome in (Outcome.expected, Outcome.other)
        if counts[outcome]
    ]
    return f"{sentence}; {' and '.join(open_ones)}." if open_ones else f"{sentence}."


def verdict_text(verdict: ExpectationVerdict) -> str:
    """Return the number of points with each outcome, and the measured ratios or differences."""
    if not verdict.outcomes:
        return NOT_COMPARED
    return f"{_counted(point.outcome for point in verdict.outcomes)}{_range(verdict)}"


def _range(verdict: ExpectationVerdict) -> str:
    """Return ` (ratios 0.72 to 0.92)`, differences, or both, of the points; empty without any."""
    written = metric_of(verdict.expected.value).format
    kinds: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for point in verdict.outcomes:
        (value, _, _, equal), ratio = point.measured.comparison, point.measured.ratio
        if ratio is not None or equal != 0.0:
            kinds["ratio"].append((number := value if ratio is None else ratio, f"{number:.2f}"))
        elif math.isfinite(value):
            kinds["difference"].append((value, written.number(value, signed=True)))
    texts = []
    for kind, values in kinds.items():
        (_, low), (_, high) = min(values), max(values)
        texts.append(f"{kind} {low}" if low == high else f"{kind}s {low} to {high}")
    return f" ({', '.join(texts)})" if texts else ""


def _line(verdict: ExpectationVerdict) -> str:
    expected, settings = verdict.expected, defaultdict[Outcome, list[str]](list)
    origin = f" ({expected.where})" if expected.where else ""
    origin = {"project": " (added by this project)", "identity": f"{origin}, a check of the implementation"}.get(
        expected.source, origin
    )
    says = f"{expected.says}{origin}"
    for decided in verdict.outcomes:
        settings[decided.outcome].append(decided.setting)
    if not settings:
        return f"{says}: {NOT_COMPARED}"
    needed = (
        f"; about {verdict.prompts_needed:,} prompts would decide half of the inconclusive ones"
        if verdict.prompts_needed and verdict.prompts_needed <= MOST_NEEDED
        else "; the differences are too small for any number of prompts"
        if verdict.prompts_needed
        else ""
    )
    contradicted = settings[Outcome.contradicted]
    reasons = list(dict.fromkeys(point.reason for point in verdict.outcomes if point.reason))
    why = f"; numbers that differ: {'; '.join(reasons)}" if reasons else ""
    is_mixed = 0 < len(contradicted) < len(verdict.outcomes)
    against = f" (contradicted: {'; '.join(dict.fromkeys(contradicted))})" if is_mixed else ""
    secondary = f"; by {metric_of(expected.beside).title}: {_counted(verdict.secondary)}" if verdict.secondary else ""
    return f"{says}: {verdict_text(verdict)}{against}{needed}{why}{secondary}"


def _counted(outcomes: Sequence[Outcome] | Iterator[Outcome]) -> str:
    """Return `2 of 3 confirmed, 1 of 3 contradicted`; a single outcome without numbers."""
    counts = Counter(outcomes)
    if counts.total() == 1:
        return str(next(iter(counts)))
    return ", ".join(f"{counts[outcome]} of {counts.total()} {outcome}" for outcome in Outcome if counts[outcome])
