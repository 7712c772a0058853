"""The interface of a lean model: the decode-time forward of one architecture, over the weights that transformers
loaded.

Weights that are always multiplied together are concatenated once, and the loaded model's own weights become views of
the result, so that they are in memory once and the eager model is unchanged.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from specbench.config.construct import Table
from specbench.models.engine.cache import Cache

Matrix = tuple[Tensor, Tensor | None]  # (in, out), and the bias (out,)


@dataclass(frozen=True)
class Apart:
    """Layers of one input that cannot be concatenated, since some of them are quantized; each is multiplied separately."""

    layers: tuple[nn.Module, ...]

    def __call__(self, x: Tensor) -> Tensor:
        """Return (n, in) -> (n, sum of outs)."""
        outs = [layer(x) for layer in self.layers]
        return outs[0] if len(outs) == 1 else torch.cat(outs, -1)


Weights = Matrix | Apart


class Network(ABC):
    """One architecture, in its own file. `forward` is one plain function over a cache.

    `kinds` are the transformers classes whose weights it takes; `unsupported` says why it cannot take one of them.
    `examples` are small configurations by name, on which the tests and `make gpu-check` compare the architecture with
    transformers: the keys of the config without the sizes of the vocabulary and of `positions_key`.
    """

    kinds: ClassVar[tuple[str, ...]]
    examples: ClassVar[dict[str, Table]]
    positions_key: ClassVar[str] = "max_position_embeddings"  # the config's key for the window; empty if it has none
    can_fuse: ClassVar[bool] = False  # whether it has elementwise parts that torch.compile fuses
    members: ClassVar[dict[str, type["Network"]]] = {}
    families: ClassVar[dict[str, type["Network"]]] = {}  # by the names of examples

    def __init_subclass__(cls) -> None:
        own = cls.__dict__  # a subclass of an architecture does not take over the classes of its parent
        Network.members |= dict.fromkeys(own.get("kinds", ()), cls)
        Network.families |= dict.fromkeys(own.get("examples", ()), cls)

    def __init__(self, model: PreTrainedModel) -> None:
        self.config: Any = model.config
        self.model = model
        output: Any = model.get_output_embeddings()
        self.head: Matrix = output.weight.t(), output.bias  # (hidden, V), often tied to the embeddings

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
        """Return an empty cache of the architecture's shape; `source` is the encoder's output (m, hidden), if there is
        one.
        """

    @abstractmethod
    def forward(self, tokens: Tensor, cache: Cache) -> Tensor:
        """tokens (n,) after the cached positions -> the last layer's hidden states (n, hidden), normalized for the LM
        head.
        """

    def fused(self) -> AbstractContextManager[None]:
        """Return a context within which forwards fuse elementwise operations, if the architecture can."""
        return nullcontext()

    def step(self, token: Tensor, cache: Cache, states: Tensor | None) -> tuple[Tensor, Tensor]:
        """Feed a token (1,). Returns logits (1, rows of the LM head) and states (1, hidden). Previous states are not
        needed.
        """
        hidden = self.forward(token, cache)
        return self.logits(hidden), hidden

    def tables(self) -> tuple[Tensor, ...]:
        """Return the tensors besides weights that `forward` reads now, for callers that record their addresses."""
        return ()

    def logits(self, hidden: Tensor, vocabulary: int | None = None) -> Tensor:
        """Return (k, hidden) -> (k, vocabulary), float32 or better; by default all rows of the LM head."""
        matrix, bias = self.head
        out = linear(hidden, (matrix[:, :vocabulary], None if bias is None else bias[:vocabulary]))
        return out if out.dtype == torch.float64 else out.float()


def small_config(family: str, vocabulary: int, positions: int) -> PreTrainedConfig:
    """Build an architecture's example configuration with a vocabulary and a window of these sizes."""
    network = Network.families[family]
    sizes = {"vocab_size": vocabulary, **({network.positions_key: positions} if network.positions_key else {})}
    keys = dict(network.examples[family])
    return AutoConfig.for_model(str(keys.pop("model_type")), **keys, **sizes)


