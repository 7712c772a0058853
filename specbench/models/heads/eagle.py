"""EAGLE-1 (Li et al. 2024): a head of one decoder layer that predicts its base model's next feature, and drafts from it.

A feature f_t is the base's last hidden state at token t, which its LM head reads. From f_t and the embedding of token t + 1
the head computes fhat_{t+1}, which the base's LM head turns into the distribution of token t + 2.
"""

import copy
import itertools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, LlamaConfig, PreTrainedConfig

from specbench.decoding.drafting import common_prefix
from specbench.decoding.sampling import Draft, Sampler, read_tokens, to_device
from specbench.decoding.session import Session, Usage
from specbench.decoding.trees import Growth
from specbench.errors import MissingAsset
from specbench.models.checkpoints import CONSTRUCTION
from specbench.models.feeder import DraftGraph, DraftInputs, DraftSettings, Feed, Feeder, Output, TimedFeeder
from specbench.models.heads.head import UNREADABLE, Head, Provenance, in_one_line
from specbench.models.lean.cache import Cache
from specbench.models.lean.graphs import Graphs
from specbench.models.lean.layers import Layers
from specbench.models.lean.network import Network
from specbench.models.products import Product, product_of

CONFIG, WEIGHTS, TORCH = "config.json", "model.safetensors", "pytorch_model.bin"
LAYERED = ("llama", "qwen2", "mistral")  # model types whose own decoder layer the head uses
EMBEDDING, INNER = "embed_tokens.weight", "inner."
OF_EAGLE_3 = ("d2t", "t2d")  # names of weights: maps between its vocabulary and its target's


class EagleHead(Head):
    """An EAGLE-1 head, which predicts the feature of the next token, fhat_{t+1}.

    A linear layer fc (2H -> H) reads [embedding of token t + 1, f_t]; a decoder layer without input norm follows.

    Embedding and LM head are the base's, frozen. The folder is in the published checkpoints' format: config.json, and
    model.safetensors or pytorch_model.bin with `fc.weight`, optionally `fc.bias`, `layers.0.*`, and
    `embed_tokens.weight` unless the base's is used.
    """

    kind: ClassVar[str] = "eagle"

    def __init__(self, config: PreTrainedConfig, bias: bool = True) -> None:
        super().__init__()
        self.has_embedding = False  # whether the checkpoint has an embedding
        self.graphs: Graphs | None = None  # its cache and CUDA graphs, if its base has graphs
        self.config = copy.deepcopy(config)
        self.config.num_hidden_layers = 1
        if getattr(self.config, "layer_types", None):
            self.config.layer_types = self.config.layer_types[:1]
        with CONSTRUCTION:
            inner = AutoModel.from_config(self.config)
        inner.layers[0].input_layernorm = inner.norm = nn.Identity()
        self.inner, width = inner, int(self.config.hidden_size)
        self.fc = nn.Linear(2 * width, width, bias=bias)

    @classmethod
    def of(cls, config: PreTrainedConfig) -> Self:
        """Return a new head for a base model.

        Its layer is of the base's own type if that resembles Llama's, else a Llama layer of the base's width.
        """
        if config.model_type in LAYERED:
            return cls(config)
        width = config.hidden_size
        # Rotary positions need an even dimension
        heads = next(n for n in range(config.num_attention_heads, 0, -1) if width % (2 * n) == 0)
        longest = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", 2048)
        llama = LlamaConfig(
            vocab_size=config.vocab_size, hidden_size=width, num_attention_heads=heads, intermediate_size=4 * width,
            num_key_value_heads=heads, max_position_embeddings=longest,
        )  # fmt: skip
        return cls(llama)

    def forward(self, tokens: Tensor, features: Tensor) -> Tensor:
        """Return fhat_{t+1} (batch, n, H) from tokens t + 1 (batch, n) and features f_t (batch, n, H)."""
        x = torch.cat([self.inner.embed_tokens(tokens).to(features.dtype), features], -1)
        out: Tensor = self.inner(inputs_embeds=self.fc(x), use_cache=False).last_hidden_state
        return out

    def goes_with(self, embedding: Tensor) -> Self:
        """Move the head to the device and dtype of its base's embedding (V, H).

        The head uses that embedding if it has none of its own.
        """
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

    def advance(self, tokens: Tensor, features: Tensor, cache: Cache) -> Tensor:
        """Return what `forward` does for tokens (n,) and features (n, H) after the cached positions: (n, H)."""
        x = torch.cat([self.inner.embed_tokens(tokens).to(features.dtype), features], -1)
        return self.layers.forward(self.entry(x), cache)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        config_table = self.config.to_diff_dict() | {
            "bias": self.fc.bias is not None,
            "model_type": self.config.model_type,
        }
        (folder / CONFIG).write_text(json.dumps(config_table, indent=1) + "\n", encoding="utf-8")
        weights = {k.removeprefix(INNER): v.contiguous() for k, v in self.state_dict().items() if EMBEDDING not in k}
        save_file(weights, folder / WEIGHTS, metadata={"specbench": json.dumps(vars(self.provenance))})

    @classmethod
    def read(cls, folder: Path) -> Self:
        try:
            config_table = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
            weights, provenance = _weights(folder)
            if other := _other_format(config_table, weights):
                raise MissingAsset(f"{folder} holds {other}; EAGLE-1 heads are supported")
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
            head = cls(config, bias=config_table.get("bias", "fc.bias" in weights))
            state = {k if k.startswith("fc.") else INNER + k: v for k, v in weights.items()}
            missing, unknown = head.load_state_dict(state, strict=False)
            lacking = [key for key in missing if EMBEDDING not in key]
            if lacking or unknown:
                raise MissingAsset(f"{folder} is not an EAGLE-1 head: missing {lacking}, unexpected {unknown}")
        except UNREADABLE as error:
            raise MissingAsset(f"{folder} cannot be read as an EAGLE head: {in_one_line(error)}") from None
        head.has_embedding = EMBEDDING in weights
        head.provenance = provenance
        return head


