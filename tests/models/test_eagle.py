"""EAGLE heads.

A cache that any history leaves as a fresh one, the same features as in training, and the public format.
"""

import json
import random

import pytest
import torch
from safetensors.torch import load_file

from specbench.decoding.sampling import Sampler
from specbench.errors import MissingAsset
from specbench.models.cached_session import CachedSession
from specbench.models.heads import Eagle1Head, EagleHead, EagleSession, Provenance
from specbench.models.heads.eagle import EagleModelRunner
from specbench.models.lean import LeanModelRunner, network_of
from specbench.models.model_runner import TimedModelRunner
from tests.fixtures.worlds import FAMILIES, open_session, random_model, stale

NO_EOS = frozenset[int]()
TIGHT = 1e-9  # float64
NORMED = 1e-5  # where transformers' own norms, which compute in float32, are on one side


def base_and_head(family: str = "llama", seed: int = 1) -> tuple[CachedSession, EagleHead]:
    """A lean model in float64, and a random head of its width whose weights are as spread out as its own."""
    model = random_model(family, seed).double()
    head = Eagle1Head.of(model.config).double()
    with torch.no_grad():
        for weight in head.parameters():
            if weight.ndim == 2:
                weight.normal_(0.0, 0.25)
    return CachedSession(LeanModelRunner(network_of(model), 40)), head.goes_with(
        model.get_input_embeddings().weight, model.config
    )


def again(session: CachedSession) -> CachedSession:
    """A fresh session over the same weights, which keeps its states from the beginning."""
    fresh = CachedSession(LeanModelRunner(session.model_runner.network, 40))
    fresh.keep_states()
    return fresh


def sampler(seed: int, temperature: float = 1.0) -> Sampler:
    return Sampler(temperature, generator=torch.Generator().manual_seed(seed))


def wander(kind: type[EagleSession], catch_up: bool, family: str = "llama", rounds: int = 40) -> float:
    """Extend and cut back at random; the largest difference in a drafted distribution from a fresh session's, 2 where
    tokens differ.

    Sometimes the base has read all but the last token, as after a verification, sometimes less, as after a bonus; the
    fresh one's base is brought to where that one was.
    """
    base, head = base_and_head(family)
    session, rng, ids, worst = kind(head, base, catch_up), random.Random(3), [5, 1, 7], 0.0
    drafted: list[int] = []
    for i in range(rounds):
        if rng.random() < 0.5:  # some of the draft accepted, and a bonus
            ids = [*ids, *drafted[: rng.randint(0, 4)], rng.randrange(40)]
        elif rng.random() < 0.5 or len(ids) < 4:
            ids = ids + [rng.randrange(40) for _ in range(rng.randint(1, 6))]
        else:
            ids = ids[: rng.randint(2, len(ids) - 1)]
        if rng.random() < 0.3:
            ids = [*ids[:-1], (ids[-1] + 1) % 40]
        ids = ids[: 50 if i % 10 else 8]
        if rng.random() < 0.7:
            read = ids[: len(ids) - rng.randint(1, min(2, len(ids) - 1))]
            base.score(read, len(read) - 1)
        fresh_base = again(base)
        known = base.cached_length(ids)
        if known:
            fresh_base.score(ids[:known], known - 1)
        fresh = EagleSession(head, fresh_base, catch_up)
        one, two = (each.draft(ids, 4, sampler(i, i % 2), NO_EOS) for each in (session, fresh))
        drafted = one.tokens
        worst = max(worst, 2.0 if one.tokens != two.tokens else float((one.probs - two.probs).abs().max()))
    return worst


@pytest.mark.parametrize("catch_up", [True, False])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_feature_cache_after_any_history_equals_a_new_one(family, catch_up):
    """Greedy tokens and distributions at T = 1, in float64.

    What rounds, rollbacks and a head's own guesses left after is gone.
    """
    assert wander(EagleSession, catch_up, family) < TIGHT


class _OneTooFew(EagleSession):
    def __init__(self, head, base, catch_up=True):
        super().__init__(head, base, catch_up)
        self.model_runner = stale(EagleModelRunner)(head, base)
        self.timed = TimedModelRunner(self.model_runner)


class _KeepsGuesses(EagleSession):
    def draft(self, ids, k, sampler, eos):
        out = super().draft(ids, k, sampler, eos)
        self._ids = ids + out.tokens[:-1]  # as if what it fed itself had been features
        return out


@pytest.mark.parametrize("mutant", [_OneTooFew, _KeepsGuesses])
@pytest.mark.parametrize("catch_up", [True, False])
def test_a_feature_cache_that_is_not_truncated_is_detected(mutant, catch_up):
    """Mutation controls: a stale position after a rollback, and the head's own guesses kept as if they were features."""
    assert wander(mutant, catch_up) > 1e-3


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
def test_training_and_drafting_compute_the_same_features(family):
    """`forward` over a batch, against the first distribution of a draft after every prefix.

    And against drafting on from a guess.
    """
    base, head = base_and_head(family)
    ids = [3, 8, 1, 22, 13, 8, 30]
    base.keep_states()
    features = base.hidden(ids, 0)
    both = torch.stack([features, features.flip(0)])  # another row in the batch changes nothing
    with torch.inference_mode():
        guesses = head(torch.tensor([ids[1:], ids[:-1]]), both[:, :-1])[0]  # fhat_1 .. fhat_6
        distributions = base.logits_of(guesses).softmax(-1)
        session = EagleSession(head, again(base))
        for n in range(2, len(ids) + 1):
            draft = session.draft(ids[:n], 2, sampler(n), NO_EOS)
            assert (draft.probs[0] - distributions[n - 2]).abs().max() < NORMED
            drawn = torch.tensor([[*ids[1:n], draft.tokens[0]]])
            going_on = head(drawn, torch.cat([features[: n - 1], guesses[n - 2 : n - 1]])[None])[0, -1:]
            assert (draft.probs[1] - base.logits_of(going_on)[0].softmax(-1)).abs().max() < NORMED


