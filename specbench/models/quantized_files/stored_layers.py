"""Loading of quantized files: transformers loads the stored tensors, then each layer is decoded and its tensors released.

transformers makes the model, reads the files and ties weights. A quantizer of its interface puts a `StoredLayer` in place of
each layer that the files hold in quantized form, so no floating-point copy of such a layer exists at any time.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers.quantizers import HfQuantizer
from transformers.quantizers.auto import (
    AUTO_QUANTIZATION_CONFIG_MAPPING,
    register_quantization_config,
    register_quantizer,
)
from transformers.utils.quantization_config import QuantizationConfigMixin

from specbench.config.quantization_kind import BLOCKS
from specbench.data.hub import first_line
from specbench.errors import ConfigError, MissingAsset
from specbench.machine.memory import return_freed_memory
from specbench.models.panel_codes import Codes, PanelCodes, QuantizedLinear
from specbench.models.products import kernels_for
from specbench.models.quantization import Rebuilt, RoundedInputs
from specbench.models.quantized_files.quantized_embedding import QuantizedEmbedding
from specbench.models.quantized_files.stored_format import DamagedLayer, StoredFormat

QUANTIZER = "specbench"  # the name of our quantizer in transformers
BIAS, WEIGHT = "bias", "weight"


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file, without its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class StoredLayer(nn.Module):
    """The tensors of a linear layer or an embedding as the files hold them, until they are decoded."""

    def __init__(self, module: nn.Module, shape: tuple[int, int], tensors: Mapping[str, StoredTensor]) -> None:
        super().__init__()
        self.replaced, self.shape = type(module), shape  # (out, in), or (tokens, width)
        self.out_features, self.in_features = shape
        self.bias: nn.Parameter | None = getattr(module, BIAS, None)
        for name, tensor in tensors.items():
            empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
            if name == BIAS:  # some writers add biases of zeros to layers without one
                self.bias = self.bias if self.bias is not None else nn.Parameter(empty, requires_grad=False)
            elif name == WEIGHT:  # transformers ties parameters only
                self.register_parameter(name, nn.Parameter(empty, requires_grad=False))
            else:
                self.register_buffer(name, empty)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The stored tensors by name."""
        weights = {name: weight for name, weight in self.named_parameters() if name != BIAS}
        return {**weights, **dict(self.named_buffers())}


class StoredConfig(QuantizationConfigMixin):  # type: ignore[misc]  # transformers has no types
    """What our quantizer knows: the format, and for files that transformers does not read, their tensors."""

    def __init__(self, format: StoredFormat, tensors: Mapping[str, StoredTensor] | None = None) -> None:
        self.quant_method, self.format, self.tensors = QUANTIZER, format, tensors

    def __deepcopy__(self, memo: object) -> "StoredConfig":
        return self

    def to_dict(self) -> dict[str, Any]:
        return {"quant_method": QUANTIZER}


