"""Lean models, their static forms, and what transformers runs itself: the same logits, tokens and distributions."""

import copy
from functools import partial

import pytest
import torch
from transformers import AutoConfig, BitsAndBytesConfig, GPTJConfig, PreTrainedConfig

from specbench.config.pair import ModelSpec
from specbench.decoding.drafting import roll
from specbench.decoding.loop import GenerationLimits
from specbench.decoding.method import StopCriteria
from specbench.decoding.rejection import verify, verify_at_once
from specbench.decoding.sampling import Draft, Sampler, exact_distribution
from specbench.decoding.targets import Contrastive, Last, Mixture
from specbench.features.verify.enumeration import TableModels, distance, generate, joint_distribution
from specbench.methods.autoregressive import Autoregressive
from specbench.methods.hugging_face import Assisted, Generate
from specbench.methods.proposers import DraftModel
from specbench.methods.speculative import Speculative
from specbench.methods.speculative_ensemble import SpeculativeEnsemble
from specbench.models import simulated
from specbench.models.cached_session import CachedSession
from specbench.models.checkpoints import load_tokenizer
from specbench.models.engines import TransformersModel, engine_of
from specbench.models.lean import (
    GraphModelRunner,
    Graphs,
    LeanModelRunner,
    cache,
    llama,
    network_of,
    small_config,
    unsupported,
)
from specbench.models.lean.layers import PLAIN_ELEMENTWISE, Elementwise
from specbench.models.lean.network import RMSNorm
from specbench.models.loaded_pair import LoadedPair, Models
from specbench.models.model_runner import Output
from specbench.models.resolved_model import Architecture
from specbench.models.simulated import SyntheticDistribution
from tests.fixtures.worlds import ENGINES, FAMILIES, decode, open_models, open_session, random_model

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
GREEDY = Sampler(temperature=0.0)
PROMPT = [5, 11, 3, 8]
AR = Autoregressive(scorers=("target",), target=Last())
METHODS = [
    AR,
    Speculative(proposer=DraftModel(model="draft", gamma=3), scorers=("target",), target=Last()),
    SpeculativeEnsemble(models=("draft", "target"), gamma=(2, 1), target=Mixture()),
    SpeculativeEnsemble(models=("draft", "target"), gamma=(3, 1), target=Contrastive(mu=0.2)),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.name}")
@pytest.mark.parametrize("family", FAMILIES)
def test_every_engine_decodes_the_same_tokens(family, method):
    models = {"draft": random_model(family, 1), "target": random_model(family, 2)}
    engines = ENGINES if "t5" not in family else ENGINES[:2]  # no graphs of encoder-decoder models
    found = [generate(method, open_models(copy.deepcopy(models), PROMPT, engine), GREEDY, 24)[0] for engine in engines]
    assert all(tokens == found[0] for tokens in found)


def test_weights_of_the_model_are_views_of_the_fused_ones():
    model = random_model("llama", 1)
    before, size = copy.deepcopy(model.state_dict()), sum(p.numel() for p in model.parameters())
    network_of(model)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in model.parameters()}
    assert sum(storages.values()) == 4 * size, "a model is held in memory once"


