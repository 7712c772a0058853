"""SPRINTER's verifier: one linear layer that predicts whether the target would accept a drafted token (Section 3)."""

from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from specbench.decoding.targets.deferral import entropy
from specbench.errors import ConfigError, hint
from specbench.models.heads.head import Head

Features = Literal["state", "token", "state+token", "q", "entropy", "q+entropy", "state+q+entropy"]
FEATURES: tuple[str, ...] = get_args(Features)


class Verifier(Head):
    """P(the target accepts x with certainty) = sigmoid(w . features + b).

    The paper's feature is `state`: the draft's last hidden state at the token before x, from which q is computed, so
    that the prediction depends on the prefix only (erratum SP-3, docs/papers/sprinter.md, Errata). This project adds
    `token`, the embedding of x; `q`, the logit of q(x), and `entropy`, of q in nats, both of the unscaled distribution;
    and combinations of them. Inputs are standardized by the training data's mean and spread.
    """

    kind: ClassVar[str] = "sprinter"

    def __init__(self, hidden: int, features: str = "state", threshold: float = 1.0) -> None:
        """`hidden` is the draft's width H; `threshold` the tau_train of its labels, q(x) <= tau p(x)."""
        if features not in FEATURES:
            raise ConfigError(f"features = '{features}'{hint(features, FEATURES)}")
        super().__init__(hidden=hidden, features=features, threshold=threshold)
        self.parts = features.split("+")
        width = sum(hidden if part in ("state", "token") else 1 for part in self.parts)
        self.linear = nn.Linear(width, 1)
        self.mean: Tensor
        self.spread: Tensor
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("spread", torch.ones(width))
        self.embedding: Tensor | None = None  # the draft's, (V, H), for `token`

    def inputs(self, state: Tensor, x: Tensor, q: Tensor) -> Tensor:
        """Return features (n, width) from the states (n, H), the unscaled distributions q (n, V), and the drafted
        tokens x (n,).
        """
        return torch.cat([self._part(part, state, x, q).float() for part in self.parts], -1)

    def _part(self, part: str, state: Tensor, x: Tensor, q: Tensor) -> Tensor:
        if part == "state":
            return state
        if part == "token":
            assert self.embedding is not None
            return self.embedding[x]
        if part == "q":
            return torch.logit(q.gather(-1, x.unsqueeze(-1)), eps=1e-6)
        return entropy(q).unsqueeze(-1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits (n,) of acceptance from features (n, width)."""
        scores: Tensor = self.linear((inputs - self.mean) / self.spread).squeeze(-1)
        return scores

    def accepts(self, state: Tensor, x: Tensor, q: Tensor) -> Tensor:
        """Return P(accept) (n,)."""
        return self(self.inputs(state, x, q)).sigmoid()  # type: ignore[no-any-return]  # nn.Module.__call__ is untyped
