"""The profile of a chain, Polybasic's Table 1, and the choice of its middle model by theory.

A profile is computed from a run of every model alone and of every pair of levels as plain speculation, under the names that
`alone` and `under` give. Candidates are compared by exact theory, and by Theorem 3.2 as printed and as corrected.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from specbench.analysis import polybasic, theory
from specbench.analysis.acceptance import acceptance_by_position, acceptance_rate, accepted_length
from specbench.analysis.forwards import REACH, Sizes, fitted, sizes_of, sums_of
from specbench.analysis.intervals import Estimate, jackknifed_ratio
from specbench.analysis.polybasic import ChainPlan
from specbench.analysis.run_metrics import Records, complete, rounds_of
from specbench.analysis.run_summary import RunSummary
from specbench.features.profile.forwards_table import BLOCK
from specbench.machine.hardware import bandwidth_of
from specbench.reporting.column import HUNDREDTHS, HUNDREDTHS_OF_MS, NONE, TIMES
from specbench.reporting.columns import column_of
from specbench.reporting.tables import Table
from specbench.runs.record import Record
from specbench.runs.run_folder import read, timed_forwards

GAMMA = 5  # draft length at which pairs of models are measured
DRAFTED, THRESHOLDS = range(1, 9), range(1, 17)  # tried draft lengths and thresholds
REST = 40  # tokens up to which costs are extrapolated, for the few blocks that are longer than a plan aims at
ENOUGH = 20  # forwards of a size from which its price is their mean
NOTE = (
    "Theorem 3.2 compares three models with two at the measured accepted lengths, and with the target's accepted length that"
    " the exact theory predicts for the chosen chain. As printed: both conditions. Corrected: seconds per token with the"
    " ceiling as a factor."
)


def alone(level: str) -> str:
    """Return the name of plain decoding by one level; that of the target is the baseline."""
    return f"{level}-alone"


def under(low: str, high: str) -> str:
    """Return the name of speculation with one level's drafts, verified by another level."""
    return f"{low}-under-{high}"


def weights_seconds(summary: RunSummary) -> dict[str, float]:
    """Return the seconds of reading each model's weights once, at the memory bandwidth of the run's machine."""
    bandwidth = bandwidth_of(summary.environment).bytes_per_second
    return {role: model.forward_bytes / bandwidth for role, model in summary.models.items()}


def drafter_of(name: str) -> str:
    """Return the level or proposer whose drafts a method verifies, from the name that `under` gives; empty for another."""
    low, word, _ = name.partition("-under-")
    return low if word else ""


@dataclass(frozen=True)
class Pairing:
    """One level that drafts for another: tokens per round, acceptance, and acceptance of a round's first token.

    `most` is the greatest possible number of tokens per round, the draft length plus one.
    """

    length: float
    acceptance: float
    first: float
    most: int


