"""MTP: a layer for multi-token prediction that was trained with its base, and is in the base's own checkpoint.

Families differ in names, in the order of the embedding and the state, and in what a drafted token's state is. The decoder
layer is of the base's own class in transformers. Its attention reads the cache of lean forwards, which can hold trees.
"""

import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedConfig

from specbench.errors import ConfigError, MissingAsset
from specbench.models.checkpoints import CONSTRUCTION, read_config
from specbench.models.heads.draft_layers import embedding_of
from specbench.models.heads.eagle import EagleHead
from specbench.models.heads.head import UNREADABLE, in_one_line
from specbench.models.heads.head_files import CONFIG
from specbench.models.heads.head_weights import block_size, dequantized, read_weights_at, require_finite, require_fit
from specbench.models.lean.cache import Bias, Cache

ATTENTION = "specbench_cache"  # a name in transformers' table of attention functions
PARTS = ("enorm", "hnorm", "eh_proj", "norm")  # ours: norms of the embedding and of the state, projection, output norm


@dataclass(frozen=True, kw_only=True)
class MtpLayout:
    """Where and how a family keeps its layer.

    Attributes:
        family: The module of transformers with the classes of its layers.
        classes: Prefix of the names of these classes.
        at: Prefix of the names of its weights; `{}` is the base's number of layers.
        names: The family's names for PARTS.
        layer: Prefix of the names of the decoder layer's weights, after `at`.
        state_first: Whether the projection reads [state; embedding] rather than [embedding; state].
        feeds_normed: Whether the state of a drafted token is the normed output.
        copies: Weights that repeat the base's.
    """

    family: str
    classes: str
    at: str
    names: tuple[str, str, str, str]
    layer: str = ""
    state_first: bool = False
    feeds_normed: bool = True
    copies: tuple[str, ...] = ()


_OF_DEEPSEEK = ("enorm", "hnorm", "eh_proj", "shared_head.norm")
_COPIES = ("embed_tokens.weight", "shared_head.head.weight")
LAYOUTS: dict[str, MtpLayout] = {  # by model type
    "mimo": MtpLayout(
        family="qwen2", classes="Qwen2", at="model.mtp_layers.0.", state_first=True,
        names=("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm"),
    ),
    "deepseek_v3": MtpLayout(
        family="deepseek_v3", classes="DeepseekV3", at="model.layers.{}.", names=_OF_DEEPSEEK, copies=_COPIES,
    ),
    "glm4_moe": MtpLayout(
        family="glm4_moe", classes="Glm4Moe", at="model.layers.{}.", names=_OF_DEEPSEEK, copies=_COPIES,
        feeds_normed=False,
    ),
    "qwen3_next": MtpLayout(
        family="qwen3_next", classes="Qwen3Next", at="mtp.", layer="layers.0.",
        names=("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm"), copies=_COPIES,
    ),
}  # fmt: skip