def unsupported(config: Any) -> str:
    """Return why there is no lean model of this configuration; empty if there is one."""
    known = {**MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, **MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES}
    kind = known.get(config.model_type, config.model_type)
    if kind not in Network.members:
        return f"the lean engine has no {kind}, only {', '.join(sorted(Network.members))}"
    if getattr(config, "quantization_config", None) is not None:
        return "the lean engine cannot run a checkpoint that is quantized already"
    return Network.members[kind].unsupported(config)


def can_fuse(config: Any) -> bool:
    """Return whether the lean model of this configuration has elementwise operations that torch.compile fuses."""
    kind = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type, "")
    return kind in Network.members and Network.members[kind].can_fuse


def network_of(model: PreTrainedModel) -> Network:
    """Return the lean model over these weights, which must be supported."""
    return Network.members[type(model).__name__](model)


def fused(modules: Iterable[nn.Module]) -> Weights:
    """Concatenate linear layers of one input: matrix (in, sum of outs) and bias. Quantized layers stay apart.

    The modules' own weights become views of the result. In float32 on a CPU the matrix is stored in the order in which
    it is multiplied, which speeds up products with one row by a fifth, in transformers' modules too; elsewhere in
    transformers' order.
    """
    layers: list[Any] = list(modules)
    if not all(isinstance(layer, nn.Linear) for layer in layers):
        return Apart(tuple(layers))
    # (outs, in)
    whole = layers[0].weight.data if len(layers) == 1 else torch.cat([layer.weight.data for layer in layers])
    transposed = whole.device.type == "cpu" and whole.dtype == torch.float32
    matrix = whole.t().contiguous() if transposed else whole.t()
    bias = None if layers[0].bias is None else torch.cat([layer.bias.data for layer in layers])
    at = 0
    for layer in layers:
        size = layer.weight.shape[0]
        layer.weight.data = matrix[:, at : at + size].t()
        if bias is not None:
            layer.bias.data = bias[at : at + size]
        at += size
    return matrix, bias


def linear(x: Tensor, weights: Weights) -> Tensor:
    """Return (n, in) -> (n, out)."""
    if isinstance(weights, Apart):
        return weights(x)
    matrix, bias = weights
    return torch.mm(x, matrix) if bias is None else torch.addmm(bias, x, matrix)


def added(residual: Tensor, x: Tensor, weights: Weights) -> Tensor:
    """Add a linear layer of x (n, in) to the residual stream (n, out), in place, which saves a copy."""
    if isinstance(weights, Apart):
        return residual.add_(weights(x))
    matrix, bias = weights
    if bias is not None:
        residual.add_(bias)
    return residual.addmm_(x, matrix)


class RMSNorm:
    """x / rms(x) * weight over the last axis (Zhang and Sennrich 2019).

    On a CPU torch takes six kernels for it, and one for a layer norm. The layer norm of [x, -x], whose mean is 0 and
    whose variance is the mean square of x, is the same.
    """

    def __init__(self, norm: Any, eps: float) -> None:
        self.weight, self.eps = norm.weight, eps
        self.doubled = torch.stack([self.weight.data, torch.zeros_like(self.weight.data)])  # (2, hidden)
        self.signs = self.weight.new_tensor([[1.0], [-1.0]])

    def __call__(self, x: Tensor) -> Tensor:
        if x.dtype != self.weight.dtype:  # a float32 residual stream with weights of lower precision
            scaled: Tensor = F.rms_norm(x, x.shape[-1:], None, self.eps).to(self.weight.dtype) * self.weight
            return scaled
        if x.device.type != "cpu":
            return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)
        both = x.unsqueeze(-2) * self.signs  # (n, 2, hidden)
        return F.layer_norm(both, both.shape[-2:], self.doubled, None, self.eps).select(-2, 0)
