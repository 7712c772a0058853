"""A session is a cached pure function: whatever was scored before, the result is that of one uncached forward."""

import copy
import random

import pytest
import torch
from transformers import DynamicCache, LlamaForCausalLM

from specbench.decoding.drafting import common_prefix
from specbench.decoding.sampling import Sampler
from specbench.decoding.targets import Last, Mixture
from specbench.features.verify.enumeration import generate
from specbench.methods.proposers import DraftModel
from specbench.methods.speculative import Speculative
from specbench.methods.speculative_ensemble import SpeculativeEnsemble
from specbench.models.cached_session import MAX_CACHED_ROWS, CachedSession
from specbench.models.lean import LeanModelRunner, network_of
from specbench.models.transformers_session import EagerModelRunner
from tests.fixtures.worlds import ENGINES, FAMILIES, open_models, open_session, random_model, stale

SOURCE = [7, 3, 9, 1]  # what an encoder reads


def source_of(model):
    return SOURCE if model.config.is_encoder_decoder else None


def uncached(model, ids: list[int]) -> torch.Tensor:
    """(len(ids), V) from one forward without any cache."""
    with torch.inference_mode():
        tokens = torch.tensor([ids])
        if model.config.is_encoder_decoder:
            return model(input_ids=torch.tensor([SOURCE]), decoder_input_ids=tokens, use_cache=False).logits[0]
        return model(input_ids=tokens, use_cache=False).logits[0]


def walk(model, session, steps: int = 60) -> float:
    """Grow, shrink, replace and re-read at random; the largest error against uncached forwards."""
    rng, ids, worst = random.Random(5), [0, 11, 12], 0.0
    for _ in range(steps):
        kind = rng.random()
        if kind < 0.5 or len(ids) < 4:
            ids = ids + [rng.randrange(40) for _ in range(rng.randint(1, 4))]
        elif kind < 0.75:
            ids = ids[: rng.randint(2, len(ids) - 1)]
        elif kind < 0.9:
            at = rng.randrange(1, len(ids))
            ids = [*ids[:at], (ids[at] + 1) % 40, *ids[at + 1 :]]
        ids = ids[:48]
        start = rng.randrange(len(ids))
        found = session.score(ids, start)
        assert found.shape == (len(ids) - start, 40)
        worst = max(worst, (found - uncached(model, ids)[start:]).abs().max().item())
    return worst


@pytest.mark.parametrize(
    ("family", "kept"), [*((family, MAX_CACHED_ROWS) for family in FAMILIES), ("llama", 4), ("gemma3", 4), ("t5", 4)]
)
@pytest.mark.parametrize("engine", ENGINES)
def test_cached_equals_uncached_after_any_history(family, engine, kept, monkeypatch):
    """Of every engine, against transformers without a cache: prefill, decoding, and reading again after a rollback."""
    monkeypatch.setattr("specbench.models.cached_session.MAX_CACHED_ROWS", kept)
    model = random_model(family, 1)
    if engine == "graph" and model.config.is_encoder_decoder:
        pytest.skip("there are no graphs of encoder-decoder models")
    reference = copy.deepcopy(model)  # its weights lie as transformers laid them
    # Float32 rounding of logits of size 10
    assert walk(reference, open_session(model, engine, source_of(model))) < 2e-4


@pytest.mark.parametrize("family", ["llama", "gpt2", "t5"])
def test_a_stale_position_in_the_cache_is_detected(family):
    model = random_model(family, 1)
    for model_runner in (
        stale(EagerModelRunner)(model, 40, source_of(model)),
        stale(LeanModelRunner)(network_of(model), 40, source_of(model)),
    ):
        assert walk(model, CachedSession(model_runner)) > 0.1


def test_cached_tokens_are_not_fed_again():
    session = open_session(random_model("llama", 1))
    session.score([1, 2, 3, 4], 3)
    assert session.usage.forwards == 0, "the first forward is prefill"
    assert session.usage.prefill_fed == 4
    session.score([1, 2, 3, 4, 5, 6], 4)
    session.score([1, 2, 3, 4, 5, 6], 4)
    session.score([1, 2, 3, 4, 5], 4)
    assert (session.usage.forwards, session.usage.fed) == (1, 2), "re-reading costs nothing"
    session.score([1, 2, 3, 4, 9], 4)
    assert (session.usage.forwards, session.usage.fed) == (2, 3), "after a rejection only what differs is fed"
    assert session.usage.by_fed.keys() == {1, 2}


