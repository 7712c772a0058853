"""The checks of one kind of requests, in words: of its first and later tokens, and of its seeds."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import NamedTuple

from specbench.analysis.number_format import NONE
from specbench.features.exactness.exactness_check import Check, CheckKind
from specbench.features.exactness.group_tests import worst
from specbench.features.exactness.martingales import GROUPS
from specbench.features.servers.exactness.seeds import SeedCheck
from specbench.features.servers.exactness.served_checks import GreedyCheck, KindResult, SampledTests

TOKENS = {group: f"{group} tokens" for group in GROUPS}
SEEDS = "seeds"


def checks_of(result: KindResult, tests: int) -> Iterator[Check]:
    """Yield the checks of a kind. p is multiplied by the number of all tests."""
    case, differs = result.kind.label, result.groups_that_differ(tests)
    for group in GROUPS:
        found = _found(result, group, tests)
        is_tested = result.is_tested and not (result.texts and group == "first")
        passed = group not in differs if is_tested else None
        measure, numbers = measured_of(result.sampled, group, tests) if result.sampled else Measured()
        yield Check(CheckKind.tokens, TOKENS[group], found, measure, passed, numbers, case)
    if result.seeds:
        failed = result.seeds.do_not_repeat(tests) or result.seeds.are_ignored(tests)
        is_judged = result.seeds.number_of_tests > 0
        passed = not failed if is_judged else None
        yield Check(CheckKind.seeds, SEEDS, _seeds(result.seeds), "", passed, asdict(result.seeds), case)


class Measured(NamedTuple):
    """The p that decides, in words, and the raw values of its test by name."""

    words: str = ""
    numbers: Mapping[str, object] = {}


def measured_of(check: SampledTests, group: str, tests: int) -> Measured:
    """Return the smallest p of a group of tokens, times the number of all tests, in words and as raw values."""
    found = worst(check.results(group))
    if found is None:
        return Measured()
    name, test = found
    p = min(1.0, test.p * tests)
    numbers = {"p": p, "z": test.z, "tokens": test.tokens, "worst": name, "impossible": test.is_impossible}
    return Measured(f"p {p:.1g}", numbers)


def _found(result: KindResult, group: str, tests: int) -> str:
    """Return what was found for the first or the later tokens."""
    if not result.is_tested:
        return result.note or NONE
    if result.greedy:
        return _greedy(result.greedy, group)
    if result.texts:
        if group == "first":
            return NONE
        texts = result.texts
        own = f"the reference differs from its own rerun in {texts.off_differing}"
        return f"{texts.differing} of {texts.outputs} texts differ; {own}"
    found = worst(result.sampled.results(group)) if result.sampled else None
    if found is None:
        return "every distribution was one-hot"
    name, test = found
    if test.is_impossible:
        return "a token of probability 0"
    return f"p = {min(1.0, test.p * tests):.2g} ({name}, z = {test.z:+.1f})"


def _greedy(check: GreedyCheck, group: str) -> str:
    faults = [fault for fault in check.faults if (len(fault.tokens) == 1) is (group == "first")]
    ties = [tie for tie in check.near_ties if (len(tie.tokens) == 1) is (group == "first")]
    if faults:
        return f"{len(faults)} faults, gap up to {max(fault.gap for fault in faults):.2g}"
    return f"equal, {len(ties)} near-ties" if ties else "equal"


def _seeds(seeds: SeedCheck) -> str:
    promise = "" if seeds.is_promised else ", not judged"
    others = f"; other seeds: {seeds.others_equal} of {seeds.others} equal" if seeds.others else ""
    return f"{seeds.equal} of {seeds.pairs} repeated{promise}{others}"
