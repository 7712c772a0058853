"""EAGLE-1 (Li et al. 2024): a head of one decoder layer that foresees its base model's next feature, and drafts from it.

A feature f_t is the base's last hidden state at token t, as its LM head reads it. From f_t and the embedding of token t + 1
the head makes fhat_{t+1}, which the base's LM head turns into the law of token t + 2.
"""

import copy
import json
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, LlamaConfig, PreTrainedConfig

from specbench.drafting import common_prefix
from specbench.engine.llama import Layers
from specbench.errors import MissingAsset
from specbench.heads.head import UNREADABLE, Head, Provenance, in_one_line
from specbench.sampling import Draft, Sampler, read_tokens, to_device
from specbench.session import CachedSession, Session

CONFIG, WEIGHTS, TORCH = "config.json", "model.safetensors", "pytorch_model.bin"
LAYERED = ("llama", "qwen2", "mistral")  # bases whose own decoder layer the head has
EMBEDDING, INNER = "embed_tokens.weight", "inner."


class EagleHead(Head):
    """fc: 2H -> H over [embedding of token t + 1, f_t], then a decoder layer without its input norm: fhat_{t+1}.

    Embedding and LM head are the base's, frozen. The folder is in the published checkpoints' format: config.json, and
    model.safetensors or pytorch_model.bin with `fc.weight`, `fc.bias` where there is one, `layers.0.*`, and
    `embed_tokens.weight` where it is not left to the base.
    """

    kind: ClassVar[str] = "eagle"

    def __init__(self, config: PreTrainedConfig, bias: bool = True) -> None:
        super().__init__()
        self.own_embedding = False  # whether the checkpoint brought one
        self.config = copy.deepcopy(config)
        self.config.num_hidden_layers = 1
        if getattr(self.config, "layer_types", None):
            self.config.layer_types = self.config.layer_types[:1]
        inner = AutoModel.from_config(self.config)
        inner.layers[0].input_layernorm = inner.norm = nn.Identity()
        self.inner, width = inner, int(self.config.hidden_size)
        self.fc = nn.Linear(2 * width, width, bias=bias)

    @classmethod
    def of(cls, config: PreTrainedConfig) -> Self:
        """A fresh head for a base model: with a layer of the base's own type where that is built like a Llama, else with a
        Llama's layer of the base's width."""
        if config.model_type in LAYERED:
            return cls(config)
        width = config.hidden_size
        heads = next(n for n in range(config.num_attention_heads, 0, -1) if width % (2 * n) == 0)  # even, for rotations
        longest = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", 2048)
        own = LlamaConfig(
            vocab_size=config.vocab_size, hidden_size=width, num_attention_heads=heads, intermediate_size=4 * width,
            num_key_value_heads=heads, max_position_embeddings=longest,
        )  # fmt: skip
        return cls(own)

    def forward(self, tokens: Tensor, features: Tensor) -> Tensor:
        """fhat_{t+1} (batch, n, H) from tokens t + 1 (batch, n) and features f_t (batch, n, H)."""
        x = torch.cat([self.inner.embed_tokens(tokens).to(features.dtype), features], -1)
        out: Tensor = self.inner(inputs_embeds=self.fc(x), use_cache=False).last_hidden_state
        return out

    def goes_with(self, embedding: Tensor) -> Self:
        """The head on the device and in the precision of its base's embedding (V, H), which it takes where it has none."""
        self.to(device=embedding.device, dtype=embedding.dtype).eval().requires_grad_(False)
        if not self.own_embedding:
            self.inner.embed_tokens.weight = nn.Parameter(embedding, requires_grad=False)
        return self

    @cached_property
    def layers(self) -> Layers:
        """Its layer as the lean engine runs it, over the weights as they are now."""
        return Layers(self.inner)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        told = self.config.to_diff_dict() | {"bias": self.fc.bias is not None, "model_type": self.config.model_type}
        (folder / CONFIG).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        weights = {k.removeprefix(INNER): v.contiguous() for k, v in self.state_dict().items() if EMBEDDING not in k}
        save_file(weights, folder / WEIGHTS, metadata={"specbench": json.dumps(vars(self.provenance))})

    @classmethod
    def read(cls, folder: Path) -> Self:
        try:
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
            told = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
            weights, provenance = _weights(folder)
            head = cls(config, bias=told.get("bias", "fc.bias" in weights))
            state = {k if k.startswith("fc.") else INNER + k: v for k, v in weights.items()}
            missing, unknown = head.load_state_dict(state, strict=False)
            lacking = [key for key in missing if EMBEDDING not in key]
            if lacking or unknown:
                raise MissingAsset(f"{folder} is no EAGLE-1 head: it lacks {lacking}, and has {unknown}")
        except UNREADABLE as error:
            raise MissingAsset(f"{folder} cannot be read as an EAGLE head: {in_one_line(error)}") from None
        head.own_embedding = EMBEDDING in weights
        head.provenance = provenance
        return head


