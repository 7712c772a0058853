"""Floor 0: what a lean model is: the decode-time forward of one architecture, over the weights that transformers loaded.

Weights that are always multiplied together are laid side by side once, and the loaded model's own become views of them, so
that a model is held in memory once, and the eager model stays what it was.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from specbench.models.engine.cache import Cache

Matrix = tuple[Tensor, Tensor | None]  # (in, out), and the bias (out,)


@dataclass(frozen=True)
class Apart:
    """Layers of one input that no one matrix holds, since some of them are quantized: each multiplies for itself."""

    layers: tuple[nn.Module, ...]

    def __call__(self, x: Tensor) -> Tensor:
        """(n, in) -> (n, sum of outs)."""
        outs = [layer(x) for layer in self.layers]
        return outs[0] if len(outs) == 1 else torch.cat(outs, -1)


Weights = Matrix | Apart


class Network(ABC):
    """One architecture, in a file of its own. `forward` is one plain function over a cache.

    `kinds` are the transformers classes whose weights it takes; `unsupported` says why it cannot take one of them.
    """

    kinds: ClassVar[tuple[str, ...]]
    can_fuse: ClassVar[bool] = False  # whether it has elementwise parts that torch.compile fuses
    members: ClassVar[dict[str, type["Network"]]] = {}

    def __init_subclass__(cls) -> None:
        Network.members |= dict.fromkeys(cls.kinds, cls)

    def __init__(self, model: PreTrainedModel) -> None:
        self.config: Any = model.config
        self.model = model
        output: Any = model.get_output_embeddings()
        self.head: Matrix = output.weight.t(), output.bias  # tied to the embeddings, often

    @property
    def query_heads(self) -> int:
        return int(self.config.num_attention_heads)

    @classmethod
    def unsupported(cls, config: Any) -> str:
        """Why this configuration is beyond this file; empty where it is not."""
        return ""

    @abstractmethod
    def new_cache(self, source: Tensor | None) -> Cache:
        """An empty cache of the architecture's shape; `source` is the encoder's output, (m, hidden), where there is one."""

    @abstractmethod
    def forward(self, tokens: Tensor, cache: Cache) -> Tensor:
        """tokens (n,) behind what the cache holds -> the last layer's hidden states (n, hidden), normalised for the head."""

    def fused(self) -> AbstractContextManager[None]:
        """While this is open, forwards run elementwise parts fused, where the architecture can."""
        return nullcontext()

    def step(self, token: Tensor, cache: Cache, states: Tensor | None) -> tuple[Tensor, Tensor]:
        """Feed a token (1,): logits (1, rows of the LM head) and states (1, hidden). States of before are not needed."""
        hidden = self.forward(token, cache)
        return self.logits(hidden), hidden

    def tables(self) -> tuple[Tensor, ...]:
        """Tensors besides the weights that `forward` reads, as they are now: who records their addresses keeps them."""
        return ()

    def logits(self, hidden: Tensor, vocabulary: int | None = None) -> Tensor:
        """(k, hidden) -> (k, vocabulary), float32 or better; no vocabulary is all of the head's rows."""
        matrix, bias = self.head
        out = linear(hidden, (matrix[:, :vocabulary], None if bias is None else bias[:vocabulary]))
        return out if out.dtype == torch.float64 else out.float()


def unsupported(config: Any) -> str:
    """Why there is no lean model of this configuration; empty where there is one."""
    known = {**MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, **MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES}
    kind = known.get(config.model_type, config.model_type)
    if kind not in Network.members:
        return f"the lean engine has no {kind}, only {', '.join(sorted(Network.members))}"
    if getattr(config, "quantization_config", None) is not None:
        return "a quantized model is run as transformers runs it"
    return Network.members[kind].unsupported(config)


def can_fuse(config: Any) -> bool:
    """Whether the lean model of this configuration has elementwise parts that torch.compile fuses."""
    kind = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type, "")
    return kind in Network.members and Network.members[kind].can_fuse


def network_of(model: PreTrainedModel) -> Network:
    """The lean model over these weights, which must not be rejected."""
    return Network.members[type(model).__name__](model)


def fused(modules: Iterable[nn.Module]) -> Weights:
    """Linear layers of one input as one: its matrix (in, sum of outs), and its bias. QuantizedLinear ones stay apart.

    The modules' own weights become views of it. In float32 on a CPU a matrix lies in memory as it is multiplied, which a
    product with one row gains a fifth by, in transformers' modules as in ours; elsewhere as transformers lays it.
    """
    layers: list[Any] = list(modules)
    if not all(isinstance(layer, nn.Linear) for layer in layers):
        return Apart(tuple(layers))
    whole = (
        layers[0].weight.data if len(layers) == 1 else torch.cat([layer.weight.data for layer in layers])
    )  # (outs, in)
    turned = whole.device.type == "cpu" and whole.dtype == torch.float32
    matrix = whole.t().contiguous() if turned else whole.t()
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
    """(n, in) -> (n, out)."""
    if isinstance(weights, Apart):
        return weights(x)
    matrix, bias = weights
    return torch.mm(x, matrix) if bias is None else torch.addmm(bias, x, matrix)


def added(residual: Tensor, x: Tensor, weights: Weights) -> Tensor:
    """Add a linear layer of x (n, in) to the residual stream (n, out), in place: a product into another tensor copies it."""
    if isinstance(weights, Apart):
        return residual.add_(weights(x))
    matrix, bias = weights
    if bias is not None:
        residual.add_(bias)
    return residual.addmm_(x, matrix)


class RMSNorm:
    """x / rms(x) * weight over the last axis (Zhang and Sennrich 2019).

    On a CPU torch takes six kernels for it, and one for a layer norm; that of [x, -x], whose mean is 0 and whose variance is
    the mean square of x, is the same.
    """

    def __init__(self, norm: Any, eps: float) -> None:
        self.weight, self.eps = norm.weight, eps
        self.doubled = torch.stack([self.weight.data, torch.zeros_like(self.weight.data)])  # (2, hidden)
        self.signs = self.weight.new_tensor([[1.0], [-1.0]])

    def __call__(self, x: Tensor) -> Tensor:
        if x.dtype != self.weight.dtype:  # a residual stream that is kept in float32, over weights that are not
            scaled: Tensor = F.rms_norm(x, x.shape[-1:], None, self.eps).to(self.weight.dtype) * self.weight
            return scaled
        if x.device.type != "cpu":
            return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)
        both = x.unsqueeze(-2) * self.signs  # (n, 2, hidden)
        return F.layer_norm(both, both.shape[-2:], self.doubled, None, self.eps).select(-2, 0)