class Profile:
    """The measurements of a chain. `levels` are from the target down to the drafter."""

    def __init__(
        self,
        rows: Mapping[str, Records],
        levels: Sequence[str],
        blocks: Mapping[str, Sizes],
        bounds: Mapping[str, float] | None = None,
    ) -> None:
        """Take the records of methods by name, and the times of forwards by level that were measured next to them.

        `bounds` are the seconds of reading each level's weights once, at the memory bandwidth.

        A level's prices come from the forwards timed next to the run, of all sizes in the same state, or, without these,
        from the run's own forwards of sizes that it read often. Sizes that it read at the ends of answers only have no
        price of their own.
        """
        self.levels, self._rows, self._blocks, self.bounds = list(levels), rows, blocks, bounds or {}
        self._sizes = {level: _timed(blocks, level) or _read(rows, level) for level in levels}
        self._at = {level: _often(sizes) or sorted(sizes) for level, sizes in self._sizes.items()}
        self._costs = {level: _costs(self._sizes[level], at) for level, at in self._at.items() if at}

    @classmethod
    def of(cls, summary: RunSummary, levels: Sequence[str]) -> "Profile":
        """Read the measurements of a run."""
        kinds = {name: head.kind for name, head in summary.heads.items()}
        return cls.read(Path(summary.folder), levels, summary.baseline, kinds, weights_seconds(summary))

    @classmethod
    def read(
        cls,
        folder: Path,
        levels: Sequence[str],
        baseline: str,
        kinds: Mapping[str, str],
        bounds: Mapping[str, float] | None = None,
    ) -> "Profile":
        """Read a run folder. `kinds` maps the names of heads, under which calls are recorded, to their levels."""
        records = [_by_level(record, kinds) for record in read(folder)]
        drafters = dict.fromkeys((*levels, *(low for record in records if (low := drafter_of(record.method)))))
        names = [baseline, *map(alone, levels[1:]), *(under(a, b) for b in levels for a in drafters)]
        rows = {name: method_rows for name in names if (method_rows := complete(records, name))}
        return cls(rows, levels, timed_forwards(folder), bounds)

    def left_out(self) -> "Iterator[Profile]":
        """Yield the profile without each prompt in turn."""
        for prompt in dict.fromkeys(row.prompt for rows in self._rows.values() for row in rows):
            rest = {name: [row for row in rows if row.prompt != prompt] for name, rows in self._rows.items()}
            yield Profile({name: rows for name, rows in rest.items() if rows}, self.levels, self._blocks)

    def seconds(self, level: str, fed: int = 1) -> float | None:
        """Return the seconds of a forward that reads `fed` tokens (`forwards.fitted`).

        None for a level without cost, such as prompt lookup.
        """
        costs = self._costs.get(level)
        return None if costs is None else float(costs[min(fed, REST)])

    def forwards(self, level: str, fed: int) -> int:
        """Return the number of forwards from which the price of this size is estimated; 0 if other sizes determine it."""
        return round(self._sizes[level][fed][0]) if fed in self._at[level] else 0

    @property
    def trees(self) -> list[str]:
        """The proposers besides the levels whose drafts were measured."""
        return list(dict.fromkeys(low for name in self._rows if (low := drafter_of(name)) and low not in self.levels))

    @property
    def longest(self) -> int:
        """The longest block that a plan may use: its cost is known for every level that verifies."""
        return min(int(REACH * max(self._at[level], default=0)) for level in self.levels[:-1])

    def pairing(self, low: str, high: str) -> Pairing | None:
        """Return the results of one level's drafts under verification by another. None if the pair was not measured."""
        rows = self._rows.get(under(low, high))
        rate = acceptance_rate(rows) if rows else None
        if rows is None or rate is None:
            return None
        most = max(x.drafted for x in rounds_of(rows)) + 1
        return Pairing(accepted_length(rows), rate, acceptance_by_position(rows)[0], most)

    def cost(self, levels: Sequence[str], blocks: bool) -> theory.Cost:
        """Return the cost of forwards, the drafter first. With `blocks`, a block has its own cost, else that of one token."""
        return lambda i, k: self.seconds(levels[i], k if blocks else 1) or 0.0

    def predicted(self, levels: Sequence[str], plan: ChainPlan) -> Estimate:
        """Return the predicted speedup of a plan on these levels, from the target down, with its interval over prompts."""
        jackknife = [speed for profile in self.left_out() if (speed := profile._speedup(levels, plan)) is not None]
        return jackknifed_ratio(plan.speedup, np.array(jackknife), np.ones(len(jackknife)))

    def ratio(self, one: tuple[Sequence[str], ChainPlan], other: tuple[Sequence[str], ChainPlan]) -> Estimate:
        """Return the predicted speed of one plan on its levels over that of another, with its interval over prompts."""
        speeds = [(profile._speedup(*one), profile._speedup(*other)) for profile in self.left_out()]
        jackknife = [first / second for first, second in speeds if first and second]
        return jackknifed_ratio(one[1].speedup / other[1].speedup, np.array(jackknife), np.ones(len(jackknife)))

    def _speedup(self, levels: Sequence[str], plan: ChainPlan) -> float | None:
        """Return the predicted speedup of a plan; None if a pair of its levels was not measured."""
        pairings = [self.pairing(low, high) for high, low in pairwise(levels)]
        rates = [pairing.acceptance for pairing in reversed(pairings) if pairing]
        if len(rates) < len(pairings):
            return None
        return polybasic.chain(rates, plan.drafted, plan.thresholds, self.cost(levels[::-1], blocks=True))

    def keeps(self, middle: int, blocks: bool) -> polybasic.Middle | None:
        """Return the theory for level number `middle` between its neighbors; None if a pair of them was not measured.

        If no pair skips the level, the alternative is the level itself as the drafter.
        """
        high, here, low = self.levels[middle - 1 : middle + 2]
        outer, inner, direct = self.pairing(here, high), self.pairing(low, here), self.pairing(low, high)
        if outer is None or inner is None:
            return None
        return polybasic.keeps_middle(
            inner.acceptance,
            outer.acceptance,
            direct.acceptance if direct else 0.0,
            self.cost([low, here, high], blocks),
            DRAFTED[: max(self.longest - 1, 1)],
            THRESHOLDS[: max(self.longest - 1, 1)],
        )


