"""The formats of quantized files that are read into our own layers, by the method in a config."""

from typing import Any

import torch
from torch import nn

from specbench.models.experts import experts_in
from specbench.models.quantization import MatrixBytes, equivalent_kind, quantization_method, sizes, stored_table
from specbench.models.quantized_files.awq import Awq
from specbench.models.quantized_files.compressed_tensors import CompressedTensors
from specbench.models.quantized_files.gguf_blocks import Gguf
from specbench.models.quantized_files.gptq import Gptq
from specbench.models.quantized_files.stored_format import StoredFormat

FORMATS: dict[str, type[Gptq] | type[Awq] | type[CompressedTensors] | type[Gguf]] = {
    "gptq": Gptq,
    "awq": Awq,
    "compressed-tensors": CompressedTensors,
    "gguf": Gguf,
}


def format_of(config: Any) -> StoredFormat:
    """Return the format of a checkpoint that is quantized already. Raises ValueError, with the reason, for others."""
    method = quantization_method(config)
    if method not in FORMATS:
        raise ValueError(f"{method}; only {', '.join(FORMATS)} are read")
    try:
        return FORMATS[method].of(stored_table(config))
    except (TypeError, AttributeError, KeyError):
        raise ValueError(f"{method} with a quantization_config of an unknown form") from None


def unread(config: Any, device: torch.device) -> str:
    """Return why a checkpoint is quantized already and not read into our own layers on a device; empty otherwise."""
    if not quantization_method(config):
        return ""
    try:
        format_of(config)
    except ValueError as error:
        return f"the lean engine cannot run this checkpoint, which is quantized by {error}; help: --engine eager"
    if stored_format(config, device) is None:
        return "the lean engine runs GPTQ, AWQ and compressed-tensors on a CPU only; help: --engine eager"
    return ""


def stored_format(config: Any, device: torch.device) -> StoredFormat | None:
    """Return the format of a checkpoint that is read into our own layers on a device; None if it is not, or not quantized.

    On a GPU transformers loads GPTQ, AWQ and compressed-tensors, since its libraries have kernels for these.
    """
    method = quantization_method(config)
    if not method or (device.type != "cpu" and method != "gguf") or experts_in(config):
        return None
    try:
        return format_of(config)
    except ValueError:
        return None


def label_of(config: Any) -> str:
    """Return how the weights of a checkpoint are stored, in words; empty if they are not quantized."""
    method = quantization_method(config)
    try:
        return format_of(config).label if method else ""
    except ValueError:
        return f"{method}, loaded by transformers"


def stored_sizes(model: Any, config: Any, dtype: torch.dtype) -> dict[int, MatrixBytes]:
    """Return the bytes of codes, scales and zeros of each matrix that a checkpoint holds quantized, by the id of its weight.

    Args:
        model: The architecture on the meta device.
        config: Its config, which says how the weights are stored. By it, an LM head is quantized in GGUF files only.
        dtype: The model's precision.
    """
    try:
        format = format_of(config)
    except ValueError:
        read = sizes(model, equivalent_kind(config), torch.bfloat16)
        return {key: MatrixBytes(each.read, 0) for key, each in read.items()}  # its library has kernels of its own
    head, is_gguf = model.get_output_embeddings(), isinstance(format, Gguf)
    found: dict[int, MatrixBytes] = {}
    for name, module in model.named_modules():
        is_linear = type(module) is nn.Linear and (is_gguf or module is not head)
        if not is_linear and not (is_gguf and type(module) is nn.Embedding):
            continue
        if (size := format.bytes_of(name, tuple(module.weight.shape))) is not None:
            is_multiplied = is_linear or module.weight is head.weight  # a tied embedding is the LM head too
            # On a GPU, the matrices of a GGUF are rebuilt for every product
            rebuilt = 2 * module.weight.numel() * dtype.itemsize if is_gguf and is_multiplied else 0
            found[id(module.weight)] = MatrixBytes(size, rebuilt)
    return found
