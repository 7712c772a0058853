"""The interface of a lean model: one architecture's decode-time forward over the weights that transformers loaded."""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from specbench.config.construct import Table
from specbench.models.lean.cache import Cache
from specbench.models.products import Product, in_one_block, is_linear, product_of
from specbench.models.quantized_files.quantized_embedding import Lookup
from specbench.models.quantized_files.registry import unread

FILLED = 1.125  # of a model's matrices: its panels with the zeros that fill the last one of each
LEAST_BLOCK = 1 << 20  # bytes, for matrices of less than one panel


class Network(ABC):
    """One architecture, in its own file. `forward` is one plain function over a cache.

    `kinds` are the transformers classes whose weights it takes; `unsupported` says why it cannot take one of them.
    `examples` are small configurations by name, on which the tests and `make gpu-check` compare the architecture with
    transformers: the keys of the config without the sizes of the vocabulary and of `positions_key`.
    """

    kinds: ClassVar[tuple[str, ...]]
    examples: ClassVar[dict[str, Table]]
    positions_key: ClassVar[str] = "max_position_embeddings"  # the config's key for the window; empty if it has none
    encoder_decoder: ClassVar[bool] = False  # such models have no graphs
    can_fuse: ClassVar[bool] = False  # whether it has elementwise parts that torch.compile fuses
    members: ClassVar[dict[str, type["Network"]]] = {}
    families: ClassVar[dict[str, type["Network"]]] = {}  # by the names of examples

    def __init_subclass__(cls) -> None:
        attributes = cls.__dict__  # a subclass of an architecture does not take over the classes of its parent
        Network.members |= dict.fromkeys(attributes.get("kinds", ()), cls)
        Network.families |= dict.fromkeys(attributes.get("examples", ()), cls)

    def __init__(self, model: PreTrainedModel) -> None:
        self.config: Any = model.config
        self.model = model
        output: Any = model.get_output_embeddings()
        self.embed = Lookup(model.get_input_embeddings())
        tied = output.weight is self.embed.like
        self.head: Product = product_of([output], shared=tied)

    @property
    def query_heads(self) -> int:
        """The number of query heads."""
        return int(self.config.num_attention_heads)

    @classmethod
    def unsupported(cls, config: Any) -> str:
        """Return why this configuration is not supported; empty if it is."""
        return ""

    @abstractmethod
    def new_cache(self, source: Tensor | None) -> Cache:
        """Return an empty cache of the architecture's shape.

        `source` is the encoder's output (m, hidden), if there is one.
        """

    @abstractmethod
    def forward(self, tokens: Tensor, cache: Cache) -> Tensor:
        """Return the hidden states (n, hidden) of tokens (n,) after the cached positions, normalized for the LM head."""

    def fused(self) -> AbstractContextManager[None]:
        """Return a context within which forwards fuse elementwise operations, if the architecture can."""
        return nullcontext()

    def step(self, token: Tensor, cache: Cache, states: Tensor | None) -> tuple[Tensor, Tensor]:
        """Feed a token (1,). Returns logits (1, rows of the LM head) and states (1, hidden).

        Previous states are not needed.
        """
        hidden = self.forward(token, cache)
        return self.logits(hidden), hidden

    def tables(self) -> tuple[Tensor, ...]:
        """Return the tensors besides weights that `forward` reads now, for callers that record their addresses."""
        return ()

    def logits(self, hidden: Tensor, vocabulary: int | None = None) -> Tensor:
        """Return (k, hidden) -> (k, vocabulary), float32 or better; by default all rows of the LM head."""
        out = self.head(hidden)[:, :vocabulary]
        return out if out.dtype == torch.float64 else out.float()


def small_config(family: str, vocabulary: int, positions: int) -> PreTrainedConfig:
    """Build an architecture's example configuration with a vocabulary and a window of these sizes."""
    network = Network.families[family]
    sizes = {"vocab_size": vocabulary, **({network.positions_key: positions} if network.positions_key else {})}
    keys = dict(network.examples[family])
    return AutoConfig.for_model(str(keys.pop("model_type")), **keys, **sizes)