def _by_level(record: Record, kinds: Mapping[str, str]) -> Record:
    """Return a record whose models are named by their level."""
    return replace(record, models={kinds.get(role, role): usage for role, usage in record.models.items()})


def _timed(blocks: Mapping[str, Sizes], level: str) -> Sizes:
    """Return the forwards that were timed next to the run; empty if there are too few of every size."""
    sizes = blocks.get(level, {})
    return sizes if _often(sizes) else {}


def _often(sizes: Sizes) -> list[int]:
    """Return the sizes of which enough forwards were measured, in order."""
    return sorted(size for size, (count, _) in sizes.items() if count >= ENOUGH)


def _read(rows: Mapping[str, Records], level: str) -> Sizes:
    """Return the forwards of a level in all methods of the run."""
    out: dict[int, tuple[float, float]] = {}
    for records in rows.values():
        for fed, (count, spent) in sizes_of(records, level).items():
            had = out.get(fed, (0.0, 0.0))
            out[fed] = had[0] + count, had[1] + spent
    return out


def _costs(sizes: Sizes, at: list[int]) -> np.ndarray:
    """Return the seconds of forwards by tokens read; beyond those of `at`, at the steepest measured slope."""
    return fitted(sums_of(sizes, REST), [size for size in at if size <= REST] or at[:1]).most


def forwards_table(profile: Profile) -> Table:
    """Return the time of a forward of one token, of a block that verifies a draft of five, and of reading the weights."""
    rows = []
    for i, level in enumerate(profile.levels, 1):
        one, block = profile.seconds(level, 1), profile.seconds(level, BLOCK)
        top = profile.seconds(profile.levels[0], 1)
        share = None if one is None or not top else one / top
        price = None if one is None or block is None else block / one
        counts = [str(profile.forwards(level, size)) for size in (1, BLOCK)]
        rows.append(
            [
                f"M{i}: {level}",
                *map(HUNDREDTHS_OF_MS.text, (one, block)),
                *map(HUNDREDTHS.text, (price, share)),
                HUNDREDTHS_OF_MS.text(profile.bounds.get(level)),
                " / ".join(counts),
            ]
        )
    heads = [
        "model",
        "ms, 1 token",
        f"ms, {BLOCK} tokens",
        f"T({BLOCK})/T(1)",
        "relative to M1",
        "ms, weights read once",
    ]
    heads.append(f"forwards of 1 / {BLOCK} tokens")
    return Table("Forwards", heads, rows)


def prices_table(profile: Profile) -> Table:
    """Return the price of a block of each size that a plan may use, with the number of forwards it is estimated from."""
    costly = [level for level in profile.levels if profile.seconds(level) is not None]
    rows = []
    for size in range(1, profile.longest + 1):
        cells = []
        for level in costly:
            text, count = HUNDREDTHS_OF_MS.text(profile.seconds(level, size)), profile.forwards(level, size)
            cells.append(f"{text} ({count})" if count else f"{text} (from other sizes)")
        rows.append([str(size), *cells])
    heads = ["tokens", *(f"M{profile.levels.index(level) + 1}: {level}, ms (forwards)" for level in costly)]
    return Table("Prices of blocks", heads, rows)


