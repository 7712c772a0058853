"""A permutation test of whether two servers sample from one distribution, without any log-probability.

Both servers answer the same prompts several times. If both sample from one distribution, the outputs to a prompt can be
exchanged between them. So each statistic is compared with its values after random exchanges within prompts, and p is exact
whatever the distribution is. The largest of all standardized statistics is compared, so their number needs no correction
(Westfall and Young 1993).

Of the first unit of an output, its frequency is compared. Of whole outputs, common prefixes, frequencies of units, length and
how rare the units are. Distances between samples have skewed distributions; their cube roots are nearly normal (Wilson and
Hilferty 1931), so that no statistic dominates.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from specbench.analysis.significance import normal_quantile, permutation_p, permuted_labels
from specbench.features.exactness.departures import DepartureKind, Detectable
from specbench.features.exactness.group_tests import groups_that_differ
from specbench.features.exactness.martingales import GROUPS, SIGNIFICANCE
from specbench.features.exactness.token_tests import TestResult
from specbench.features.servers.request_log import LoggedRequest
from specbench.features.servers.served import ServedSampling

Output = tuple[Hashable, ...]  # ids, or words of a text
PERMUTATIONS = 40_000  # p cannot be smaller than their reciprocal
CHUNK = 5_000  # permutations at a time
FEWEST_EACH = 2  # outputs of each side to a prompt
POWER = 0.9
CONTROL = 1.5  # the control is sampled at this multiple of the temperature
WORDS = re.compile(r"\s*\w+|\s*[^\w\s]|\s+")


def units_of(entry: LoggedRequest, as_text: bool) -> Output:
    """Return the ids of an output, or the words of its text."""
    return tuple(WORDS.findall(entry.output) if as_text else entry.tokens or ())


def permutations_for(tests: int) -> int:
    """Return how many permutations can reject at SIGNIFICANCE after a correction for so many tests."""
    return max(PERMUTATIONS, math.ceil(2.0 * tests / SIGNIFICANCE))


class PromptOutputs(NamedTuple):
    """The outputs of two servers to one prompt."""

    on: tuple[Output, ...]
    off: tuple[Output, ...]


class Permuted(NamedTuple):
    """The result of a permutation test.

    Args:
        name: The largest statistic.
        z: Its deviation, in standard deviations.
        p: The p of the largest statistic.
        z_of_means: The largest deviation of a difference of means.
        units: Number of units of the outputs of the tested server.
    """

    name: str
    z: float
    p: float
    z_of_means: float
    units: int


class ComparedOutputs:
    """Outputs of two servers and the permutation tests of them, each of which is made once.

    Args:
        prompts: The outputs, by prompt.
        permutations: Number of random exchanges.
        seed: Seed of the permutations.
    """

    def __init__(self, prompts: Sequence[PromptOutputs], permutations: int = PERMUTATIONS, seed: int = 0) -> None:
        self.prompts = list(prompts)
        self._permutations, self._seed = permutations, seed
        self._found: dict[str, Permuted | None] = {}

    def tested(self, group: str) -> Permuted | None:
        """Return the test of first units or of whole outputs; None if nothing can be compared."""
        if group not in self._found:
            self._found[group] = permutation_test(self.prompts, group == "first", self._permutations, self._seed)
        return self._found[group]

    def with_more(self, prompts: Sequence[PromptOutputs]) -> "ComparedOutputs":
        """Return these and further outputs."""
        return ComparedOutputs([*self.prompts, *prompts], self._permutations, self._seed)


class TwoSampleCheck:
    """Outputs with equal sampling parameters, and permutation tests of first units and of whole outputs.

    Args:
        sampling: The sampling parameters.
        outputs: The outputs of both servers, by prompt.
        control: Outputs of the server without speculation at CONTROL times the temperature (`on`), and its own (`off`).
            Checks with equal sampling parameters share it.
    """

    control_factor = CONTROL

    def __init__(
        self,
        sampling: ServedSampling,
        outputs: ComparedOutputs,
        control: ComparedOutputs,
    ) -> None:
        self.sampling, self._outputs, self._control = sampling, outputs, control

    def fresh(self) -> "TwoSampleCheck":
        """Return a check of the same sampling parameters, without outputs."""
        return TwoSampleCheck(self.sampling, ComparedOutputs([]), self._control)

    def merge(self, other: "TwoSampleCheck") -> None:
        """Add the outputs of another check with the same sampling parameters."""
        self._outputs = other._outputs.with_more(self._outputs.prompts)

    def results(self, group: str) -> Mapping[str, TestResult]:
        """Return the test of a group by the name of its most deviating statistic; empty without outputs to compare."""
        found = self._outputs.tested(group)
        return {found.name: TestResult(found.units, found.z, found.p)} if found else {}

    def number_of_tests(self) -> int:
        """Return the number of groups that could be tested."""
        return sum(bool(self.results(group)) for group in GROUPS)

    def groups_that_differ(self, tests: int) -> tuple[str, ...]:
        """Return the groups of tokens whose p, times the number of all tests, is at most SIGNIFICANCE."""
        return groups_that_differ({group: self.results(group) for group in GROUPS}, tests)

    def control_p(self, group: str) -> float:
        """Return the p of the control."""
        found = self._control.tested(group)
        return found.p if found else 1.0

    def would_show_in_first_tokens(self, alarm: float) -> bool:
        """Return whether the control is found in the first units of outputs."""
        return self.control_p("first") <= alarm

    def detectable(self, group: str, alarm: float) -> list[Detectable]:
        """Return about the smallest multiple of the temperature that is found with a probability of 0.9.

        The deviation of the control, at CONTROL times the temperature, is scaled. How far such a temperature is from the
        requested one is unknown without distributions.
        """
        found = self._control.tested(group)
        z = found.z_of_means if found else 0.0
        needed = normal_quantile(1.0 - alarm / 2.0) + normal_quantile(POWER)
        size = 1.0 + (CONTROL - 1.0) * needed / z if z > 1.0 else None
        return [Detectable(kind=DepartureKind.temperature, size=size, largest=CONTROL, variation=None)]


def permutation_test(
    prompts: Sequence[PromptOutputs], only_first: bool, permutations: int, seed: int
) -> Permuted | None:
    """Compare the outputs; None if nothing can be compared.

    Args:
        prompts: The outputs. Prompts with fewer than FEWEST_EACH outputs of a side are left out.
        only_first: Whether only the first unit of each output is compared.
        permutations: Number of random exchanges.
        seed: Seed of the permutations.
    """
    usable = [each for each in prompts if min(len(each.on), len(each.off)) >= FEWEST_EACH]
    if not usable:
        return None
    rarities = _rarities(usable)
    chooser = np.random.default_rng(seed)
    sums: dict[str, np.ndarray] = {}  # by statistic, (1 + permutations,), the observed one first
    for at, each in enumerate(usable):
        outputs = [*each.on, *each.off]
        labels = np.array([1.0 / len(each.on)] * len(each.on) + [-1.0 / len(each.off)] * len(each.off))
        drawn = permuted_labels(labels, permutations, chooser)  # (1 + permutations, m)
        for name, kernel in _kernels(outputs, only_first).items():
            value = np.concatenate([((part @ kernel) * part).sum(-1) for part in _chunks(drawn)])
            sums[name] = sums.get(name, 0.0) + value
        for name, feature in _features(outputs, [rarity[at] for rarity in rarities], only_first).items():
            sums[name] = sums.get(name, 0.0) + drawn @ feature
    varied = {name: values for name, values in sums.items() if float(values.std()) > 1e-12}
    if not varied:
        return None
    scores = {name: _standardized(np.cbrt(values) if name in KERNELS else values) for name, values in varied.items()}
    sizes = {name: values if name in KERNELS else np.abs(values) for name, values in scores.items()}
    largest = np.max(np.stack(list(sizes.values())), axis=0)  # (1 + permutations,)
    name = max(sizes, key=lambda each: float(sizes[each][0]))
    return Permuted(
        name,
        float(scores[name][0]),
        permutation_p(largest),
        max((float(values[0]) for each, values in sizes.items() if each not in KERNELS), default=0.0),
        sum(len(output) for each in usable for output in each.on),
    )


def _standardized(values: np.ndarray) -> np.ndarray:
    return np.asarray((values - values.mean()) / values.std())


CONTEXTS: dict[str, Callable[[int, int, Output], Hashable]] = {
    "anywhere": lambda prompt, place, output: 0,
    "after the same unit": lambda prompt, place, output: output[place - 1] if place else ("begin", prompt),
    "at the same place": lambda prompt, place, output: (prompt, place),
}
KERNELS = ("first unit", "common prefix", "frequencies of units")


def _kernels(outputs: Sequence[Output], only_first: bool) -> dict[str, np.ndarray]:
    """Return similarities of outputs by name, (m, m) each."""
    m = len(outputs)
    if only_first:
        return {"first unit": np.array([[float(a[:1] == b[:1]) for b in outputs] for a in outputs])}
    prefix, bags = np.zeros((m, m)), [Counter(output) for output in outputs]
    norms = [math.sqrt(sum(count * count for count in bag.values())) or 1.0 for bag in bags]
    frequencies = np.zeros((m, m))
    for i in range(m):
        for j in range(i, m):
            prefix[i, j] = prefix[j, i] = math.log1p(_common(outputs[i], outputs[j]))
            dot = sum(count * bags[j][unit] for unit, count in bags[i].items())
            frequencies[i, j] = frequencies[j, i] = dot / (norms[i] * norms[j])
    return {"common prefix": prefix, "frequencies of units": frequencies}


def _features(
    outputs: Sequence[Output], rarities: Sequence[Sequence[Sequence[float]]], only_first: bool
) -> dict[str, np.ndarray]:
    """Return numbers of outputs by name, (m,) each. `rarities` are of the units of each output, by context."""
    out = {} if only_first else {"length": np.array([float(len(output)) for output in outputs])}
    for context, values in zip(CONTEXTS, rarities, strict=True):
        part = [row[:1] if only_first else row for row in values]
        out[f"rarity {context}"] = np.array([sum(row) / max(len(row), 1) for row in part])
    return out


def _rarities(prompts: Sequence[PromptOutputs]) -> list[list[list[list[float]]]]:
    """Return the negative logarithm of each unit's frequency: by context, prompt, output and unit.

    Frequencies are those among all outputs of both servers in the same context: anywhere, after the same unit, or at the same
    place of an output to the same prompt. So an exchange of outputs does not change them.
    """
    by_context: list[list[list[list[float]]]] = []
    for context in CONTEXTS.values():
        keys = [
            [[context(at, place, output) for place in range(len(output))] for output in (*each.on, *each.off)]
            for at, each in enumerate(prompts)
        ]
        units = [[list(output) for output in (*each.on, *each.off)] for each in prompts]
        pairs = [
            (key, unit)
            for of_keys, of_units in zip(keys, units, strict=True)
            for row_keys, row_units in zip(of_keys, of_units, strict=True)
            for key, unit in zip(row_keys, row_units, strict=True)
        ]
        together, alone = Counter(pairs), Counter(key for key, _ in pairs)
        by_context.append(
            [
                [
                    [math.log(alone[key] / together[key, unit]) for key, unit in zip(row_keys, row_units, strict=True)]
                    for row_keys, row_units in zip(of_keys, of_units, strict=True)
                ]
                for of_keys, of_units in zip(keys, units, strict=True)
            ]
        )
    return by_context


def _common(a: Output, b: Output) -> int:
    """Return the number of units of the common prefix."""
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count


def _chunks(rows: np.ndarray) -> list[np.ndarray]:
    return [rows[at : at + CHUNK] for at in range(0, len(rows), CHUNK)]