def _weights(folder: Path) -> tuple[dict[str, Tensor], Provenance]:
    if (folder / WEIGHTS).is_file():
        with safe_open(folder / WEIGHTS, "pt") as file:
            told = json.loads((file.metadata() or {}).get("specbench", "{}"))
        return load_file(folder / WEIGHTS), Provenance(**told)
    if (folder / TORCH).is_file():
        return torch.load(folder / TORCH, map_location="cpu", weights_only=True), Provenance()
    raise MissingAsset(f"no EAGLE head in {folder} (no {WEIGHTS} or {TORCH})")


class EagleSession(CachedSession):
    """A head at work on one sequence, over the session of its base.

    Its cache, like any other, reconciles itself by comparing tokens: entry i stands for token i + 1 with f_i, and is kept
    while tokens 0 .. i + 1 are the same. What was fed while drafting had the head's own features in it, and is forgotten.
    """

    def __init__(self, head: EagleHead, base: Session, catch_up: bool = True) -> None:
        weight = head.fc.weight
        super().__init__("EAGLE head", weight.device)
        base.keeps_hidden = True
        self._base, self._catch_up, self._head = base, catch_up, head
        self._cache = head.layers.new_cache()
        self._features = weight.new_empty(0, 0)  # of what is about to be fed
        self._states_out = self._features  # what it made of the newest token fed, (1, H)

    def draft(self, ids: list[int], k: int, sampler: Sampler, eos: frozenset[int]) -> Draft:
        """Up to k tokens behind ids, a forward each, none behind an EOS; none where ids is a single token.

        The base reads what it lacks of ids but the last token, in a forward of its own, which happens with a prompt and where
        a level above has added a token. Without `catch_up` the head goes on from features of its own instead.
        """
        n = len(ids)
        if n < 2 or not k:
            return Draft([], torch.empty(0, 0))
        features = n - 1
        if not self._catch_up:
            features = min(self._base.known(ids), n - 1) or n - 1
        entries = min(max(common_prefix(ids, self._ids) - 1, 0), features - 1)  # that stay; the last one is made again
        self._cut(entries)
        self._features = self._base.hidden(ids[:features], entries).to(self._head.fc.weight.dtype)
        logits = self._fed(ids[entries + 1 : features + 1], entries)
        self._ids = ids[: features + 1]
        for at in range(features, n - 1):
            logits = self._fed(ids[at + 1 : at + 2], at)
        drawn: list[Tensor] = []
        laws: list[Tensor] = []
        while True:
            token, law = sampler.draw(logits)  # (1,), (1, V)
            drawn.append(token)
            laws.append(law)
            stop = self._device.type == "cpu" and int(token) in eos
            if len(drawn) == k or stop:
                break
            self._features = self._states_out
            logits = self._timed(token.clamp_min(0), keep=1, known=n - 2 + len(drawn))
        self._cache.length = features
        tokens = read_tokens(torch.cat(drawn))
        length = next((i for i, token in enumerate(tokens, 1) if token in eos), len(tokens))
        return Draft(tokens[:length], torch.cat(laws)[:length])

    def _fed(self, tokens: list[int], known: int) -> Tensor:
        logits = self._timed(to_device(tokens, self._device), keep=1, known=known)
        self._features = self._states_out
        return logits

    def logits_of(self, states: Tensor) -> Tensor:
        return self._base.logits_of(states)

    def _forget(self, known: int) -> None:
        self._cache.length = known

    def _cut(self, known: int) -> None:
        self._cache.length = known

    def _forward(self, tokens: Tensor, keep: int) -> tuple[Tensor, Tensor | None]:
        with torch.inference_mode():
            self._cache.begin(len(tokens))
            x = torch.cat([self._head.inner.embed_tokens(tokens).to(self._features.dtype), self._features], -1)
            out = self._head.layers.forward(self._head.fc(x), self._cache)
            self._cache.end()
            self._states_out = out[-1:]
            return self._base.logits_of(self._states_out), None