def pairs_table(profile: Profile, printed: Mapping[str, float] | None = None) -> Table:
    """Return the accepted length, its maximum, the acceptance rate, and that of the first token of a draft, by pair.

    The accepted length includes the token that follows. At T = 0, acceptance is agreement of the most likely tokens. Other
    proposers of the lowest level have a row each. `printed` are a paper's accepted lengths by pair, such as `M1 - M2`.
    """
    rows, last = [], len(profile.levels)
    for i, high in enumerate(profile.levels, 1):
        below = [(j, low) for j, low in enumerate(profile.levels[i:], i + 1)]
        trees = [(last, tree) for tree in profile.trees if profile.pairing(tree, high)]
        for j, low in below + trees:
            rows.append([f"M{i} - M{j}: {low} under {high}", *_pairing_texts(profile.pairing(low, high))])
            if printed:
                rows[-1].append(column_of("accepted_length").format.text(printed.get(f"M{i} - M{j}")))
    heads = ["pair", "mean accepted length", "at most", "acceptance", "of the first token"]
    return Table("Pairs", [*heads, "accepted length in the paper"] if printed else heads, rows)


def _pairing_texts(pairing: Pairing | None) -> list[str]:
    if pairing is None:
        return [NONE] * 4
    length, rate = (column_of(key).format.text for key in ("accepted_length", "acceptance_rate"))
    return [length(pairing.length), str(pairing.most), rate(pairing.acceptance), rate(pairing.first)]


def _basis(profile: Profile, middle: polybasic.Middle) -> str:
    """Return a sentence on the prices of the blocks that the target reads in the two predicted chains."""
    high, parts = profile.levels[0], []
    for size in dict.fromkeys((middle.three.thresholds[0] + 1, middle.two.drafted + 1)):
        count = profile.forwards(high, size)
        parts.append(f"{size} tokens ({count} forwards)" if count else f"{size} tokens (estimated from other sizes)")
    return f"The target's cost comes from blocks of {' and '.join(parts)}."


class MiddleVerdict(NamedTuple):
    """Sentences on a middle model: whether theory keeps it, and what the predictions rest on."""

    text: str
    details: str = ""


def verdicts(profile: Profile) -> list[MiddleVerdict]:
    """Return for each middle model whether theory keeps it, or that the prompts do not decide it."""
    lines = []
    for middle in range(1, len(profile.levels) - 1):
        high, here, low = profile.levels[middle - 1 : middle + 2]
        measured, ideal = profile.keeps(middle, blocks=True), profile.keeps(middle, blocks=False)
        if measured is None or ideal is None:
            lines.append(MiddleVerdict(f"{here}: no prediction, since not all of its pairs were measured"))
            continue
        pair = [(low, here, high)[i] for i in measured.models]
        two, three = " + ".join(pair), TIMES.text(profile.predicted([high, here, low], measured.three))
        without_it = TIMES.text(profile.predicted(pair[::-1], measured.two))
        without = "" if profile.pairing(low, high) else f" (no level drafts for {high} directly)"
        ratio = profile.ratio(([high, here, low], measured.three), (pair[::-1], measured.two))
        is_decided = ratio.low is not None and ratio.high is not None and not ratio.low <= 1.0 <= ratio.high
        advice = "keep it" if measured.pays else "leave it out"
        text = (
            f"{here}: {advice if is_decided else f'not decided by these prompts (help: -n); by the predictions, {advice}'}."
            f" The predicted speedup is {three} with it and {without_it} without it ({two}){without}; their ratio is"
            f" {TIMES.text(ratio)}."
        )
        details = (
            f"With {here}, the draft length is {measured.three.drafted} and the threshold {measured.three.thresholds[0]};"
            f" without it, the draft length is {measured.two.drafted}. {_basis(profile, measured)} Costs of blocks are known"
            f" up to {profile.longest} tokens; longer blocks are not planned. If a block cost as much as one token, the"
            f" speedups would be {TIMES.text(ideal.three.speedup)} and {TIMES.text(ideal.two.speedup)}."
        )
        lines.append(MiddleVerdict(text, details))
    return lines


