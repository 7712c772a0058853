"""What a profile of a chain prints: tables, verdicts on middle models, the conclusion, and the method as TOML."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tomli_w

from specbench.analysis import polybasic
from specbench.analysis.costs import Origin
from specbench.analysis.metric import metric_of
from specbench.analysis.number_format import COUNT, HUNDREDTHS, HUNDREDTHS_OF_MS, NONE, TIMES
from specbench.features.profile.chain_profile import Basis, ChainCandidate, Pairing, Profile
from specbench.features.profile.forwards_table import BLOCK
from specbench.reporting.tables import Table

NOTE = (
    "Theorem 3.2 compares three models with two at the measured mean acceptance lengths, and with the target's length that"
    " the exact theory predicts for the chosen chain. As printed: both conditions. Corrected: seconds per token with the"
    " ceiling as a factor."
)


def forwards_table(profile: Profile) -> Table:
    """Return the time of a forward of one token, of a block that verifies a draft of five, and of reading the weights."""
    rows = []
    for i, level in enumerate(profile.levels, 1):
        one, block = profile.seconds(level, 1), profile.seconds(level, BLOCK)
        top = profile.seconds(profile.levels[0], 1)
        share = None if one is None or not top else one / top
        cost = None if one is None or block is None else block / one
        counts = [NONE if one is None else _basis_text(profile.basis(level, size)) for size in (1, BLOCK)]
        rows.append(
            [
                f"M{i}: {level}",
                *map(HUNDREDTHS_OF_MS.text, (one, block)),
                *map(HUNDREDTHS.text, (cost, share)),
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


def costs_table(profile: Profile) -> Table:
    """Return the cost of a block of each size that a plan may use, with what it is estimated from."""
    costly = [level for level in profile.levels if profile.seconds(level) is not None]
    rows = []
    for size in range(1, profile.longest + 1):
        cells = (
            HUNDREDTHS_OF_MS.cell(profile.seconds(level, size) or 0.0, f"({_basis_text(profile.basis(level, size))})")
            for level in costly
        )
        rows.append([COUNT.text(size), *cells])
    heads = ["tokens", *(f"M{profile.levels.index(level) + 1}: {level}, ms (forwards)" for level in costly)]
    return Table("Costs of blocks", heads, rows)


def pairs_table(profile: Profile, printed: Mapping[str, float] | None = None) -> Table:
    """Return by pair the mean acceptance length, its maximum, and the acceptance rates of all tokens and of first tokens.

    It includes the token that follows. At T = 0, acceptance is agreement of the most likely tokens. Other proposers of the
    lowest level have a row each. `printed` are a paper's mean acceptance lengths by pair, such as `M1 - M2`.
    """
    rows, last = [], len(profile.levels)
    for i, high in enumerate(profile.levels, 1):
        below = [(j, low) for j, low in enumerate(profile.levels[i:], i + 1)]
        trees = [(last, tree) for tree in profile.trees if profile.pairing(tree, high)]
        for j, low in below + trees:
            rows.append([f"M{i} - M{j}: {low} under {high}", *_pairing_texts(profile.pairing(low, high))])
            if printed:
                rows[-1].append(metric_of("accepted_length").format.text(printed.get(f"M{i} - M{j}")))
    heads = ["pair", "mean acceptance length", "at most", "acceptance", "of the first token"]
    return Table("Pairs", [*heads, "mean acceptance length in the paper"] if printed else heads, rows)


def _pairing_texts(pairing: Pairing | None) -> list[str]:
    if pairing is None:
        return [NONE] * 4
    length, rate = (metric_of(key).format.text for key in ("accepted_length", "acceptance_rate"))
    return [length(pairing.length), COUNT.text(pairing.most), rate(pairing.acceptance), rate(pairing.first)]


def _basis_text(basis: Basis) -> str:
    if not basis.forwards:
        return "from other sizes"
    return f"{basis.forwards} timed" if basis.origin is Origin.TIMED else str(basis.forwards)


def _basis(profile: Profile, middle: polybasic.Middle) -> str:
    """Return a sentence on the costs of the blocks that the target reads in the two predicted chains."""
    high, parts = profile.levels[0], []
    for size in dict.fromkeys((middle.three.thresholds[0] + 1, middle.two.drafted + 1)):
        basis = profile.basis(high, size)
        text = _basis_text(basis)
        parts.append(f"{size} tokens ({text} forwards)" if basis.forwards else f"{size} tokens ({text})")
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
            f" speedups would be {TIMES.text(ideal.three.speedup)} with {here} and {TIMES.text(ideal.two.speedup)} without"
            " it."
        )
        lines.append(MiddleVerdict(text, details))
    return lines


def candidates_table(chains: Sequence[ChainCandidate]) -> Table:
    """Return the candidates as a table."""
    heads = [
        "chain", "predicted speedup", "draft", "threshold", "Theorem 3.2, as printed", "as corrected", "exact theory",
    ]  # fmt: skip
    words = {True: "keep", False: "leave out", None: HUNDREDTHS.text(None)}
    rows = [
        [
            " > ".join(chain.levels), TIMES.text(chain.speedup), COUNT.text(chain.plan.drafted),
            COUNT.text(chain.plan.thresholds[0] if chain.plan.thresholds else None),
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
    heads = {"eagle": {"name": "eagle", "base": best.levels[-2]}, "pld": {"name": "pld"}}
    proposer: dict[str, object] = {**heads.get(low, {"name": "model", "model": low}), "gamma": drafted}
    if best.middle:
        threshold = best.plan.thresholds[0]
        proposer = {"name": "chain", "model": best.middle, "threshold": threshold, "proposer": proposer}
    method = {
        "description": f"{' > '.join(best.levels)}, draft length and threshold by specbench profile",
        "baseline": "ar", "name": "speculative", "scorers": best.levels[0], "target": {"name": "last"},
        "proposer": proposer,
    }  # fmt: skip
    head = f"# Chosen by specbench profile on {pair}, {task}. The predicted speedup is {TIMES.text(best.plan.speedup)}."
    return f"{head}\n{tomli_w.dumps(method)}"
