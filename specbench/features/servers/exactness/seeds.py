"""Whether seeds do what a server promises: equal ones repeat outputs, and different ones give independent outputs."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from specbench.analysis.significance import binomial_at_most, occurrences_at_least, permutation_p, permuted_labels
from specbench.features.exactness.martingales import SIGNIFICANCE
from specbench.features.servers.exactness.allowed import allowed
from specbench.features.servers.exactness.two_samples import Output, PromptOutputs
from specbench.features.servers.served import ServedSampling

REPEATING = (
    0.9  # the share of outputs that equal seeds repeat at least; rounding that depends on a batch changes the others
)


@dataclass(frozen=True)
class SeedCheck:
    """Whether requests with equal seeds repeat their outputs, and those with different seeds are independent.

    Args:
        pairs: Number of requests that were sent twice with one seed.
        equal: Number of them with equal outputs.
        others: Number of outputs that were compared with the first one to the same prompt, which had another seed.
        others_equal: Number of them that are equal.
        others_expected: The expected number of equal ones if outputs are independent.
        others_p: The probability that so many are equal if they are independent; 1 if nothing was compared.
        is_promised: Whether the server promises that equal seeds repeat outputs.
        repeating: The share of outputs that an honest server repeats at least.
    """

    pairs: int = 0
    equal: int = 0
    others: int = 0
    others_equal: int = 0
    others_expected: float = 0.0
    others_p: float = 1.0
    is_promised: bool = True
    repeating: float = REPEATING

    @property
    def repeats_p(self) -> float:
        """The probability that so few outputs are repeated, if each of them is with a probability of `repeating`."""
        return binomial_at_most(self.equal, self.pairs, self.repeating)

    @property
    def number_of_tests(self) -> int:
        """The number of tests that could reject."""
        return bool(self.pairs and self.is_promised) + bool(self.others)

    def do_not_repeat(self, tests: int) -> bool:
        """Return whether equal seeds do not repeat outputs although it is promised, by its share of SIGNIFICANCE."""
        return bool(self.pairs) and self.is_promised and self.repeats_p * tests <= SIGNIFICANCE

    def are_ignored(self, tests: int) -> bool:
        """Return whether different seeds give equal outputs, by its share of SIGNIFICANCE."""
        return self.others_p * tests <= SIGNIFICANCE


@dataclass
class SeededOutputs:
    """The outputs of a kind of requests with seeds: the first one to each prompt, the others, and those sent twice.

    Args:
        firsts: The outputs to each prompt, with different seeds.
        again: Pairs of outputs with one seed.
    """

    firsts: Mapping[int, Sequence[Output]]
    again: Sequence[tuple[Output, Output]] = field(default_factory=list)

    def check(self, chances: Iterable[float], p: float | None, repeating: float | None) -> SeedCheck:
        """Return the check.

        Args:
            chances: For each prompt's other outputs, the probability that it equals the first one.
            p: The probability that so many are equal if outputs are independent; None computes it from `chances`.
            repeating: The share of outputs that an honest server repeats at least; None if it promises nothing.
        """
        compared = [(other, outputs[0]) for outputs in self.firsts.values() for other in outputs[1:]]
        equal, expected = sum(a == b for a, b in compared), list(chances)
        return SeedCheck(
            pairs=len(self.again),
            equal=sum(a == b for a, b in self.again),
            others=len(compared),
            others_equal=equal,
            others_expected=sum(expected),
            others_p=occurrences_at_least(equal, expected) if p is None else p,
            is_promised=repeating is not None,
            repeating=repeating or 0.0,
        )


def chance_of_output(logits: Tensor, tokens: Sequence[int], sampling: ServedSampling, deviation: float) -> float:
    """Return the largest probability of an output under all allowed distributions, from the reference's logits (m, V)."""
    within = allowed(logits, sampling, deviation)
    at = [[token] for token in tokens]
    high = within.high.gather(-1, within.high.new_tensor(at).long())[:, 0]  # (m,)
    rest = within.low.sum(-1) - within.low.gather(-1, within.low.new_tensor(at).long())[:, 0]  # (m,), of other tokens
    return float((high / (high + rest).clamp_min(1e-300)).log().sum().exp())


def least_repeated(tolerance: float, temperature: float, length: int) -> float:
    """Return the share of outputs of so many tokens that an honest server repeats at least.

    If logits differ by at most the tolerance d from one call to the next, the total variation of a token is at most
    tanh(d / T), and equal random numbers choose another token with a probability of about twice that at most.
    """
    return REPEATING * max(1.0 - 2.0 * math.tanh(tolerance / temperature), 0.0) ** length


def p_of_exchanges(prompts: Sequence[PromptOutputs], permutations: int, seed: int = 0) -> float:
    """Return the p that outputs of one server are equal so often, compared with exchanges of outputs with another server.

    Both servers answered the same prompts with different seeds. If their outputs are independent and follow one distribution,
    each exchange within a prompt is as likely as the observed outputs.
    """
    chooser, sums = np.random.default_rng(seed), np.zeros(1 + permutations)
    for each in prompts:
        outputs = [*each.on, *each.off]
        is_on = np.array([1.0] * len(each.on) + [0.0] * len(each.off))
        equal = np.array([[float(a == b) for b in outputs] for a in outputs])
        drawn = permuted_labels(is_on, permutations, chooser)  # (1 + permutations, m)
        sums += ((drawn @ equal) * drawn).sum(-1)
    return permutation_p(sums)