class StoredQuantizer(HfQuantizer):  # type: ignore[misc]  # untyped base
    """Puts a StoredLayer in place of each quantized layer before transformers loads the weights."""

    quantization_config: StoredConfig

    def __init__(self, quantization_config: StoredConfig, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        self.pre_quantized = True

    def _process_model_before_weight_loading(
        self, model: Any, checkpoint_files: Sequence[str] | None = None, **_: object
    ) -> None:
        config = self.quantization_config
        tensors = tensors_in(checkpoint_files or ()) if config.tensors is None else config.tensors
        if not replace_layers(model, config.format, tensors) and config.tensors is None:
            raise ValueError(f"no layer of the model has the tensor {' or '.join(config.format.markers)} in its files")

    def is_serializable(self, **_: object) -> bool:
        return False

    @property
    def is_trainable(self) -> bool:
        return False

    def get_new_dtype(self, converter: Any, param: Any, dtype: torch.dtype | None) -> None:
        """Keep every tensor as it is stored. Weights that are not quantized are converted after loading."""
        return


def register() -> None:
    """Register our quantizer with transformers, once."""
    if QUANTIZER not in AUTO_QUANTIZATION_CONFIG_MAPPING:
        register_quantization_config(QUANTIZER)(StoredConfig)
        register_quantizer(QUANTIZER)(StoredQuantizer)


def tensors_in(paths: Iterable[str]) -> dict[str, StoredTensor]:
    """Return the tensors of safetensors files by name. Raises ValueError for other files."""
    found: dict[str, StoredTensor] = {}
    for path in paths:
        if not str(path).endswith(".safetensors"):
            raise ValueError("quantized weights are read from safetensors only; help: convert the .bin files")
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 -- not a mapping
                part = file.get_slice(name)
                found[name] = StoredTensor(tuple(part.get_shape()), DTYPES.get(part.get_dtype(), torch.float32))
    return found


DTYPES = {
    "I32": torch.int32, "I64": torch.int64, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "F64": torch.float64,
    "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "BOOL": torch.bool, "U32": torch.uint32,
}  # fmt: skip


def replace_layers(model: Any, format: StoredFormat, tensors: Mapping[str, StoredTensor]) -> int:
    """Put a StoredLayer in place of each layer that has one of the format's marker tensors; return how many there are."""
    count = 0
    by_module: dict[str, dict[str, StoredTensor]] = {}
    for key, tensor in tensors.items():
        module, _, name = key.rpartition(".")
        by_module.setdefault(module, {})[name] = tensor
    for name, module in list(model.named_modules()):
        own = by_module.get(name, {})
        if not any(marker in own for marker in format.markers) or type(module) not in (nn.Linear, nn.Embedding):
            continue
        if format.bytes_of(name, tuple(module.weight.shape)) is None:
            continue
        model.set_submodule(name, StoredLayer(module, tuple(module.weight.shape), own))
        count += 1
    for target, source in (getattr(model, "_tied_weights_keys", None) or {}).items():
        _replace_tied(model, target.removesuffix(".weight"), source.removesuffix(".weight"))
    return count


def _replace_tied(model: Any, target: str, source: str) -> None:
    """Put a StoredLayer in place of a module whose weight is that of a replaced one."""
    if not getattr(model.config.get_text_config(decoder=True), "tie_word_embeddings", False):
        return
    try:
        other, module = model.get_submodule(source), model.get_submodule(target)
    except AttributeError:
        return
    if isinstance(other, StoredLayer) and type(module) is nn.Linear:
        stored = {name: StoredTensor(tuple(t.shape), t.dtype) for name, t in other.tensors.items()}
        model.set_submodule(target, StoredLayer(module, other.shape, stored))


@dataclass(frozen=True)
class Target:
    """What a decoded layer multiplies: inputs of a type on a device, rounded to 8 bits or not."""

    dtype: torch.dtype
    device: torch.device
    rounded: bool


def decode(model: Any, format: StoredFormat, target: Target) -> None:
    """Replace the stored layers of a loaded model by quantized ones, one at a time, and convert other weights.

    Afterward the model is one without a quantizer of transformers. Raises MissingAsset, with the layer's name, if its tensors
    do not fit.
    """
    model.hf_quantizer.remove_quantization_config(model)
    for weight in model.parameters():
        if weight.dtype != target.dtype and weight.dtype.is_floating_point:
            weight.data = weight.data.to(target.dtype)
    tables: dict[int, tuple[Tensor, QuantizedLinear]] = {}  # embeddings, by the id of a tensor that is kept with them
    for name in [name for name, each in model.named_modules() if isinstance(each, StoredLayer)]:
        layer = model.get_submodule(name)
        first = next(iter(layer.tensors.values()))
        found = tables.get(id(first))
        form = found[1] if found else _decoded(name, layer, format, target)
        if layer.replaced is nn.Embedding:
            tables[id(first)] = first, form
            model.set_submodule(name, QuantizedEmbedding(form, layer.shape, target.dtype))
        else:
            model.set_submodule(name, form)
        del layer, first, found, form
        return_freed_memory()  # else the temporary tensors of all layers add up to a third of the model


def _decoded(name: str, layer: StoredLayer, format: StoredFormat, target: Target) -> QuantizedLinear:
    """Return the quantized form of a stored layer. Raises MissingAsset and ConfigError with its name."""
    try:
        decoded = format.decoded(name, layer.tensors, layer.shape)
    except (DamagedLayer, RuntimeError, IndexError) as error:  # tensors of impossible shapes or types
        raise MissingAsset(f"the layer {name} is damaged: {first_line(error)}") from None
    group = decoded.codes.codes.shape[1] // decoded.codes.scale.shape[1]
    if target.rounded and group % BLOCKS[-1]:
        raise ConfigError(
            f"quantization = 'a8' rounds inputs in blocks of {BLOCKS[-1]}, and the layer {name} has groups of {group};"
            " leave the key out"
        )
    form = form_of(layer, decoded.codes, target)
    return form if decoded.order is None else ReorderedInputs(layer, form, decoded.order.to(target.device))


def form_of(layer: Any, weights: Codes, target: Target) -> QuantizedLinear:
    """Return the quantized layer of these codes: for the kernels of this machine, or for torch without them."""
    group = weights.codes.shape[1] // weights.scale.shape[1]
    block = next((size for size in BLOCKS if group % size == 0), 0) if target.rounded else 0
    if found := kernels_for(target.device, target.dtype):
        return PanelCodes(layer, found.width, weights, block)
    zero = None if weights.zero is None else weights.zero.to(target.device)
    moved = Codes(weights.bits, weights.codes.to(target.device), weights.scale.to(target.device), zero)
    inner = Rebuilt(layer, moved)
    return RoundedInputs(layer, inner, block) if block else inner


class ReorderedInputs(QuantizedLinear):
    """A quantized layer whose columns are in another order than the inputs."""

    order: Tensor

    def __init__(self, layer: Any, inner: QuantizedLinear, order: Tensor) -> None:
        super().__init__(layer)
        self.inner = inner
        self.register_buffer("order", order)  # (in,)

    def product(self, x: Tensor) -> Tensor:
        return self.inner.product(x[:, self.order])
