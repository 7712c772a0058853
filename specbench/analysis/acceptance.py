"""Acceptance of drafts, other counts of rounds, and the origin of each token."""

import itertools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from specbench.analysis.intervals import Estimate, Spread, by_prompt, interval, interval_of_sums
from specbench.analysis.method_records import Records, round_count, rounds_of, seconds, token_count
from specbench.analysis.metric import Clock, Direction, Metric, declare, metric
from specbench.analysis.number_format import COUNT, PERCENT, TENTHS, TENTHS_OF_PERCENT, THOUSANDTHS
from specbench.runs.record import Record, RoundRecord

NOT_COUNTS = ("score", "threshold", "expected_rejections")  # numbers of rounds that are not counts
ORIGINS = {
    "a": "drafted and accepted",
    "d": "drafted, committed untested",
    "r": "replaces a rejected token",
    "b": "bonus token after an accepted draft",
    "m": "sampled by a model without a draft",
    "x": "drafted and rejected, or drafted after a rejected token",
}  # letters of origins; rejected tokens are not part of the output

POSITIONS = 6  # of a draft that tables show


@metric(Metric(heading="mean acceptance length", unit="tokens/round", better=Direction.higher, by_group=True))
def accepted_length(rows: Records) -> float:
    """Committed tokens / verification rounds, including replacement and bonus tokens. 1.00 without drafting."""
    return token_count(rows) / round_count(rows)


@metric(Metric(heading="mean acceptance length by round", unit="tokens/round"))
def length_by_round(rows: Records) -> Spread | None:
    """Mean ± standard deviation over rounds of the committed tokens.

    None for methods without rounds.
    """
    lengths = [x.tokens for x in rounds_of(rows)]
    return Spread(float(np.mean(lengths)), float(np.std(lengths))) if lengths else None


@metric(Metric(heading="mean acceptance length by prompt", unit="tokens/round"))
def length_by_prompt(rows: Records) -> Spread:
    """Mean ± standard deviation over prompts of a prompt's mean acceptance length."""
    lengths = list(lengths_of_prompts(rows).values())
    return Spread(float(np.mean(lengths)), float(np.std(lengths)))


@metric(Metric(heading="coefficient of variation", unit="share", needs_rejections=True))
def length_variation(rows: Records) -> Estimate | None:
    """Standard deviation / mean of the committed tokens of a round: the coefficient of variation of Theorem 3.3.

    None for methods without rounds.
    """
    lengths = [(1.0, x.tokens, x.tokens**2, row.prompt) for row in rows for x in row.rounds]
    return interval_of_sums(by_prompt(lengths), _variation) if lengths else None


@metric(Metric(heading="variance over prompts", unit="tokens^2", better=Direction.lower, needs_rejections=True))
def length_variance_by_prompt(rows: Records) -> Estimate:
    """Variance over prompts of a prompt's mean acceptance length. Polybasic's measure of stability (its Figure 4)."""
    lengths = np.array([[length] for length in lengths_of_prompts(rows).values()])  # (prompts, 1)
    return interval(lengths, lambda part: float(np.var(part)))


def _variation(sums: np.ndarray) -> np.ndarray:
    """Return the coefficients of variation from counts, sums and sums of squares (..., 3)."""
    count, total, squares = np.moveaxis(sums, -1, 0)
    mean = total / count
    return np.asarray(np.sqrt(np.maximum(squares / count - mean**2, 0.0)) / mean)


@metric(Metric(heading="rounds/generation", unit="rounds", format=TENTHS, better=Direction.lower, by_group=True))
def verification_rounds(rows: Records) -> float:
    """Verification rounds / generation."""
    return round_count(rows) / len(rows)


def lengths_of_prompts(rows: Records) -> dict[str, float]:
    """Return the mean acceptance length on each prompt."""
    by_prompt: dict[str, list[Record]] = defaultdict(list)
    for row in rows:
        by_prompt[row.prompt].append(row)
    return {prompt: accepted_length(records) for prompt, records in by_prompt.items()}