def test_rms_norm_equals_layer_norm_of_a_row_and_its_negative():
    weight = torch.randn(48)
    for scale in (1e-4, 1.0, 1e3):
        x = scale * torch.randn(5, 48) + scale
        norm = RMSNorm(weight, 1e-5)
        exact = x.double() * (x.double().square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight
        assert torch.allclose(norm(x).double(), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("eos", [frozenset(), frozenset({7, 9})])
@pytest.mark.parametrize("engine", ["lean", "graph"])
def test_a_roll_without_reads_draws_the_same_tokens(engine, eos):
    """The same uniforms, so the same tokens, up to an EOS; and the cache goes on as if every token had been read."""
    model = random_model("llama", 3)
    looking, blind = open_session(copy.deepcopy(model), engine), open_session(model, engine)
    for seed in range(12):
        ids = [*PROMPT, seed, 2 * seed]
        one = roll(looking, ids, 5, Sampler(generator=torch.Generator().manual_seed(seed)), eos)
        two = blind.roll_at_once(ids, 5, Sampler(generator=torch.Generator().manual_seed(seed)), eos)
        assert one.tokens == two.tokens
        assert torch.allclose(one.probs, two.probs, atol=1e-5)
        read = ids + two.tokens
        forwards = blind.usage.forwards
        assert torch.allclose(blind.score(read, len(read) - 1), looking.score(read, len(read) - 1), atol=1e-4)
        assert blind.usage.forwards == forwards + (len(two.tokens) == 5), "only what was drafted last is unread"
        shorter = read[: len(ids) - 2]  # all of it is cached, with more after it
        one, two = (
            each(shorter, 3, Sampler(temperature=0.0), eos) for each in (partial(roll, looking), blind.roll_at_once)
        )
        assert one.tokens == two.tokens


def test_verification_with_one_read_has_the_same_distribution():
    generator = torch.Generator().manual_seed(0)
    for k, rows in ((0, 1), (1, 1), (1, 2), (2, 2), (2, 3)):
        q, pi = (torch.rand(n, 3, generator=generator, dtype=torch.float64).softmax(-1) for n in (k, rows))
        for tokens in ([0, 1][:k], [2, 2][:k]):
            draft = Draft(tokens, q)
            one, two = (
                exact_distribution(lambda sampler, how=how, draft=draft, pi=pi: tuple(how(draft, pi, sampler).tokens))
                for how in (verify, verify_at_once)
            )
            assert distance(one, two) < 1e-12


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("method", METHODS[1:], ids=lambda method: method.name)
def test_both_paths_follow_the_target(method, at_once, monkeypatch):
    """Exact distributions of three tokens under a small synthetic vocabulary, over real lean forwards."""
    if at_once:
        monkeypatch.setattr("specbench.decoding.rejection.verify", verify_at_once)
    session = _Blind if at_once else CachedSession

    def models() -> TableModels:
        return TableModels(
            {
                r: session(LeanModelRunner(network_of(random_model("llama", i)), 2))
                for i, r in enumerate(("draft", "target"))
            },
            [1],
        )

    (test,) = method.verifications()
    target, scorers = test.target, test.scorers
    assert (
        distance(
            joint_distribution(method, models(), 3),
            joint_distribution(Autoregressive(scorers=scorers, target=target), models(), 3),
        )
        < 1e-6
    )


class _Blind(CachedSession):
    roll = CachedSession.roll_at_once


def test_graphs_belong_to_one_session_at_a_time():
    graphs = Graphs(network_of(random_model("llama", 1)), CPU)
    graphs.prepare(32, range(1, 3))
    old, new = CachedSession(GraphModelRunner(graphs, 40)), CachedSession(GraphModelRunner(graphs, 40))
    new.score(PROMPT, 0)
    with pytest.raises(AssertionError, match="another session owns"):
        old.score(PROMPT, 0)


def test_a_graph_that_is_too_short_or_too_narrow_is_not_used():
    graphs = Graphs(network_of(random_model("llama", 1)), CPU)
    graphs.prepare(300, range(1, 3))
    assert graphs.find(2, 512) is not None
    assert graphs.find(3, 10) is None
    assert graphs.find(1, 513) is None


def chosen(engine: str, config: PreTrainedConfig, device: torch.device) -> str:
    return engine_of(engine, ModelSpec(path="x"), Architecture(config), device)


@pytest.mark.parametrize(("wish", "device", "expected"), [
    ("auto", CPU, "lean"), ("eager", CPU, "eager"), ("lean", CUDA, "lean"), ("auto", CUDA, "graph"), ("graph", CUDA, "graph"),
])  # fmt: skip
def test_the_engine_is_chosen_by_architecture_and_device(wish, device, expected):
    assert chosen(wish, FAMILIES["llama"](), device) == expected


def test_unsupported_architectures_are_reported():
    dynamic = FAMILIES["llama-scaled"]()
    dynamic.rope_parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    quantized = FAMILIES["llama"]()
    quantized.quantization_config = BitsAndBytesConfig(load_in_4bit=True)
    late = FAMILIES["opt"]()
    late.do_layer_norm_before = False
    for config, word in (
        (dynamic, "dynamic"),
        (quantized, "quantized"),
        (late, "pre-layer norms"),
        (GPTJConfig(), "GPTJ"),
    ):
        assert word in unsupported(config)
        assert chosen("auto", config, CPU) == "eager"
        with pytest.raises(ValueError, match=word):
            chosen("lean", config, CPU)
    with pytest.raises(ValueError, match="CUDA"):
        chosen("graph", FAMILIES["llama"](), CPU)
    assert chosen("auto", FAMILIES["t5"](), CUDA) == "lean"
    assert unsupported(AutoConfig.for_model("llama")) == ""


# transformers' own decoding


def pair_of(family: str = "llama", seeds: tuple[int, ...] = (1, 2)) -> LoadedPair:
    """Return a draft and a target of a family with random weights; equal seeds give one model in both roles."""
    tokenizer = load_tokenizer("target", str(simulated.TOKENIZERS[family == "t5"]))
    models = {seed: TransformersModel(random_model(family, seed), tokenizer) for seed in seeds}
    return LoadedPair(dict(zip(("draft", "target"), map(models.__getitem__, seeds), strict=True)), CPU)


def peers(family: str = "llama") -> Models:
    return Models(pair_of(family), PROMPT)


@pytest.mark.parametrize("family", ["llama", "gpt2", "t5"])
@pytest.mark.parametrize(
    "peer",
    [
        Generate(model="target"),
        Generate(model="target", cache="static"),
        Assisted(draft="draft", model="target", gamma=3),
    ],
)  # fmt: skip
def test_transformers_methods_give_the_greedy_tokens_and_are_counted(family, peer):
    if family == "t5" and getattr(peer, "cache", "") == "static":
        pytest.skip("no static cache for an encoder-decoder model")
    limits = GenerationLimits(eos=frozenset(), max_new_tokens=17)
    models = peers(family)
    out = decode(peer, models, GREEDY, limits)
    assert out.tokens == decode(AR, peers(family), GREEDY, limits).tokens
    usage = models.sessions["target"].usage
    assert (usage.prefill_seconds > 0, usage.encodes) == (True, int(family == "t5"))
    assert 0 < out.forward_seconds < out.decode_seconds
    assert 0 < out.first_token_seconds <= out.prefill_seconds + out.decode_seconds
    if isinstance(peer, Assisted):
        assert len(out.rounds) == usage.forwards + 1
        assert all(len(round_.tokens) == round_.accepted + 1 for round_ in out.rounds[:-1])
    else:
        assert usage.forwards == 16, "the first forward is prefill"


def test_transformers_methods_stop_at_the_same_token():
    """At an EOS, and at a stop string however many tokens came at once."""
    ours = decode(AR, peers(), GREEDY, GenerationLimits(eos=frozenset(), max_new_tokens=20)).tokens
    eos = GenerationLimits(eos=frozenset({ours[6]}), max_new_tokens=20)
    text = GenerationLimits(
        eos=frozenset(),
        max_new_tokens=20,
        stop=(chr(ours[9] + 65),),
        detokenize=lambda ids: "".join(chr(i + 65) for i in ids),
    )
    for limits in (eos, text):
        expected = decode(AR, peers(), GREEDY, limits)
        for peer in (Generate(model="target"), Assisted(draft="draft", model="target", gamma=4)):
            models = peers()
            found = decode(peer, models, GREEDY, limits)
            assert (found.tokens, found.finish) == (expected.tokens, expected.finish)
            assert models.sessions["target"].usage.forwards <= len(expected.tokens)


def test_transformers_methods_sample_from_the_target():
    """First tokens of 600 draws: by Hoeffding their frequency of one token is off by .09 with odds below 2e-4."""
    limits = GenerationLimits(eos=frozenset(), max_new_tokens=1)
    exact = Sampler(temperature=0.7).probs(open_session(random_model("llama", 2)).score(PROMPT, len(PROMPT) - 1))[0]
    best, seen = int(exact.argmax()), 0
    models = peers()
    hotter = Sampler().probs(open_session(random_model("llama", 2)).score(PROMPT, len(PROMPT) - 1))[0]
    assert float(exact[best] - hotter[best]) > 0.09, "the temperature is seen"
    for seed in range(600):
        sampler = Sampler(temperature=0.7, generator=torch.Generator().manual_seed(seed))
        seen += decode(Generate(model="target"), models, sampler, limits).tokens == [best]
    assert abs(seen / 600 - float(exact[best])) < 0.09


def test_transformers_methods_leave_the_models_unchanged():
    pair = pair_of()
    target, draft = (pair.models[role].transformers() for role in ("target", "draft"))
    before = target.generation_config, copy.deepcopy(draft.generation_config.to_dict())
    state = torch.random.get_rng_state()
    list(
        Assisted(draft="draft", model="target", gamma=2).rounds(
            Models(pair, PROMPT), GREEDY, StopCriteria(frozenset(), 12)
        )
    )
    assert (target.generation_config, draft.generation_config.to_dict()) == before
    assert torch.equal(state, torch.random.get_rng_state())
    assert not target._forward_hooks and not draft._forward_pre_hooks


def test_transformers_methods_reject_synthetic_logits():
    pair = pair_of()
    pair.synthetic = {"target": SyntheticDistribution(40, 0, 1.0)}
    with pytest.raises(ValueError, match="synthetic"):
        Models(pair, PROMPT).instrumented("target")


def test_graphs_that_a_sequence_outgrew_are_not_used_again():
    model = random_model("llama", 1)
    model.config.max_position_embeddings = 1024
    graphs = Graphs(network_of(copy.deepcopy(model)), CPU)
    graphs.prepare(200, range(1, 5))
    long = [i % 40 for i in range(300)]
    CachedSession(GraphModelRunner(graphs, 40)).score(long, 299)  # the cache grows, and moves
    session, oracle = CachedSession(GraphModelRunner(graphs, 40)), open_session(model)
    for ids in (PROMPT, [*PROMPT, 1], [*PROMPT, 1, 2, 3]):
        assert torch.allclose(session.score(ids, len(ids) - 1), oracle.score(ids, len(ids) - 1), atol=1e-4)
    graphs.prepare(200, range(1, 5))
    assert graphs.find(1, 100) is not None, "prepared again, they are there again"


def test_nan_logits_are_detected_after_a_roll_without_reads(monkeypatch):
    """At temperature 1, on the path that reads at the end of a round: a row that is no distribution has no token."""
    model = random_model("llama", 1)
    session = CachedSession(LeanModelRunner(network_of(model), 40))
    session.score(PROMPT, 0)
    monkeypatch.setattr(session.timed, "feed", lambda feed, rows: Output(torch.full((1, 40), float("nan")), None))
    with pytest.raises(FloatingPointError, match="NaN"):
        session.roll_at_once([*PROMPT, 4], 3, Sampler(), frozenset())


@pytest.mark.parametrize("family", ["llama", "llama-scaled", "qwen2", "qwen3", "mistral-window", "olmo2"])
def test_compiled_graphs_give_the_logits_of_plain_forwards(family, monkeypatch):
    """Traced and functionalized as for a GPU, without its kernels, which take a minute to compile on a CPU."""
    traced = Elementwise(*(torch.compile(part, backend="aot_eager", fullgraph=True) for part in PLAIN_ELEMENTWISE))
    attention = torch.compile(cache._attention, backend="aot_eager", fullgraph=True, dynamic=False)
    usage = []
    monkeypatch.setattr(llama, "compiled_elementwise", lambda: usage.append("elementwise") or traced)
    monkeypatch.setattr(cache, "compiled_attention", lambda: usage.append("attention") or attention)
    network = network_of(random_model(family, 1))
    graphs = Graphs(network, CPU, fused=True)
    graphs.prepare(300, range(1, 4))
    assert graphs.find(1, 1) is graphs.find(1, 512) is not None, "one graph serves every length"
    compiled, plain = CachedSession(GraphModelRunner(graphs, 40)), CachedSession(LeanModelRunner(network, 40))
    long = [i % 40 for i in range(260)]
    short = (PROMPT, [*PROMPT, 1], [*PROMPT, 1, 2, 3], [*PROMPT[:3], 9])
    for ids in (*short, long[:126], long[:128], long[:129], long, [*long, 5]):
        assert torch.allclose(compiled.score(ids, len(ids) - 1), plain.score(ids, len(ids) - 1), atol=1e-4)
    heads_are_large_enough = network.layers.dim >= cache.MIN_DIM
    assert set(usage) == ({"elementwise", "attention"} if heads_are_large_enough else {"elementwise"})
    assert network.layers.elementwise is PLAIN_ELEMENTWISE


def test_compiled_attention_reads_no_block_beyond_the_sequence(monkeypatch):
    monkeypatch.setattr(llama, "compiled_elementwise", lambda: PLAIN_ELEMENTWISE)
    masks = []
    monkeypatch.setattr(cache, "compiled_attention", lambda: lambda q, k, v, visible, scale: masks.append(visible) or q)
    graphs = Graphs(network_of(random_model("llama-scaled", 1)), CPU, fused=True)
    graphs.prepare(512, range(1, 3))
    for length, blocks in ((127, 1), (128, 1), (129, 2), (256, 2), (257, 3)):
        session = CachedSession(GraphModelRunner(graphs, 40))
        session.score([1] * (length - 1), length - 2)
        before = len(masks)
        session.score([1] * length, length - 1)
        assert {mask.kv_num_blocks.item() for mask in masks[before:]} == {blocks}


@pytest.mark.parametrize(
    ("n", "query_heads", "shape", "fits"),
    [
        (6, 32, (2, 64, 256, 128), True),
        (6, 4, (2, 8, 256, 8), False),  # head size 8
        (17, 64, (2, 16, 256, 128), False),  # 8 queries share a key: 136 rows
        (16, 64, (2, 16, 256, 128), True),
    ],
)
def test_compiled_attention_is_used_only_where_its_kernel_takes_the_shape(n, query_heads, shape, fits):
    assert cache.FlexGraphCache.fits(n, query_heads, torch.empty(shape)) is fits


@pytest.mark.parametrize(("family", "why"), [("llama", "need a CUDA device"), ("gpt2", "not used for gpt2")])
def test_the_compiled_engine_reports_why_it_cannot_run(family, why):
    with pytest.raises(ValueError, match=why):
        chosen("compiled", random_model(family, 1).config, CPU)


def test_a_sample_after_one_with_nan_is_correct():
    graphs = Graphs(network_of(random_model("llama", 1)), CPU)
    graphs.prepare(64, range(1, 3))
    oracle = open_session(random_model("llama", 1))
    CachedSession(GraphModelRunner(graphs, 40)).score(PROMPT, 0)  # and never finished
    with torch.inference_mode():
        graphs.cache.storage[:, :, 40] = float("nan")
    session = CachedSession(GraphModelRunner(graphs, 40))
    for ids in (PROMPT, [*PROMPT, 1]):
        assert torch.allclose(session.score(ids, len(ids) - 1), oracle.score(ids, len(ids) - 1), atol=1e-4)


def test_a_sequence_keeps_its_cache_when_it_moves_to_the_next_span():
    model = random_model("llama", 1)
    model.config.max_position_embeddings = 1024
    network = network_of(copy.deepcopy(model))
    graphs = Graphs(network, CPU)
    graphs.prepare(400, range(1, 3))
    assert graphs.find(1, 1) is graphs.find(1, 256) is not graphs.find(1, 257)
    assert graphs.find(1, 257) is graphs.find(1, 512) is not None
    tables = {table.data_ptr() for table in network.tables()}
    for length in (1, 512):
        held = {tensor.data_ptr() for tensor in tensors_of(graphs.find(1, length), {id(network)})}
        assert tables and tables <= held, "no graph reads a table that was replaced"
    session, oracle = CachedSession(GraphModelRunner(graphs, 40)), open_session(model)
    ids = [i % 40 for i in range(250)]
    for _ in range(12):
        assert torch.allclose(session.score(ids, len(ids) - 1), oracle.score(ids, len(ids) - 1), atol=1e-4)
        ids = [*ids, len(ids) % 40]


def tensors_of(thing: object, seen: set[int]) -> list[torch.Tensor]:
    """Return the tensors in the attributes of an engine's objects, at any depth."""
    if isinstance(thing, torch.Tensor):
        return [thing]
    if id(thing) in seen or isinstance(thing, torch.nn.Module):
        return []
    seen.add(id(thing))
    inner = list(thing.values()) if isinstance(thing, dict) else thing if isinstance(thing, list | tuple) else []
    if type(thing).__module__.startswith("specbench."):
        inner = list(getattr(thing, "__dict__", {}).values())
    return [tensor for each in inner for tensor in tensors_of(each, seen)]


@pytest.mark.parametrize("family", [name for name in FAMILIES if not FAMILIES[name]().is_encoder_decoder])
def test_tensors_that_a_longer_cache_replaces_are_tables(family, monkeypatch):
    """A CUDA graph reads them where they were, and keeps only those alive that `tables` returns."""
    monkeypatch.setitem(FAMILIES, family, partial(small_config, family, vocabulary=40, positions=1024))
    network = network_of(random_model(family, 1))
    graphs = Graphs(network, CPU)
    graphs.prepare(64, range(1, 3))
    before, tables = tensors_of(network, set()), {id(table) for table in network.tables()}
    graphs.prepare(600, range(1, 3))
    after = {id(tensor) for tensor in tensors_of(network, set())}
    replaced = {id(tensor) for tensor in before} - after
    assert len(before) > 4 and replaced <= tables
    assert bool(replaced) == ("rope_parameters" in network.model.config.to_dict())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision_errors_are_of_the_size_of_those_of_transformers(family, dtype):
    """Against float64, within four times the eager error: rounding in other places, and nothing worse."""
    exact = random_model(family, 1).double()
    half = random_model(family, 1).to(dtype)
    if "t5" in family:
        for name, module in half.named_modules():
            if name.endswith(".wo"):
                module.float()  # as transformers loads it in half precision
    source, ids = ([7, 3, 9, 1] if "t5" in family else None), [0, 5, 11, 3, 8, 2, 30]
    truth = open_session(exact, "eager", source).score(ids, 0)
    eager = (open_session(copy.deepcopy(half), "eager", source).score(ids, 0) - truth).abs().max()
    lean = (open_session(half, "lean", source).score(ids, 0) - truth).abs().max()
    assert lean < 4 * eager


def test_assisted_generation_always_drafts_gamma_tokens():
    out = decode(
        Assisted(draft="draft", model="target", gamma=4),
        peers(),
        GREEDY,
        GenerationLimits(eos=frozenset(), max_new_tokens=24),
    )
    committed = 0
    for round_ in out.rounds:
        assert round_.drafted == min(4, 23 - committed), "fewer only where the length limit leaves room for fewer"
        committed += len(round_.tokens)


def test_assisted_generation_of_a_model_by_itself_is_rejected():
    models = Models(pair_of(seeds=(1, 1)), PROMPT)
    with pytest.raises(ValueError, match="needs two models"):
        next(Assisted(draft="draft", model="target", gamma=2).rounds(models, GREEDY, StopCriteria(frozenset(), 12)))


@pytest.mark.parametrize("peer", [Generate(model="target"), Assisted(draft="draft", model="target", gamma=2)], ids=str)
def test_transformers_methods_apply_top_k_and_top_p(peer):
    """At T = 1.3 with the four likeliest, of which three make up 0.9 here or there: nothing else is ever drawn."""
    oracle, pair = open_session(random_model("llama", 2)), pair_of()
    for seed in range(60):
        sampler = Sampler(1.3, top_k=4, top_p=0.9, generator=torch.Generator().manual_seed(seed))
        tokens = decode(peer, Models(pair, PROMPT), sampler, GenerationLimits(eos=frozenset(), max_new_tokens=3)).tokens
        ids = PROMPT + tokens
        distributions = sampler.probs(oracle.score(ids, len(PROMPT) - 1)[:-1])
        assert all(float(probs[token]) > 0 for probs, token in zip(distributions, tokens, strict=True))


@pytest.mark.slow
def test_assisted_generation_samples_from_the_target():
    """Second tokens of 500 draws: by Hoeffding their frequency of one token is off by 0.1 with odds below 1e-4."""
    oracle, sampler = open_session(random_model("llama", 2)), Sampler(temperature=0.7)
    first = sampler.probs(oracle.score(PROMPT, len(PROMPT) - 1))[0]
    second = torch.stack([sampler.probs(oracle.score([*PROMPT, i], len(PROMPT)))[0] for i in range(40)])
    exact = first @ second
    best, seen, models = int(exact.argmax()), 0, peers()
    for seed in range(500):
        drawn = Sampler(temperature=0.7, generator=torch.Generator().manual_seed(seed))
        tokens = decode(
            Assisted(draft="draft", model="target", gamma=2), models, drawn, GenerationLimits(frozenset(), 3)
        ).tokens
        seen += tokens[1] == best
    assert abs(seen / 500 - float(exact[best])) < 0.1


@pytest.mark.parametrize("rows", [1, 2])
def test_attention_in_bfloat16_is_that_in_float32(rows):
    """Up to rounding, for one query too, which is computed twice."""
    q, keys, values = torch.randn(rows, 4, 16), torch.randn(1, 4, 9, 16), torch.randn(1, 4, 9, 16)
    exact = cache.attention(q, keys, values, None, 0.25)
    found = cache.attention(q.bfloat16(), keys.bfloat16(), values.bfloat16(), None, 0.25)
    assert found.shape == (rows, 64)
    assert torch.allclose(found.float(), exact, atol=0.05)
