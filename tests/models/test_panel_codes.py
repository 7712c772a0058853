"""Codes in panels: with the input as it is and rounded to 8 bits, for every form of scales and every set of instructions."""

import copy

import pytest
import torch
from torch import nn

from specbench.config.quantization_kind import QuantizationKind
from specbench.kernels import all_levels, kernels
from specbench.models import panel_codes
from specbench.models.panel_codes import SCALES, Codes, PanelCodes
from specbench.models.quantization import Rebuilt, RoundedInputs, rounded_rows

pytestmark = pytest.mark.skipif(kernels() is None, reason="no kernels on this machine: needs g++ and AVX2")
SHAPES = [(1, 32, 32), (33, 64, 32), (200, 192, 64), (70, 384, 128)]  # outputs, inputs, group


def codes_of(bits: int, shape: tuple[int, int, int], scales: torch.dtype = torch.float32, zeros: bool = True) -> Codes:
    """Return random codes, the lowest and the highest one among them."""
    outputs, inputs, group = shape
    torch.manual_seed(outputs + inputs)
    low, high, dtype = (-128, 128, torch.int8) if bits == 8 else (0, 16, torch.uint8)
    codes = torch.randint(low, high, (outputs, inputs), dtype=dtype)
    codes[:, 0], codes[:, 1] = low, high - 1
    scale = torch.rand(outputs, inputs // group).to(scales)
    return Codes(bits, codes, scale, torch.randn(outputs, inputs // group).to(scales) if zeros else None)


def layer_of(weights: Codes, block: int, monkeypatch, level=None) -> PanelCodes:
    """Return a layer for a set of instructions."""
    found = level or kernels()
    monkeypatch.setattr(panel_codes, "kernels", lambda: found)
    outputs, inputs = weights.codes.shape
    with torch.no_grad():
        layer = nn.Linear(inputs, outputs)
    return PanelCodes(layer.requires_grad_(False), found.width, weights, block)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [True, False], ids=["zeros", "symmetric"])
@pytest.mark.parametrize("is_rounded", [False, True], ids=["float input", "rounded input"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_outputs_are_those_of_the_dequantized_matrix_in_float64(bits, zeros, is_rounded, shape, monkeypatch):
    weights, x = codes_of(bits, shape, zeros=zeros), torch.randn(9, shape[1])
    block = shape[2] if is_rounded else 0
    layer = layer_of(weights, block, monkeypatch)
    read = rounded_rows(x, block) if block else x
    exact = read.double() @ weights.matrix().t() + layer.bias.double()
    sizes = read.double().abs() @ weights.matrix().abs().t() + layer.bias.double().abs()
    if bits == 4 and zeros:  # the parts cancel
        sizes = sizes + read.double().abs().sum(-1, keepdim=True) * 16.0
    assert ((layer(x).double() - exact).abs() <= 2.0**-22 * sizes.clamp_min(1.0) * shape[1] ** 0.5).all()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("block", [0, 32])
def test_a_row_has_the_same_bits_in_every_block_of_rows_and_on_every_level(bits, block, monkeypatch):
    weights, x = codes_of(bits, (260, 96, 32)), 3.0 * torch.randn(19, 96)
    found = []
    for level in all_levels():
        layer = layer_of(weights, block, monkeypatch, level)
        layer.bias.zero_()
        alone = torch.cat([layer(row[None]) for row in x])
        for n in range(1, len(x) + 1):
            assert torch.equal(layer(x[:n]), alone[:n]), (level.name, n)
        found.append(alone)
    assert all(torch.equal(found[0], other) for other in found)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("scales", SCALES, ids=str)
@pytest.mark.parametrize("block", [0, 64])
def test_scales_are_used_in_their_precision(bits, scales, block, monkeypatch):
    weights = codes_of(bits, (40, 128, 64), scales)
    widened = Codes(bits, weights.codes, weights.scale.float(), weights.zero.float())
    x = torch.randn(3, 128)
    one, other = (layer_of(each, block, monkeypatch) for each in (weights, widened))
    one.bias.zero_(), other.bias.zero_()
    assert torch.equal(one(x), other(x))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, 1e-42, 3e38])
def test_unusual_inputs_of_a_rounded_row_stay_in_their_row(value, monkeypatch):
    weights, x = codes_of(4, (33, 64, 32), zeros=False), torch.randn(3, 64)
    layer, plain = layer_of(weights, 32, monkeypatch), x.clone()
    x[1, 5] = value
    outputs = layer(x)
    assert torch.equal(outputs[[0, 2]], layer(plain)[[0, 2]])
    assert bool(outputs[1].isfinite().all()) == (value in (0.0, 1e-42)) or value == 3e38
    zero = layer(torch.zeros(1, 64))
    assert torch.equal(zero[0], layer.bias)


def test_rounded_inputs_without_kernels_give_the_same_outputs(monkeypatch):
    weights, x = codes_of(8, (48, 96, 32)), torch.randn(5, 96)
    layer = layer_of(weights, 32, monkeypatch)
    source = nn.Linear(96, 48).requires_grad_(False)
    source.bias = layer.bias
    other = RoundedInputs(source, Rebuilt(source, weights), 32)
    assert torch.allclose(other(x), layer(x), rtol=1e-5, atol=1e-3)
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))


def test_blocks_of_inputs_never_reach_over_a_group():
    for kind in ("int4-a8", "int8-a8", "int4-channel-a8"):
        assert [QuantizationKind.parse(kind).block_of(inputs) for inputs in (256, 192, 96, 40)] == [128, 64, 32, 0]
    assert QuantizationKind.parse("int8-g64-a8").block_of(256) == 64
    assert QuantizationKind("int4").block_of(256) == 0


def test_a_block_of_tiny_inputs_is_rounded_to_zeros():
    x = torch.full((1, 64), 1.0)
    x[:, 32:] = 1e-38
    assert rounded_rows(x, 32)[0, 32:].eq(0).all()
    found = kernels()
    layer, codes = nn.Linear(64, 32, bias=False), torch.full((32, 64), 3, dtype=torch.int8)
    product = PanelCodes(layer, found.width, Codes(8, codes, torch.full((32, 1), 1e30)), 32)
    torch.testing.assert_close(product(x), torch.full((1, 32), 96e30))
