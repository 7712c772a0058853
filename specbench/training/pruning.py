"""A draft model made of some of its target's layers."""

from typing import Any

from torch import nn
from transformers import PreTrainedModel

from specbench.errors import ConfigError

SHARE = 6  # by default, one of so many layers is kept


def prune(model: PreTrainedModel, count: int) -> list[int]:
    """Keep `count` of a decoder's layers, evenly spaced with the first and the last, and return their numbers.

    The embedding, the final norm and the LM head stay. Raises ConfigError for an encoder-decoder, for a number of layers that
    it does not have, and for a model whose layers are not in one list.
    """
    config: Any = model.config.get_text_config(decoder=True)
    layers, name = config.num_hidden_layers, model.config.name_or_path
    if model.config.is_encoder_decoder:
        raise ConfigError(f"{name}: a draft of some layers needs a decoder-only target")
    if not 1 <= count < layers:
        raise ConfigError(f"{name} has {layers} layers; --layers must be from 1 to {layers - 1}")
    lists = [
        (parent, key, child)
        for parent in model.modules()
        for key, child in parent.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == layers
    ]
    if len(lists) != 1:
        raise ConfigError(f"{name}: its {layers} layers are not in one list")
    ((parent, key, blocks),) = lists
    kept = sorted({round(i * (layers - 1) / max(count - 1, 1)) for i in range(count)})
    setattr(parent, key, nn.ModuleList([blocks[i] for i in kept]))
    for number, i in enumerate(kept):
        for module in blocks[i].modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = number  # where it caches keys and values
    config.num_hidden_layers = len(kept)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[i] for i in kept]
    return kept
