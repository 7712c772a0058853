"""Mixtures of experts: a router chooses the MLPs that each token passes, and a forward reads the chosen ones only.

The tokens of a block choose different experts, so a block reads more weights than one token. Its cost grows with its length.
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.config.construct import Table
from specbench.models.lean.layers import Layers, Map
from specbench.models.lean.llama import SMALL, Llama
from specbench.models.products import expert_products


class Experts:
    """The experts of one layer, and their router. On a CPU each expert has products of its own (`expert_products`)."""

    def __init__(self, block: Any, normalizes: bool) -> None:
        """`normalizes`: whether the weights of the chosen experts add up to one."""
        self.router, self.count, self.normalizes = block.gate.weight, block.gate.top_k, normalizes
        self.weights = block.experts
        if self.router.device.type == "cpu":
            self.up, self.down = expert_products(block.experts, ("gate_up_proj", "down_proj"))

    def __call__(self, x: Tensor) -> Tensor:
        """x (n, hidden) -> the weighted sum of each token's experts (n, hidden)."""
        shares = F.softmax(F.linear(x, self.router).float(), -1)  # (n, experts)
        weights, chosen = shares.topk(self.count, -1)  # (n, count) each
        if self.normalizes:
            weights = weights / weights.sum(-1, keepdim=True)
        weights = weights.to(x.dtype)
        if x.device.type != "cpu":
            return self._at_once(x, weights, chosen)
        if len(x) == 1:
            return weights @ torch.cat([self._expert(expert, x) for expert in chosen[0].tolist()])
        out = torch.zeros_like(x)
        places: dict[int, list[int]] = {}  # expert -> its places in the flattened choices
        for place, expert in enumerate(chosen.flatten().tolist()):
            places.setdefault(expert, []).append(place)
        for expert, at in places.items():
            rows = torch.tensor(at) // self.count
            out.index_add_(0, rows, self._expert(expert, x[rows]) * weights.flatten()[at].unsqueeze(-1))
        return out

    def _expert(self, expert: int, x: Tensor) -> Tensor:
        """x (n, hidden) -> the output of one expert (n, hidden)."""
        return self.down[expert](_gate(self.up[expert](x)))

    def _at_once(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """Copy the chosen experts of every token, without a wait for the device."""
        rows = x.repeat_interleave(self.count, 0).unsqueeze(-1)  # (n * count, hidden, 1)
        up, down = self.weights.gate_up_proj, self.weights.down_proj  # (experts, out, in)
        wide = _gate(torch.bmm(up[chosen.flatten()], rows).squeeze(-1)).unsqueeze(-1)
        y = torch.bmm(down[chosen.flatten()], wide).view(*chosen.shape, -1)  # (n, count, hidden)
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