@dataclass(frozen=True)
class ChainCandidate:
    """A chain, from the target down to the drafter, with its predicted speed.

    For chains with a middle model, `printed`, `corrected` and `exact` say whether Theorem 3.2 keeps it.
    """

    levels: tuple[str, ...]
    plan: ChainPlan
    speedup: Estimate
    printed: bool | None = None
    corrected: bool | None = None
    exact: bool | None = None

    @property
    def middle(self) -> str:
        """The middle model; empty if there is none."""
        return self.levels[1] if len(self.levels) > 2 else ""


def candidates(profiles: Sequence[Profile], gamma: int) -> list[ChainCandidate]:
    """Return the chains of the profiles, with and without their middle models, the fastest first.

    `gamma` is the draft length at which pairs were measured.
    """
    chains: dict[tuple[str, ...], ChainCandidate] = {}
    for profile in profiles:
        high, here, low = profile.levels
        middle = profile.keeps(1, blocks=True)
        if middle is None:
            continue
        two = tuple((low, here, high)[i] for i in reversed(middle.models))
        chains.setdefault(two, ChainCandidate(two, middle.two, profile.predicted(two, middle.two)))
        chains[high, here, low] = _with_middle(profile, gamma, middle.three, middle.pays)
    return sorted(chains.values(), key=lambda candidate: -candidate.plan.speedup)


def _with_middle(profile: Profile, gamma: int, plan: ChainPlan, pays: bool) -> ChainCandidate:
    high, here, low = profile.levels
    inner, outer, direct = profile.pairing(low, here), profile.pairing(here, high), profile.pairing(low, high)
    seconds = [profile.seconds(level) or 0.0 for level in profile.levels]
    printed = corrected = None
    if inner and outer and direct and seconds[2]:
        tokens = polybasic.chain_round([inner.acceptance, outer.acceptance], plan.drafted, plan.thresholds).tokens
        lengths = [tokens, inner.length]
        first = polybasic.condition_1(direct.length, lengths, seconds)
        second = polybasic.condition_2_printed(direct.length, lengths, seconds[1], seconds[2], gamma)
        printed = first.holds and second.holds
        corrected = polybasic.condition_by_ceil(direct.length, lengths, seconds, gamma).holds
    levels = (high, here, low)
    return ChainCandidate(levels, plan, profile.predicted(levels, plan), printed, corrected, pays)


def candidates_table(chains: Sequence[ChainCandidate]) -> Table:
    """Return the candidates as a table."""
    heads = [
        "chain", "predicted speedup", "draft", "threshold", "Theorem 3.2, as printed", "as corrected", "exact theory",
    ]  # fmt: skip
    words = {True: "keep", False: "leave out", None: HUNDREDTHS.text(None)}
    rows = [
        [
            " > ".join(chain.levels), TIMES.text(chain.speedup), str(chain.plan.drafted),
            str(chain.plan.thresholds[0]) if chain.plan.thresholds else HUNDREDTHS.text(None),
            *(words[verdict] for verdict in (chain.printed, chain.corrected, chain.exact)),
        ]
        for chain in chains
    ]  # fmt: skip
    return Table("Candidates", heads, rows)


def conclusion_of(chains: Sequence[ChainCandidate]) -> str:
    """Return a sentence on the fastest candidate."""
    best = chains[0]
    chain = " > ".join(best.levels)
    threshold = f", threshold {best.plan.thresholds[0]}" if best.plan.thresholds else ""
    text = f"{chain} is predicted to be the fastest: {TIMES.text(best.speedup)}, draft {best.plan.drafted}{threshold}."
    if best.plan.speedup <= 1.0:
        return f"{text} No candidate is predicted to be faster than {best.levels[0]} alone."
    return text


def method_toml(best: ChainCandidate, task: str, pair: str) -> str:
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
