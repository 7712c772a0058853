"""Advice from an acceptance profile: the speed that a drafter with its rates would have at the costs of a run.

The rates come from elsewhere, such as another tool's measurement of a drafter that is not here. The seconds of a draft
token, of a block of the target and of the host come from a run of a draft model on this machine. The profile of a chain holds
for shorter drafts too, since a shorter draft is the beginning of a longer one. Other drafters have the profile's length only.
"""

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from specbench.analysis.acceptance_profile import AcceptanceProfile, Drafts
from specbench.analysis.costs import forward_costs, run_sizes
from specbench.analysis.intervals import Estimate
from specbench.analysis.length_predictions import costs_of, is_covered
from specbench.analysis.method_records import complete
from specbench.analysis.number_format import THREE_DIGITS, TIMES
from specbench.analysis.significance import student_quantile
from specbench.analysis.summary import summary_of
from specbench.errors import ConfigError
from specbench.reporting.tables import Table
from specbench.runs.run_folder import read, timed_forwards


@dataclass(frozen=True)
class ProfiledLength:
    """A draft length: tokens per round by the profile, and the predicted decoding speedup over the target alone."""

    gamma: int
    tokens: float
    speedup: Estimate


@dataclass(frozen=True)
class ProfileAdvice:
    """The predicted speeds of a profile's drafts by length, at the costs of a method of a run."""

    profile: AcceptanceProfile
    method: str
    folder: Path
    lengths: tuple[ProfiledLength, ...]

    @property
    def best(self) -> ProfiledLength:
        """The fastest length."""
        return max(self.lengths, key=lambda length: length.speedup.value)


def advise_on_profile(folder: Path, profile: AcceptanceProfile) -> ProfileAdvice:
    """Return the predicted speeds of a profile at the costs of a run's first draft model.

    Raises ConfigError for a run that was not timed or in which no model drafted, and if no length has a cost.
    """
    summary, records = summary_of(folder), list(read(folder))
    base = complete(records, summary.baseline)
    for row in summary.measured_methods if summary.is_timed else ():
        theory, rows = summary.traits(row).theory, complete(records, row.method)
        if theory is None or not is_covered(theory, rows, base) or len(theory.models) != 2:
            continue
        verifier = theory.models[1]
        blocks = forward_costs(run_sizes(rows, base, verifier), timed_forwards(folder).get(verifier))
        if blocks is None:
            continue
        costs = replace(costs_of(theory, rows, base), blocks=[blocks.seconds])
        lengths = []
        longest = len(profile.survival)
        for gamma in range(
            1 if profile.drafts == Drafts.chain else longest, min(longest, blocks.largest - costs.bonus) + 1
        ):
            whole = profile.survival[gamma - 1]
            spent = (1.0 - whole) * costs.of_round(gamma) + whole * costs.of_round(gamma, follows_whole=True)
            shorter = replace(profile, survival=profile.survival[:gamma])
            value = shorter.mean_length * float(costs.per_token) / float(spent)
            error = blocks.error(gamma + costs.bonus)
            if profile.rounds:
                error = math.hypot(
                    error,
                    student_quantile(max(profile.rounds - 1, 1))
                    * shorter.deviation
                    / math.sqrt(profile.rounds)
                    / shorter.mean_length,
                )
            speedup = Estimate(value, value * math.exp(-error), value * math.exp(error))
            lengths.append(ProfiledLength(gamma, shorter.mean_length, speedup))
        if lengths:
            return ProfileAdvice(profile, row.method, folder, tuple(lengths))
    raise ConfigError(
        f"{folder}: a profile needs the costs of a timed run of a draft model; help: specbench run -m sd --gamma"
        f" {max(len(profile.survival), 1)}"
    )


def profile_row(advice: ProfileAdvice) -> dict[str, object]:
    """Return the advice as JSON."""
    return {
        "profile": advice.profile.source,
        "costs_of": advice.method,
        "folder": str(advice.folder),
        "best": advice.best.gamma,
        "lengths": [asdict(length) for length in advice.lengths],
    }


def lengths_table(advice: ProfileAdvice) -> Table:
    """Return the draft lengths as a table."""
    rows = [
        [str(length.gamma), THREE_DIGITS.text(length.tokens), TIMES.text(length.speedup)] for length in advice.lengths
    ]
    title = f"{advice.profile.source} at the costs of {advice.method} in {advice.folder}"
    return Table(title, ["drafted tokens", "tokens per round", "predicted speedup"], rows)


def profile_answer(advice: ProfileAdvice) -> str:
    """Return whether drafts with these rates would be faster than the target alone, and at which length."""
    best, profile = advice.best, advice.profile
    unknown = (
        "" if profile.rounds else " The profile does not say how many rounds it has, so its own error is not included."
    )
    tokens = f"{best.gamma} drafted token{'s' * (best.gamma > 1)}"
    low, high = best.speedup.low or 0.0, best.speedup.high or math.inf
    if high < 1.0:
        answer = f"Do not draft with these rates at these costs: the fastest draft, {tokens}, is predicted to reach"
    elif low <= 1.0:
        answer = f"It cannot be decided: the fastest draft, {tokens}, is predicted to reach"
    else:
        answer = f"Draft {tokens}: predicted"
    return (
        f"{answer} {TIMES.text(best.speedup)}, if a draft token costs as much as one of {advice.method}, and acceptance here"
        f" is that of the profile.{unknown}"
    )