def test_dropped_rows_cost_a_forward_and_stay_correct():
    model = random_model("t5", 2)
    session, ids = open_session(model, "eager", SOURCE), [0] + [i % 39 + 1 for i in range(MAX_CACHED_ROWS + 40)]
    for end in range(1, len(ids) + 1):
        session.score(ids[:end], end - 1)
    assert (session.score(ids, 3) - uncached(model, ids)[3:]).abs().max() < 2e-4


def test_the_encoder_runs_once_per_prompt():
    session = open_session(random_model("t5", 1), "lean", SOURCE)
    for ids in ([0], [0, 1, 2], [0, 5]):
        session.score(ids, 0)
    assert session.usage.encodes == 1


@pytest.mark.parametrize("gamma", [1, 3])
def test_identical_models_accept_everything_at_ideal_cost(gamma):
    """The cache that misses one token after full acceptance is the field's favourite bug.

    Output right, acceptance gone.
    """
    model = random_model("llama", 3)
    models = open_models({"draft": model, "target": model}, [1, 2, 3])
    method = Speculative(proposer=DraftModel(model="draft", gamma=gamma), scorers=("target",), target=Last())
    rounds = 6
    sampler = Sampler(generator=torch.Generator().manual_seed(0))
    tokens, steps = generate(method, models, sampler, rounds * (gamma + 1))
    assert len(steps) == rounds
    assert all(round_.accepted == round_.tested == gamma for round_ in steps)
    draft, target = (models[role].usage for role in ("draft", "target"))
    assert (draft.forwards + 1, target.forwards + 1) == (rounds * gamma, rounds), "gamma drafts and one score a round"
    assert set(target.by_fed) == {gamma + 1}
    assert len(tokens) == rounds * (gamma + 1)


def test_the_trace_of_three_models():
    """Gamma (3, 2, 1), all accepted: forwards 3/0/0, 3/2/0, 3/2/1 and then one more of M1.

    See docs/papers/speculative-ensemble.md, Worked trace.
    """
    model = random_model("llama", 3)
    models = open_models({"a": model, "b": model, "c": model}, [1, 2, 3])
    method = SpeculativeEnsemble(models=("a", "b", "c"), gamma=(3, 2, 1), target=Mixture())
    from specbench.decoding.method import StopCriteria

    steps = method.rounds(models, Sampler(generator=torch.Generator().manual_seed(0)), StopCriteria(frozenset(), 40))

    def forwards() -> list[int]:
        return [models[role].usage.forwards + bool(models[role].usage.prefill_fed) for role in "abc"]

    first = next(steps)
    assert (first.tested, first.drafted, first.proposers) == (3, 6, ("a", "a", "a"))
    assert forwards() == [3, 2, 1]
    second = next(steps)
    assert (second.tested, second.drafted, second.proposers) == (2, 1, ("b", "b"))
    assert forwards() == [4, 2, 1]


def test_a_rejection_starts_again_at_the_first_model():
    """Disjoint tastes.

    Everything is rejected, and each new run is drafted by M_1 (the paper's text, not its pseudo-code).
    """
    models = open_models({"a": random_model("llama", 4), "b": random_model("llama", 5)}, [1, 2, 3])
    method = SpeculativeEnsemble(models=("a", "b"), gamma=(2, 2), target=Mixture())
    _, steps = generate(method, models, Sampler(generator=torch.Generator().manual_seed(1)), 24)
    rejected = [before.accepted < before.tested for before in steps[:-1]]
    assert any(rejected)
    assert all(after.proposers[0] == "a" for before, after in zip(rejected, steps[1:], strict=True) if before)


def test_nan_logits_are_an_error():
    model = random_model("llama", 1)
    with torch.no_grad():
        model.lm_head.weight[3].fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="NaN or infinite"):
        open_session(model).score([1, 2], 1)


def test_transformers_crops_by_a_negative_count():
    """The contract that a session relies on, since it changed its sign between versions."""
    model: LlamaForCausalLM = random_model("llama", 1)
    cache = DynamicCache(config=model.config)
    model(input_ids=torch.tensor([[1, 2, 3]]), past_key_values=cache)
    cache.crop(-2)
    assert cache.get_seq_length() == 1


@pytest.mark.parametrize(("a", "b", "expected"), [
    ([], [1], 0), ([1], [2], 0), ([1, 2], [1, 2, 3], 2), ([1, 2, 3], [1, 2, 4], 2), ([1, 9, 3], [1, 2, 3], 1),
])  # fmt: skip
def test_common_prefix(a, b, expected):
    assert common_prefix(a, b) == common_prefix(b, a) == expected
