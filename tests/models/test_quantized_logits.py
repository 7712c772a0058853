"""Logits of models with quantized weights against the dequantized weights in float64, for every kind of quantization.

ERRORS has bounds of the largest error, relative to the largest logit. docs/pairs.md prints them. The weights and tokens are
fixed, and the kernels give the same bits on every processor, so their errors change only with the kernels. Torch's products
differ between processors: an input between two codes may take the other code there, which is a step of 8 bits.
"""

import copy
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from specbench.config.quantization_kind import QuantizationKind
from specbench.kernels import all_levels, kernels
from specbench.machine.memory import PAGE
from specbench.models import panel_codes, products
from specbench.models.cached_session import CachedSession
from specbench.models.lean import LeanModelRunner, network_of
from specbench.models.panel_codes import PanelCodes, QuantizedLinear
from specbench.models.quantization import codes_of, layers, quantize, quantized, rounded_rows

pytestmark = [
    pytest.mark.skipif(find_spec("torchao") is None, reason="needs torchao: specbench[quantization]"),
    pytest.mark.skipif(kernels() is None, reason="no kernels on this machine: needs g++ and AVX2"),
]
VOCABULARY = 61
IDS = [5, 11, 3, 8, 2, 9, 30, 1, 17, 4, 6, 44]
GROUPS = ("", "-channel", "-g32", "-g64", "-g128")
PLAIN = [f"{bits}{group}{sign}" for bits in ("int4", "int8") for group in GROUPS for sign in ("-sym", "-asym")]
KINDS = sorted({str(QuantizationKind.parse(f"{plain}{end}")) for plain in PLAIN for end in ("", "-a8")})
FEW = ("int4", "int4-channel-sym", "int4-g64-a8", "int8", "int8-g32-asym", "int8-a8")
ERRORS = {  # weights, model's dtype -> the kernels, torch's products
    ("full", torch.float32): (3e-6, 3e-6),
    ("full", torch.bfloat16): (2e-2, 6e-2),
    ("integers", torch.float32): (3e-6, 3e-2),
    ("integers", torch.bfloat16): (2e-2, 6e-2),
    ("integers, rounded inputs", torch.float32): (2e-6, 3e-2),
    ("integers, rounded inputs", torch.bfloat16): (6e-2, 8e-2),
}
LAYER = 3e-6  # of a layer by the kernels, and by torch where inputs are rounded: the same inputs have the same codes
LAYER_OF_TORCH = 3e-2


def bounds_of(kind: QuantizationKind, dtype: torch.dtype) -> tuple[float, float]:
    weights = "full" if not kind else "integers, rounded inputs" if kind.rounds_inputs else "integers"
    return ERRORS[weights, dtype]


def kind_of(text: str) -> QuantizationKind:
    return QuantizationKind.parse(text)


