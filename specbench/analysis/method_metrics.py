"""Metrics of methods that do not draft a fixed number of tokens: SPRINTER's runs, chains, and floating-point operations."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from specbench.analysis import theory
from specbench.analysis.method_records import Records, paired, rounds_of, token_count
from specbench.analysis.metric import Context, Metric, Over, has_sd, is_compared, metric, metric_in_context, register
from specbench.analysis.number_format import TENTHS_OF_PERCENT, THOUSANDTHS, THREE_DIGITS
from specbench.decoding.traits import Traits
from specbench.runs.record import Record, RoundRecord, UsageRecord
from specbench.runs.run_spec import ModelSource, Shape


@metric(Metric(heading="tokens/run", unit="tokens/run"))
def average_tokens(rows: Records) -> float | None:
    """Drafted tokens that a run committed, untested or accepted, without the target's own. The paper's "Avg tokens".

    None if nothing was drafted.
    """
    rounds = [x for x in rounds_of(rows) if x.drafted]
    return sum(x.untested + x.accepted for x in rounds) / len(rounds) if rounds else None


@metric(Metric(heading="verifier accepts/run", unit="tokens/run"))
def verifier_run(rows: Records) -> float | None:
    """Tokens of a run that the trained verifier accepted: the X of SPRINTER's Theorem 2, whatever the target decided.

    None for methods without a verifier.
    """
    counts = [x.counters["verifier_accepts"] for x in rounds_of(rows) if "verifier_calls" in x.counters]
    return sum(counts) / len(counts) if counts else None


@metric(Metric(heading="verifier acceptance", unit="share", format=TENTHS_OF_PERCENT))
def verifier_rate(rows: Records) -> float | None:
    """Accepted / judged by the trained verifier.

    None for methods without a verifier.
    """
    counts = [x.counters for x in rounds_of(rows) if "verifier_calls" in x.counters]
    usage = sum(x["verifier_calls"] for x in counts)
    return sum(x["verifier_accepts"] for x in counts) / usage if usage else None


def shapes_of(models: Mapping[str, ModelSource]) -> dict[str, Shape]:
    """Return the layer sizes of models, by role."""
    return {role: model.shape for role, model in models.items()}


def gigaflops(rows: Records, shapes: Mapping[str, Shape]) -> float:
    """10^9 operations per generation by the paper's formula for one position, over all tokens fed after the prompt.

    Positions of drafts and of verified blocks all count, and of the prompt its last token, which yields the first new one.
    So n tokens by one model alone cost n positions, as in the paper's Table 4. Heads are left out.
    """
    total = 0.0
    for r in rows:
        for role, usage in r.models.items():
            if role in shapes:
                total += new_positions(r, usage) * theory.forward_flops(s=1, **vars(shapes[role]))
    return total / len(rows) / 1e9


def new_positions(record: Record, usage: UsageRecord) -> int:
    """Return the tokens that a model read, without the prompt but its last token; an encoder's source is a prompt."""
    if not usage.prefill_fed:
        return 0
    prompt = record.prompt_tokens - (0 if usage.encodes else 1)
    return max(usage.prefill_fed + usage.fed - prompt, 0)


register(
    Metric(name="gigaflops", heading="GFLOP/generation", unit="GFLOP", format=THREE_DIGITS, is_exact=True),
    gigaflops,
    lambda rows, of: gigaflops(rows, shapes_of(of.models)),
)


def papers_gigaflops(rows: Records, method: Traits, shapes: Mapping[str, Shape]) -> float | None:
    """10^9 operations per generation as the paper counts them, without prompts.

    A run of SPRINTER costs n (F_q + F_v) + F_p, and one of speculation n F_q + n F_p. SPRINTER's target counts for
    one position per run, although it reads the whole run: at the full cost, nothing is saved (docs/papers/sprinter.md,
    Floating-point operations). F_v is left out. None for other methods.
    """
    if not method.flops:
        return None
    draft, target = method.roles[0], method.roles[-1]
    f_q, f_p = (theory.forward_flops(s=1, **vars(shapes[role])) for role in (draft, target))
    total: float
    if method.flops == "tested":
        total = sum(x.drafted * f_q + x.tested * f_p for x in rounds_of(rows))
    else:
        total = sum(theory.speculative_flops(x.drafted, f_q, f_p) for x in rounds_of(rows))
    return total / len(rows) / 1e9


