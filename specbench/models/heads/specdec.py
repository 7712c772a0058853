"""SpecDec++'s acceptance head (Huang et al. 2024): residual blocks on the draft's state, then two logits."""

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from specbench.models.heads.head import Head


class AcceptanceHead(Head):
    """P(x is accepted), from the draft's last hidden state once it has read x.

    `blocks` times h <- h + SiLU(W h), then a linear layer to two logits, reject and accept. In the released code all
    blocks share one W, as here (docs/papers/drafting.md, SpecDec++).
    """

    kind: ClassVar[str] = "specdec++"

    def __init__(self, hidden: int, blocks: int = 3) -> None:
        super().__init__(hidden=hidden, blocks=blocks)
        self.blocks = blocks
        self.block, self.out = nn.Linear(hidden, hidden), nn.Linear(hidden, 2)

    def forward(self, state: Tensor) -> Tensor:
        """Return logits (n,) of acceptance from states (n, H): the accepting logit minus the rejecting one."""
        h = state.float()
        for _ in range(self.blocks):
            h = h + F.silu(self.block(h))
        reject, accept = self.out(h).unbind(-1)
        logits: Tensor = accept - reject
        return logits

    def accepts(self, state: Tensor) -> Tensor:
        """Return P(accept) (n,)."""
        return self(state).sigmoid()  # type: ignore[no-any-return]  # nn.Module.__call__ is untyped
