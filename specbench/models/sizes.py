"""The size of a model from its config: parameters, the bytes that a forward reads, and the sizes of its layers."""

from dataclasses import dataclass, field
from functools import lru_cache

import torch
from transformers import PreTrainedConfig

from specbench.models.checkpoints import CONSTRUCTION, class_of
from specbench.models.quantization import sizes, stored_as
from specbench.runs.run_spec import Shape


def parameters_of(config: PreTrainedConfig, quantization: str, dtype: str) -> int:
    """Return the number of parameters, counting tied ones once."""
    return _sizes(_Key(config.to_json_string(), config), quantization, dtype)[0]


def forward_bytes(config: PreTrainedConfig, quantization: str, dtype: str) -> float:
    """Return the least bytes of weights that a decoding forward reads.

    Lookup tables are not read, nor is an encoder, nor the weights that a decoder applies once to the encoder's output.
    An embedding that is also the LM head is read. A quantized matrix counts its bits and scales.
    """
    return float(_sizes(_Key(config.to_json_string(), config), quantization, dtype)[1])


def position_bytes(config: PreTrainedConfig, dtype: str) -> float:
    """Return the bytes of keys and values that one position adds to the cache, over all layers."""
    text = config.get_text_config(decoder=True)
    layers = getattr(text, "num_decoder_layers", None) or text.num_hidden_layers
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    dim = getattr(text, "d_kv", None) or getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return float(2 * layers * heads * dim * getattr(torch, dtype).itemsize)


def shape_of(config: PreTrainedConfig) -> Shape:
    """Return the sizes that SPRINTER's FLOPs formula needs; for an encoder-decoder model, its decoder's."""
    keys = ("intermediate_size", "n_inner", "d_ff", "ffn_dim")
    width = next((found for key in keys if (found := getattr(config, key, None))), None)
    return Shape(
        layers=getattr(config, "num_decoder_layers", None) or config.num_hidden_layers,
        d=config.hidden_size,
        heads=config.num_attention_heads,
        d_ff=width or 4 * config.hidden_size,
        vocabulary=config.vocab_size,
    )


@dataclass(frozen=True)
class _Key:
    """A config that is hashed by its text."""

    text: str
    config: PreTrainedConfig = field(compare=False)


@lru_cache(maxsize=256)
def _sizes(key: _Key, quantization: str, dtype: str) -> tuple[int, float]:
    """Return parameters, and bytes of weights that a decoding forward reads; cached, since a suite has many runs of one
    model.
    """
    config, size = key.config, getattr(torch, dtype).itemsize
    with CONSTRUCTION, torch.device("meta"):
        model = class_of(config).from_config(config)
    head, tables = (
        model.get_output_embeddings().weight,
        [m for m in model.modules() if isinstance(m, torch.nn.Embedding)],
    )
    looked_up = {id(table.weight) for table in tables if table.weight is not head}
    if config.is_encoder_decoder:
        looked_up |= {id(p) for p in model.get_encoder().parameters() if p is not head}
        once = (".EncDecAttention.k.", ".EncDecAttention.v.")
        looked_up |= {id(p) for name, p in model.named_parameters() if any(word in name for word in once)}
    quantized = sizes(model, quantization or stored_as(config), size)
    weights = (quantized.get(id(p), p.numel() * size) for p in model.parameters() if id(p) not in looked_up)
    return sum(p.numel() for p in model.parameters()), sum(weights)
