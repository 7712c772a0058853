"""Widening: adds neurons to a model that raise its cost and leave its outputs unchanged.

Each MLP gets neurons whose input weights are random and whose output weights are zero. A forward reads and multiplies them,
and adds zeros. The kernels of `specbench/kernels/` add over inputs in order, and the new inputs come last, so every logit
keeps its bits. torch's own products, which encoders use on every engine, may sum in another order, which changes
logits by rounding.

The number of new neurons is a multiple of STEP, so that groups and blocks of quantized weights keep their borders.
"""

import copy
import math
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from specbench.config.cost import Cost
from specbench.config.presets import architecture_named
from specbench.errors import ConfigError
from specbench.models import simulated
from specbench.models.checkpoints import CONSTRUCTION, class_of
from specbench.models.experts import experts_in
from specbench.models.resolved_model import size_of

STEP = 128  # neurons; the largest group of quantized weights
KEYS = ("intermediate_size", "d_ff", "ffn_dim", "n_inner")  # of the neurons of an MLP, in configs
TOLERANCE = 0.15  # of the bytes of a cost


def widened(config: PreTrainedConfig, cost: Cost, dtype: str) -> PreTrainedConfig:
    """Return a config with enough neurons for a forward of one token to read the bytes of weights of a cost, within 15 %.

    A model that already reads these bytes within 15 % stays as it is.

    Raises:
        ConfigError: The model already reads over 15 % more, no number of neurons comes within 15 %, or the model has no
            MLP that can be widened.
    """
    wanted, own = bytes_of(cost, dtype), size_of(config, dtype).forward_bytes
    step = size_of(with_neurons(config, STEP), dtype).forward_bytes - own
    if own > wanted * (1.0 + TOLERANCE):
        raise ConfigError(
            f"cost: {cost.label} is {wanted / 1e6:.1f} MB of weights per token, but the model reads {own / 1e6:.1f} MB;"
            " help: a larger cost, or leave the key out"
        )
    if wanted <= own:
        return config
    steps = (wanted - own) / step
    if abs((own + round(steps) * step) / wanted - 1.0) > TOLERANCE:
        below, above = ((own + count * step) / 1e6 for count in (math.floor(steps), math.ceil(steps)))
        raise ConfigError(
            f"cost: {cost.label} is {wanted / 1e6:.1f} MB of weights per token; the model can have {below:.1f} or"
            f" {above:.1f} MB, since its MLPs grow by {STEP} neurons at a time"
        )
    return with_neurons(config, STEP * round(steps))


def bytes_of(cost: Cost, dtype: str) -> float:
    """Return the bytes of weights, in a precision, that a forward of one token reads at a cost."""
    if cost.like:
        table = architecture_named(cost.like)
        return cost.scale * float(size_of(simulated.configuration(table), dtype).forward_bytes)
    return cost.parameter_count * float(getattr(torch, dtype).itemsize)


def with_neurons(config: PreTrainedConfig, neurons: int) -> PreTrainedConfig:
    """Return a config with more neurons in each MLP. Raises ConfigError if none of its keys counts them."""
    wide = copy.deepcopy(config)
    setattr(_part(wide), _key(config), neurons_of(config) + neurons)
    return wide


def neurons_of(config: PreTrainedConfig) -> int:
    """Return the neurons of each MLP. Raises ConfigError if no key of the config counts them."""
    inner, key = _part(config), _key(config)
    return int(getattr(inner, key) or 4 * inner.hidden_size)  # GPT-2's default


def _part(config: Any) -> Any:
    """Return the part of a config that has the sizes of the decoder; encoder and decoder share those of an MLP."""
    return config if config.is_encoder_decoder else config.get_text_config(decoder=True)


def _key(config: PreTrainedConfig) -> str:
    inner = _part(config)
    if experts_in(config):
        raise ConfigError(
            f"cost: a mixture of experts ({config.model_type}) cannot be widened; help: leave the key out"
        )
    key = next((key for key in KEYS if hasattr(inner, key)), None)
    if key is None or isinstance(getattr(inner, key), list | tuple):
        raise ConfigError(
            f"cost: {config.model_type} has no MLP of one size that can be widened; help: leave the key out"
        )
    return key


@torch.no_grad()
def widen(model: PreTrainedModel, config: PreTrainedConfig) -> None:
    """Give a loaded model the neurons of a wider config, in place. New numbers depend on the names of the weights alone."""
    neurons = neurons_of(config) - neurons_of(model.config)
    with CONSTRUCTION, torch.device("meta"):
        shapes = {name: weight.shape for name, weight in class_of(config).from_config(config).named_parameters()}
    for name, module in model.named_modules():
        if (
            isinstance(module, nn.Linear | Conv1D)
            and shapes.get(f"{name}.weight", module.weight.shape) != module.weight.shape
        ):
            widen_layer(module, shapes[f"{name}.weight"], neurons, name)
    setattr(_part(model.config), _key(config), neurons_of(config))


def widen_layer(layer: Any, shape: Sequence[int], neurons: int, name: str) -> None:
    """Give a layer the shape of its weight in the widened model: new outputs are random, new inputs are multiplied by zero.

    A layer whose outputs grow by several times the neurons has several matrices in one, such as gate and up projection.
    """
    is_conv = isinstance(layer, Conv1D)  # (in, out)
    old: Tensor = layer.weight.data.t() if is_conv else layer.weight.data  # (out, in)
    outputs, inputs = reversed(shape) if is_conv else shape
    parts = max(1, (outputs - len(old)) // neurons)
    weight = _grown(old, outputs, inputs, parts, torch.Generator().manual_seed(zlib.crc32(name.encode())))
    layer.weight.data = weight.t().contiguous() if is_conv else weight
    if layer.bias is not None:
        layer.bias.data = _grown(layer.bias.data[:, None], outputs, 1, parts, None)[:, 0].contiguous()
    if is_conv:
        layer.nf, layer.nx = outputs, inputs
    else:
        layer.out_features, layer.in_features = outputs, inputs


def _grown(old: Tensor, outputs: int, inputs: int, parts: int, random: torch.Generator | None) -> Tensor:
    """Return a matrix (outputs, inputs) with the old one (out, in) in it; `parts` matrices that were concatenated grow each.

    New columns are zero. New rows are random, of the old matrix's standard deviation; zero without a generator.
    """
    new = old.new_zeros(outputs, inputs)
    for part, given in zip(new.chunk(parts), old.chunk(parts), strict=True):
        part[: len(given), : given.shape[1]] = given
        rows = part[len(given) :]
        if random is not None and len(rows):
            rows.copy_(torch.randn(rows.shape, generator=random) * float(old.float().std()))
    return new
