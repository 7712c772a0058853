"""From the theoretical speedup to the measured one, step by step: which part of a round costs how much of it.

Each step replaces one idealization by what was measured, and its speedup includes all steps before it. So the factors between
steps multiply to measured / theory, and the last two steps are the measured speedups themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.analysis.forwards import forward_seconds, sizes_of
from specbench.analysis.run_metrics import Records, paired, seconds, token_count


@dataclass(frozen=True, kw_only=True)
class SpeedupSteps:
    """Speedups over the baseline, each with one more measured part.

    `rounds`: the measured numbers of forwards, each at the cost of one token, without time outside forwards. It is below the
    theory if drafts end early or tokens are not accepted independently. `drafting`: the drafting models' measured seconds.
    `blocks`: the verifying models' measured seconds, so the price of blocks. `host`: the time outside forwards of both sides,
    which makes it the measured decoding speedup. `prefill`: prefill of both sides, the measured end-to-end speedup.
    """

    rounds: float
    drafting: float
    blocks: float
    host: float
    prefill: float


def speedup_steps(verifiers: Sequence[str], rows: Records, base: Records) -> SpeedupSteps | None:
    """Return the steps of a method whose models besides `verifiers`, those of the baseline, draft.

    None without rounds, without forwards of single tokens, for a method that does not run these models, and for models that
    run at the same time, whose seconds do not add up.
    """
    ours, theirs = paired(rows, base)
    if not ours or not any(row.rounds for row in ours) or any(u["beside"] for row in ours for u in row.models.values()):
        return None
    single = {role: sizes[1] for role, sizes in (forward_seconds(ours) | forward_seconds(theirs)).items() if 1 in sizes}
    roles = dict.fromkeys(role for row in ours for role in row.models)
    if not all(role in single and role in roles for role in verifiers):
        return None
    of_model = {role: sizes_of(ours, role).values() for role in roles}
    spent = {role: sum(seconds_ for _, seconds_ in sizes) for role, sizes in of_model.items()}
    ideal = {role: sum(count for count, _ in of_model[role]) * single.get(role, 0.0) for role in roles}
    drafters = [role for role in roles if role not in verifiers]
    if any(role not in single and spent[role] for role in drafters):
        return None
    tokens, of_base = token_count(ours), token_count(theirs)
    of_forwards = sum(row.models[role]["seconds"] for row in theirs for role in verifiers if role in row.models)
    forward = of_forwards / of_base  # the first forward of an output is prefill on both sides

    def over(time: float) -> float:
        return tokens * forward / time

    def measured_speedup(end_to_end: bool) -> float:
        mine, other = (sum(seconds(row, end_to_end) for row in side) for side in (ours, theirs))
        return (tokens / mine) / (of_base / other)

    verified = sum(ideal[role] for role in verifiers)
    drafted = sum(spent[role] for role in drafters)
    if not verified:
        return None
    return SpeedupSteps(
        rounds=over(verified + sum(ideal[role] for role in drafters)),
        drafting=over(verified + drafted),
        blocks=over(sum(spent[role] for role in verifiers) + drafted),
        host=measured_speedup(end_to_end=False),
        prefill=measured_speedup(end_to_end=True),
    )
