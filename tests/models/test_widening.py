"""Widened models: the cost of another architecture, and every bit of their own logits."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specbench import kernels
from specbench.config.construct import construct
from specbench.config.cost import Cost
from specbench.config.pair import PACKAGE, ModelSpec, Pair, folder
from specbench.config.presets import preset
from specbench.config.quantization_kind import QuantizationKind
from specbench.errors import ConfigError
from specbench.models.cached_session import CachedSession
from specbench.models.checkpoints import Checkpoint, load_model, read_config
from specbench.models.heads import BlockHead, DraftHead
from specbench.models.heads.head import kind_named
from specbench.models.heads.head_size import size_of_head
from specbench.models.heads.resolve_heads import load_head, resolve_heads
from specbench.models.heads.widened_head import read_weights, wanted_bytes, widen_head
from specbench.models.lean import LeanModelRunner, network_of, small_config
from specbench.models.loaded_pair import LoadedPair
from specbench.models.loader import load
from specbench.models.model_runner import Feed
from specbench.models.quantization import quantize
from specbench.models.resolve_models import Execution, resolve_models
from specbench.models.resolved_model import ResolvedModel, size_of
from specbench.models.simulated import random_model
from specbench.models.transformers_session import EagerModelRunner
from specbench.models.widening import STEP, neurons_of, widen, widened, with_neurons

DRAFT = str(PACKAGE / "tiny/models/draft")
CPU = torch.device("cpu")
IDS = [5 + i * 37 % 90 for i in range(24)]
needs_kernels = pytest.mark.skipif(kernels.kernels() is None, reason="no kernels on this machine")


def logits_of(model, source=None, eager=False):
    model_runner = EagerModelRunner if eager else LeanModelRunner
    opened = model if eager else network_of(model)
    session = CachedSession(model_runner(opened, model.get_output_embeddings().out_features, source))
    return torch.cat([torch.as_tensor(session.score(IDS, 3)), torch.as_tensor(session.score([*IDS, 7], len(IDS)))])


def bundled(dtype, wide, kind=""):
    config = read_config(DRAFT)
    model = load_model(Checkpoint("draft", DRAFT, config), dtype).eval().requires_grad_(False)
    if wide:
        widen(model, with_neurons(config, 5 * STEP))
    if kind:
        quantize(model, QuantizationKind.parse(kind))
    return model


@needs_kernels
@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        (torch.float32, ""),
        (torch.bfloat16, ""),
        *((torch.float32, kind) for kind in ("int8", "int4", "int8-a8", "int4-a8")),
    ],
)
def test_a_widened_model_has_the_same_bits_on_the_kernels(dtype, kind):
    if kind:
        pytest.importorskip("torchao")
    narrow, wide = (logits_of(bundled(dtype, wide, kind)) for wide in (False, True))
    assert torch.equal(narrow, wide)


@pytest.mark.parametrize("family", ["llama", "phi3", "gpt2", "gpt-neo", "gpt-neox", "opt", "gemma3", "olmo2", "t5"])
def test_every_family_computes_the_same_after_widening(family):
    configs = [small_config(family, 100, 64) for _ in range(2)]
    models = [random_model(config, "float32", CPU).eval().requires_grad_(False) for config in configs]
    widen(models[1], with_neurons(configs[1], STEP))
    assert neurons_of(models[1].config) == neurons_of(configs[0]) + STEP
    config = configs[0]
    source = IDS if config.is_encoder_decoder else None
    narrow, wide = (logits_of(model, source, eager=True) for model in models)
    torch.testing.assert_close(narrow, wide, rtol=1e-5, atol=1e-5)


def test_new_neurons_do_not_depend_on_the_random_state():
    first = bundled(torch.float32, wide=True)
    torch.manual_seed(1234)
    second = bundled(torch.float32, wide=True)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize("cost", [Cost(parameters="5M"), Cost(like="llama-2-7b", scale=0.001)])
def test_a_cost_is_the_bytes_that_a_token_reads(cost):
    config = read_config(DRAFT)
    wanted = 5e6 * 4 if cost.parameters else 0.001 * 6.607e9 * 4  # Llama-2-7B without its embedding
    assert size_of(widened(config, cost, "float32"), "float32").forward_bytes == pytest.approx(wanted, rel=0.05)


def test_a_pair_widens_its_models_and_records_the_cost():
    spec = ModelSpec(path=DRAFT, cost=Cost(parameters="5M"))
    pair = Pair(models={"target": spec})
    models = resolve_models(pair, ("target",), Path(), Execution(CPU))
    narrow = resolve_models(Pair(models={"target": replace(spec, cost=None)}), ("target",), Path(), Execution(CPU))
    assert models["target"].source.cost == spec.cost
    assert models["target"].source.checksum == narrow["target"].source.checksum
    assert models["target"].identity != narrow["target"].identity
    load(models, Path(), CPU)
    wide = load(models, Path(), CPU).models["target"].transformers()  # loading changes no config
    assert neurons_of(wide.config) == neurons_of(models["target"].config) > neurons_of(models["target"].narrow)


def tiny(cost: Cost | None) -> tuple[dict[str, ResolvedModel], LoadedPair, Pair]:
    """Return the bundled target at a cost, with its heads."""
    pair = construct(Pair, preset("pair", "tiny").table, "tiny")
    pair = replace(pair, models={**pair.models, "target": replace(pair.models["target"], cost=cost)})
    models = resolve_models(pair, ("target",), Path(), Execution(CPU))
    return models, load(models, Path(), CPU), pair


def head_of(name: str, cost: Cost | None) -> DraftHead:
    models, loaded, pair = tiny(cost)
    return load_head(name, resolve_heads(pair, (name,), Path())[name], models, Path(), loaded.models["target"])


def drafted(head: DraftHead) -> torch.Tensor:
    """Return what the base's LM head reads of a draft from random states."""
    with torch.no_grad():
        tokens, states = head.made_up(4)
        cache = head.new_cache()
        cache.begin(Feed(tokens, 0, states=states))
        if not isinstance(head, BlockHead):
            return head.advance(tokens, head.fuse(states), cache)[0]
        head.store(states, cache)
        rows = head.block.length + (not head.block.from_anchor)
        cache.begin(Feed(tokens[:1].expand(rows), len(tokens)))
        return head.forward_block(tokens[-1:], rows, cache)


