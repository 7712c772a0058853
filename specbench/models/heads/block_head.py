"""DFlash and DSpark: a block of tokens is drafted in one forward of a head over states of its base.

The head's context has an entry for every token but the newest, the anchor: a fusion of inputs of several layers of the base
at that token. Each of its layers has keys and values of these entries. A block of the anchor and mask tokens attends to all
of them, and to itself in both directions. DSpark adds to each row's logits a term of the token drafted before it, by a Markov
head.

Checkpoints of z-lab, SpecForge, speculators and DeepSpec differ in names and in which row predicts which token.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

from specbench.config.construct import Table
from specbench.decoding.session import AuxLayers
from specbench.errors import ConfigError, MissingAsset
from specbench.files import write
from specbench.models.heads.block_parts import BlockParts
from specbench.models.heads.block_settings import OF_ZLAB, OUTPUTS, BlockSettings, default_aux_layers, merged
from specbench.models.heads.draft_head import DraftHead, require_numbers
from specbench.models.heads.draft_layers import (
    UNUSED,
    BlockLayer,
    embedding_of,
    layer_like,
    over_all,
    require_aux_layers,
    require_embedding,
)
from specbench.models.heads.head_config import BlockKeys
from specbench.models.heads.head_files import CONFIG, MARKOV, Drafter, HeadFiles
from specbench.models.heads.head_weights import WEIGHTS, require_fit
from specbench.models.heads.markov import MarkovHead
from specbench.models.heads.token_table import OF_TARGET, TO_TARGET, drafted_tokens, require_tokens
from specbench.models.lean.cache import Bias, Cache
from specbench.models.lean.layers import PLAIN_ELEMENTWISE
from specbench.models.model_runner import Feed

CONFIDENCE = "confidence_head.proj."  # the beginning of names of weights


class BlockHead(DraftHead):
    """A head that drafts a block of tokens in one forward.

    With the inputs r of m layers of the base at token t, the entry of t is c_t = norm(fc r). Layer l has keys k_l(c_t) and
    values v_l(c_t), with rotary position t, and is otherwise an ordinary layer over the block.
    """

    def __init__(self, settings: BlockSettings, rows: int = 0) -> None:
        """Build a head with random weights. `rows` is the size of its own embedding; 0 if it uses its base's."""
        super().__init__()
        config, width = settings.layer, settings.layer.hidden_size
        self.block, self.states, self.state_width = settings, settings.states, settings.state_width
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
        self.flags = 0  # length of t2d; 0 without it
        self.rows = rows  # of the base's LM head, once it goes with one

    @classmethod
    def of(cls, config: PreTrainedConfig, layers: int = 5, length: int = 7, aux_layers: AuxLayers = ()) -> Self:
        """Return a new head for a base, which drafts `length` tokens.

        Its layers have the base's shape if that is of Llama's form. It reads the inputs of `aux_layers`, by default one
        for each of its own layers. Its mask token is the last one of the base's embedding.
        """
        config = config.get_text_config(decoder=True)
        aux_layers = aux_layers or default_aux_layers(config.num_hidden_layers, layers)
        settings = BlockSettings(
            layer=layer_like(config), layers=layers, states=len(aux_layers), state_width=config.hidden_size,
            aux_layers=aux_layers,
            key=OUTPUTS, mask=config.vocab_size - 1, length=length, from_anchor=True,
        )  # fmt: skip
        return cls(settings)

    @classmethod
    def of_files(cls, files: HeadFiles) -> Self:
        files = dataclasses.replace(
            files, weights={name.removeprefix("model."): w for name, w in files.weights.items()}
        )
        weights = dict(files.weights)
        settings = BlockSettings.of(files)
        offsets, flags = (weights.pop(name, None) for name in (TO_TARGET, OF_TARGET))
        tokens = drafted_tokens(files.folder, offsets, flags, settings.vocabulary)
        renamed = {
            name.replace(MARKOV, "markov.").replace(CONFIDENCE, "confidence."): weight
            for name, weight in weights.items()
            if name not in UNUSED
        }
        with torch.device("meta"):
            require_fit(f"{files.folder} is not a block drafter", cls._shaped(files, settings, renamed), renamed)
        head = cls._shaped(files, settings, renamed)
        head.load_state_dict(renamed)
        head.tokens, head.flags = tokens, 0 if flags is None else len(flags)
        return head

    @classmethod
    def _shaped(cls, files: HeadFiles, settings: BlockSettings, weights: Mapping[str, Tensor]) -> Self:
        """Return a head with the parts that the files have. Raises MissingAsset if they are not those of the config."""
        embedding = weights.get("embed_tokens.weight")
        head = cls(settings, len(embedding) if embedding is not None and embedding.ndim else 0)
        keys = merged(files.keys, files.keys.within(OF_ZLAB)).read(BlockKeys)
        markov = {name.removeprefix("markov."): w for name, w in weights.items() if name.startswith("markov.")}
        if markov:
            head.markov = MarkovHead.of_weights(files.folder, markov, settings.layer.hidden_size)
        if keys.markov_rank is not None and keys.markov_rank != (head.markov.rank if head.markov else 0):
            found = f"of rank {head.markov.rank}" if head.markov else "missing"
            raise files.keys.error("markov_rank", f"is {keys.markov_rank}, and the Markov head in the files is {found}")
        if head.markov is not None and keys.markov_head_type not in (None, head.markov.kind):
            raise files.keys.error(
                "markov_head_type", f"is {keys.markov_head_type!r}, and the files are {head.markov.kind}"
            )
        if (confidence := weights.get("confidence.weight")) is not None:
            rank = head.markov.rank if head.markov else 0
            reads = confidence.shape[-1] if confidence.ndim else 0
            if reads not in (settings.layer.hidden_size, settings.layer.hidden_size + rank):
                raise MissingAsset(f"{files.folder}: {CONFIDENCE}weight reads {reads} numbers")
            head.confidence = nn.Linear(reads, 1)
        return head

    def save(self, folder: Path) -> None:
        """Write the head in DeepSpec's layout, without the base's embedding and LM head."""
        assert self.block.from_anchor and self.tokens is None, "the form of a new head"
        folder.mkdir(parents=True, exist_ok=True)
        settings, markov = self.block, self.markov
        table: Table = settings.layer.to_diff_dict() | {
            "architectures": ["Qwen3DSparkModel"], "model_type": "qwen3", "block_size": settings.length,
            "mask_token_id": settings.mask, OUTPUTS.name: [layer - 1 for layer in settings.aux_layers],
            "target_hidden_size": settings.state_width, "num_hidden_layers": settings.layers,
            "markov_rank": 0 if markov is None else markov.rank, "enable_confidence_head": self.confidence is not None,
        }  # fmt: skip
        if markov is not None:
            table |= {"markov_head_type": markov.kind, "confidence_head_with_markov": True}
        write(folder / CONFIG, json.dumps(table, indent=1) + "\n")
        weights = {
            name.replace("markov.", MARKOV, 1).replace("confidence.", CONFIDENCE, 1): weight.contiguous()
            for name, weight in self.state_dict().items()
            if "embed_tokens" not in name
        }
        save_file(weights, folder / WEIGHTS, metadata={"specbench": json.dumps(dataclasses.asdict(self.provenance))})

    @property
    def parameter(self) -> Tensor:
        return self.fc.weight

    def goes_with(self, embedding: Tensor, config: PreTrainedConfig) -> Self:
        settings, rows, text = self.block, len(embedding), config.get_text_config(decoder=True)
        self.aux_layers = settings.aux_layers
        require_aux_layers(self.aux_layers, settings.key, settings.states, text.num_hidden_layers)
        require_embedding(self.embed_tokens, settings.layer.hidden_size, embedding)
        if self.lm_head is None and embedding.shape[1] != settings.layer.hidden_size:
            width = settings.layer.hidden_size
            raise ConfigError(
                f"the head has no lm_head.weight, and its width {width} is not the base's {embedding.shape[1]}"
            )
        if text.model_type.startswith("gemma"):
            raise ConfigError("bases with Gemma's scaled embeddings are not supported for block drafters")
        known = rows if self.embed_tokens is None else len(self.embed_tokens.weight)
        if settings.mask >= known:
            raise ConfigError(f"mask_token_id is {settings.mask}, and the embedding has {known} rows")
        require_tokens(self.tokens, settings.vocabulary, rows, settings.stated, self.flags)
        if self.markov is not None:
            self.markov.require_tokens(rows, settings.vocabulary or rows)
        self.to(device=embedding.device, dtype=embedding.dtype).eval().requires_grad_(False)
        if self.embed_tokens is None:
            self.embed_tokens = embedding_of(embedding)
        if self.tokens is not None:
            self.tokens = self.tokens.to(embedding.device)
        self.rows, self.is_partial = rows, self.tokens is not None
        return self

    @cached_property
    def packed(self) -> BlockParts:
        """The head in the lean engine's form, over the current weights."""
        return BlockParts.packed(self, self.block.layer)

    def new_cache(self) -> "MutualCache":
        config, like = self.block.layer, self.parameter
        return MutualCache(self.block.layers, config.num_key_value_heads, config.head_dim, like.dtype, like.device)

    def store(self, states: Tensor, cache: "MutualCache") -> None:
        """Store keys and values of the entries of tokens with these states (n, m H), which the cache has begun to feed."""
        parts = self.packed
        entries = parts.entries(states)
        for i, layer in enumerate(parts.layers):
            both = layer.context(entries, parts)
            _rotate(both[:, : parts.kv_heads], parts, cache)
            cache.store(i, both)

    def forward_block(self, anchor: Tensor, rows: int, cache: "MutualCache") -> Tensor:
        """Return what the LM head reads (rows, H) of the anchor (1,) and rows - 1 masks. The cache has begun to feed them."""
        parts = self.packed
        bias = Bias(parts.dim**-0.5)

        def attend(i: int, heads: Tensor) -> Tensor:
            _rotate(heads[:, : parts.heads + parts.kv_heads], parts, cache)
            return cache.attend(i, heads[:, : parts.heads], heads[:, parts.heads :], bias)

        return parts.forward(self.embedded(anchor, rows)[0], attend)

    def embedded(self, anchors: Tensor, rows: int) -> Tensor:
        """Return the input (..., rows, H) of blocks of anchors (...,), each with rows - 1 masks."""
        assert self.embed_tokens is not None
        masks = anchors.new_full((*anchors.shape, rows - 1), self.block.mask)
        embedded: Tensor = self.embed_tokens(torch.cat([anchors[..., None], masks], -1))
        return embedded.to(self.parameter.dtype)

    def require_finite_output(self) -> None:
        with torch.no_grad():
            tokens, states = self.made_up(4)
            cache, packed_rows = self.new_cache(), self.block.length + (not self.block.from_anchor)
            cache.begin(Feed(tokens, 0, states=states))
            self.store(states, cache)
            cache.begin(Feed(tokens[:1].expand(packed_rows), len(tokens)))
            read = self.forward_block(tokens[-1:], packed_rows, cache)
            logits, w1 = self.logits(read, self.of_base), None
            if self.markov is not None:
                w1 = self.markov.looked_up(tokens[-1:].expand(packed_rows))
                logits = self.with_term(logits, self.markov(w1, read, None)[0])
            require_numbers(read, logits)
            if self.confidence is not None:
                require_numbers(self.confidence_of(read, w1)[None])

    def logits(self, read: Tensor, of_base: Callable[[Tensor], Tensor]) -> Tensor:
        """Return logits (n, V) for what the block returned, without the Markov head's."""
        return over_all((self.packed.lm_head or of_base)(read), self.tokens, self.rows)

    def with_term(self, logits: Tensor, term: Tensor) -> Tensor:
        """Return logits (n, V) plus the Markov head's (n, V')."""
        whole = over_all(term, self.tokens, self.rows)[:, : logits.shape[-1]]
        return logits + whole.to(logits.dtype)

    def confidence_of(self, rows: Tensor, w1: Tensor | None) -> Tensor:
        """Return the logit (...,) of the probability that the token of a row (..., H) is accepted.

        w1 (..., r) belongs to the token before it.
        """
        assert self.confidence is not None
        reads_markov = self.confidence.in_features > rows.shape[-1]
        out: Tensor = self.confidence(torch.cat([rows, w1], -1) if reads_markov and w1 is not None else rows)
        return out.squeeze(-1)