def unsupported(config: Any, device: torch.device | None = None) -> str:
    """Return why there is no lean model of this configuration on a device, by default the CPU; empty if there is one."""
    classes = {**MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, **MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES}
    kind = classes.get(config.model_type, config.model_type)
    if kind not in Network.members:
        return f"the lean engine has no {kind}, only {', '.join(sorted(Network.members))}"
    return unread(config, device or torch.device("cpu")) or Network.members[kind].unsupported(config)


def can_fuse(config: Any) -> bool:
    """Return whether the lean model of this configuration has elementwise operations that torch.compile fuses."""
    kind = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type, "")
    return kind in Network.members and Network.members[kind].can_fuse


def network_of(model: PreTrainedModel) -> Network:
    """Return the lean model over these weights, which must be supported."""
    _copy_small_weights(model)
    head: Any = model.get_output_embeddings().weight
    looked_up = {id(Lookup(model.get_input_embeddings()).like)} - {id(head)}
    matrices = [weight for weight in model.parameters() if weight.ndim >= 2 and id(weight) not in looked_up]
    size = sum(weight.nbytes for weight in matrices if weight.device.type == "cpu")
    with in_one_block(int(FILLED * size) + LEAST_BLOCK):
        return Network.members[type(model).__name__](model)


def _copy_small_weights(model: PreTrainedModel) -> None:
    """Copy the weights on a CPU that no product copies: embeddings, norms, biases, routers and an encoder.

    Weights of a safetensors file are views of the mapped file, all of which stays resident as long as one view does.
    """
    embedding: Any = Lookup(model.get_input_embeddings()).like
    multiplied: list[Any] = [*model.get_decoder().modules(), model.get_output_embeddings()]
    linear = {module.weight for module in multiplied if is_linear(module)} - {embedding}
    for weight in model.parameters():
        is_multiplied = weight in linear or weight.ndim == 3  # experts
        if not is_multiplied and weight.device.type == "cpu" and type(weight.data) is Tensor:
            weight.data = weight.data.clone()


class RMSNorm:
    """x / rms(x) * weight over the last axis (Zhang and Sennrich 2019).

    On a CPU torch takes six kernels for it, and one for a layer norm. The layer norm of [x, -x], whose mean is 0 and
    whose variance is the mean square of x, is the same.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight, self.eps, self.dtype, self.is_cpu = weight, eps, weight.dtype, weight.device.type == "cpu"
        self.doubled = torch.stack([weight.data, torch.zeros_like(weight.data)])  # (2, hidden)
        self.signs, self.shape = weight.data.new_tensor([[1.0], [-1.0]]), [*self.doubled.shape]

    def __call__(self, x: Tensor) -> Tensor:
        if x.dtype != self.dtype:  # a float32 residual stream with weights of lower precision
            scaled: Tensor = F.rms_norm(x, x.shape[-1:], None, self.eps).to(self.dtype) * self.weight
            return scaled
        if not self.is_cpu:
            return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)
        both = x.unsqueeze(-2) * self.signs  # (n, 2, hidden)
        out: Tensor = torch.layer_norm(both, self.shape, self.doubled, None, self.eps)  # F's takes 2 us more
        return out.select(-2, 0)


def normalized(x: Tensor, eps: float) -> Tensor:
    """Return x / rms(x) over the last axis, without a weight."""
    if x.device.type != "cpu":
        return F.rms_norm(x, x.shape[-1:], None, eps)
    both = torch.stack([x, -x], -2)
    return F.layer_norm(both, both.shape[-2:], None, None, eps).select(-2, 0)


class HeadNorm:
    """An RMS norm of each query and key head, in place (Henry et al. 2020)."""

    def __init__(self, query: Tensor, key: Tensor, heads: tuple[int, int], eps: float) -> None:
        """Take the weights (d,) of query and key heads, and how many heads there are of each."""
        rows = (weight.expand(count, -1) for weight, count in zip((query, key), heads, strict=True))
        self.weight, self.eps = torch.cat(list(rows)), eps  # (heads, d)

    def __call__(self, heads: Tensor) -> None:
        torch.mul(normalized(heads, self.eps), self.weight, out=heads)
