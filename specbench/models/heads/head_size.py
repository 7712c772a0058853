"""The sizes of heads that draft, for plans. They are those of a new head of the kind: no file of the head is read."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedConfig

from specbench.models.checkpoints import CONSTRUCTION
from specbench.models.heads.block_head import BlockHead
from specbench.models.heads.draft_head import DraftHead
from specbench.models.heads.eagle1 import Eagle1Head
from specbench.models.heads.eagle3 import Eagle3Head
from specbench.models.heads.fresh_head import fresh_head
from specbench.models.heads.head import kind_named
from specbench.models.heads.widened_head import read_weights, wanted_bytes
from specbench.models.resolved_model import ResolvedModel, values_of

PUBLISHED = 2  # bytes per weight of the files on the hub


@dataclass(frozen=True, kw_only=True)
class HeadSize:
    """The sizes of a head next to its base, in bytes where the name says so.

    `weights` leaves out the embedding and the LM head, which are the base's. A published head with an LM head of its own is
    larger by that. `layers` is the number of decoder layers. `position_bytes` are what one position adds: keys and values of
    the head, and the states of the base that it reads. `forward_bytes` are the weights that a forward reads, with the base's
    LM head, and with the experts of one token of a mixture. `download_bytes` are the files.
    """

    base: str
    layers: int
    weights: int
    position_bytes: int
    forward_bytes: int
    download_bytes: int


def size_of_head(kind: str, role: str, base: ResolvedModel) -> HeadSize:
    """Return the sizes of a head of a kind that drafts, for a base with this role."""
    config = base.narrow or base.config
    with CONSTRUCTION, torch.device("meta"):
        head = fresh_head(kind_named(kind), config)
    assert isinstance(head, DraftHead)
    parameters = sum(p.numel() for name, p in head.named_parameters() if "embed_tokens" not in name)
    layers, layer = _layers_of(head, config)
    itemsize = getattr(torch, base.dtype).itemsize
    own = read_weights(head, config) * itemsize + base.size.lm_head_bytes
    read = max(own, round(wanted_bytes(kind, base))) if base.narrow else own
    return HeadSize(
        base=role,
        layers=layers,
        weights=parameters * itemsize + read - own,
        position_bytes=itemsize * (layers * values_of(layer) + head.states * base.architecture.shape.d),
        forward_bytes=read,
        download_bytes=parameters * PUBLISHED,
    )


def _layers_of(head: DraftHead, base: PreTrainedConfig) -> tuple[int, PreTrainedConfig]:
    """Return the number of decoder layers of a head, and the config of one of them."""
    if isinstance(head, BlockHead):
        return head.block.layers, head.block.layer
    return 1, head.eagle3.layer if isinstance(head, Eagle3Head) else head.inner.config if isinstance(
        head, Eagle1Head
    ) else base
