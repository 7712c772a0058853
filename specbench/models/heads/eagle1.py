"""EAGLE-1 (Li et al. 2024): a head of one decoder layer that predicts its base's next feature, and drafts from it.

A feature f_t is the base's last hidden state at token t, which its LM head reads. From f_t and the embedding of token t + 1
the head computes fhat_{t+1}, which the base's LM head turns into the distribution of token t + 2.
"""

import copy
import dataclasses
import json
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, LlamaConfig, PreTrainedConfig

from specbench.errors import MissingAsset
from specbench.models.checkpoints import CONSTRUCTION
from specbench.models.heads.eagle import EagleHead
from specbench.models.heads.head_files import CONFIG, WEIGHTS, Drafter, HeadFiles
from specbench.models.lean.cache import Cache
from specbench.models.lean.layers import Layers
from specbench.models.products import Product, product_of

LAYERED = ("llama", "qwen2", "mistral")  # model types whose own decoder layer the head uses
EMBEDDING, INNER = "embed_tokens.weight", "inner."


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


class Eagle1Head(EagleHead):
    """An EAGLE-1 head, which predicts the feature of the next token, fhat_{t+1}.

    A linear layer fc (2H -> H) reads [embedding of token t + 1, f_t]; a decoder layer without input norm follows.

    Embedding and LM head are the base's, frozen. The folder is in the published checkpoints' format: config.json, and
    weights with `fc.weight`, optionally `fc.bias`, `layers.0.*`, and `embed_tokens.weight` unless the base's is used.
    """

    drafter: ClassVar[Drafter] = Drafter.eagle1

    def __init__(self, config: PreTrainedConfig, bias: bool = True) -> None:
        super().__init__()
        self.has_embedding = False  # whether the checkpoint has an embedding
        self.config = copy.deepcopy(config)
        self.config.num_hidden_layers = 1
        if getattr(self.config, "layer_types", None):
            self.config.layer_types = self.config.layer_types[:1]
        with CONSTRUCTION:
            inner = AutoModel.from_config(self.config)
        inner.layers[0].input_layernorm = inner.norm = nn.Identity()
        self.inner, self.state_width = inner, int(self.config.hidden_size)
        self.fc = nn.Linear(2 * self.state_width, self.state_width, bias=bias)

    @classmethod
    def of(cls, config: PreTrainedConfig) -> Self:
        """Return a new head for a base model.

        Its layer is of the base's own type if that resembles Llama's, else a Llama layer of the base's width.
        """
        return cls(config if config.model_type in LAYERED else llama_config(config))

    def forward(self, tokens: Tensor, features: Tensor) -> Tensor:
        """Return fhat_{t+1} (batch, n, H) from tokens t + 1 (batch, n) and features f_t (batch, n, H)."""
        x = torch.cat([self.inner.embed_tokens(tokens).to(features.dtype), features], -1)
        out: Tensor = self.inner(inputs_embeds=self.fc(x), use_cache=False).last_hidden_state
        return out

    @property
    def parameter(self) -> Tensor:
        return self.fc.weight

    def goes_with(self, embedding: Tensor, config: PreTrainedConfig) -> Self:
        self.to(device=embedding.device, dtype=embedding.dtype).eval().requires_grad_(False)
        if not self.has_embedding:
            self.inner.embed_tokens.weight = nn.Parameter(embedding, requires_grad=False)
        return self

    @cached_property
    def layers(self) -> Layers:
        """The layer in the lean engine's form, over the current weights."""
        return Layers(self.inner)

    @cached_property
    def entry(self) -> Product:
        """The layer fc in the lean engine's form, over the current weights."""
        return product_of([self.fc])

    def new_cache(self) -> Cache:
        return self.layers.new_cache()

    def fuse(self, states: Tensor) -> Tensor:
        return states

    def advance(self, tokens: Tensor, features: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        x = torch.cat([self.inner.embed_tokens(tokens).to(features.dtype), features], -1)
        predicted = self.layers.forward(self.entry(x), cache)
        return predicted, predicted

    def logits(self, read: Tensor, of_base: Callable[[Tensor], Tensor]) -> Tensor:
        return of_base(read)

    def tables(self) -> tuple[Tensor, ...]:
        return tuple(table for rope in self.layers.ropes for table in rope.until(0))

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        config_table = self.config.to_diff_dict() | {
            "bias": self.fc.bias is not None,
            "model_type": self.config.model_type,
        }
        (folder / CONFIG).write_text(json.dumps(config_table, indent=1) + "\n", encoding="utf-8")
        weights = {k.removeprefix(INNER): v.contiguous() for k, v in self.state_dict().items() if EMBEDDING not in k}
        metadata = {"specbench": json.dumps(dataclasses.asdict(self.provenance))}
        save_file(weights, folder / WEIGHTS, metadata=metadata)

    @classmethod
    def of_files(cls, files: HeadFiles) -> Self:
        weights = files.weights
        config = AutoConfig.from_pretrained(files.folder, trust_remote_code=False)
        head = cls(config, bias=files.config.get("bias", "fc.bias" in weights))
        state = {k if k.startswith("fc.") else INNER + k: v for k, v in weights.items()}
        missing, unknown = head.load_state_dict(state, strict=False)
        lacking = [key for key in missing if EMBEDDING not in key]
        if lacking or unknown:
            raise MissingAsset(f"{files.folder} is not an EAGLE-1 head: missing {lacking}, unexpected {unknown}")
        head.has_embedding = EMBEDDING in weights
        return head
