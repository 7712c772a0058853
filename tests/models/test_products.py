"""Ways to store the matrices of linear layers: the same logits, and transformers' own weights whenever they are used."""

import copy
import random
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoConfig

from specbench.kernels import kernels
from specbench.models import products
from specbench.models.cached_session import CachedSession
from specbench.models.checkpoints import Checkpoint, load_model
from specbench.models.heads import Eagle1Head, EagleHead
from specbench.models.lean import LeanModelRunner, network_of
from specbench.models.model_runner import Feed
from specbench.models.products import Panels, Plain, expert_products, product_of
from specbench.models.transformers_session import EagerModelRunner
from tests.fixtures.worlds import FAMILIES, random_model

CPU = torch.device("cpu")
needs_kernels = pytest.mark.skipif(kernels() is None, reason="no kernels on this machine: needs g++ and AVX2")


@pytest.fixture(params=["kernels", "torch"])
def stored(request, monkeypatch):
    """Multiply with the kernels of this machine, or with torch's."""
    if request.param == "torch":
        monkeypatch.setattr(products, "kernels", lambda: None)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_those_of_transformers_after_random_cuts(family, stored):
    """Blocks of one to six tokens, each after a prefix of what was read before."""
    model = random_model(family, 4)
    source = [3, 9, 4] if model.config.is_encoder_decoder else None
    eager = CachedSession(EagerModelRunner(copy.deepcopy(model), 40, source))
    lean = CachedSession(LeanModelRunner(network_of(model), 40, source))
    draw = random.Random(family)
    ids = [5, 11, 3]
    for _ in range(12):
        ids = ids[: draw.randint(1, len(ids))] + [draw.randrange(40) for _ in range(draw.randint(1, 6))]
        start = draw.randrange(len(ids))
        assert torch.allclose(lean.score(ids, start), eager.score(ids, start), atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_runs_with_its_own_weights_afterwards(family, stored):
    """Up to rounding: torch's products order their sums by the strides and the alignment of a matrix on some processors."""
    model = random_model(family, 4)
    whole = copy.deepcopy(model)
    network_of(model)
    tokens = torch.tensor([[5, 11, 3, 8]])
    more = {"decoder_input_ids": tokens} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        assert torch.allclose(model(tokens, **more).logits, whole(tokens, **more).logits, atol=2e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_state_dict_holds_all_weights(family, stored):
    model = random_model(family, 4)
    before = copy.deepcopy(model.state_dict())
    network_of(model)
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], weight) for name, weight in after.items())


@needs_kernels
def test_matrices_are_held_once():
    """All layers of Llama but the embedding, which is read by index, are released when they are stored in panels."""
    model = random_model("llama", 1)
    network_of(model)
    rows, width = model.get_input_embeddings().weight.shape
    held = sum(weight.numel() for weight in model.parameters() if weight.ndim == 2)
    assert held == rows * width


@needs_kernels
def test_a_released_layer_is_stored_in_panels_again():
    layer, x = nn.Linear(32, 48).requires_grad_(False), torch.randn(3, 32)
    whole = layer(x)
    for _ in range(2):
        product = product_of([layer])
        assert isinstance(product, Panels)
        assert torch.allclose(product(x), whole, atol=1e-5)


@needs_kernels
def test_a_copy_of_a_released_layer_says_that_it_has_no_weights():
    layer = nn.Linear(32, 48).requires_grad_(False)
    product_of([layer])
    with pytest.raises(RuntimeError, match="copied while its weights were packed"):
        copy.deepcopy(layer)(torch.randn(3, 32))


def test_an_embedding_that_is_the_lm_head_is_never_released():
    model = random_model("llama-scaled", 1)
    assert model.config.tie_word_embeddings
    before = model.get_input_embeddings().weight.clone()
    network_of(model)
    assert torch.equal(model.get_input_embeddings().weight, before)


def test_a_head_is_saved_after_drafting(stored, tmp_path):
    head = Eagle1Head.of(random_model("llama", 1).config).eval().requires_grad_(False)
    before = copy.deepcopy(head.state_dict())
    tokens, features = torch.tensor([4, 5, 6]), torch.randn(3, 32)
    cache = head.layers.new_cache()
    cache.begin(Feed(tokens, 0))
    with torch.inference_mode():
        _, drafted = head.advance(tokens, features, cache)
    head.save(tmp_path)
    again = EagleHead.read(tmp_path)
    assert all(torch.equal(before[name], w) for name, w in again.state_dict().items() if "embed_tokens" not in name)
    with torch.no_grad():
        assert torch.allclose(head(tokens[None], features[None])[0], drafted, atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 5, 9])
def test_products_and_sums_equal_those_of_the_layers(rows, bias, stored):
    layers = [torch.nn.Linear(24, 16, bias=bias), torch.nn.Linear(24, 8, bias=bias)]
    x, residual = torch.randn(rows, 24), torch.randn(rows, 24)
    with torch.no_grad():
        expected = torch.cat([layer(x) for layer in layers], -1)
        product = product_of(layers)
        assert torch.allclose(product(x), expected, atol=1e-5)
        assert torch.allclose(product.added(residual.clone(), x), residual + expected, atol=1e-5)


def test_bfloat16_products_equal_those_of_the_layer(stored):
    layer = torch.nn.Linear(64, 32, dtype=torch.bfloat16)
    for rows in (1, 3, 6):
        x = torch.randn(rows, 64).bfloat16()
        for residual in (torch.randn(rows, 32).bfloat16(), torch.randn(rows, 32)):  # T5's residual is float32
            with torch.no_grad():
                expected = residual + copy.deepcopy(layer)(x)
                assert torch.allclose(product_of([copy.deepcopy(layer)]).added(residual, x), expected, atol=0.05)


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_kernels_multiply_matrices_of_their_dtypes_on_a_cpu(dtype):
    product = product_of([nn.Linear(8, 8, dtype=dtype).requires_grad_(False)])
    assert isinstance(product, Plain if dtype == torch.float64 else Panels)


@pytest.mark.parametrize("rows", [1, 6])
def test_gradients_pass_through_every_layout(rows, stored):
    """A head is trained through its base's LM head."""
    layer, x = nn.Linear(32, 48).requires_grad_(False), torch.randn(rows, 32, requires_grad=True)
    weight = torch.randn(rows, 48)
    (expected,) = torch.autograd.grad((layer(x) * weight).sum(), x)
    (found,) = torch.autograd.grad((product_of([layer])(x) * weight).sum(), x)
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_file_of_the_weights_is_unmapped(family, dtype, tmp_path):
    random_model(family, 4).to(dtype).save_pretrained(tmp_path)
    model = load_model(Checkpoint("target", str(tmp_path), AutoConfig.from_pretrained(tmp_path)))
    network = network_of(model)
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line]
    assert mapped == []
    assert network.model is model


def test_experts_have_a_product_each(stored):
    experts = nn.Module()
    experts.up = nn.Parameter(torch.randn(3, 32, 16), requires_grad=False)
    whole, x = experts.up.data.clone(), torch.randn(5, 16)
    for _ in range(2):  # the second time, the weights are unpacked first
        (up,) = expert_products(experts, ("up",))
        assert len(up) == 3
        assert torch.allclose(up[1](x), x @ whole[1].t(), atol=1e-4)
    assert torch.equal(experts.state_dict()["up"], whole)