def _other_format(config: Mapping[str, Any], weights: Collection[str]) -> str:
    """Return which other kind of drafter this is, judging by its config and the names of its weights; empty for EAGLE-1."""
    if "speculators_config" in config or "speculators_model_type" in config:
        return f"a drafter in the speculators format ({config.get('speculators_model_type', 'unnamed')})"
    names = " ".join(map(str, config.get("architectures") or ()))
    if "eagle3" in names.lower() or any(key in OF_EAGLE_3 or key.startswith("midlayer.") for key in weights):
        return "an EAGLE-3 head"
    return next((f"a {name} drafter" for name in ("DFlash", "Medusa", "MTP") if name.lower() in names.lower()), "")


def _weights(folder: Path) -> tuple[dict[str, Tensor], Provenance]:
    if (folder / WEIGHTS).is_file():
        with safe_open(folder / WEIGHTS, "pt") as file:
            config_table = json.loads((file.metadata() or {}).get("specbench", "{}"))
        return load_file(folder / WEIGHTS), Provenance(**config_table)
    if (folder / TORCH).is_file():
        return torch.load(folder / TORCH, map_location="cpu", weights_only=True), Provenance()
    raise MissingAsset(f"no EAGLE head in {folder} (no {WEIGHTS} or {TORCH})")


class EagleNetwork:
    """A head with its base's LM head, in the form that draft graphs need."""

    def __init__(self, head: EagleHead, base: Network) -> None:
        self._head, self._base = head, base

    def new_cache(self, source: Tensor | None) -> Cache:
        return self._head.layers.new_cache()

    def fused(self) -> AbstractContextManager[None]:
        return nullcontext()

    def step(self, token: Tensor, cache: Cache, states: Tensor | None) -> tuple[Tensor, Tensor]:
        """Feed one token (1,) after a feature (1, H).

        Returns logits (1, rows of the LM head) and the next feature (1, H).
        """
        assert states is not None
        feature = self._head.advance(token, states, cache)
        return self._base.logits(feature.to(self._base.head.dtype)), feature

    def tables(self) -> tuple[Tensor, ...]:
        return tuple(table for rope in self._head.layers.ropes for table in rope.until(0))


