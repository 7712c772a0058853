"""The choice of a middle model: candidates compared by exact theory, beside Theorem 3.2 as printed and as corrected."""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.analysis.intervals import Estimate
from specbench.analysis.theory.polybasic import Plan, chain_round, condition_1, condition_2_printed, condition_by_ceil
from specbench.report.chain_profile import Profile
from specbench.report.formats import HUNDREDTHS, TIMES
from specbench.report.tables import Table

NOTE = (
    "Theorem 3.2 compares three models with two at the measured accepted lengths, and with the target's accepted length that"
    " the exact theory predicts for the chosen chain. As printed: both conditions. Corrected: seconds per token with the"
    " ceiling as a factor."
)


@dataclass(frozen=True)
class Candidate:
    """A chain, from the target down to the drafter, with its predicted speed.

    For chains with a middle model, `printed`, `corrected` and `exact` say whether Theorem 3.2 keeps it.
    """

    levels: tuple[str, ...]
    plan: Plan
    speedup: Estimate
    printed: bool | None = None
    corrected: bool | None = None
    exact: bool | None = None

    @property
    def middle(self) -> str:
        """The middle model; empty if there is none."""
        return self.levels[1] if len(self.levels) > 2 else ""


def candidates(profiles: Sequence[Profile], gamma: int) -> list[Candidate]:
    """Return the chains of the profiles, with and without their middle models, the fastest first.

    `gamma` is the draft length at which pairs were measured.
    """
    found: dict[tuple[str, ...], Candidate] = {}
    for profile in profiles:
        high, here, low = profile.levels
        kept = profile.keeps(1, blocks=True)
        if kept is None:
            continue
        two = tuple((low, here, high)[i] for i in reversed(kept.models))
        found.setdefault(two, Candidate(two, kept.two, profile.predicted(two, kept.two)))
        found[high, here, low] = _with_middle(profile, gamma, kept.three, kept.pays)
    return sorted(found.values(), key=lambda each: -each.plan.speedup)


def _with_middle(profile: Profile, gamma: int, plan: Plan, pays: bool) -> Candidate:
    high, here, low = profile.levels
    inner, outer, direct = profile.pairing(low, here), profile.pairing(here, high), profile.pairing(low, high)
    seconds = [profile.seconds(level) or 0.0 for level in profile.levels]
    printed = corrected = None
    if inner and outer and direct and seconds[2]:
        tokens = chain_round([inner.acceptance, outer.acceptance], plan.drafted, plan.thresholds).tokens
        lengths = [tokens, inner.length]
        first = condition_1(direct.length, lengths, seconds)
        second = condition_2_printed(direct.length, lengths, seconds[1], seconds[2], gamma)
        printed = first.holds and second.holds
        corrected = condition_by_ceil(direct.length, lengths, seconds, gamma).holds
    levels = (high, here, low)
    return Candidate(levels, plan, profile.predicted(levels, plan), printed, corrected, pays)


def candidates_table(found: Sequence[Candidate]) -> Table:
    """Return the candidates as a table."""
    heads = [
        "chain", "predicted speedup", "draft", "threshold", "Theorem 3.2, as printed", "as corrected", "exact theory",
    ]  # fmt: skip
    words = {True: "keep", False: "leave out", None: HUNDREDTHS.text(None)}
    rows = [
        [
            " > ".join(each.levels), TIMES.text(each.speedup), str(each.plan.drafted),
            str(each.plan.thresholds[0]) if each.plan.thresholds else HUNDREDTHS.text(None),
            *(words[verdict] for verdict in (each.printed, each.corrected, each.exact)),
        ]
        for each in found
    ]  # fmt: skip
    return Table("Candidates", heads, rows)


def conclusion_of(found: Sequence[Candidate]) -> str:
    """Return a sentence on the fastest candidate."""
    best = found[0]
    chain = " > ".join(best.levels)
    threshold = f", threshold {best.plan.thresholds[0]}" if best.plan.thresholds else ""
    text = f"{chain} is predicted to be the fastest: {TIMES.text(best.speedup)}, draft {best.plan.drafted}{threshold}."
    if best.plan.speedup <= 1.0:
        return f"{text} No candidate is predicted to be faster than {best.levels[0]} alone."
    return text


def method_toml(best: Candidate, task: str, pair: str) -> str:
    """Return the method of a candidate as the text of a TOML file."""
    low, drafted = best.levels[-1], best.plan.drafted
    base = best.levels[-2]
    innermost = {
        "eagle": f'{{ name = "eagle", base = "{base}", gamma = {drafted} }}',
        "pld": f'{{ name = "pld", gamma = {drafted} }}',
    }.get(low, f'{{ name = "model", model = "{low}", gamma = {drafted} }}')
    proposer = innermost
    if best.middle:
        threshold = best.plan.thresholds[0]
        proposer = f'{{ name = "chain", model = "{best.middle}", threshold = {threshold}, proposer = {innermost} }}'
    return (
        f"# Chosen by specbench profile on {pair}, {task}. The predicted speedup is {TIMES.text(best.plan.speedup)}.\n"
        f'description = "{" > ".join(best.levels)}, draft length and threshold by specbench profile"\n'
        'baseline = "ar"\nname = "speculative"\n'
        f'proposer = {proposer}\nscorers = "{best.levels[0]}"\ntarget = {{ name = "last" }}\n'
    )
