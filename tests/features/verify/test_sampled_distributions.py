"""The real sampler too: distributions of three tokens from many runs, against a stated noise floor.

The total variation between n draws and their distribution concentrates: P(TV > floor + t) < exp(-2 n t^2), McDiarmid,
where floor = sqrt(cells / (2 pi n)) bounds its mean. With n = 6,000 and t = 0.045 a sound method fails once in 3e10
runs; a wrong one, off by more than 0.1, passes as seldom.
"""

import math

import pytest
import torch

from specbench.decoding.rejection import tv
from specbench.decoding.sampling import Sampler
from specbench.decoding.targets import Last, Mixture
from specbench.features.verify.enumeration import distance, generate, joint_distribution
from specbench.methods.autoregressive import Autoregressive
from specbench.methods.proposers import DraftModel
from specbench.methods.speculative import Speculative
from specbench.methods.speculative_ensemble import SpeculativeEnsemble
from tests.fixtures.worlds import table_world

RUNS, SLACK = 4000, 0.045


@pytest.mark.parametrize(
    ("method", "plain"),
    [
        (
            Speculative(proposer=DraftModel(model="a", gamma=2), scorers=("b",), target=Last()),
            Autoregressive(scorers=("b",), target=Last()),
        ),
        (
            SpeculativeEnsemble(models=("a", "b"), gamma=(2, 1), target=Mixture()),
            Autoregressive(scorers=("a", "b"), target=Mixture()),
        ),
        (
            Speculative(proposer=DraftModel(model="a", gamma=2), scorers=("a", "b"), target=Mixture(), bonus="none"),
            Autoregressive(scorers=("a", "b"), target=Mixture()),
        ),
    ],
    ids=["sd", "we-se", "we-sd"],
)
def test_sampled_tokens_follow_the_distribution(method, plain):
    models = table_world(2)
    expected = joint_distribution(plain, models, 3)
    sampler = Sampler(generator=torch.Generator().manual_seed(7))
    found: dict[tuple[int, ...], float] = {}
    for _ in range(RUNS):
        tokens = tuple(generate(method, models, sampler, 3)[0])
        found[tokens] = found.get(tokens, 0.0) + 1 / RUNS
    assert distance(found, expected) < math.sqrt(len(expected) / (2 * math.pi * RUNS)) + SLACK


def test_acceptance_is_one_minus_tv():
    """Not "equal to a target sample": the rate over 4,000 first tokens is within five standard errors of 1 - TV(q, p)."""
    models = table_world(4)
    method = Speculative(proposer=DraftModel(model="a", gamma=1), scorers=("b",), target=Last())
    sampler = Sampler(generator=torch.Generator().manual_seed(8))
    accepted = sum(generate(method, models, sampler, 2)[1][0].accepted for _ in range(4000)) / 4000
    q, p = (sampler.probs(models[role].score([0], 0))[0] for role in ("a", "b"))
    expected = 1 - tv(q, p).item()
    assert abs(accepted - expected) < 5 * math.sqrt(expected * (1 - expected) / 4000)
