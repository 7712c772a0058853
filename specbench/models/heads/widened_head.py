"""Widens the heads of a widened base to the cost of the same head on the larger model."""

import torch
from torch import nn
from transformers import PreTrainedConfig

from specbench.config.presets import architecture_named
from specbench.models import simulated
from specbench.models.checkpoints import CONSTRUCTION
from specbench.models.experts import share_of_experts
from specbench.models.heads.draft_head import DraftHead
from specbench.models.heads.fresh_head import fresh_head
from specbench.models.heads.head import kind_named
from specbench.models.resolved_model import ResolvedModel, size_of
from specbench.models.widening import STEP, widen_layer

UP, DOWN = ("gate_proj", "up_proj"), "down_proj"  # the layers of an MLP


def wanted_bytes(kind: str, base: ResolvedModel) -> float:
    """Return the bytes of weights that a forward of a head should read, with its base's LM head.

    They are those of a new head of this kind. For a widened base, they are those of a head of the architecture that its cost
    names, times the same scale; without an architecture, those of a head of the checkpoint, as many times larger as the base.
    """
    narrow, cost, dtype = base.narrow, base.spec.cost, base.dtype
    if narrow is None or cost is None:
        return float(_forward_bytes(kind, base.config, dtype))
    if cost.like:
        return cost.scale * _forward_bytes(kind, simulated.configuration(architecture_named(cost.like)), dtype)
    growth = size_of(base.config, dtype).forward_bytes / size_of(narrow, dtype).forward_bytes
    return growth * _forward_bytes(kind, narrow, dtype)


def _forward_bytes(kind: str, config: PreTrainedConfig, dtype: str) -> int:
    with CONSTRUCTION, torch.device("meta"):
        head = fresh_head(kind_named(kind), config)
    itemsize: int = getattr(torch, dtype).itemsize
    return read_weights(head, config) * itemsize + size_of(config, dtype).lm_head_bytes


def read_weights(head: nn.Module, base: PreTrainedConfig) -> int:
    """Return the number of weights that a forward of one token reads, without the embedding."""
    share = share_of_experts(base)
    weights = ((name, p.numel()) for name, p in head.named_parameters() if "embed_tokens" not in name)
    return sum(round(count * (share if ".experts." in name else 1.0)) for name, count in weights)


def widen_head(head: DraftHead, base: ResolvedModel) -> None:
    """Give the MLPs of a head of a widened base new neurons, which read the bytes of `wanted_bytes` and change no output.

    A head that reads more bytes already stays as it is.
    """
    assert base.narrow is not None
    itemsize = getattr(torch, base.dtype).itemsize
    mlps = {name: mlp for name, mlp in head.named_modules() if isinstance(getattr(mlp, DOWN, None), nn.Linear)}
    has_lm_head = getattr(head, "lm_head", None) is not None
    own = read_weights(head, base.narrow) * itemsize + (0 if has_lm_head else base.size.lm_head_bytes)
    step = sum(3 * getattr(mlp, DOWN).out_features for mlp in mlps.values()) * STEP * itemsize
    neurons = STEP * max(0, round((wanted_bytes(head.kind, base) - own) / step)) if step else 0
    if not neurons:
        return
    for name, mlp in mlps.items():
        down = getattr(mlp, DOWN)
        wide, width = down.in_features + neurons, down.out_features
        for each in UP:
            widen_layer(getattr(mlp, each), (wide, width), neurons, f"{name}.{each}")
        widen_layer(down, (width, wide), neurons, f"{name}.{DOWN}")
