"""Enumeration of a method by its name, at several draft lengths: what `specbench enumerate` prints and `verify` relies on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from specbench.config.options import Options
from specbench.config.pair import Pair
from specbench.decoding.sampling import OtherRandomness
from specbench.errors import ConfigError
from specbench.features.exactness.exactness_check import Check, CheckKind
from specbench.features.exactness.exactness_verdict import ExactnessResult, verdict_on
from specbench.features.verify.enumeration import LENGTH, ExactComparison, examine, examine_drafts
from specbench.resolution.methods import Methods
from specbench.resolution.partial_method import PartialMethod

ENUMERATION_KIND = "enumeration"
WHOLE_LENGTHS = (1, 2)  # draft lengths of whole outputs: the number of branches grows with V to their power
FIRST_ROUND_LENGTH = 5  # the draft length of a first round


@dataclass(frozen=True, kw_only=True)
class Enumeration:
    """The distance of a method's exact output distribution from the declared one: evidence without chance.

    It is a `specbench.features.exactness.exactness_verdict.Source`.

    Args:
        subject: The method.
        findings: The largest distance by sampling setting.
        has_drafts: Whether the method declares that it drafts.
        longest: The longest draft that was enumerated.
        depth: The longest draft of the method.
        other_randomness: Where random numbers come from that are not the sampler's; empty if all are the sampler's.
        error: Why the method cannot run on lookup tables; empty if it can.
    """

    subject: str
    findings: Mapping[str, ExactComparison] = field(default_factory=dict)
    has_drafts: bool = False
    longest: int = 0
    depth: int = 0
    other_randomness: str = ""
    error: str = ""

    @property
    def differs(self) -> bool:
        """Whether a distribution differs by more than rounding."""
        return any(finding.differs for finding in self.findings.values())

    @property
    def undecided(self) -> str:
        """Why nothing follows although no distribution differs; empty otherwise."""
        if self.error:
            return f"{self.subject} cannot run on lookup tables: {self.error}"
        if self.other_randomness:
            return (
                f"{self.subject} draws random numbers that do not come from Sampler.choose ({self.other_randomness}), so its"
                " choices cannot be enumerated; help: draw with sampler.choose"
            )
        if self.longest and not self.has_drafts:
            return (
                f"it drafts, at least {self.longest} tokens, but declares no block sizes, so longer drafts were not"
                " enumerated; help: define its property `blocks`"
            )
        if self.has_drafts and not self.longest:
            return "nothing was drafted in the first tokens, so the proposer was not tested"
        return ""

    @property
    def check(self) -> Check:
        """The check of the exact distribution, over all settings."""
        largest = max((each.distance for each in self.findings.values()), default=0.0)
        return Check(
            CheckKind.enumeration,
            "enumeration",
            self.undecided or "; ".join(filter(None, ["whole outputs of lookup tables", self.scope])),
            f"distance {largest:.1e}" if self.findings else "",
            False if self.differs else None if self.undecided else True,
            {
                "distance": largest, "longest_draft": self.longest, "depth": self.depth,
                "settings": {name: each.distance for name, each in self.findings.items()},
            },
        )  # fmt: skip

    @property
    def is_exact(self) -> bool:
        """Whether every enumerated distribution is the declared one, up to rounding."""
        return bool(self.findings) and not self.differs and not self.undecided

    @property
    def scope(self) -> str:
        """Up to which draft length the method was enumerated; empty without drafts."""
        if not self.has_drafts:
            return ""
        beyond = f"; longer ones, up to {self.depth}, were not" if self.longest < self.depth else ""
        return f"drafts of up to {self.longest} token{'' if self.longest == 1 else 's'} were enumerated{beyond}"

    # What a verdict on this evidence alone needs

    reference = "its declared distribution"
    claim = tested = untested = stronger = ""
    power = None

    @property
    def checks(self) -> Sequence[Check]:
        """One check for each sampling setting: total variation of LENGTH tokens, the largest of several models."""
        return [
            Check(
                CheckKind.enumeration, setting, each.words, f"{each.distance:.1e}", not each.differs,
                {"distance": each.distance, "longest_draft": each.drafted},
            )
            for setting, each in self.findings.items()
        ]  # fmt: skip

    @property
    def proof(self) -> str:
        """What was enumerated; empty if nothing follows."""
        return (
            "; ".join(filter(None, [f"every output of {LENGTH} tokens was enumerated", self.scope]))
            if self.is_exact
            else ""
        )

    def fault(self, failed: Sequence[Check]) -> str:
        """Return what was found with each sampling setting whose distribution differs."""
        return "; ".join(f"{check.name}: {check.found}" for check in failed)

    @property
    def result(self) -> ExactnessResult:
        """The verdict."""
        outcome, line = verdict_on(self)
        return ExactnessResult(
            kind=ENUMERATION_KIND, outcome=outcome, line=line, subject=self.subject, reference=self.reference,
            checks=self.checks,
        )  # fmt: skip


def enumerated(method: str, pair: Pair, options: Options) -> Enumeration:
    """Compare a method's exact output distribution with the declared one.

    Draft lengths are 1 and 2, and 5 in a first round, or the length in `options`. Raises ConfigError if the method declares
    no distribution.
    """
    plain = Options(overrides=options.overrides, plugins=options.plugins, gamma=options.gamma)
    worst: dict[str, ExactComparison] = {}
    label, drafts, longest, depth = method, False, 0, 0
    for gamma in _lengths(method, pair, plain):
        at = replace(plain, gamma=(("", (gamma,)),)) if gamma else plain
        resolved = Methods((method,), pair, at).groups(dict.fromkeys(pair.models, 1))[0][-1]
        label, built = resolved.label, resolved.method
        if built.declared_distribution() is None:
            why = ": bonus = 'paper' biases the output" if getattr(built, "bonus", "") == "paper" else ""
            raise ConfigError(f"{label} declares no exact output distribution{why}")
        kinds = {name: pair.heads[name].kind for name in built.heads}
        drafts, depth = max(built.blocks) > 1, max(depth, built.depth)
        try:
            findings = examine(built, kinds) if gamma in (0, *WHOLE_LENGTHS) else []
            findings += examine_drafts(built, kinds) if gamma in (0, FIRST_ROUND_LENGTH) else []
        except OtherRandomness as error:
            return Enumeration(subject=label, other_randomness=str(error))
        for finding in findings:
            worst[finding.setting] = max(
                worst.get(finding.setting, finding), finding, key=lambda finding: finding.distance
            )
            longest = max(longest, finding.drafted)
    return Enumeration(subject=label, findings=worst, has_drafts=drafts, longest=longest, depth=depth)


def _lengths(method: str, pair: Pair, options: Options) -> tuple[int, ...]:
    """Return the draft lengths to enumerate; (0,) for a method that has none, or whose draft length is set."""
    base = PartialMethod.of_preset(method)
    is_set = any(
        override.path == base.length_path and base.applies(override)
        for override in options.overrides_for("method", method)
    )
    is_open = Methods((method,), pair, options).have_draft_length and not is_set and not options.gamma
    return (*WHOLE_LENGTHS, FIRST_ROUND_LENGTH) if is_open else (0,)