@metric(Metric(heading="acceptance", unit="share", format=THOUSANDTHS, better=Direction.higher))
def acceptance_rate(rows: Records) -> float | None:
    """Accepted / tested draft tokens. Tokens drafted after a rejection are never tested and do not count.

    Of a draft tree, a depth counts once: as accepted if any of its tested tokens was.

    None if no token was tested.
    """
    tested = sum(x.tested for x in rounds_of(rows))
    return sum(x.accepted for x in rounds_of(rows)) / tested if tested else None


def acceptance_interval(counts: Iterable[tuple[int, int, str]]) -> Estimate | None:
    """Return the acceptance rate with its interval, from accepted and tested draft tokens and the prompt of each generation.

    None if no token was tested.
    """
    rows = list(counts)
    if not sum(tested for _, tested, _ in rows):
        return None
    return interval_of_sums(by_prompt(rows), lambda s: s[..., 0] / np.maximum(s[..., 1], 1.0))


def acceptance_by_position(rows: Records) -> list[float]:
    """Return the acceptance rate of the first, second, ... token that a round tests.

    The rates are conditional: all tokens before it were accepted.
    """
    return [accepted / tested for tested, accepted in position_counts(rows)]


def position_counts(rows: Records) -> list[tuple[int, int]]:
    """Return how many tokens were tested and accepted at the first, second, ... position of a round."""
    tested: dict[int, int] = defaultdict(int)
    accepted: dict[int, int] = defaultdict(int)
    for x in rounds_of(rows):
        for position in range(x.tested):
            tested[position] += 1
            accepted[position] += position < x.accepted
    return [(tested[position], accepted[position]) for position in sorted(tested)]


def survival(rows: Records) -> list[float]:
    """Return the share of drafts of which the first, the second, ... token was accepted."""
    counts = position_counts(rows)
    return [accepted / counts[0][0] for _, accepted in counts]


def acceptance_by_rank(rows: Records, least: int = 1) -> list[float]:
    """Return the acceptance rate of first, second, ... children of a token in drafts that are trees.

    The rates are conditional: all earlier children were rejected. Empty without trees. Ends before the first rank with fewer
    than `least` tests.
    """
    tested: dict[int, int] = defaultdict(int)
    accepted: dict[int, int] = defaultdict(int)
    for x in rounds_of(rows):
        for depth, children in enumerate(x.siblings):
            for rank in range(children):
                tested[rank] += 1
            accepted[children - 1] += depth < x.accepted
    enough = itertools.takewhile(lambda rank: tested[rank] >= least, sorted(tested))
    return [accepted[rank] / tested[rank] for rank in enough]


@metric(Metric(heading="tokens/tree", unit="tokens/round", format=TENTHS))
def nodes_per_round(rows: Records) -> float | None:
    """Drafted tokens / rounds with a draft that is a tree. None without trees."""
    trees = [x.drafted for x in rounds_of(rows) if x.siblings]
    return float(np.mean(trees)) if trees else None


def acceptance_by_model(rows: Records) -> dict[str, float]:
    """Return the acceptance rate of each model's proposals."""
    tested: dict[str, int] = defaultdict(int)
    accepted: dict[str, int] = defaultdict(int)
    for x in rounds_of(rows):
        for position, role in enumerate(x.proposers):
            tested[role] += 1
            accepted[role] += position < x.accepted
    return {role: accepted[role] / tested[role] for role in tested}


def counters(rows: Records) -> dict[str, float]:
    """Return what the method counted in its rounds, summed over all generations."""
    sums: dict[str, float] = defaultdict(float)
    for x in rounds_of(rows):
        for key, value in x.counters.items():
            if key not in NOT_COUNTS:
                sums[key] += value
    return dict(sums)


def length_counts(rows: Records) -> dict[int, int]:
    """Return the number of rounds by the number of tokens that they committed."""
    lengths, counts = np.unique([x.tokens for x in rounds_of(rows)], return_counts=True)
    return {int(length): int(count) for length, count in zip(lengths, counts, strict=True)}


