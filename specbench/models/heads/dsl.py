"""The dynamic speculation length classifier (DISCO, Mamou et al. 2024): two layers on features of the draft's
distribution.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specbench.decoding.targets.deferral import entropy
from specbench.models.heads.head import Head

LARGEST = 10  # probabilities of q among the features
LONGEST = 20.0  # draft length that positions are divided by


class LengthHead(Head):
    """P(the token drawn from q is accepted), from q's ten largest probabilities, its entropy, and the position in the
    draft.

    The paper names probabilities, entropy and position. The exact features are a choice (docs/papers/drafting.md, DSL
    and DISCO).
    """

    kind: ClassVar[str] = "dsl"

    def __init__(self, width: int = 32) -> None:
        super().__init__(width=width)
        self.one, self.two = nn.Linear(LARGEST + 2, width), nn.Linear(width, 1)

    def forward(self, q: Tensor, place: Tensor) -> Tensor:
        """Return logits (n,) of acceptance from unscaled distributions (n, V) and positions in the draft (n,), from 0."""
        return self.logits_of_features(self.inputs(q, place))

    def inputs(self, q: Tensor, place: Tensor) -> Tensor:
        """Return features (n, 12). For vocabularies below ten tokens the missing probabilities are 0."""
        largest = q.topk(min(LARGEST, q.shape[-1]), -1).values.float()
        padded = F.pad(largest, (0, LARGEST - largest.shape[-1]))
        return torch.cat([padded, entropy(q).unsqueeze(-1).float(), place.unsqueeze(-1).float() / LONGEST], -1)

    def logits_of_features(self, inputs: Tensor) -> Tensor:
        """Return logits (n,) of features (n, 12)."""
        logits: Tensor = self.two(F.relu(self.one(inputs))).squeeze(-1)
        return logits

    def accepts(self, q: Tensor, place: Tensor) -> Tensor:
        """Return P(accept) (n,)."""
        return self(q, place).sigmoid()  # type: ignore[no-any-return]  # nn.Module.__call__ is untyped
