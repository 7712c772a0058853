"""The verdict on exactness: one rule for the evidence of a method in this process and for that of a server."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from specbench.features.exactness.exactness_check import Check, CheckKind
from specbench.features.exactness.martingales import SIGNIFICANCE
from specbench.features.exactness.outcome import Outcome
from specbench.features.exactness.power import Power
from specbench.note import Note


class Source(Protocol):
    """Evidence on whether outputs follow a distribution: the checks that were made, and the words for what they are about."""

    @property
    def subject(self) -> str:
        """What was tested: a method or a server."""

    @property
    def reference(self) -> str:
        """What it is compared with, such as `the distribution of target`."""

    @property
    def claim(self) -> str:
        """The conclusion if the outputs follow the reference, such as `so it is lossless`; empty without one."""

    @property
    def checks(self) -> Sequence[Check]:
        """All checks, with the controls."""

    @property
    def tested(self) -> str:
        """Which outputs were tested, such as `greedy and sampled outputs`, and within which tolerance."""

    @property
    def power(self) -> Power | None:
        """What the tests would have missed; None without tests that have a power."""

    @property
    def proof(self) -> str:
        """What was shown without chance, such as `enumerated exactly`; empty if nothing was."""

    @property
    def undecided(self) -> str:
        """Why the checks are inconclusive although none failed, with help; empty if they are conclusive."""

    @property
    def untested(self) -> str:
        """What was not tested, in words; empty if everything was."""

    @property
    def stronger(self) -> str:
        """How to reach a stronger verdict; empty if that is not possible."""

    def fault(self, failed: Sequence[Check]) -> str:
        """Return what is wrong, from the failed checks."""


@dataclass(frozen=True, kw_only=True)
class ExactnessResult:
    """A verdict on exactness, as it is printed and stored.

    Args:
        kind: What the result is of, such as `verification`.
        outcome: The outcome.
        line: One line that says what was found. It begins with the outcome.
        subject: What was tested.
        reference: What it was compared with.
        checks: The checks.
        power: What the tests would have missed; None without tests that have a power.
        missed: The same in words.
        false_alarm_rate: The probability that any test rejects outputs that follow the reference.
        tests: Number of tests that share it.
        significance_level: The significance level of each test.
        notes: Notes.
    """

    kind: str
    outcome: Outcome
    line: str
    subject: str = ""
    reference: str = ""
    checks: Sequence[Check] = ()
    power: Power | None = None
    missed: Sequence[str] = ()
    false_alarm_rate: float = SIGNIFICANCE
    tests: int = 0
    significance_level: float = SIGNIFICANCE
    notes: Sequence[Note] = ()


def verdict_on(source: Source) -> tuple[Outcome, str]:
    """Return the outcome, and a line that says why.

    1. A failed check that is no control: outputs differ.
    2. A reason why the checks are inconclusive, or a control that was not rejected: inconclusive.
    3. An exact proof, or tests that would have found every departure above the limits: exact.
    4. Otherwise, no departure was found.
    """
    subject = source.subject
    if failed := [check for check in source.checks if check.is_failed]:
        return _with_line(Outcome.differs, f"{subject}: {source.fault(failed)}")
    if why := source.undecided or _control(source.checks):
        return _with_line(Outcome.inconclusive, f"{subject}: {why}")
    power, claim = source.power, f", {source.claim}" if source.claim else ""
    missed = f" (would have missed {'; '.join(power.missed)})" if power and power.missed else ""
    untested = f"; {source.untested}" if source.untested else ""
    if source.proof or (power and power.meets_limits):
        shown = "; ".join(filter(None, [source.proof, f"no departure in {source.tested}" if source.tested else ""]))
        return _with_line(Outcome.exact, f"{subject} follows {source.reference}{claim}: {shown}{missed}{untested}")
    stronger = f"; help: {source.stronger}" if source.stronger else ""
    against = f"{subject} against {source.reference}{claim}, in {source.tested}"
    return _with_line(Outcome.unfound, f"{against}{missed}{untested}{stronger}")


def _with_line(outcome: Outcome, text: str) -> tuple[Outcome, str]:
    return outcome, f"{outcome.words}: {text}"


def _control(checks: Sequence[Check]) -> str:
    """Return the control that was not rejected, in words; empty if all were, or without a control."""
    failed = [check for check in checks if check.kind is CheckKind.control and check.passed is False]
    return f"no check failed, but the control was not rejected: {failed[0].found}" if failed else ""
