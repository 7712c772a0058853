"""DSpark's Markov head: what the token before a row adds to the row's logits."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from specbench.errors import ConfigError, MissingAsset

KINDS = ("vanilla", "gated", "rnn")


class MarkovHead(nn.Module):
    """DSpark's term of the logits of a token, from the token before it and the row h (..., H).

    W1 (V, r) looks the token up, W2 (V', r) turns the result into logits. `vanilla` uses it as it is, `gated` gates it by
    [h; w1], and `rnn` updates a state with [state; w1; h].
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        """Build the modules that fit the weights of these names."""
        super().__init__()
        rows, self.rank = weights["markov_w1.weight"].shape
        self.markov_w1 = nn.Embedding(rows, self.rank)
        self.markov_w2 = nn.Linear(self.rank, len(weights["markov_w2.weight"]), bias=False)
        self.gate_proj, self.joint_proj = (_linear_of(weights, name) for name in ("gate_proj", "joint_proj"))

    @classmethod
    def of_weights(cls, folder: Path, weights: Mapping[str, Tensor], width: int) -> "MarkovHead":
        """Return a head that fits weights, for rows of a width H. Raises MissingAsset, naming the weight, if none does."""
        for name in ("markov_w1.weight", "markov_w2.weight"):
            if name not in weights or weights[name].ndim != 2:
                raise MissingAsset(f"{folder}: the Markov head has no matrix {name}")
        rank = weights["markov_w1.weight"].shape[1]
        shapes = {"gate_proj.weight": (rank, width + rank), "joint_proj.weight": (3 * rank, 2 * rank + width)}
        for name, shape in shapes.items():
            if name in weights and tuple(weights[name].shape) != shape:
                raise MissingAsset(
                    f"{folder}: {name} of the Markov head has shape {tuple(weights[name].shape)}, and {shape} is needed"
                )
        return cls(weights)

    def require_tokens(self, rows: int, drafted: int) -> None:
        """Raise ConfigError if it does not read each of a base's `rows` tokens, or give logits of `drafted` tokens."""
        read, given = self.markov_w1.num_embeddings, self.markov_w2.out_features
        if read < rows:
            raise ConfigError(f"markov_w1.weight reads {read} tokens, and the base has {rows}")
        if given != drafted:
            raise ConfigError(f"markov_w2.weight gives logits of {given} tokens, and the head drafts {drafted}")

    @classmethod
    def vanilla(cls, rows: int, rank: int) -> "MarkovHead":
        """Return a head of the kind `vanilla` that adds nothing yet, since W2 is 0."""
        head = cls({"markov_w1.weight": torch.empty(rows, rank), "markov_w2.weight": torch.empty(rows, rank)})
        nn.init.zeros_(head.markov_w2.weight)
        return head

    @property
    def kind(self) -> str:
        """`vanilla`, `gated` or `rnn`, as config.json says it."""
        return KINDS[1] if self.gate_proj is not None else KINDS[2] if self.joint_proj is not None else KINDS[0]

    def looked_up(self, token: Tensor) -> Tensor:
        """Return w1 (..., r) of tokens (...,)."""
        row: Tensor = self.markov_w1(token)
        return row

    def forward(self, w1: Tensor, row: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return logits (..., V'), and the next state (..., r) of an rnn."""
        if self.gate_proj is not None:
            w1 = self.gate_proj(torch.cat([row, w1], -1)).sigmoid() * w1
        elif self.joint_proj is not None:
            state = torch.zeros_like(w1) if state is None else state
            gate, new, out = self.joint_proj(torch.cat([state, w1, row], -1)).chunk(3, -1)
            state, w1 = gate.sigmoid() * state + (1 - gate.sigmoid()) * new.tanh(), out.tanh()
        return self.markov_w2(w1), state


def _linear_of(weights: Mapping[str, Tensor], name: str) -> nn.Linear | None:
    """Return a layer that fits the weights of this name; None if there are none."""
    weight = weights.get(f"{name}.weight")
    return None if weight is None else nn.Linear(weight.shape[1], weight.shape[0], bias=f"{name}.bias" in weights)