def test_without_catching_up_the_head_continues_from_its_own_features():
    """Where the base lacks f_t, fhat_t replaces it.

    With it, the base reads one forward more. The distributions differ, the cost too.
    """
    base, head = base_and_head()
    ids = [3, 8, 1, 22, 13]
    distributions, forwards = [], []
    for catch_up in (True, False):
        own = again(base)
        session = EagleSession(head, own, catch_up)
        session.draft(ids[:-1], 1, sampler(0), NO_EOS)
        own.score(ids[:-2], len(ids) - 3)
        before = own.usage.forwards
        distributions.append(session.draft(ids, 1, sampler(0), NO_EOS).probs[0])
        forwards.append(own.usage.forwards - before)
    assert forwards == [1, 0]
    assert (distributions[0] - distributions[1]).abs().max() > 1e-3


def test_a_head_reads_one_token_per_forward_and_its_prompt_once():
    base, head = base_and_head()
    session = EagleSession(head, base)
    ids = [3, 8, 1, 22, 13]
    assert session.draft(ids[:1], 4, sampler(0), NO_EOS).tokens == [], "without a feature there is no draft"
    draft = session.draft(ids, 3, sampler(0), NO_EOS)
    assert (session.usage.prefill_fed, session.usage.forwards, session.usage.fed) == (4, 2, 2)
    ids += [*draft.tokens, 9]
    base.score(ids, len(ids) - 4)
    session.draft(ids, 3, sampler(1), NO_EOS)
    assert {fed: n for fed, (n, _) in session.usage.by_fed.items()} == {1: 4, 4: 1}
    assert base.usage.forwards == 1


def test_a_draft_ends_after_an_eos():
    base, head = base_and_head()
    whole = EagleSession(head, again(base)).draft([3, 8], 6, sampler(2), NO_EOS).tokens
    cut = EagleSession(head, again(base)).draft([3, 8], 6, sampler(2), frozenset({whole[2]})).tokens
    assert cut == whole[: whole.index(whole[2]) + 1]


def weights_of(head: EagleHead) -> dict[str, torch.Tensor]:
    return {name: weight for name, weight in head.state_dict().items() if "embed_tokens" not in name}


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2", "t5"])
def test_a_head_survives_saving_and_loading_in_the_public_format(family, tmp_path):
    """Keys fc.* and layers.0.*, no embedding of its own; settings and provenance too."""
    head = Eagle1Head.of(FAMILIES[family]())
    head.provenance = Provenance(base={"source": "somewhere"}, report={"loss": 1.5})
    head.save(tmp_path / "head")
    keys = set(load_file(tmp_path / "head" / "model.safetensors"))
    layer = {"self_attn.q_proj", "self_attn.o_proj", "post_attention_layernorm", "mlp.gate_proj"}
    assert {"fc.weight", "fc.bias"} | {f"layers.0.{name}.weight" for name in layer} <= keys
    assert not any("embed" in key or "input_layernorm" in key or key.startswith("norm") for key in keys)
    read = EagleHead.read(tmp_path / "head")
    assert read.provenance == head.provenance and not read.has_embedding
    assert all(torch.equal(weight, weights_of(head)[name]) for name, weight in weights_of(read).items())
    assert len(weights_of(read)) == len(keys)


@pytest.mark.parametrize("bias", [True, False])
def test_a_published_head_is_read(bias, tmp_path):
    """pytorch_model.bin beside a Llama's config.json, with an embedding of its own, with and without a bias."""
    config = FAMILIES["llama"]()
    head = Eagle1Head(config, bias)
    state = {name.removeprefix("inner."): weight for name, weight in head.state_dict().items()}
    assert ("fc.bias" in state) == bias
    tmp_path.joinpath("config.json").write_text(json.dumps(config.to_dict() | {"architectures": ["LlamaForCausalLM"]}))
    torch.save(state, tmp_path / "pytorch_model.bin")
    read = EagleHead.read(tmp_path)
    assert read.has_embedding and read.provenance == Provenance()
    other = torch.randn(40, 32)
    embedding = read.inner.embed_tokens.weight.clone()
    model = random_model("llama", 1)
    assert torch.equal(read.goes_with(other, model.config).inner.embed_tokens.weight, embedding), (
        "its own embedding stays"
    )
    draft = EagleSession(read.goes_with(model.get_input_embeddings().weight, model.config), open_session(model)).draft
    assert len(draft([1, 2, 3], 3, sampler(0), NO_EOS).tokens) == 3


def test_a_missing_head_is_an_error_of_one_line(tmp_path):
    tmp_path.joinpath("config.json").write_text(json.dumps(FAMILIES["llama"]().to_dict()))
    with pytest.raises(MissingAsset, match=r"no draft head in .*model\.safetensors or pytorch_model\.bin"):
        EagleHead.read(tmp_path)