class DFlashHead(BlockHead):
    """DFlash: the tokens of a block are independent of each other, given the context."""

    kind: ClassVar[str] = "dflash"
    drafter: ClassVar[Drafter] = Drafter.dflash


class DSparkHead(BlockHead):
    """DSpark: a Markov head adds to each row's logits a term of the token drafted before it."""

    kind: ClassVar[str] = "dspark"
    drafter: ClassVar[Drafter] = Drafter.dspark

    @classmethod
    def of(
        cls, config: PreTrainedConfig, layers: int = 5, length: int = 7, aux_layers: AuxLayers = (), rank: int = 256
    ) -> Self:
        """Return a new head as `BlockHead.of` does, with a Markov head of a rank, and a confidence head that reads it."""
        head = super().of(config, layers, length, aux_layers)
        rows = config.get_text_config(decoder=True).vocab_size
        head.markov = MarkovHead.vanilla(rows, rank)
        head.confidence = nn.Linear(head.block.layer.hidden_size + rank, 1)
        return head


def _rotate(heads: Tensor, parts: BlockParts, cache: Cache) -> None:
    """Rotate heads (n, heads, d) of the tokens that the cache has begun to feed, in place."""
    cos, sin = (cache.rows(table).unsqueeze(1) for table in parts.rope.until(cache.capacity))
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