def _papers_gigaflops(rows: Records, context: Context) -> float | None:
    return papers_gigaflops(rows, context.method.traits, shapes_of(context.models))


register(
    Metric(
        name="papers_gigaflops",
        heading="GFLOP/generation, paper's count",
        unit="GFLOP",
        format=THREE_DIGITS,
        definition=(
            "The same by another count. A run costs n F_q + F_p, as if the target read only one position of the "
            "run, although it reads all of them. Speculation costs n F_q + n F_p."
        ),
    ),
    papers_gigaflops,
    _papers_gigaflops,
)


@metric_in_context(Metric(heading="baseline's GFLOP / the method's", over=Over.baseline, is_exact=True))
def flops_ratio(rows: Records, context: Context) -> float | None:
    """The baseline's GFLOP/generation / the method's, over the generations both completed.

    None for the baseline.
    """
    if not is_compared(rows, context):
        return None
    ours, theirs = (gigaflops(side, shapes_of(context.models)) for side in paired(rows, context.baseline))
    return theirs / ours if ours else None


@metric_in_context(Metric(heading="sd's GFLOP / the method's", over=Over.reference, is_exact=True))
def flops_ratio_sd(rows: Records, context: Context) -> float | None:
    """GFLOP/generation of `sd` / the method's, over the generations both completed. Verified blocks count in full.

    None for `sd`, and for runs without it.
    """
    if not has_sd(rows, context):
        return None
    ours, theirs = (gigaflops(side, shapes_of(context.models)) for side in paired(rows, context.sd))
    return theirs / ours if ours else None


@metric_in_context(Metric(heading="sd's GFLOP / the method's, paper's count", over=Over.reference, is_exact=True))
def papers_flops_ratio_sd(rows: Records, context: Context) -> float | None:
    """GFLOP/generation of `sd` / the method's by the paper's count, n F_q + n F_p and n F_q + F_p for a run of n drafts.

    None for methods that the paper does not count, and for runs without `sd`.
    """
    if context.sd_method is None or not has_sd(rows, context):
        return None
    ours, theirs = paired(rows, context.sd)
    shapes = shapes_of(context.models)
    fewer = papers_gigaflops(ours, context.method.traits, shapes)
    more = papers_gigaflops(theirs, context.sd_method.traits, shapes)
    return more / fewer if more and fewer else None


@metric_in_context(Metric(heading="predicted distance from target", format=THOUSANDTHS))
def predicted_distance(rows: Records, context: Context) -> float | None:
    """Distance from the target by Theorem 1's token-dependent form over the head's own test texts, at T = 1.

    None under other settings, and for methods without a verifier.
    """
    return context.predicted_distance


@dataclass(frozen=True)
class ChainLevel:
    """One level of a chain: whose drafts it tested, and the outcome.

    `rounds` is per round of the target. `length` and `lengths_sd` are the mean and standard deviation of tokens per
    round, including replacement and bonus tokens. `drafted` is the mean length of a tested block.
    """

    proposer: str
    rounds: float
    acceptance: float | None
    length: float
    lengths_sd: float
    drafted: float


def levels(rows: Records) -> list[ChainLevel]:
    """Return the levels of a chain, innermost first, the target's last. Empty for methods without nested rounds."""
    outer = list(rounds_of(rows))
    out: list[ChainLevel] = []
    here = outer
    while here:
        out.insert(0, _level(here, len(outer)))
        here = [inner for x in here for inner in x.inner]
    return out if len(out) > 1 else []


def _level(rounds: list[RoundRecord], outer: int) -> ChainLevel:
    tested, lengths = sum(x.tested for x in rounds), [x.tokens for x in rounds]
    proposer = next((x.proposers[0] for x in rounds if x.proposers), "")
    accepted = sum(x.accepted for x in rounds) / tested if tested else None
    drafted = sum(x.drafted for x in rounds) / len(rounds)
    return ChainLevel(proposer, len(rounds) / outer, accepted, float(np.mean(lengths)), float(np.std(lengths)), drafted)


@metric(Metric(heading="discarded/token", unit="tokens/token"))
def discarded_per_token(rows: Records) -> float | None:
    """Tokens that the middle model had verified and the target rejected or did not read / committed tokens.

    None for methods without nested rounds.
    """
    rounds = [x for x in rounds_of(rows) if x.inner]
    if not rounds:
        return None
    lost: int = sum(x.drafted - x.accepted for x in rounds)
    return lost / token_count(rows)
