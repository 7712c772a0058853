"""The distributions within a deviation of logits: bounds that every such distribution keeps."""

import pytest
import torch

from specbench.features.exactness.tolerance import largest_expectations
from specbench.features.servers.exactness.allowed import allowed
from specbench.features.servers.served import ServedSampling

SIZE = 12
SAMPLINGS = [
    ServedSampling(temperature=1.0),
    ServedSampling(temperature=0.7, top_p=0.8),
    ServedSampling(temperature=1.3, top_k=4),
    ServedSampling(temperature=1.0, min_p=0.1),
    ServedSampling(temperature=1.0, min_p=0.05, top_k=6, top_p=0.9),
]


def logits(seed: int) -> torch.Tensor:
    return 2.0 * torch.randn(20, SIZE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_bounds_hold_for_every_distribution_within_the_deviation(sampling):
    deviation, generator = 0.1, torch.Generator().manual_seed(7)
    for seed in range(10):
        rows = logits(seed)
        within = allowed(rows, sampling, deviation)
        g = torch.randn(rows.shape, generator=generator, dtype=torch.float64)
        bound = largest_expectations(g, [1.0, -0.5], within)
        for corner in (False, True):
            noise = 2.0 * torch.rand(rows.shape, generator=generator, dtype=torch.float64) - 1.0
            other = allowed(rows + deviation * (noise.sign() if corner else noise), sampling, 0.0).pi
            assert not ((other > 0.0) & (within.high <= 0.0)).any()
            assert not ((other <= 0.0) & (within.low > 0.0)).any()
            for factor, most in zip((1.0, -0.5), bound, strict=True):
                assert ((other * (factor * g).exp()).sum(-1).log() <= most + 1e-12).all()


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_without_a_deviation_the_only_allowed_distribution_is_the_reference(sampling):
    within = allowed(logits(3), sampling, 0.0)
    weights = within.high / within.high.sum(-1, keepdim=True)
    assert torch.allclose(within.low, within.high) and torch.allclose(weights, within.pi)


def test_filters_follow_each_other_and_keep_the_token_that_crosses_top_p():
    pi = torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=torch.float64)
    kept = allowed(pi.log(), ServedSampling(temperature=1.0, top_p=0.6), 0.0).pi[0]
    assert kept.tolist() == pytest.approx([0.625, 0.375, 0.0, 0.0])
    both = allowed(pi.log(), ServedSampling(temperature=1.0, top_k=3, top_p=0.6), 0.0).pi[0]
    assert both.tolist() == pytest.approx([0.625, 0.375, 0.0, 0.0])  # 0.5 / 0.95 is less than 0.6
    assert allowed(pi.log(), ServedSampling(temperature=1.0, min_p=0.2), 0.0).pi[0, 3] == 0.0
