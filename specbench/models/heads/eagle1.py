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
from transformers import AutoModel, PreTrainedConfig

from specbench.errors import MissingAsset
from specbench.models.checkpoints import CONSTRUCTION
from specbench.models.heads.draft_layers import LAYER_KEYS, LAYERED, UNUSED, llama_config, over_all, require_embedding
from specbench.models.heads.eagle import EagleHead
from specbench.models.heads.head_config import (
    CONFIGS,
    FULL,
    SLIDING,
    Config,
    Eagle1Keys,
    NamingKeys,
    VocabularyKeys,
    layer_config,
    window_of,
)
from specbench.models.heads.head_files import CONFIG, Drafter, HeadFiles
from specbench.models.heads.head_weights import WEIGHTS, require_fit
from specbench.models.heads.token_table import drafted_ids, drafted_rows, require_tokens
from specbench.models.lean.cache import Cache
from specbench.models.lean.layers import Layers, unsupported_layers
from specbench.models.products import Product, product_of

EMBEDDING, LM_HEAD, TOKEN_MAP, INNER = "embed_tokens.weight", "lm_head.weight", "token_map", "inner."


class Eagle1Head(EagleHead):
    """An EAGLE-1 head, which predicts the feature of the next token, fhat_{t+1}.

    A linear layer fc (2H -> H) reads [embedding of token t + 1, f_t]; a decoder layer without input norm follows.

    Embedding and LM head are the base's, frozen. The folder is in the published checkpoints' format: config.json, and
    weights with `fc.weight`, optionally `fc.bias`, `layers.0.*`, and `embed_tokens.weight` unless the base's is used.
    """

    drafter: ClassVar[Drafter] = Drafter.eagle1

    def __init__(self, config: PreTrainedConfig, bias: bool = True, rows: int | None = None, drafted: int = 0) -> None:
        """Build a head with random weights. `rows` is the size of its embedding, by default the config's `vocab_size`.

        `drafted` is the number of tokens of its own LM head, 0 if it uses its base's.
        """
        super().__init__()
        self.has_embedding = False  # whether the checkpoint has an embedding
        self.config = copy.deepcopy(config)
        self.config.num_hidden_layers = 1
        if getattr(self.config, "layer_types", None):
            self.config.layer_types = self.config.layer_types[:1]
        built = copy.deepcopy(self.config)
        if rows is not None:
            built.vocab_size, built.pad_token_id = rows, None
        with CONSTRUCTION:
            inner = AutoModel.from_config(built)
        inner.layers[0].input_layernorm = inner.norm = nn.Identity()
        self.inner, self.state_width = inner, int(self.config.hidden_size)
        self.fc = nn.Linear(2 * self.state_width, self.state_width, bias=bias)
        self.lm_head = nn.Linear(self.state_width, drafted, bias=False) if drafted else None
        self.tokens: Tensor | None = None  # (V',) ids of the tokens of its own LM head; None for all
        self.vocabulary = VocabularyKeys()

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
        own = self.inner.embed_tokens if self.has_embedding else None
        require_embedding(own, self.state_width, embedding)
        self.rows = len(embedding)
        of_head = 0 if self.lm_head is None else self.lm_head.out_features
        require_tokens(self.tokens, of_head, self.rows, self.vocabulary)
        self.to(device=embedding.device, dtype=embedding.dtype).eval().requires_grad_(False)
        if self.tokens is not None:
            self.tokens, self.is_partial = self.tokens.to(embedding.device), True
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

    @cached_property
    def head(self) -> Product:
        """Its own LM head in the lean engine's form, over the current weights."""
        assert self.lm_head is not None
        return product_of([self.lm_head])

    def new_cache(self) -> Cache:
        return self.layers.new_cache()

    def fuse(self, states: Tensor) -> Tensor:
        return states

    def advance(self, tokens: Tensor, features: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        x = torch.cat([self.inner.embed_tokens(tokens).to(features.dtype), features], -1)
        predicted = self.layers.forward(self.entry(x), cache)
        return predicted, predicted

    def logits(self, read: Tensor, of_base: Callable[[Tensor], Tensor]) -> Tensor:
        if self.lm_head is None:
            return of_base(read)
        return over_all(self.head(read), self.tokens, self.rows)

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
        keys = files.keys.read(Eagle1Keys)
        weights = {_renamed(name): weight for name, weight in files.weights.items()}
        config = _config(_of_layer(files.keys, keys))
        offsets, drafted = weights.pop(TOKEN_MAP, None), weights.get(LM_HEAD)
        tokens = None
        if offsets is not None:
            if drafted is None or not drafted.ndim:
                raise MissingAsset(f"{files.folder}: {TOKEN_MAP} needs {LM_HEAD}, whose rows it names")
            tokens = drafted_ids(files.folder, TOKEN_MAP, offsets)
            if len(drafted) > len(tokens) and int(tokens.max()) < len(drafted):  # the LM head of the whole vocabulary
                weights[LM_HEAD] = drafted = drafted[tokens]
            if len(drafted) != len(tokens):
                raise MissingAsset(
                    f"{files.folder}: {TOKEN_MAP} has {len(tokens)} tokens, and {LM_HEAD} {len(drafted)}"
                )
        vocabulary = files.keys.read(VocabularyKeys)
        of_head = drafted_rows(files.keys, drafted, vocabulary)
        bias = keys.bias if keys.bias is not None else keys.eagle_fc_bias
        bias = "fc.bias" in weights if bias is None else bias
        embedding = weights.get(EMBEDDING)
        rows = 1 if embedding is None or not embedding.ndim else len(embedding)
        state = {k if k.startswith(("fc.", LM_HEAD)) else INNER + k: v for k, v in weights.items() if k not in UNUSED}
        optional = EMBEDDING if embedding is None else ""
        with torch.device("meta"):
            require_fit(
                f"{files.folder} is not an EAGLE-1 head", cls(config, bias, rows, of_head), state, optional=optional
            )
        head = cls(config, bias, rows, of_head)
        head.load_state_dict(state, strict=embedding is not None)
        head.has_embedding, head.tokens, head.vocabulary = embedding is not None, tokens, vocabulary
        return head


def _renamed(name: str) -> str:
    """Return a weight's name in SafeAILab's layout. vLLM's converted heads nest the layer in one or two `model`."""
    while name.startswith("model."):
        name = name.removeprefix("model.")
    return name


def _of_layer(config: Config, keys: Eagle1Keys) -> Config:
    """Return the table that describes the layer: `model` of vLLM's converted heads with outer keys that replace its own."""
    if keys.model is None:
        return config
    outer = {key: value for key, value in config.table.items() if key not in ("model", "model_type", "architectures")}
    return Config(config.folder, {**keys.model, **outer}, "model.")


def _config(config: Config) -> PreTrainedConfig:
    """Return the config of the layer. Raises MissingAsset, naming the key, for a layer that is not computed."""
    config.require_known()
    model_type = config.read(NamingKeys).model_type
    if model_type not in LAYERED:
        raise config.error("model_type", f"is {model_type!r}; layers of EAGLE-1 heads: {', '.join(LAYERED)}")
    layer, window = layer_config(config), window_of(config, 1)
    if reason := unsupported_layers(layer, "EAGLE-1 head"):
        raise config.error(
            "hidden_act" if layer.hidden_act in reason else "rope_parameters", f"is not supported: {reason}"
        )
    made: PreTrainedConfig = CONFIGS[model_type](
        **{key: getattr(layer, key) for key in LAYER_KEYS if getattr(layer, key, None) is not None},
        vocab_size=config.read(Eagle1Keys).vocab_size or layer.vocab_size, num_hidden_layers=1, pad_token_id=None,
    )  # fmt: skip
    made.sliding_window, made.layer_types = window, [SLIDING if window else FULL]
    return made
