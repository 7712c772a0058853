"""Synthetic distributions and dummy weights.

Real costs, chosen agreement, and never taken for a measurement of the models.
"""

import time

import pytest
import torch

from specbench.decoding.loop import GenerationLimits
from specbench.decoding.method import Verification
from specbench.decoding.sampling import Sampler
from specbench.decoding.targets import Contrastive, Last, Mixture
from specbench.errors import ConfigError, MissingAsset
from specbench.features.verify.enumeration import TableModels, TableSession, distance, generate, joint_distribution
from specbench.methods.autoregressive import Autoregressive
from specbench.methods.proposers import Chain, DraftModel
from specbench.methods.speculative import Speculative
from specbench.methods.speculative_ensemble import SpeculativeEnsemble
from specbench.models.simulated import (
    SUPPORT,
    SyntheticDistribution,
    SyntheticSession,
    acceptance_at,
    architecture,
    calibrate,
    calibration_contexts,
    context_hash,
    normal_numbers,
    random_model,
)
from tests.fixtures.worlds import decode

CPU = torch.device("cpu")
SD = Speculative(proposer=DraftModel(model="draft", gamma=4), scorers=("target",), target=Last())


def world(spread: float, vocabulary: int = 500) -> TableModels:
    return world_of(equal(spread), vocabulary)


def world_of(spreads: dict[str, float], vocabulary: int = 500) -> TableModels:
    sessions = {
        role: SyntheticSession(TableSession(vocabulary, i), SyntheticDistribution(vocabulary, i, spread), CPU)
        for i, (role, spread) in enumerate(spreads.items())
    }
    return TableModels(sessions, vocabulary=vocabulary)


def equal(spread: float) -> dict[str, float]:
    return {"draft": spread, "target": spread}


def accepted_of(method, spreads: dict[str, float], role: str, sampler: Sampler, tokens: int = 200) -> tuple[int, int]:
    """Return how many draft tokens of a model were tested and accepted, at any level of a chain."""
    tested = accepted = 0
    for start in range(12):  # short ones: a context is hashed again after every rejection
        models = world_of(spreads)
        models.ids = [start]
        for round_ in generate(method, models, sampler, tokens)[1]:
            for each in (round_, *round_.inner):
                tested += each.proposers.count(role)
                accepted += sum(proposer == role for proposer in each.proposers[: each.accepted])
    return tested, accepted


def ensemble(target, gamma=(1, 1)) -> SpeculativeEnsemble:
    return SpeculativeEnsemble(models=("draft", "target"), gamma=gamma, target=target)


CASES = [
    pytest.param(SD, 0.3, 1.0, marks=pytest.mark.slow),
    (SD, 0.6, 0.0),
    pytest.param(ensemble(Mixture(weights=(0.2, 0.8))), 0.9, 1.0, marks=pytest.mark.slow),
    (ensemble(Contrastive(mu=0.1), (5, 1)), 0.6, 1.0),
]


@pytest.mark.parametrize(("method", "wanted", "temperature"), CASES, ids=lambda case: str(getattr(case, "name", case)))
def test_the_measured_acceptance_is_the_requested_one(method, wanted, temperature):
    """Within 0.025 over 1,200 tests and more of the default proposer's tokens, whose standard error is below 0.011."""
    sampler = Sampler(temperature, generator=torch.Generator().manual_seed(0))
    spread = calibrate(wanted, method.verifications()[0], equal, sampler)
    tested, accepted = accepted_of(method, equal(spread), "draft", sampler)
    assert tested > 1200
    assert abs(accepted / tested - wanted) < 0.025


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 1.0])
def test_every_level_of_a_chain_has_its_own_rate(temperature):
    """The middle model is nearer to the target than the draft, which is tested by the middle model."""
    chain = Chain(proposer=DraftModel(model="draft", gamma=3), model="middle", threshold=5)
    method = Speculative(proposer=chain, scorers=("target",), target=Last())
    wanted = {"middle": 0.95, "draft": 0.7}
    sampler = Sampler(temperature, generator=torch.Generator().manual_seed(0))
    spreads = dict.fromkeys(("target", "middle", "draft"), 0.0)
    tests = method.verifications()
    assert [(test.proposer, test.scorers) for test in tests] == [("middle", ("target",)), ("draft", ("middle",))]
    for test in tests:
        role, fixed = test.proposer, dict(spreads)
        spreads[role] = calibrate(wanted[role], test, lambda spread, f=fixed, r=role: {**f, r: spread}, sampler)
    for role, rate in wanted.items():
        tested, accepted = accepted_of(method, spreads, role, sampler)
        assert tested > 1200
        assert abs(accepted / tested - rate) < 0.025


@pytest.mark.parametrize("method", [SD, ensemble(Contrastive(mu=0.3), (1, 2))], ids=str)
def test_distributions_are_exact_with_synthetic_logits(method):
    (test, *_) = method.verifications()
    scorers, target = test.scorers, test.target
    exact = joint_distribution(Autoregressive(scorers=scorers, target=target), world(2.0, vocabulary=3), 3)
    assert distance(joint_distribution(method, world(2.0, vocabulary=3), 3), exact) < 1e-6  # float32 logits
    assert distance(joint_distribution(method, world(0.5, vocabulary=3), 3), exact) > 1e-3, "the spread matters"