@metric(Metric(heading="rule rate", unit="share", format=TENTHS_OF_PERCENT))
def rule_rate(rows: Records) -> float | None:
    """Deferrals / evaluated positions; for `seq-cascade`, deferred answers / answers. SpecCascade's deferral rate.

    None for methods without a rule.
    """
    sums = counters(rows)
    return sums["deferrals"] / sums["positions"] if sums.get("positions") else None


@metric(
    Metric(
        heading="outside the vocabulary",
        unit="share",
        format=TENTHS_OF_PERCENT,
        better=Direction.lower,
        definition=(
            "Mean probability that a draft model with another tokenizer gives to tokens that the target lacks, at "
            "T = 1."
        ),
    )
)
def outside_vocabulary(rows: Records) -> float | None:
    """Mean probability that a draft model with another tokenizer gives to tokens that the target lacks; None for others."""
    sums = counters(rows)
    return sums["outside"] / sums["translated_positions"] if sums.get("translated_positions") else None


@metric(
    Metric(
        heading="not in the draft's vocabulary",
        unit="share",
        format=TENTHS_OF_PERCENT,
        better=Direction.lower,
        definition=(
            "Share of output tokens that the draft model's vocabulary lacks, if its tokenizer differs from the "
            "target's. They are never drafted."
        ),
    )
)
def undraftable(rows: Records) -> float | None:
    """Share of output tokens that the draft model's vocabulary lacks, if its tokenizer differs from the target's.

    They are never drafted. Each one at a tested position is a rejection.
    """
    sums = counters(rows)
    return sums["undraftable"] / sums["translated_tokens"] if sums.get("translated_tokens") else None


@metric(
    Metric(
        heading="expected acceptance",
        unit="share",
        format=THOUSANDTHS,
        definition=(
            "1 - mean over tested tokens of the probability of a rejection: delta TV(q, p) for a token drafted "
            "from q, as in SpecCascade's Lemma 3, and (1 - delta) TV(q, p) for a deferred bonus token, which was "
            "drawn from p."
        ),
    )
)
def expected_acceptance(rows: Records) -> float | None:
    """1 - mean of TV(proposal, pi) over tested tokens: the acceptance rate by SpecCascade's Lemma 3 and its bonus tokens.

    A drafted token follows q, and Lemma 3 gives delta TV(q, p). A deferred bonus token follows p and is tested where it
    may differ from pi, so its distance is (1 - delta) TV(q, p). Lemma 3 has no such tokens. None for methods without a
    deferral rule, and if no token was tested.
    """
    rounds = [x for x in rounds_of(rows) if "expected_rejections" in x.counters]
    tested = sum(x.tested for x in rounds)
    return 1.0 - sum(x.counters["expected_rejections"] for x in rounds) / tested if tested else None


@metric(Metric(heading="communication", unit="share", format=TENTHS_OF_PERCENT, clock=Clock.other))
def communication_share(rows: Records) -> float | None:
    """Share of decoding seconds that parallel models spend on sending and receiving, beyond the time of the slowest model.

    None if all models ran in one process.
    """
    sums = counters(rows)
    return sums["communication_seconds"] / sum(map(seconds, rows)) if "communication_seconds" in sums else None


@metric(Metric(heading="bytes moved/token", unit="bytes/token", format=COUNT))
def moved_bytes_per_token(rows: Records) -> float | None:
    """Bytes sent between the processes of parallel models / committed tokens.

    None if all models ran in one process.
    """
    sums = counters(rows)
    return sums["moved_bytes"] / token_count(rows) if "moved_bytes" in sums else None


@metric(Metric(heading="rejections/token", unit="tokens/token", format=THOUSANDTHS))
def rejections_per_token(rows: Records) -> float | None:
    """Rejected draft tokens / committed tokens.

    None if no token was tested.
    """
    if not any(x.tested for x in rounds_of(rows)):
        return None
    rejected: int = sum(x.tested - x.accepted for x in rounds_of(rows))
    return rejected / token_count(rows)