@needs_kernels
@pytest.mark.parametrize("kind", ["eagle", "eagle3", "dflash", "dspark"])
def test_heads_of_a_widened_base_draft_the_same_bits_at_the_cost_of_a_real_head(kind):
    cost = Cost(like="llama-2-7b", scale=0.003)
    narrow, wide = head_of(kind, None), head_of(kind, cost)
    assert torch.equal(drafted(narrow), drafted(wide))
    models, _, pair = tiny(cost)
    base, head = models["target"], kind_named(kind).read(folder(pair.heads[kind].path, Path()))
    widen_head(head, base)
    wanted = wanted_bytes(kind, base)
    assert read_weights(head, base.config) * 4 + base.size.lm_head_bytes == pytest.approx(wanted, rel=0.1)
    assert size_of_head(kind, "target", base).forward_bytes == pytest.approx(wanted, rel=0.01)
    assert wanted / base.size.forward_bytes < 0.2, "a head has one layer of many"


def test_a_head_of_a_base_at_a_number_of_parameters_grows_as_its_base():
    base = tiny(Cost(parameters="10M"))[0]["target"]
    own = size_of_head("eagle", "target", tiny(None)[0]["target"]).forward_bytes
    assert size_of_head("eagle", "target", base).forward_bytes == pytest.approx(own * 10.0 / 3.3, rel=0.02)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "needs `like` or `parameters`"),
        ({"like": "llama-2-7b", "parameters": "80M"}, "not both"),
        ({"like": "llama-2-7b", "scale": 0.0}, "scale = 0.0"),
        ({"parameters": "80M", "scale": 0.5}, "scale = 0.5 goes with `like`"),
        ({"like": "llama-2-7b", "scale": float("nan")}, "scale = nan"),
        ({"parameters": "many"}, "parameters = 'many'"),
    ],
)
def test_an_impossible_cost_is_an_error(table, message):
    with pytest.raises(ConfigError, match=message):
        construct(Cost, table, "cost")


def test_a_cost_that_cannot_be_reached_is_an_error():
    config = read_config(DRAFT)
    with pytest.raises(ConfigError, match="did you mean 'llama-2-7b'"):
        widened(config, Cost(like="llama2-7b"), "float32")
    with pytest.raises(ConfigError, match="but the model reads"):
        widened(config, Cost(parameters="10K"), "float32")
    with pytest.raises(ConfigError, match="mixture of experts"):
        widened(small_config("mixtral", 100, 64), Cost(parameters="80M"), "float32")