def test_a_distribution_is_a_function_of_the_context_alone():
    one, two = world(1.0)["draft"], world(1.0)["draft"]
    whole = one.score([0, 5, 6, 7, 8], 0)
    two.score([0, 5, 9, 9], 0)
    assert torch.equal(two.score([0, 5, 6, 7, 8], 2), whole[2:])
    assert not torch.equal(whole[2], two.score([0, 5, 7, 6, 8], 3)[0]), "order matters"
    assert context_hash(context_hash(0, 1), 2) != context_hash(context_hash(0, 2), 1)


def test_hashed_numbers_are_standard_normal():
    """16,384 x 16 draws: mean and variance within four standard errors, and no context like another."""
    z = normal_numbers(calibration_contexts(), 3, SUPPORT)
    n = z.numel()
    assert abs(z.mean()) < 4 / n**0.5
    assert abs(z.var() - 1) < 4 * (2 / n) ** 0.5
    assert len(z[:, 0].unique()) == len(z)


def test_a_spread_of_zero_gives_equal_distributions():
    assert acceptance_at(equal(0.0), SD.verifications()[0], Sampler()) == pytest.approx(1.0)
    sampler = Sampler(generator=torch.Generator().manual_seed(0))
    assert all(round_.accepted == round_.tested for round_ in generate(SD, world(0.0), sampler, 50)[1])


def test_an_unreachable_rate_is_an_error():
    with pytest.raises(ConfigError, match=r"acceptance = 0\.3: drafts of draft .* from 0\.5\d to 1\.00"):
        calibrate(0.3, Verification("draft", ("draft", "target"), Mixture()), equal, Sampler())


def test_time_of_the_synthetic_logits_is_not_measured(monkeypatch):
    """Twelve forwards of 1 s and, with them, synthetic logits of 20 s, on a clock that only these two advance."""
    now = 0.0

    def advance(seconds):
        nonlocal now
        now += seconds

    class SlowLaw(SyntheticDistribution):
        def __call__(self, contexts):
            advance(20.0)
            return super().__call__(contexts)

    class SlowSession(TableSession):
        def score(self, *arguments, **named):
            advance(1.0)
            return super().score(*arguments, **named)

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    models = TableModels({"target": SyntheticSession(SlowSession(50, 0), SlowLaw(50, 0, 1.0), CPU)}, vocabulary=50)
    ar, limits = Autoregressive(scorers=("target",), target=Last()), GenerationLimits(frozenset(), 12)
    out = decode(ar, models, Sampler(), limits, clock=time.perf_counter)
    assert models["target"].usage.excluded_seconds == 12 * 20.0
    assert out.first_token_seconds == 1.0
    assert out.prefill_seconds + out.decode_seconds == 12.0


def test_the_encoder_input_is_part_of_the_context():
    def law_of(source: list[int]) -> torch.Tensor:
        return SyntheticSession(TableSession(50, 0), SyntheticDistribution(50, 0, 1.0), CPU, source).score([0, 7], 0)

    assert torch.equal(law_of([3, 4]), law_of([3, 4]))
    assert not torch.equal(law_of([3, 4]), law_of([4, 3]))


PARAMETERS = {  # as published, in millions
    "meta-llama/Llama-2-7b-hf": 6738, "lmsys/vicuna-7b-v1.5": 6738, "meta-llama/Llama-3.1-8B-Instruct": 8030,
    "meta-llama/Llama-3.2-1B": 1236, "Qwen/Qwen2.5-3B-Instruct": 3086, "Qwen/Qwen2.5-1.5B-Instruct": 1544,
    "facebook/opt-125m": 125, "facebook/opt-13b": 12853, "google-t5/t5-large": 738,
    "openai-community/gpt2-xl": 1558, "EleutherAI/gpt-neo-1.3B": 1316, "JackFram/llama-68m": 68,
}  # fmt: skip


@pytest.mark.parametrize("path", PARAMETERS)
def test_dummy_architectures_have_the_published_number_of_parameters(path):
    model = random_model(architecture(path, {}), "float32", torch.device("meta"))
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(PARAMETERS[path], abs=0.6)


def test_dummy_weights_are_reproducible_and_can_have_smaller_shapes():
    changes = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4,
               "num_key_value_heads": 4, "vocab_size": 1100}  # fmt: skip
    state = torch.random.get_rng_state()
    one, two = (random_model(architecture("meta-llama/Llama-2-7b-hf", changes), "float32", CPU) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert one.config.num_hidden_layers == 1
    assert torch.equal(state, torch.random.get_rng_state())
    other = random_model(one.config, "float32", CPU, "another role")
    assert not torch.equal(next(one.parameters()), next(other.parameters())), "models of one shape are not one model"
    assert one.config.head_dim == 8, "what is derived follows"
    with pytest.raises(ConfigError, match="no such key"):
        architecture("meta-llama/Llama-2-7b-hf", {"layers": 1})
    with pytest.raises(MissingAsset, match="no architecture"):
        architecture("missing/model", {})
