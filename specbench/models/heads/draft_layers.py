"""What EAGLE-3, DFlash and DSpark heads share: decoder layers under published names, and logits over a part of the tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from specbench.decoding.session import AuxLayers
from specbench.errors import ConfigError, MissingAsset
from specbench.models.heads.head_files import HeadFiles

LAYER_KEYS = (  # of a base's config, for the layers of a new head
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps",
    "hidden_act", "attention_bias", "max_position_embeddings", "rope_theta", "rope_scaling", "rope_parameters",
)  # fmt: skip
LAYERED = ("llama", "qwen2", "mistral")  # model types whose own decoder layer an EAGLE-1 head uses
SHAPED = (*LAYERED, "qwen3", "mimo")  # model types of whose layers a head copies the shape
UNUSED = ("t2d", "rotary_emb.inv_freq")  # weights that follow from others


def llama_config(config: PreTrainedConfig) -> LlamaConfig:
    """Return the config of a Llama layer of a base's width, with an MLP four times as wide."""
    width = config.hidden_size
    # Rotary positions need an even dimension
    heads = next(n for n in range(config.num_attention_heads, 0, -1) if width % (2 * n) == 0)
    longest = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", 2048)
    return LlamaConfig(
        vocab_size=config.vocab_size, hidden_size=width, num_attention_heads=heads, intermediate_size=4 * width,
        num_key_value_heads=heads, max_position_embeddings=longest,
    )  # fmt: skip


def layer_like(config: PreTrainedConfig) -> LlamaConfig:
    """Return the config of layers of a base's shape if that is of Llama's form, else with an MLP four times as wide."""
    table = vars(config if config.model_type in SHAPED else llama_config(config))
    return LlamaConfig(**{name: table[name] for name in LAYER_KEYS if table.get(name) is not None})


class Attention(nn.Module):
    """The projections of attention over inputs of `reads` numbers, and norms of queries and keys if `norms_heads`."""

    q_norm: LlamaRMSNorm | None
    k_norm: LlamaRMSNorm | None

    def __init__(self, config: LlamaConfig, reads: int, norms_heads: bool) -> None:
        super().__init__()
        dim, bias = config.head_dim, bool(config.attention_bias)
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.q_proj = nn.Linear(reads, heads * dim, bias=bias)
        self.k_proj = nn.Linear(reads, kv_heads * dim, bias=bias)
        self.v_proj = nn.Linear(reads, kv_heads * dim, bias=bias)
        self.o_proj = nn.Linear(heads * dim, config.hidden_size, bias=False)
        self.q_norm = LlamaRMSNorm(dim, config.rms_norm_eps) if norms_heads else None
        self.k_norm = LlamaRMSNorm(dim, config.rms_norm_eps) if norms_heads else None


class Mlp(nn.Module):
    """The projections of a gated MLP."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)


class BlockLayer(nn.Module):
    """A decoder layer of a block drafter."""

    def __init__(self, config: LlamaConfig, norms_heads: bool) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn, self.mlp = Attention(config, width, norms_heads), Mlp(config)
        self.input_layernorm, self.post_attention_layernorm = LlamaRMSNorm(width, eps), LlamaRMSNorm(width, eps)


def require_width(files: HeadFiles, width: int, base: int | None, fc: Tensor) -> int:
    """Return the width of the base's states that a head of a width reads.

    `base` is `target_hidden_size`, and `fc` is fc.weight (H, m H'). Raises MissingAsset, naming the key, if the config states
    another width.
    """
    if fc.ndim != 2:
        raise MissingAsset(f"{files.folder}: fc.weight has shape {tuple(fc.shape)}, and a matrix is needed")
    rows, columns = fc.shape
    key, states = ("target_hidden_size", base) if base else ("hidden_size", width)
    if rows != width:
        raise MissingAsset(f"{files.folder}: hidden_size is {width}, and fc.weight has {rows} rows")
    if not columns or columns % states:
        raise MissingAsset(
            f"{files.folder}: {key} is {states}, and fc.weight has {columns} columns, which is not a multiple of it"
        )
    return states


def embedding_of(weight: Tensor) -> nn.Embedding:
    """Return a frozen embedding over a base's weight (V, H), which is not copied."""
    embedding: nn.Embedding = nn.Embedding.from_pretrained(weight, freeze=True)  # type: ignore[no-untyped-call]  # PyTorch
    return embedding


def split_heads(x: Tensor, dim: int) -> Tensor:
    """Return (..., heads * dim) -> (..., heads, dim)."""
    return x.view(*x.shape[:-1], -1, dim)


def over_all(known: Tensor, tokens: Tensor | None, rows: int) -> Tensor:
    """Return logits (n, V) in float32 or better, over `rows` tokens of a base, of the logits (n, V') of `tokens` (V',).

    The others have -inf. None stands for all tokens.
    """
    known = known if known.dtype == torch.float64 else known.float()
    if tokens is None:
        return known
    return known.new_full((len(known), rows), -torch.inf).index_copy(1, tokens, known)


@dataclass(frozen=True)
class TapKey:
    """A key of a config that names layers of the base, by their inputs or their outputs."""

    name: str
    of_outputs: bool = False

    def aux_layers(self, layers: Sequence[int]) -> AuxLayers:
        """Return the layers whose inputs are read: the output of layer j is the input of layer j + 1."""
        return tuple(layer + self.of_outputs for layer in layers)


def require_aux_layers(aux_layers: AuxLayers, key: TapKey | None, states: int, layers: int) -> None:
    """Raise ConfigError, naming the key, if a head of `states` states cannot read these of a base's `layers` layers.

    `key` is None for the default.
    """
    if len(aux_layers) != states:
        raise ConfigError(
            f"fc.weight reads {states} layers, and {f'{key.name} names' if key else 'the default is'} {len(aux_layers)}"
        )
    if beyond := [layer for layer in aux_layers if layer not in range(1, layers)]:
        named = key.name if key else f"the default for {layers} layers"
        if key and key.of_outputs:  # as the file numbers them
            raise ConfigError(
                f"{key.name} names layer {beyond[0] - 1}; heads read the outputs of layers 0 to {layers - 2} of a base with"
                f" {layers} layers"
            )
        raise ConfigError(f"{named} names the input of layer {beyond[0]}, and the base has layers 0 to {layers - 1}")


def require_embedding(embedding: nn.Embedding | None, width: int, base: Tensor) -> None:
    """Raise ConfigError if a head of a width has no embedding that has every token of its base's (V, H)."""
    if embedding is None and base.shape[1] != width:
        raise ConfigError(
            f"the head has no embed_tokens.weight, and its width {width} is not the base's {base.shape[1]}"
        )
    if embedding is not None and len(embedding.weight) < len(base):
        raise ConfigError(f"embed_tokens.weight has {len(embedding.weight)} tokens, and the base has {len(base)}")