class EagleFeeder(Feeder):
    """A head's forwards: each token is read with the feature of the position before it. States are the features (rows, H)."""

    name = "EAGLE head"
    branches = True

    def __init__(self, head: EagleHead, base: Session) -> None:
        self._head, self._base, self._graphs = head, base, head.graphs
        self.device = head.fc.weight.device
        self.cache = head.graphs.cache if head.graphs else head.layers.new_cache()
        if head.graphs:
            head.graphs.open(self)

    def feed(self, feed: Feed, rows: int) -> Output:
        assert feed.features is not None
        with torch.inference_mode():
            self.cache.begin(feed)
            features = self._head.advance(feed.tokens, feed.features, self.cache)[-rows:]
            return Output(self._base.logits_of(features), features)

    def logits_of(self, states: Tensor) -> Tensor:
        return self._base.logits_of(states)

    def draft_graph(self, drafting: DraftSettings, length: int, start: DraftInputs) -> DraftGraph | None:
        if self._graphs is None:
            return None
        assert self._graphs.is_open_for(self), "another session owns these graphs"
        return self._graphs.find_draft(drafting, length, start)

    def finish(self) -> None:
        if self._graphs and self._graphs.is_open_for(self):
            self._graphs.mark_finite()


class EagleSession:
    """A head's drafts on one sequence, over the session of its base.

    As in other sessions, the cache is validated by comparing tokens: entry i holds token i + 1 with f_i, and is valid
    while tokens 0 .. i + 1 are the same. Entries fed while drafting contain the head's own features and are dropped.
    """

    def __init__(self, head: EagleHead, base: Session, catch_up: bool = True) -> None:
        base.keeps_hidden = True
        self.feeder = EagleFeeder(head, base)
        self.timed, self._base, self._catch_up = TimedFeeder(self.feeder), base, catch_up
        self._dtype = head.fc.weight.dtype
        self._ids: list[int] = []  # the tokens whose entries hold features of the base

    @property
    def usage(self) -> Usage:
        return self.timed.usage

    def finish(self) -> None:
        self.timed.finish()

    def draft(self, ids: list[int], k: int, sampler: Sampler, eos: frozenset[int]) -> Draft:
        """Draft up to k tokens after ids, one forward each, ending at an EOS; none if ids is a single token."""
        n = len(ids)
        if n < 2 or not k:
            return Draft([], torch.empty(0, 0))
        out = self._read(ids)
        if self.feeder.device.type == "cpu":
            drawn, probs = self._drawn_in_turn(out, n - 1, k, sampler, eos)
        else:
            drawn, probs, *_ = self.timed.draft(DraftInputs(out.logits, out.states), k, sampler, n - 1)
        tokens = read_tokens(drawn)
        length = next((i for i, token in enumerate(tokens, 1) if token in eos), len(tokens))
        return Draft(tokens[:length], probs[:length])

    def growth(self, ids: list[int], room: int, eos: frozenset[int]) -> Growth | None:
        """Return the start of a tree after ids; None if ids is a single token. The tree takes one forward per depth."""
        n = len(ids)
        if n < 2 or room < 1:
            return None
        out = self._read(ids)
        assert out.states is not None
        features = [out.states]  # (1, H) before the tree, then of each of its tokens

        def score(tokens: Tensor, parents: tuple[int, ...]) -> Tensor:
            above = torch.cat([features[parent + 1] for parent in parents[-len(tokens) :]])  # (m, H)
            # INVALID, for which `read_tokens` raises, has no embedding
            new = self.timed.feed(Feed(tokens.clamp_min(0), n - 1, parents, above), len(tokens))
            assert new.states is not None
            features.extend(row.unsqueeze(0) for row in new.states)
            return new.logits

        return Growth(out.logits, score, room, eos)

    def score_drafts(self, ids: list[int], tokens: list[int], depth: int) -> Iterator[Tensor]:
        """Yield the logits for the m tokens that follow ids, in drafts that begin at every one of them.

        Yields `depth` tensors (m, V). Row i of the first is for token i as the first token of a draft; row i of the second is
        for token i as the second token of a draft that began one token earlier, and so on. Rows without such a draft are 0.
        All drafts are branches of one tree, whose trunk is the tokens with the base's features; each depth takes a forward.
        """
        n, m = len(ids), len(tokens)
        if n < 2:  # no draft begins after a single token
            nothing = self._base.score(ids, 0)[:0]  # (0, V)
            later = (
                self.score_drafts(ids + tokens[:1], tokens[1:], depth) if m > 1 else itertools.repeat(nothing, depth)
            )
            yield from (F.pad(rows, (0, 0, 1, 0)) for rows in later)
            return
        root = self._read(ids)
        assert root.states is not None
        real = self._base.hidden(ids + tokens[:-1], n - 1).to(self._dtype)  # (m, H)
        fed, parents = to_device(tokens, self.feeder.device), tuple(range(-1, m - 2))  # (m,), of the trunk
        first, above = root.logits, root.states  # (1, V), (1, H)
        if m > 1:
            trunk = self.timed.feed(Feed(fed[:-1], n - 1, parents, real[:-1]), m - 1)  # (m - 1, V), (m - 1, H)
            assert trunk.states is not None
            first, above = torch.cat([first, trunk.logits]), torch.cat([above, trunk.states])  # (m, V), (m, H)
        yield first
        last: Sequence[int] = range(-1, m - 1)  # the node after which each draft goes on
        for at in range(1, depth):
            starts = m - at  # drafts that reach this depth: draft i reads token i + at - 1
            if starts < 1:
                yield torch.zeros_like(first)
                continue
            parents += tuple(last[:starts])
            new = self.timed.feed(Feed(fed[at - 1 : m - 1], n - 1, parents, above[:starts]), starts)
            assert new.states is not None
            yield torch.cat([torch.zeros_like(first[:at]), new.logits])  # (m, V)
            above, last = new.states, range(len(parents) - starts, len(parents))

    def _read(self, ids: list[int]) -> Output:
        """Read ids, and return the logits (1, V) and the feature (1, H) of the last one.

        All ids but the last must have features, so the base first reads those that it has not read, in an extra forward. This
        happens with a prompt and when a level above has added a token. Without `catch_up` the head continues from its own
        features instead.
        """
        n = len(ids)
        features = n - 1
        if not self._catch_up:
            features = min(self._base.cached_length(ids), n - 1) or n - 1
        # Entries that stay valid; the last one is recomputed
        entries = min(max(common_prefix(ids, self._ids) - 1, 0), features - 1)
        states = self._base.hidden(ids[:features], entries).to(self._dtype)
        out = self._feed(to_device(ids[entries + 1 : features + 1], self.feeder.device), entries, states)
        self._ids = ids[: features + 1]
        for at in range(features, n - 1):
            out = self._feed(to_device(ids[at + 1 : at + 2], self.feeder.device), at, out.states)
        return out

    def _drawn_in_turn(
        self, out: Output, entries: int, k: int, sampler: Sampler, eos: frozenset[int]
    ) -> tuple[Tensor, Tensor]:
        """Return up to k tokens and the distributions that they were drawn from, ending at an EOS."""
        drawn: list[Tensor] = []
        probs: list[Tensor] = []
        while True:
            token, row = sampler.draw(out.logits)  # (1,), (1, V)
            drawn.append(token)
            probs.append(row)
            if len(drawn) == k or int(token) in eos:
                return torch.cat(drawn), torch.cat(probs)
            out = self._feed(token, entries + len(drawn) - 1, out.states)

    def _feed(self, tokens: Tensor, entries: int, features: Tensor | None) -> Output:
        return self.timed.feed(Feed(tokens, entries, features=features), 1)
