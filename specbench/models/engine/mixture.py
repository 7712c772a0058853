"""Mixtures of experts: a router chooses the MLPs that each token passes, and a forward reads the chosen ones only.

The tokens of a block choose different experts, so a block reads more weights than one token. Its price grows with its length.
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.config.construct import Table
from specbench.models.engine.layers import Layers, Map
from specbench.models.engine.llama import SMALL, Llama


class Experts:
    """The experts of one layer, and their router. The weights are transformers' own, (experts, out, in)."""

    def __init__(self, block: Any, normalizes: bool) -> None:
        """`normalizes`: whether the weights of the chosen experts add up to one."""
        self.router, self.count, self.normalizes = block.gate.weight, block.gate.top_k, normalizes
        self.up, self.down = block.experts.gate_up_proj, block.experts.down_proj

    def __call__(self, x: Tensor) -> Tensor:
        """x (n, hidden) -> the weighted sum of each token's experts (n, hidden)."""
        shares = F.softmax(F.linear(x, self.router).float(), -1)  # (n, experts)
        weights, chosen = shares.topk(self.count, -1)  # (n, count) each
        if self.normalizes:
            weights = weights / weights.sum(-1, keepdim=True)
        weights = weights.to(x.dtype)
        if x.device.type != "cpu":
            return self._at_once(x, weights, chosen)
        out = torch.zeros_like(x)
        places: dict[int, list[int]] = {}  # expert -> its places in the flattened choices
        for place, expert in enumerate(chosen.flatten().tolist()):
            places.setdefault(expert, []).append(place)
        for expert, at in places.items():
            rows = torch.tensor(at) // self.count
            y = F.linear(_gate(F.linear(x[rows], self.up[expert])), self.down[expert])
            out.index_add_(0, rows, y * weights.flatten()[at].unsqueeze(-1))
        return out

    def _at_once(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """Copy the chosen experts of every token, without a wait for the device."""
        rows = x.repeat_interleave(self.count, 0).unsqueeze(-1)  # (n * count, hidden, 1)
        wide = _gate(torch.bmm(self.up[chosen.flatten()], rows).squeeze(-1)).unsqueeze(-1)
        y = torch.bmm(self.down[chosen.flatten()], wide).view(*chosen.shape, -1)  # (n, count, hidden)
        return (y * weights.unsqueeze(-1)).sum(1)


class MixtureLayers(Layers):
    """Llama's layers, with experts in place of the MLP where transformers' module has them."""

    def experts(self, mlp: Any) -> Map | None:
        normalizes = getattr(self.config, "norm_topk_prob", True)  # Mixtral always does
        return Experts(mlp, normalizes) if hasattr(mlp, "experts") else None


class Mixtral(Llama):
    """Mixtral (Jiang et al. 2024)."""

    kinds = ("MixtralForCausalLM",)
    examples: ClassVar[dict[str, Table]] = {
        "mixtral": {
            "model_type": "mixtral", **SMALL, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None,
        }
    }  # fmt: skip
    form = MixtureLayers
    can_fuse = False


def _gate(both: Tensor) -> Tensor:
    gate, up = both.chunk(2, -1)
    return F.silu(gate) * up
