"""Evidence on a method in this process: its checks, in the words of a verdict."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from specbench.decoding.method import Method
from specbench.features.exactness.exactness_check import Check, CheckKind
from specbench.features.exactness.power import Power
from specbench.features.verify.case import Case
from specbench.features.verify.enumerated import Enumeration
from specbench.features.verify.greedy import greedy
from specbench.features.verify.sampled import sampled
from specbench.resolution.methods import is_lossless

MOST_TIMES = 100.0  # of the outputs of a verification; more are no help


@dataclass(frozen=True, kw_only=True)
class MethodEvidence:
    """The checks of a method on a pair, as a `specbench.features.exactness.exactness_verdict.Source`.

    Args:
        case: What was verified.
        subject: The method.
        baseline: The method whose distribution a lossless one has.
        checks: The checks of greedy and of sampled outputs, and the enumeration's.
        enumeration: The distance from the declared distribution on lookup tables; None without.
        power: What the sampled checks would have missed; None without sampled checks.
        tests: Number of tests that share the significance level.
    """

    case: Case
    subject: str
    baseline: Method
    checks: Sequence[Check]
    enumeration: Enumeration | None = None
    power: Power | None = None
    tests: int = 0

    @cached_property
    def is_lossless(self) -> bool:
        """Whether the baseline declares the same distribution."""
        return bool(is_lossless(self.case.method, self.baseline, self.case.temperature))

    @property
    def reference(self) -> str:
        scorers, target = self.case.declared
        rule = "" if target.name == "last" else f"'{target.name}' "
        return f"the distribution {rule}of {' and '.join(scorers if rule else scorers[-1:])}"

    @property
    def claim(self) -> str:
        if self.is_lossless:
            return "so it is lossless" if self.proof or (self.power and self.power.meets_limits) else ""
        return "which is lossy"

    @property
    def tested(self) -> str:
        return (
            f"greedy outputs and outputs at T = {self.case.temperature:g}"
            if self.case.temperature
            else "greedy outputs"
        )

    @property
    def proof(self) -> str:
        found = self.enumeration
        if found is None or not found.is_exact:
            return ""
        return "enumerated exactly" + (f" up to drafts of {found.longest}" if found.longest < found.depth else "")

    @property
    def undecided(self) -> str:
        return ""

    @property
    def untested(self) -> str:
        not_sampled = "" if self.case.temperature else "sampled outputs were not tested"
        not_enumerated = self.enumeration.undecided if self.enumeration and not self.proof else ""
        return "; ".join(filter(None, [not_sampled, not_enumerated]))

    @property
    def stronger(self) -> str:
        if self.power is None:
            return "--temperature 1"
        if self.power.times is None or not 1.0 < self.power.times <= MOST_TIMES:
            return ""
        return f"--repeats {math.ceil(self.case.cuts * self.power.times)} would find departures above the limits"

    def fault(self, failed: Sequence[Check]) -> str:
        """Return what is wrong: the engine's logits, the tokens, or how often drafts are accepted."""
        numbers, kinds, names = (
            self.checks[0].numbers,
            {check.kind for check in failed},
            ", ".join(c.name for c in failed),
        )
        if self.checks[0].is_failed and numbers["equal"] == numbers["outputs"]:
            return (
                "it decodes as the autoregressive method does, but the engine's logits differ from those of Transformers'"
                " modules"
            )
        if CheckKind.tokens in kinds:
            case = self.case
            if case.method != case.plain and greedy(replace(case, method=case.plain), lambda: None)[0].is_failed:
                return (
                    "the autoregressive method itself departs from the logits of Transformers' modules, so nothing can be"
                    " concluded about this method"
                )
            return f"it departs from {self.reference}: {names}"
        if CheckKind.enumeration in kinds:
            return f"it departs from {self.reference} on lookup tables: {names}; help: specbench enumerate"
        return (
            f"no departure from {self.reference} was found, but its drafts are not accepted as often as they should be; help:"
            " specbench enumerate"
        )


def evidence_of(
    case: Case, name: str, baseline: Method, advance: Callable[[], None], enumeration: Enumeration | None
) -> MethodEvidence:
    """Make the checks of a case. `advance` is called once per output."""
    checks, power, tests = greedy(case, advance), None, 0
    if case.temperature:
        more, power, tests = sampled(case, advance)
        checks += more
    if enumeration is not None:
        checks.append(enumeration.check)
    return MethodEvidence(
        case=case, subject=name, baseline=baseline, checks=checks, enumeration=enumeration, power=power, tests=tests
    )
