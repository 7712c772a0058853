"""DFlash and DSpark: a block of tokens is drafted in one forward of a head over states of its base.

The head's context has an entry for every token but the newest, the anchor: a fusion of inputs of several layers of the base
at that token. Each of its layers has keys and values of these entries. A block of the anchor and mask tokens attends to all
of them, and to itself in both directions. DSpark adds to each row's logits a term of the token drafted before it, by a Markov
head.

Checkpoints of z-lab, SpecForge, speculators and DeepSpec differ in names and in which row predicts which token.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

from specbench.decoding.drafting import common_prefix
from specbench.decoding.sampling import Draft, Sampler, read_tokens, to_device
from specbench.decoding.session import Session, Taps, Usage
from specbench.errors import ConfigError, MissingAsset
from specbench.models.feeder import Feed, Feeder, Output, TimedFeeder
from specbench.models.heads.draft_layers import (
    UNUSED,
    Attention,
    Mlp,
    embedding_of,
    layer_config,
    layer_like,
    over_all,
    require_taps,
    require_tokens,
    split_heads,
)
from specbench.models.heads.head import UNREADABLE, Head, in_one_line
from specbench.models.heads.head_files import SPECULATORS, Drafter, HeadFiles
from specbench.models.lean.cache import Bias, Cache
from specbench.models.lean.layers import PLAIN_ELEMENTWISE, Map, Rope, unsupported_layers
from specbench.models.lean.network import HeadNorm, RMSNorm
from specbench.models.products import product_of

INPUTS, OUTPUTS = "aux_hidden_state_layer_ids", "target_layer_ids"  # keys that number inputs and outputs of layers
OF_ZLAB = "dflash_config"  # a table that may hold the keys


def default_outputs(layers: int, count: int) -> tuple[int, ...]:
    """Return the layers whose outputs a head of `count` states reads by default, of a base of this many layers."""
    if count == 1:
        return (layers // 2,)
    return tuple(round(1 + i * (layers - 4) / (count - 1)) for i in range(count))


@dataclass(frozen=True, kw_only=True)
class BlockSettings:
    """What the files of a head say besides its weights.

    Attributes:
        layer: The config of its decoder layers.
        layers: Their number.
        states: The number m of inputs of layers that it reads.
        state_width: Their width, the base's.
        taps: Which; None for the default.
        taps_key: The key that says so.
        mask: The token of the rows to predict, by its row in the base's embedding.
        length: The number of tokens that it drafts.
        from_anchor: Whether a row predicts the token after it, so that the anchor's row predicts the first one. Otherwise a
            row predicts the token at its own position, and the block has one row more.
        vocabulary: The number V' of tokens of its own LM head; 0 if it uses the base's.
        norms_heads: Whether queries and keys are normed.
    """

    layer: LlamaConfig
    layers: int
    states: int
    state_width: int
    taps: Taps | None = None
    taps_key: str = ""
    mask: int
    length: int
    from_anchor: bool = False
    vocabulary: int = 0
    norms_heads: bool = True

    @classmethod
    def of(cls, files: HeadFiles) -> "BlockSettings":
        """Return the settings of files. Raises MissingAsset for a layout that is not read."""
        config, weights = files.config, files.weights
        nested: Mapping[str, Any] = config.get(OF_ZLAB) or {}
        layer: Mapping[str, Any] = config.get("transformer_layer_config") or config

        def value(key: str, default: Any = None) -> Any:
            return nested.get(key, config.get(key, default))

        fc, head = weights.get("fc.weight"), weights.get("lm_head.weight")
        if fc is None:
            raise MissingAsset(f"{files.folder} is not a block drafter: it has no fc.weight")
        if str(layer.get("model_type", "")).startswith("gemma"):
            raise MissingAsset(f"{files.folder}: block drafters with Gemma's layers are not supported")
        kinds = set(layer.get("layer_types") or ())
        if kinds - {"full_attention"} or value("causal") or value("use_swa"):
            raise MissingAsset(f"{files.folder}: block drafters with causal or sliding attention are not supported")
        mask, block = value("mask_token_id"), value("block_size")
        if mask is None or block is None:
            raise MissingAsset(
                f"{files.folder}: config.json has no {'block_size' if block is None else 'mask_token_id'}"
            )
        width = int(config.get("target_hidden_size") or layer["hidden_size"])
        is_spec, is_dspark = SPECULATORS in config, files.drafter == Drafter.dspark
        from_anchor = bool(value("sample_from_anchor", is_dspark and not is_spec))
        inputs, outputs = value(INPUTS), value(OUTPUTS)
        taps = tuple(inputs) if inputs else tuple(index + 1 for index in outputs) if outputs else None
        names = [name.split(".")[1] for name in weights if name.startswith("layers.")]
        return cls(
            layer=layer_config(layer),
            layers=len(set(names)), states=fc.shape[1] // width, state_width=width, taps=taps,
            taps_key=INPUTS if inputs else OUTPUTS if outputs else "", mask=int(mask),
            length=int(block) - (not from_anchor), from_anchor=from_anchor,
            vocabulary=0 if head is None else head.shape[0], norms_heads="layers.0.self_attn.q_norm.weight" in weights,
        )  # fmt: skip


class MarkovHead(nn.Module):
    """DSpark's term of the logits of a token, from the token before it and the row h (1, H).

    W1 (V, r) looks the token up, W2 (V', r) turns the result into logits. `vanilla` uses it as it is, `gated` gates it by
    [h; w1], and `rnn` updates a state with [state; w1; h].
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        """Build the modules that fit the weights of these names."""
        super().__init__()
        rows, self.rank = weights["markov_w1.weight"].shape
        self.markov_w1 = nn.Embedding(rows, self.rank)
        self.markov_w2 = nn.Linear(self.rank, len(weights["markov_w2.weight"]), bias=False)
        self.gate_proj, self.joint_proj = (_linear_of(weights, name) for name in ("gate_proj", "joint_proj"))

    def looked_up(self, token: Tensor) -> Tensor:
        """Return w1 (1, r) of a token (1,)."""
        row: Tensor = self.markov_w1(token)
        return row

    def forward(self, w1: Tensor, row: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return logits (1, V'), and the next state (1, r) of an rnn."""
        if self.gate_proj is not None:
            w1 = self.gate_proj(torch.cat([row, w1], -1)).sigmoid() * w1
        elif self.joint_proj is not None:
            state = torch.zeros_like(w1) if state is None else state
            gate, new, out = self.joint_proj(torch.cat([state, w1, row], -1)).chunk(3, -1)
            state, w1 = gate.sigmoid() * state + (1 - gate.sigmoid()) * new.tanh(), out.tanh()
        return self.markov_w2(w1), state


def _linear_of(weights: Mapping[str, Tensor], name: str) -> nn.Linear | None:
    """Return a layer that fits the weights of this name; None if there are none."""
    weight = weights.get(f"{name}.weight")
    return None if weight is None else nn.Linear(weight.shape[1], weight.shape[0], bias=f"{name}.bias" in weights)


class BlockLayer(nn.Module):
    """A decoder layer. Names are those of published checkpoints."""

    def __init__(self, config: LlamaConfig, norms_heads: bool) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn, self.mlp = Attention(config, width, norms_heads), Mlp(config)
        self.input_layernorm, self.post_attention_layernorm = LlamaRMSNorm(width, eps), LlamaRMSNorm(width, eps)


class BlockHead(Head):
    """A head that drafts a block of tokens in one forward: DFlash, or DSpark if it has a Markov head.

    With the inputs r of m layers of the base at token t, the entry of t is c_t = norm(fc r). Layer l has keys k_l(c_t) and
    values v_l(c_t), with rotary position t, and is otherwise an ordinary layer over the block.
    """

    kind: ClassVar[str] = "dflash"

    taps: Taps = ()
    is_partial: bool = False

    def __init__(self, settings: BlockSettings, rows: int = 0) -> None:
        """Build a head with random weights. `rows` is the size of its own embedding; 0 if it uses its base's."""
        super().__init__()
        config, width = settings.layer, settings.layer.hidden_size
        self.block, self.state_width = settings, settings.state_width
        self.fc = nn.Linear(settings.states * settings.state_width, width, bias=False)
        self.hidden_norm = LlamaRMSNorm(width, config.rms_norm_eps)
        decoder_layers = [BlockLayer(config, settings.norms_heads) for _ in range(settings.layers)]
        self.decoder_layers: Sequence[BlockLayer] = decoder_layers
        self.layers = nn.ModuleList(decoder_layers)
        self.norm = LlamaRMSNorm(width, config.rms_norm_eps)
        self.lm_head = nn.Linear(width, settings.vocabulary, bias=False) if settings.vocabulary else None
        self.embed_tokens = nn.Embedding(rows, width) if rows else None
        self.rotary = LlamaRotaryEmbedding(config)
        self.markov: MarkovHead | None = None
        self.confidence: nn.Linear | None = None
        self.tokens: Tensor | None = None  # (V',) ids of the tokens that it drafts; None for all
        self.rows = rows  # of the base's LM head, once it goes with one

    @classmethod
    def of(cls, config: PreTrainedConfig, layers: int = 5, length: int = 7) -> Self:
        """Return a new DFlash head for a base, which drafts `length` tokens.

        Its layers have the base's shape if that is of Llama's form. Its mask token is the last one of the base's embedding.
        """
        config = config.get_text_config(decoder=True)
        taps = tuple(index + 1 for index in default_outputs(config.num_hidden_layers, layers))
        settings = BlockSettings(
            layer=layer_like(config), layers=layers, states=len(taps), state_width=config.hidden_size, taps=taps,
            taps_key=OUTPUTS, mask=config.vocab_size - 1, length=length, from_anchor=True,
        )  # fmt: skip
        return cls(settings)

    @classmethod
    def read(cls, folder: Path) -> Self:
        files = HeadFiles.read(folder)
        if files.drafter not in (Drafter.dflash, Drafter.dspark):
            raise MissingAsset(
                f"{folder} holds {files.drafter.value}; the kind '{cls.kind}' reads DFlash and DSpark drafters"
            )
        try:
            head = cls._of(files)
        except UNREADABLE as error:
            raise MissingAsset(f"{folder} cannot be read as {files.drafter.value}: {in_one_line(error)}") from None
        head.provenance = files.provenance
        return head

    @classmethod
    def _of(cls, files: HeadFiles) -> Self:
        weights = {name.removeprefix("model."): weight for name, weight in files.weights.items() if name not in UNUSED}
        offsets, embedding = weights.pop("d2t", None), weights.get("embed_tokens.weight")
        settings = BlockSettings.of(files)
        head = cls(settings, 0 if embedding is None else len(embedding))
        markov = {
            name.removeprefix("markov_head."): w for name, w in weights.items() if name.startswith("markov_head.")
        }
        if markov:
            head.markov = MarkovHead(markov)
        if (confidence := weights.get("confidence_head.proj.weight")) is not None:
            head.confidence = nn.Linear(confidence.shape[1], 1)
        renamed = {
            name.replace("markov_head.", "markov.").replace("confidence_head.proj.", "confidence."): weight
            for name, weight in weights.items()
        }
        missing, unknown = head.load_state_dict(renamed, strict=False)
        if missing or unknown:
            raise MissingAsset(f"{files.folder} is not a block drafter: missing {missing}, unexpected {unknown}")
        if offsets is not None:
            head.tokens = torch.arange(len(offsets)) + offsets.long()
        return head

    @property
    def parameter(self) -> Tensor:
        return self.fc.weight

    def goes_with(self, embedding: Tensor, config: PreTrainedConfig) -> Self:
        """Move the head to the device and dtype of its base's embedding (V, H), as `EagleHead.goes_with` does."""
        settings, rows = self.block, len(embedding)
        layers = config.get_text_config(decoder=True).num_hidden_layers
        self.taps = settings.taps or tuple(index + 1 for index in default_outputs(layers, settings.states))
        require_taps(self.taps, settings.taps_key, settings.states, layers)
        if self.embed_tokens is None and embedding.shape[1] != settings.layer.hidden_size:
            width = settings.layer.hidden_size
            raise ConfigError(
                f"the head has width {width} and no embed_tokens.weight, and the base has {embedding.shape[1]}"
            )
        known = rows if self.embed_tokens is None else len(self.embed_tokens.weight)
        if settings.mask >= known:
            raise ConfigError(f"mask_token_id is {settings.mask}, and the embedding has {known} rows")
        require_tokens(self.tokens, rows)
        self.to(device=embedding.device, dtype=embedding.dtype).eval().requires_grad_(False)
        if self.embed_tokens is None:
            self.embed_tokens = embedding_of(embedding)
        if self.tokens is not None:
            self.tokens = self.tokens.to(embedding.device)
        self.rows, self.is_partial = rows, self.tokens is not None
        return self

    @cached_property
    def packed(self) -> "BlockParts":
        """The head in the lean engine's form, over the current weights."""
        return BlockParts(self)

    def new_cache(self) -> "MutualCache":
        config, like = self.block.layer, self.parameter
        return MutualCache(self.block.layers, config.num_key_value_heads, config.head_dim, like.dtype, like.device)

    def store(self, states: Tensor, cache: "MutualCache") -> None:
        """Store keys and values of the entries of tokens with these states (n, m H), which the cache has begun to feed."""
        parts = self.packed
        entries = parts.context_norm(parts.fc(states))
        for i, layer in enumerate(parts.layers):
            both = split_heads(layer.kv(entries), parts.dim)  # (n, keys then values, d)
            keys = both[:, : parts.kv_heads]
            if layer.key_norm is not None:
                layer.key_norm(keys)
            self._rotate(keys, cache)
            cache.store(i, both)

    def forward_block(self, anchor: Tensor, rows: int, cache: "MutualCache") -> Tensor:
        """Return what the LM head reads (rows, H) of the anchor (1,) and rows - 1 masks. The cache has begun to feed them."""
        parts = self.packed
        assert self.embed_tokens is not None
        masks = anchor.new_full((rows - 1,), self.block.mask)
        x = self.embed_tokens(torch.cat([anchor, masks])).to(self.parameter.dtype)
        for i, layer in enumerate(parts.layers):
            heads = split_heads(layer.qkv(layer.norm(x)), parts.dim)
            turned = heads[:, : parts.heads + parts.kv_heads]
            if layer.head_norm is not None:
                layer.head_norm(turned)
            self._rotate(turned, cache)
            x = x + layer.out(cache.attend(i, heads[:, : parts.heads], heads[:, parts.heads :], parts.bias))
            x = x + layer.down(PLAIN_ELEMENTWISE.gate(layer.up(layer.norm_mlp(x))))
        return parts.norm(x)

    def logits(self, read: Tensor, of_base: Callable[[Tensor], Tensor], extra: Tensor | None = None) -> Tensor:
        """Return logits (n, V) for what the block returned, plus the Markov head's (n, V')."""
        known = (self.packed.lm_head or of_base)(read)
        if extra is not None:
            known = known + extra[:, : known.shape[-1]].to(known.dtype)
        return over_all(known, self.tokens, self.rows)

    def confidence_of(self, row: Tensor, w1: Tensor | None) -> Tensor:
        """Return the estimated probability () that the token of a row (1, H) is accepted, after a token with w1 (1, r)."""
        assert self.confidence is not None
        reads_markov = self.confidence.in_features > row.shape[-1]
        out: Tensor = self.confidence(torch.cat([row, w1], -1) if reads_markov and w1 is not None else row)
        return out.sigmoid().squeeze()

    def _rotate(self, heads: Tensor, cache: Cache) -> None:
        cos, sin = (cache.rows(table).unsqueeze(1) for table in self.packed.rope.until(cache.capacity))
        PLAIN_ELEMENTWISE.rotate(heads, cos, sin)


class MutualCache(Cache):
    """A cache whose fed tokens attend to every position, each other's included."""

    def store(self, layer: int, kv: Tensor) -> None:
        """Store kv (n, keys then values, d) of the fed tokens without attending."""
        if not self._write:
            self._open()
        self._write[layer].copy_(kv)

    def _visible(self, bias: Bias) -> tuple[int, Tensor | None]:
        return 0, None


class _LayerParts:
    """A layer's products and norms. `kv` and `key_norm` are those of context entries."""

    def __init__(self, layer: BlockLayer, config: LlamaConfig) -> None:
        attention, mlp, eps = layer.self_attn, layer.mlp, config.rms_norm_eps
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.kv: Map = product_of([_copy(attention.k_proj), _copy(attention.v_proj)])
        self.qkv: Map = product_of([attention.q_proj, attention.k_proj, attention.v_proj])
        self.out: Map = product_of([attention.o_proj])
        self.up: Map = product_of([mlp.gate_proj, mlp.up_proj])
        self.down: Map = product_of([mlp.down_proj])
        self.norm = RMSNorm(layer.input_layernorm.weight, eps)
        self.norm_mlp = RMSNorm(layer.post_attention_layernorm.weight, eps)
        self.head_norm = self.key_norm = None
        if attention.q_norm is not None and attention.k_norm is not None:
            query, key = attention.q_norm.weight, attention.k_norm.weight
            self.head_norm = HeadNorm(query, key, (heads, kv_heads), eps)
            self.key_norm = HeadNorm(key, key, (0, kv_heads), eps)


class BlockParts:
    """A head's products and norms as the lean engine computes them."""

    def __init__(self, head: BlockHead) -> None:
        config = head.block.layer
        if reason := unsupported_layers(config, "block drafter"):
            raise ConfigError(reason)
        self.heads, self.kv_heads, self.dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.fc: Map = product_of([head.fc])
        self.layers: Sequence[_LayerParts] = [_LayerParts(layer, config) for layer in head.decoder_layers]
        self.lm_head: Map | None = None if head.lm_head is None else product_of([head.lm_head])
        self.context_norm, self.norm = (
            RMSNorm(norm.weight, config.rms_norm_eps) for norm in (head.hidden_norm, head.norm)
        )
        self.bias, self.rope = Bias(self.dim**-0.5), Rope(head.rotary, head.parameter)


def _copy(linear: nn.Linear) -> nn.Linear:
    """Return a layer with weights of its own, which a second product can pack."""
    copied = nn.Linear(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
    copied.weight = nn.Parameter(linear.weight.detach().clone(), requires_grad=False)
    if linear.bias is not None:
        copied.bias = nn.Parameter(linear.bias.detach().clone(), requires_grad=False)
    return copied


class BlockFeeder(Feeder):
    """A head's forwards: a block of rows, after new entries of the context. States are what the LM head reads (rows, H)."""

    name = "block drafter"

    def __init__(self, head: BlockHead, base: Session, vocabulary: int | None) -> None:
        self._head, self._base, self._vocabulary = head, base, vocabulary
        self.device, self.is_partial = head.parameter.device, head.is_partial
        self.cache = head.new_cache()

    def feed(self, feed: Feed, rows: int) -> Output:
        assert feed.states is not None
        with torch.inference_mode():
            if new := len(feed.states):
                self.cache.begin(Feed(feed.tokens.new_zeros(new), feed.start - new))
                self._head.store(feed.states, self.cache)
            self.cache.begin(feed)
            read = self._head.forward_block(feed.tokens[:1], len(feed.tokens), self.cache)[-rows:]
            return Output(self.with_markov(read, None), read)

    def with_markov(self, read: Tensor, extra: Tensor | None) -> Tensor:
        """Return logits (n, V) for what the block returned, plus a Markov head's (n, V')."""
        return self._head.logits(read, self._base.logits_of, extra)[:, : self._vocabulary]

    def logits_of(self, states: Tensor) -> Tensor:
        return self.with_markov(states, None)


class BlockSession:
    """A head's drafts on one sequence, over the session of its base, of at most `vocabulary` tokens.

    The context entry of token t depends on the base's states at t alone, and is valid while tokens 0 .. t are the same. The
    block's own entries are overwritten.
    """

    def __init__(self, head: BlockHead, base: Session, vocabulary: int | None = None) -> None:
        base.keep_states(head.taps)
        self.head, self.feeder = head, BlockFeeder(head, base, vocabulary)
        self.timed, self._base = TimedFeeder(self.feeder), base
        self._ids: list[int] = []  # the tokens that have context entries

    @property
    def usage(self) -> Usage:
        return self.timed.usage

    def finish(self) -> None:
        self.timed.finish()

    def draft(self, ids: list[int], k: int, sampler: Sampler, eos: frozenset[int], threshold: float = 0.0) -> Draft:
        """Draft up to k tokens after ids in one forward, ending at an EOS; none if ids is a single token.

        With a confidence head, the draft ends before the first token whose confidence is below `threshold`. The confidence of
        a token reads those before it, and not the token itself.
        """
        if len(ids) < 2 or not k:
            return Draft([], torch.empty(0, 0))
        rows = self._rows(ids, k)  # (k, H)
        drawn, probs = self._drawn(ids[-1], rows, sampler, threshold)
        if not drawn:
            return Draft([], torch.empty(0, 0))
        tokens = read_tokens(torch.cat(drawn))
        length = next((i for i, token in enumerate(tokens, 1) if token in eos), len(tokens))
        return Draft(tokens[:length], torch.cat(probs)[:length])

    def _rows(self, ids: list[int], k: int) -> Tensor:
        """Return what the LM head reads for k tokens after ids (k, H). The base reads all ids but the last first."""
        context = len(ids) - 1
        entries = min(common_prefix(ids, self._ids), context)
        if entries < context:
            states = self._base.hidden(ids[:context], entries, self.head.taps).to(self.head.parameter.dtype)
        else:
            states = self.head.parameter.new_empty(0, self.head.block.states * self.head.state_width)
        size = k if self.head.block.from_anchor else k + 1
        block = to_device([ids[-1]] + [self.head.block.mask] * (size - 1), self.feeder.device)
        out = self.timed.feed(Feed(block, context, states=states), k)
        self._ids = ids[:context]
        assert out.states is not None
        return out.states

    def _drawn(
        self, anchor: int, rows: Tensor, sampler: Sampler, threshold: float
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return tokens (1,) and the distributions (1, V) that they were drawn from, one after the other."""
        markov, state = self.head.markov, None
        drawn, probs = list[Tensor](), list[Tensor]()
        token = to_device([anchor], self.feeder.device)
        with torch.inference_mode():
            for row in rows.chunk(len(rows)):
                w1 = None if markov is None else markov.looked_up(token)
                if threshold and float(self.head.confidence_of(row, w1)) < threshold:
                    break
                extra = None
                if markov is not None:
                    extra, state = markov(w1, row, state)
                token, distribution = sampler.draw(self.feeder.with_markov(row, extra))
                drawn.append(token)
                probs.append(distribution)
        return drawn, probs