class MtpHead(EagleHead):
    """The first MTP layer of a checkpoint, which is read again for each token of a draft.

    With the base's last hidden state f (after its final norm) at token i, and the embedding e of token i + 1:

        x = P [norm(e); norm(f)]          in some families [norm(f); norm(e)]
        h = layer(x)
        logits = lm_head(norm(h))         of token i + 2, by the base's LM head

    After a drafted token, f is h, or the normed h.
    """

    kind: ClassVar[str] = "mtp"
    captures: ClassVar[bool] = False

    def __init__(self, config: PreTrainedConfig, layout: MtpLayout) -> None:
        """Build a head with random weights for a base of this config."""
        super().__init__()
        self.config, self.layout, width = _of_one_layer(config), layout, int(config.hidden_size)
        module: Any = importlib.import_module(f"transformers.models.{layout.family}.modeling_{layout.family}")
        norm = getattr(module, f"{layout.classes}RMSNorm")
        eps = config.rms_norm_eps
        with CONSTRUCTION:
            self.layer: nn.Module = getattr(module, f"{layout.classes}DecoderLayer")(self.config, 0)
            self.rotary: nn.Module = getattr(module, f"{layout.classes}RotaryEmbedding")(self.config)
        self.enorm, self.hnorm, self.norm = (norm(width, eps=eps) for _ in range(3))
        self.eh_proj = nn.Linear(2 * width, width, bias=False)
        self.embed_tokens: nn.Embedding | None = None
        self.state_width = width

    @classmethod
    def of(cls, config: PreTrainedConfig) -> Self:
        """Return a new head for a base. Raises ConfigError for a family without MTP layers."""
        config = config.get_text_config(decoder=True)
        return cls(config, _layout_of(config))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the head in a base's checkpoint.

        Raises MissingAsset if it cannot be read or has none, and ConfigError for a family that is not supported.
        """
        try:
            config = _config_in(folder)
            layout = _layout_of(config)
            at = layout.at.format(config.num_hidden_layers)
            stored = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
            weights = dequantized(folder, read_weights_at(folder, at), block_size(stored))
            if not weights:
                raise MissingAsset(f"{folder} has no MTP layer ({at}*)")
            require_finite(folder, weights)
            head = cls(config, layout)
            head._load(weights, folder)
        except UNREADABLE as error:
            raise MissingAsset(f"{folder} cannot be read as an MTP head: {in_one_line(error)}") from None
        return head

    def _load(self, weights: Mapping[str, Tensor], folder: Path) -> None:
        ours = {
            f"{part}.weight": weights[f"{name}.weight"]
            for part, name in zip(PARTS, self.layout.names, strict=True)
            if f"{name}.weight" in weights
        }
        used = {f"{name}.weight" for name in self.layout.names} | {*self.layout.copies}
        ours |= {
            f"layer.{name.removeprefix(self.layout.layer)}": weight
            for name, weight in weights.items()
            if name not in used
        }
        fused = _fused_experts(ours, self.layer)
        require_fit(f"{folder} has another MTP layer", self, fused)
        self.load_state_dict(fused)

    @property
    def parameter(self) -> Tensor:
        return self.eh_proj.weight

    def goes_with(self, embedding: Tensor, config: PreTrainedConfig) -> Self:
        family = config.get_text_config(decoder=True).model_type
        if family != self.config.model_type:
            raise ConfigError(f"model_type is {self.config.model_type}, and the base's is {family}")
        self.to(device=embedding.device, dtype=embedding.dtype).eval().requires_grad_(False)
        if embedding.shape[1] != self.state_width:
            raise ConfigError(f"hidden_size is {self.state_width}, and the base's is {embedding.shape[1]}")
        self.embed_tokens, self.rows = embedding_of(embedding), len(embedding)
        self.config._attn_implementation = ATTENTION
        return self

    def new_cache(self) -> Cache:
        attention: Any = self.layer.self_attn
        like = self.parameter
        heads = self.config.num_attention_heads
        if hasattr(attention, "qk_head_dim"):  # keys and values of every head, of the width of keys
            return Cache(1, heads, int(attention.qk_head_dim), like.dtype, like.device)
        kv_heads = getattr(self.config, "num_key_value_heads", None) or heads
        return Cache(1, kv_heads, int(attention.head_dim), like.dtype, like.device)

    def fuse(self, states: Tensor) -> Tensor:
        return states

    def advance(self, tokens: Tensor, features: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        assert self.embed_tokens is not None
        parts = self.enorm(self.embed_tokens(tokens).to(features.dtype)), self.hnorm(features)
        x = self.eh_proj(torch.cat(parts[::-1] if self.layout.state_first else parts, -1))[None]  # (1, n, H)
        positions = cache.rows(torch.arange(cache.capacity, device=x.device))[None]
        h = self.layer(
            x,
            position_embeddings=self.rotary(x, positions),
            position_ids=positions,
            attention_mask=None,
            lean_cache=cache,
        )
        h = (h[0] if isinstance(h, tuple) else h)[0]  # (n, H)
        normed = self.norm(h)
        return normed, (normed if self.layout.feeds_normed else h)

    def logits(self, read: Tensor, of_base: Callable[[Tensor], Tensor]) -> Tensor:
        return of_base(read)

    def tables(self) -> tuple[Tensor, ...]:
        return ()


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *, scaling: float,
    lean_cache: Cache, **others: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attend with q (1, heads, n, d) to a cache, in which k and v (1, kv heads, n, d) are stored: (1, n, heads, d of v).

    It is an attention function of transformers. Values that are narrower than keys are padded in the cache.
    """
    width, dim = value.shape[-1], key.shape[-1]
    kv = torch.cat([key[0], F.pad(value[0], (0, dim - width))]).transpose(0, 1)  # (n, keys then values, d)
    seen = lean_cache.attend(0, query[0].transpose(0, 1).contiguous(), kv, Bias(scaling))
    return seen.view(1, len(seen), -1, dim)[..., :width], None


AttentionInterface.register(ATTENTION, _attend)


def _layout_of(config: PreTrainedConfig) -> MtpLayout:
    if config.model_type not in LAYOUTS:
        known = ", ".join(LAYOUTS)
        raise ConfigError(f"MTP layers of {config.model_type} are not supported; supported: {known}")
    return LAYOUTS[config.model_type]


def _config_in(folder: Path) -> PreTrainedConfig:
    """Return the text config of a checkpoint."""
    return read_config(folder).get_text_config(decoder=True)


def _of_one_layer(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return the config of a model whose only layer is the MTP layer, with full attention."""
    if getattr(config, "num_mtp_layers", None):
        return config.get_mtp_config()
    table = config.to_dict() | {"num_hidden_layers": 1}
    if table.get("layer_types"):
        table["layer_types"] = ["full_attention"]
    return type(config).from_dict(table)


def _fused_experts(weights: dict[str, Tensor], layer: nn.Module) -> dict[str, Tensor]:
    """Return weights whose experts are stacked, if the layer has them so: checkpoints have one matrix per expert."""
    own = {name: tensor.shape for name, tensor in layer.named_parameters()}
    experts = "mlp.experts."
    fused = [name for name in own if name.startswith(experts) and len(own[name]) == 3]
    if not fused or f"layer.{experts}0.down_proj.weight" not in weights:
        return weights
    count = own[f"{experts}down_proj"][0]

    def stacked(*names: str) -> Tensor:
        return torch.stack(
            [torch.cat([weights.pop(f"layer.{experts}{i}.{name}.weight") for name in names]) for i in range(count)]
        )

    return {
        f"layer.{experts}gate_up_proj": stacked("gate_proj", "up_proj"),
        f"layer.{experts}down_proj": stacked("down_proj"),
        **weights,
    }