def llama(dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A random Llama, some layers of which have one group of 128 inputs, others two."""
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0.0, 0.15, generator=generator)
    return model.to(dtype).eval().requires_grad_(False)


class Dequantized(nn.Module):
    """A layer with the matrix that the codes of a kind stand for, in float64."""

    def __init__(self, layer: nn.Linear, kind: QuantizationKind) -> None:
        super().__init__()
        self.matrix = codes_of(layer.weight.data, kind).matrix()  # (out, in)
        self.block = kind.block_of(layer.in_features)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        read = rounded_rows(rows, self.block) if self.block else rows
        return (read.double() @ self.matrix.t()).view(*x.shape[:-1], -1)


def exact_logits(model: PreTrainedModel, kind: QuantizationKind) -> Tensor:
    """Logits (n, V) of transformers' modules in float64 with dequantized weights."""
    model = copy.deepcopy(model)
    doubles = {name: Dequantized(layer, kind) for name, layer in (layers(model, kind).items() if kind else ())}
    for name, double in doubles.items():
        model.set_submodule(name, double)
    return model.double()(torch.tensor([IDS])).logits[0]


def session_of(model: PreTrainedModel, kind: QuantizationKind) -> CachedSession:
    """A session of a quantized copy."""
    model = copy.deepcopy(model)
    if kind:
        quantize(model, kind)
    return CachedSession(LeanModelRunner(network_of(model), VOCABULARY))


def logits(model: PreTrainedModel, kind: QuantizationKind) -> Tensor:
    return session_of(model, kind).score(IDS, 0)


def error(found: Tensor, exact: Tensor) -> float:
    """The largest error relative to the largest logit."""
    return float((found.double() - exact).abs().max() / exact.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("text", ["", *KINDS])
def test_logits_are_those_of_dequantized_weights_up_to_rounding(text, dtype, monkeypatch):
    """By the kernels and by torch's products, which hold the same codes and scales."""
    kind, model = kind_of(text), llama(dtype)
    exact, (of_kernels, of_torch) = exact_logits(model, kind), bounds_of(kind, dtype)
    assert error(logits(model, kind), exact) < of_kernels
    monkeypatch.setattr(products, "kernels", lambda: None)
    assert error(logits(model, kind), exact) < of_torch


@pytest.mark.parametrize("text", ["int4-g32", "int8-g32"])
def test_a_wrong_scale_of_one_group_is_more_than_rounding(text, monkeypatch):
    """What the errors above would miss otherwise."""
    kind, model = kind_of(text), llama()
    exact = exact_logits(model, kind)
    quantize(model, kind)
    next(module for module in model.modules() if isinstance(module, PanelCodes)).scale[0, 0, 0] *= 1.01
    found = CachedSession(LeanModelRunner(network_of(model), VOCABULARY)).score(IDS, 0)
    assert error(found, exact) > 3 * bounds_of(kind, torch.float32)[0]


@pytest.mark.parametrize("text", ["", *FEW])
def test_a_token_has_the_same_logits_in_every_block_and_with_two_threads(text):
    kind, model, before = kind_of(text), llama(), torch.get_num_threads()
    single = session_of(model, kind)
    alone = torch.cat([single.score(IDS[: n + 1], n) for n in range(len(IDS))])  # (n, V)
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            session = session_of(model, kind)
            session.score(IDS[:3], 0)
            for size in range(1, 10):
                assert torch.equal(session.score(IDS[: 3 + size], 3), alone[3 : 3 + size]), (threads, size)
                session.score(IDS[:2], 1)  # cut back
                session.score(IDS[:3], 2)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("text", ["", *FEW])
def test_logits_have_the_same_bits_on_every_set_of_instructions(text, monkeypatch):
    found = []
    for level in all_levels():
        for module in (products, panel_codes):
            monkeypatch.setattr(module, "kernels", lambda level=level: level)
        found.append(logits(llama(), kind_of(text)))
    assert all(torch.equal(found[0], other) for other in found)


@pytest.mark.parametrize("text", FEW)
def test_a_layer_of_several_huge_pages_has_the_same_outputs_without_them(text, monkeypatch):
    torch.manual_seed(0)
    layer, x, moved = nn.Linear(2048, 4096).requires_grad_(False), torch.randn(3, 2048), list[int]()
    expected = quantized(layer, kind_of(text))(x)
    monkeypatch.setattr(products, "use_huge_pages", lambda address, size: moved.append(size))
    assert torch.equal(quantized(layer, kind_of(text))(x), expected)
    assert (codes := 2048 * 4096 * kind_of(text).bits // 8) in moved and codes >= 2 * PAGE


# Outputs and inputs: one output of one group, a panel and one output more, one group of the largest size, several
SHAPES = [(1, 32), (33, 64), (5, 128), (70, 384)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("with_kernels", [True, False], ids=["kernels", "torch"])
def test_a_layer_of_an_odd_shape_multiplies_with_its_dequantized_matrix(shape, with_kernels, monkeypatch):
    outputs, inputs = shape
    torch.manual_seed(outputs)
    layer, x = nn.Linear(inputs, outputs).requires_grad_(False), torch.randn(9, inputs)
    if not with_kernels:
        monkeypatch.setattr(products, "kernels", lambda: None)
    for text in KINDS:
        kind = kind_of(text)
        if not kind.group_of(inputs):
            continue
        double = quantized(layer, kind)
        exact = Dequantized(layer, kind)(x) + layer.bias.double()
        assert error(double(x), exact) < (LAYER if with_kernels or kind.rounds_inputs else LAYER_OF_TORCH), text


@pytest.mark.parametrize("inputs", [20, 21, 48])
@pytest.mark.parametrize("with_kernels", [True, False], ids=["kernels", "torch"])
def test_channels_of_any_number_of_inputs_are_quantized(inputs, with_kernels, monkeypatch):
    layer, x = nn.Linear(inputs, 7).requires_grad_(False), torch.randn(3, inputs)
    if not with_kernels:
        monkeypatch.setattr(products, "kernels", lambda: None)
    for text in ("int4-channel", "int4-channel-sym", "int8", "int8-asym"):
        exact = Dequantized(layer, kind_of(text))(x) + layer.bias.double()
        assert error(quantized(layer, kind_of(text))(x), exact) < LAYER


@pytest.mark.parametrize("text", ["int4", "int4-sym", "int8", "int8-asym", "int4-g32-a8", "int8-g32-asym-a8"])
def test_extreme_matrices_are_quantized_to_finite_numbers(text):
    """Zeros, equal weights, one large weight, weights of one sign, and inputs of zeros and of tiny numbers."""
    weight = torch.zeros(6, 64)
    weight[1], weight[2, 5], weight[3], weight[4], weight[5] = 0.3, 1e4, torch.rand(64), -torch.rand(64), 1e-20
    layer = nn.Linear(64, 6, bias=False).requires_grad_(False)
    layer.weight.data = weight
    matrix, step = codes_of(weight, kind_of(text)).matrix(), codes_of(weight, kind_of(text)).scale.double().amax(1)
    assert ((matrix - weight).abs().amax(1) <= 1.1 * step).all()
    for x in (torch.zeros(1, 64), torch.full((1, 64), 1e-41), torch.randn(1, 64)):
        double = quantized(layer, kind_of(text))
        assert isinstance(double, QuantizedLinear)
        assert torch.allclose(double(x).double(), Dequantized(layer, kind_of(text))(x), rtol=1e-5, atol=1e-3)
