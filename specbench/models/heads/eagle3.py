"""EAGLE-3 (Li et al. 2025): a head that reads inputs of several layers of its base, and drafts in its own vocabulary.

Checkpoints of SafeAILab, SpecForge, NVIDIA, nebius, speculators and DeepSpec differ in names, in how they number the layers,
and in where norms are. `Eagle3Settings.of` (`heads/eagle3_settings.py`) translates them.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

from specbench.config.construct import Table
from specbench.decoding.session import AuxLayers
from specbench.errors import ConfigError
from specbench.models.heads.draft_layers import (
    UNUSED,
    Attention,
    Mlp,
    embedding_of,
    layer_like,
    over_all,
    require_embedding,
    split_heads,
)
from specbench.models.heads.eagle import EagleHead
from specbench.models.heads.eagle3_settings import ARCHITECTURES, AUX_LAYERS, Eagle3Settings, default_aux_layers
from specbench.models.heads.head_files import CONFIG, Drafter, HeadFiles
from specbench.models.heads.head_weights import WEIGHTS, require_fit
from specbench.models.heads.token_table import OF_TARGET, TO_TARGET, drafted_tokens, require_tokens
from specbench.models.lean.cache import Bias, Cache
from specbench.models.lean.layers import PLAIN_ELEMENTWISE, Map, Rope, unsupported_layers
from specbench.models.lean.network import HeadNorm, RMSNorm
from specbench.models.products import product_of


class Eagle3Layer(nn.Module):
    """The decoder layer, whose attention reads [embedding; feature], 2H. Names are those of published checkpoints."""

    def __init__(self, config: LlamaConfig, norms_heads: bool) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn, self.mlp = Attention(config, 2 * width, norms_heads), Mlp(config)
        self.hidden_norm, self.input_layernorm = LlamaRMSNorm(width, eps), LlamaRMSNorm(width, eps)
        self.post_attention_layernorm = LlamaRMSNorm(width, eps)


class Eagle3Head(EagleHead):
    """An EAGLE-3 head.

    With the inputs r of m layers of the base at token i, and the embedding e of token i + 1:

        g = fc r                                      the feature, unless the head itself returned one
        h = g + attention([norm(e); norm(g)])
        h = h + mlp(norm(h))                          the next feature
        logits = lm_head(norm(h))                     of token i + 2, over V' tokens

    In EAGLE-3.1 (`norm_output`), the next feature is norm(h). Without other layers there is no fc, and g is what the base's
    LM head reads. A token that is not among the V' has probability 0, and is never drafted.
    """

    kind: ClassVar[str] = "eagle3"
    drafter: ClassVar[Drafter] = Drafter.eagle3

    def __init__(self, settings: Eagle3Settings, rows: int = 0) -> None:
        """Build a head with random weights. `rows` is the size of its own embedding; 0 if it uses its base's."""
        super().__init__()
        config, width = settings.layer, settings.layer.hidden_size
        self.eagle3, self.states, self.state_width = settings, settings.states, settings.state_width
        states = settings.states * settings.state_width
        self.fc = nn.Linear(states, width, bias=False) if settings.reads_aux_layers else None
        self.input_norm = LlamaRMSNorm(states, config.rms_norm_eps) if settings.norms_states else None
        each = range(settings.states if settings.norms_each_state else 0)
        self.fc_norm = nn.ModuleList(LlamaRMSNorm(settings.state_width, config.rms_norm_eps) for _ in each)
        self.midlayer = Eagle3Layer(config, settings.norms_heads)
        self.norm = LlamaRMSNorm(width, config.rms_norm_eps)
        self.lm_head = nn.Linear(width, settings.vocabulary, bias=False) if settings.vocabulary else None
        self.embed_tokens = nn.Embedding(rows, width) if rows else None
        self.rotary = LlamaRotaryEmbedding(config)
        self.tokens: Tensor | None = None  # (V',) ids of the tokens that it drafts; None for all
        self.flags = 0  # length of t2d; 0 without it
        self.rows = rows  # of the base's LM head, once it goes with one

    @classmethod
    def of(cls, config: PreTrainedConfig, aux_layers: AuxLayers = (), vocabulary: int = 0) -> Self:
        """Return a new head for a base, that reads the inputs of `aux_layers`, by default those of `default_aux_layers`.

        It has an LM head of `vocabulary` tokens, or uses the base's. Its layer has the base's shape if that is of Llama's
        form, else four times as wide an MLP.
        """
        config = config.get_text_config(decoder=True)
        aux_layers = aux_layers or default_aux_layers(config.num_hidden_layers)
        settings = Eagle3Settings(
            layer=layer_like(config), states=len(aux_layers), state_width=config.hidden_size, layers=aux_layers,
            key=AUX_LAYERS,
            vocabulary=vocabulary,
        )  # fmt: skip
        return cls(settings)

    @property
    def parameter(self) -> Tensor:
        weight: Tensor = self.norm.weight
        return weight

    def goes_with(self, embedding: Tensor, config: PreTrainedConfig) -> Self:
        settings, rows = self.eagle3, len(embedding)
        expected, given = settings.base_architectures, tuple(config.architectures or ())
        if expected and given and not {*expected} & {*given}:
            raise ConfigError(f"{ARCHITECTURES} names {', '.join(expected)}, and the base is a {', '.join(given)}")
        text = config.get_text_config(decoder=True)
        self.aux_layers = settings.aux_layers_of(text.model_type, text.num_hidden_layers)
        width = settings.layer.hidden_size
        require_embedding(self.embed_tokens, width, embedding)
        if self.lm_head is None and embedding.shape[1] != width:
            raise ConfigError(
                f"the head has no lm_head.weight, and its width {width} is not the base's {embedding.shape[1]}"
            )
        require_tokens(self.tokens, settings.vocabulary, rows, settings.stated, self.flags)
        self.to(device=embedding.device, dtype=embedding.dtype).eval().requires_grad_(False)
        if self.embed_tokens is None:
            self.embed_tokens = embedding_of(embedding)
        if self.tokens is not None:
            self.tokens = self.tokens.to(embedding.device)
        self.rows = rows
        self.is_partial = self.tokens is not None
        return self

    @cached_property
    def packed(self) -> "Parts":
        """The head in the lean engine's form, over the current weights."""
        return Parts.packed(self)

    def new_cache(self) -> Cache:
        config, like = self.eagle3.layer, self.parameter
        return Cache(1, config.num_key_value_heads, config.head_dim, like.dtype, like.device)

    def fuse(self, states: Tensor) -> Tensor:
        return self.packed.fuse(states)

    def advance(self, tokens: Tensor, features: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        parts, bias = self.packed, Bias(self.packed.dim**-0.5, self.eagle3.window)

        def attend(heads: Tensor) -> Tensor:
            cos, sin = (cache.rows(table).unsqueeze(1) for table in parts.rope.until(cache.capacity))
            PLAIN_ELEMENTWISE.rotate(heads[:, : parts.heads + parts.kv_heads], cos, sin)
            return cache.attend(0, heads[:, : parts.heads], heads[:, parts.heads :], bias)

        return self._entries(parts, tokens, features, attend)

    def unrolled(self, tokens: Tensor, states: Tensor, steps: int) -> list[Tensor]:
        """Return what the LM head reads in drafts of `steps` tokens after every entry, (batch, n, H) for each step.

        Row i of step s belongs to the draft that begins after entry i: it reads token i + 1 + s, with the head's own feature
        of step s - 1. Rows that would read a token after the last one repeat it. `tokens` (batch, n) are the tokens i + 1,
        `states` (batch, n, m H) those of the base at the tokens i. For training, with gradients.
        """
        assert self.eagle3.window is None, "no new head has one"
        parts, n = Parts.plain(self), tokens.shape[1]
        later = torch.arange(n, device=tokens.device)
        is_later = later > later[:, None]  # (n, n)
        features, read, earlier = parts.fuse(states), list[Tensor](), list[tuple[Tensor, Tensor]]()

        def attend(heads: Tensor) -> Tensor:
            positions = later + len(earlier)
            cos, sin = (table[positions].unsqueeze(1) for table in parts.rope.until(n + steps))  # (n, 1, d)
            turned, values = (
                heads[..., : parts.heads + parts.kv_heads, :],
                heads[..., parts.heads + parts.kv_heads :, :],
            )
            turned = turned * cos + turned.roll(parts.dim // 2, -1) * sin
            group = parts.heads // parts.kv_heads
            q, keys = turned[..., : parts.heads, :], turned[..., parts.heads :, :].repeat_interleave(group, -2)
            values = values.repeat_interleave(group, -2)  # (batch, n, heads, d)
            earlier.append((keys, values))
            first, rest = earlier[0], earlier[1:]
            scores = torch.einsum("bihd,bjhd->bihj", q, first[0]).masked_fill(is_later[:, None], -torch.inf)
            own = [(q * each).sum(-1, keepdim=True) for each, _ in rest]  # of the draft's own entries
            weights = (torch.cat([scores, *own], -1) * parts.dim**-0.5).softmax(-1)
            seen = torch.einsum("bihj,bjhd->bihd", weights[..., :n], first[1])
            for k, (_, each) in enumerate(rest):
                seen = seen + weights[..., n + k, None] * each
            return seen.flatten(2)

        for step in range(steps):
            fed = tokens[:, (later + step).clamp_max(n - 1)]
            out, features = self._entries(parts, fed, features, attend)
            read.append(out)
        return read

    def _entries(
        self, parts: "Parts", tokens: Tensor, features: Tensor, attend: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return what the LM head reads, and the features, of entries (..., n, H).

        `attend` turns queries, keys and values (..., n, heads, d) into what the queries have seen (..., n, heads * d).
        """
        assert self.embed_tokens is not None
        settings, normed = self.eagle3, parts.feature_norm(features)
        embedded = parts.embedding_norm(self.embed_tokens(tokens).to(features.dtype))
        heads = split_heads(parts.qkv(torch.cat([embedded, normed], -1)), parts.dim)
        if parts.head_norm is not None:
            parts.head_norm(heads[..., : parts.heads + parts.kv_heads, :])
        h = (normed if settings.adds_normed else features) + parts.out(attend(heads))
        h = h + parts.down(PLAIN_ELEMENTWISE.gate(parts.up(parts.mlp_norm(h))))
        normed = parts.norm(h)
        return normed, (normed if settings.returns_normed else h)

    def logits(self, read: Tensor, of_base: Callable[[Tensor], Tensor]) -> Tensor:
        return over_all((self.packed.lm_head or of_base)(read), self.tokens, self.rows)

    def trained_logits(self, read: Tensor, of_base: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the logits of `logits`, with gradients."""
        return over_all((self.lm_head or of_base)(read), self.tokens, self.rows)

    def tables(self) -> tuple[Tensor, ...]:
        return self.packed.rope.until(0)

    def save(self, folder: Path) -> None:
        """Write the head in the published layout, without the base's embedding, and with its aux_layers in the config."""
        folder.mkdir(parents=True, exist_ok=True)
        settings = self.eagle3
        table: Table = settings.layer.to_diff_dict() | {
            "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "draft_vocab_size": settings.vocabulary,
            "target_hidden_size": settings.state_width, AUX_LAYERS.name: list(self.aux_layers),
        }  # fmt: skip
        (folder / CONFIG).write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
        weights = {
            name: weight.contiguous() for name, weight in self.state_dict().items() if "embed_tokens" not in name
        }
        if self.tokens is not None:
            weights["d2t"] = self.tokens - torch.arange(len(self.tokens), device=self.tokens.device)
        metadata = {"specbench": json.dumps(dataclasses.asdict(self.provenance))}
        save_file(weights, folder / WEIGHTS, metadata=metadata)

    @classmethod
    def of_files(cls, files: HeadFiles) -> Self:
        weights = {_renamed(name): weight for name, weight in files.weights.items()}
        if files.config.get("tie_word_embeddings") is True and "embed_tokens.weight" in weights:
            weights.setdefault("lm_head.weight", weights["embed_tokens.weight"])
        settings = Eagle3Settings.of(files, weights)
        offsets, flags = (weights.pop(name, None) for name in (TO_TARGET, OF_TARGET))
        tokens = drafted_tokens(files.folder, offsets, flags, settings.vocabulary)
        weights = {name: weight for name, weight in weights.items() if name not in UNUSED}
        if not settings.reads_aux_layers:  # vLLM and SGLang ignore it too
            weights.pop("fc.weight", None)
        embedding = weights.get("embed_tokens.weight")
        rows = len(embedding) if embedding is not None and embedding.ndim else 0
        with torch.device("meta"):
            require_fit(f"{files.folder} is not an EAGLE-3 head", cls(settings, rows), weights)
        head = cls(settings, rows)
        head.load_state_dict(weights)
        head.tokens, head.flags = tokens, 0 if flags is None else len(flags)
        return head


def _renamed(name: str) -> str:
    """Return a weight's name in SafeAILab's layout, whose layer is `midlayer`."""
    name = name.removeprefix("model.")
    return f"midlayer.{name.removeprefix('layers.0.')}" if name.startswith("layers.0.") else name


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A head's products and norms: as the lean engine computes them, or as torch's modules, which have gradients."""

    heads: int
    kv_heads: int
    dim: int
    fc: Map | None
    qkv: Map
    out: Map
    up: Map
    down: Map
    lm_head: Map | None
    states_norm: Map | None
    state_norms: Sequence[Map]
    embedding_norm: Map
    feature_norm: Map
    mlp_norm: Map
    norm: Map
    head_norm: Callable[[Tensor], None] | None
    rope: Rope

    @classmethod
    def packed(cls, head: Eagle3Head) -> "Parts":
        """Return the lean engine's parts. Raises ConfigError for a layer that it does not support."""
        config, attention = head.eagle3.layer, head.midlayer.self_attn
        if reason := unsupported_layers(config, "EAGLE-3 head"):
            raise ConfigError(reason)
        counts, eps, head_norm = (config.num_attention_heads, config.num_key_value_heads), config.rms_norm_eps, None
        if attention.q_norm is not None and attention.k_norm is not None:
            head_norm = HeadNorm(attention.q_norm.weight, attention.k_norm.weight, counts, eps)
        return cls._of(head, product_of, lambda module: RMSNorm(module.weight, eps), head_norm)

    @classmethod
    def plain(cls, head: Eagle3Head) -> "Parts":
        """Return torch's modules, of a head without norms of queries and keys."""

        def joined(modules: Sequence[nn.Module]) -> Map:
            return lambda x: torch.cat([module(x) for module in modules], -1)

        assert not head.eagle3.norms_heads
        return cls._of(head, joined, lambda module: module, None)

    @classmethod
    def _of(
        cls, head: Eagle3Head, product: Callable[[Sequence[nn.Module]], Map], norm: Callable[[Any], Map],
        head_norm: Callable[[Tensor], None] | None,
    ) -> "Parts":  # fmt: skip
        layer, config = head.midlayer, head.eagle3.layer
        attention, mlp = layer.self_attn, layer.mlp
        return cls(
            heads=config.num_attention_heads, kv_heads=config.num_key_value_heads, dim=config.head_dim,
            fc=None if head.fc is None else product([head.fc]),
            qkv=product([attention.q_proj, attention.k_proj, attention.v_proj]),
            out=product([attention.o_proj]), up=product([mlp.gate_proj, mlp.up_proj]), down=product([mlp.down_proj]),
            lm_head=None if head.lm_head is None else product([head.lm_head]),
            states_norm=None if head.input_norm is None else norm(head.input_norm),
            state_norms=[norm(module) for module in head.fc_norm], embedding_norm=norm(layer.input_layernorm),
            feature_norm=norm(layer.hidden_norm), mlp_norm=norm(layer.post_attention_layernorm), norm=norm(head.norm),
            head_norm=head_norm, rope=Rope(head.rotary, head.parameter),
        )  # fmt: skip

    def fuse(self, states: Tensor) -> Tensor:
        """Return the features (..., H) of states (..., m H); without aux_layers, the states (..., H) themselves."""
        if self.states_norm is not None:
            states = self.states_norm(states)
        if self.state_norms:
            each = states.chunk(len(self.state_norms), -1)
            states = torch.cat([norm(part) for norm, part in zip(self.state_norms, each, strict=True)], -1)
        return states if self.fc is None else self.fc(states)
