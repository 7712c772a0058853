"""What `specbench verify` rests on: tests that raise false alarms as seldom as they say, and gaps that are logit gaps."""

import pytest
import torch

from specbench.decoding.targets.ensembles import Contrastive, Mixture
from specbench.decoding.targets.target import Last, gaps
from specbench.features.exactness.martingales import MartingaleTest
from specbench.features.exactness.tolerance import Allowed
from specbench.features.verify.sampled import event_test


def _p_of(pi, drawn_from, tokens, runs, stakes):
    """The p of `runs` tests on tokens of a distribution."""
    out = []
    for seed in range(runs):
        generator = torch.Generator().manual_seed(seed)
        x = torch.multinomial(drawn_from, tokens, replacement=True, generator=generator)
        test = MartingaleTest()
        test.add(stakes.expand(tokens, -1), Allowed.exactly(pi.expand(tokens, -1)), x)
        out.append(test.p)
    return torch.tensor(out)


@pytest.mark.parametrize("rare", [0.3, 0.001])
def test_the_false_alarm_rate_of_a_martingale_test_is_bounded_by_p(rare):
    """P(p <= a) <= a, for rare events too, where a normal distribution would be wrong.

    Over 2,000 runs the share is above a by five standard errors with odds below 1e-6.
    """
    pi = torch.tensor([rare, 0.5 - rare, 0.5], dtype=torch.float64)
    p = _p_of(pi, pi, 40, 2000, torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64))
    for a in (0.1, 0.01):
        assert (p <= a).double().mean() <= a + 5 * (a * (1 - a) / 2000) ** 0.5


def test_a_martingale_test_rejects_another_distribution():
    """400 tokens of q, at KL(q || pi) = .08 nats: the likelihood ratio is e^32 on average."""
    pi, q = torch.tensor([0.5, 0.3, 0.2]).double(), torch.tensor([0.3, 0.4, 0.3]).double()
    assert (_p_of(pi, q, 400, 20, (q / pi).log()) < 1e-6).all()


def test_events_that_should_be_certain_and_are_not_are_detected():
    assert event_test([False] * 20, [0.99] * 20).p < 1e-6 < 0.1 < event_test([True] * 20, [0.99] * 20).p
    assert event_test([], []).tokens == 0 and event_test([], []).p == 1.0


def test_a_gap_is_the_increase_that_makes_a_token_greedy():
    """For one model the logit gap; for a contrast of two what both must be given; for a mixture, in log-probability."""
    row = torch.tensor([[1.0, 3.0, 2.5, -4.0]])
    assert gaps(Last(), [row.expand(4, -1)], [0, 1, 2, 3]).tolist() == pytest.approx([2.0, 0.0, 0.5, 7.0], abs=1e-6)
    assert gaps(Contrastive(mu=0.1), [torch.zeros(1, 4), row], [0]).item() == pytest.approx(2 / 0.9, abs=1e-6)
    assert gaps(Mixture(), [row, row], [2]).item() == pytest.approx(0.5, abs=1e-6)
    assert gaps(Last(), [torch.tensor([[100.0, 0.0]])], [1]).item() == float("inf")