@metric(Metric(heading="wasted drafts", unit="share", format=PERCENT))
def wasted_share(rows: Records) -> float | None:
    """Drafted tokens that were never committed (rejected or never tested) / drafted tokens.

    None if nothing was drafted.
    """
    drafted = sum(x.drafted for x in rounds_of(rows))
    committed = sum(x.accepted + x.untested for x in rounds_of(rows))
    return 1.0 - committed / drafted if drafted else None


@metric(Metric(heading="cut by length", unit="share", format=PERCENT))
def cut_by_length(rows: Records) -> float:
    """Share of generations that ended at the length limit or the context window."""
    return sum(r.finish in ("length", "window") for r in rows) / len(rows)


def window_cuts(rows: Records) -> dict[str, float]:
    """Return the share of generations that the context window of each model ended, by role."""
    roles, counts = np.unique([r.window_of for r in rows if r.window_of], return_counts=True)
    return {str(role): int(count) / len(rows) for role, count in zip(roles, counts, strict=True)}


@metric(Metric(heading="cut prompts", unit="share", format=PERCENT))
def cut_prompts(rows: Records) -> float:
    """Share of generations whose prompt was truncated."""
    return sum(r.prompt_cut > 0 for r in rows) / len(rows)


@metric(Metric(heading="tokens/generation", unit="tokens/generation", format=TENTHS))
def answer_length(rows: Records) -> float:
    """Tokens / generations."""
    return token_count(rows) / len(rows)


# The origin of tokens: drafted, accepted, replaced, bonus, or sampled without a draft


@dataclass(frozen=True)
class TracedRound:
    """A recorded round with the ids, texts and origins of its tokens.

    `rejected` is the text of the rejected tokens. `inner` are the rounds that produced the draft.
    """

    record: RoundRecord
    ids: list[int]
    pieces: list[str]
    origins: str
    rejected: str
    inner: "list[TracedRound]"

    def to_json(self) -> dict[str, Any]:
        """Return the round as JSON."""
        text = {"ids": self.ids, "pieces": self.pieces, "origins": self.origins, "rejected": self.rejected}
        return {**self.record.to_json(), **text, "inner": [round_.to_json() for round_ in self.inner]}


def token_origins(record: Record) -> str:
    """Return a letter of ORIGINS for each token of a generation."""
    letters = "".join(map(round_origins, record.rounds))
    return letters[: len(record.tokens)] + "m" * (len(record.tokens) - len(letters))


def round_origins(entry: RoundRecord) -> str:
    """Return a letter for each committed token of a round: first untested, then accepted ones, then the model's own."""
    untested, accepted = entry.untested, entry.accepted
    rest = entry.tokens - untested - accepted
    last = "r" if entry.tested > accepted else "b" if entry.drafted or accepted else "m"
    return "d" * untested + "a" * accepted + last * rest


def rejected_drafts(record: Record) -> list[tuple[int, str]]:
    """Return the rejected drafts as (position of the rejected token in the output, text of the draft from there)."""
    drafts, position = [], 0
    for entry in record.rounds:
        if entry.rejected:
            drafts.append((position + entry.untested + entry.accepted, entry.rejected))
        position += entry.tokens
    return drafts


for _about in (
    Metric(
        name="acceptance_by_position", heading="by position",
        definition=f"Acceptance rate of the first, second, ... token that a round tests, given that all tokens before it were"
        f" accepted; tables show {POSITIONS}. A pending deferred bonus token counts as the first.",
    ),
    Metric(
        name="survival", heading="cumulative acceptance",
        definition=f"Share of drafts of which the first, second, ... token, in a tree the first, second, ... depth, was"
        f" accepted; tables show {POSITIONS}. A pending deferred bonus token counts as the first.",
    ),
    Metric(
        name="acceptance_by_rank", heading="by rank",
        definition=f"Acceptance rate of first, second, ... children in draft trees, given that the earlier children were"
        f" rejected; tables show {POSITIONS}. Empty for chains that verify a tree.",
    ),
):  # fmt: skip
    declare(_about)
