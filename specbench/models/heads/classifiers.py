"""Heads that predict whether a drafted token is accepted: SPRINTER's verifier, and the heads of SpecDec++ and DSL."""

import math
from typing import ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specbench.decoding.targets.deferral import entropy
from specbench.errors import ConfigError, MissingAsset, hint
from specbench.models.heads.head import Head

Features = Literal["state", "token", "state+token", "q", "entropy", "q+entropy", "state+q+entropy"]
FEATURES: tuple[str, ...] = get_args(Features)
LARGEST_PROBABILITIES = 10  # probabilities of q among the features
LONGEST_DRAFT = 20.0  # draft length that positions are divided by


def read_probability(probability: Tensor) -> float:
    """Return a predicted probability (1,) as a number. Raises FloatingPointError for NaN, which no threshold decides."""
    value = float(probability[0])
    if math.isnan(value):
        raise FloatingPointError("a head that predicts acceptance returned NaN")
    return value


def _require_number(logits: Tensor) -> None:
    """Raise MissingAsset if the logits (n,) of a head on made-up inputs are not finite."""
    if not bool(logits.isfinite().all()):
        raise MissingAsset("its predictions are NaN or infinite")


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
        """Return features (n, width) of drafted tokens.

        They come from the states (n, H), the unscaled distributions q (n, V), and the tokens x (n,).
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

    def require_finite_output(self) -> None:
        _require_number(self(self.mean[None]))


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

    def require_finite_output(self) -> None:
        _require_number(self(self.block.weight[:1]))


class LengthHead(Head):
    """P(the token drawn from q is accepted), from q's ten largest probabilities, its entropy, and the position in the draft.

    The paper names probabilities, entropy and position. The exact features are a choice (docs/papers/drafting.md, DSL
    and DISCO).
    """

    kind: ClassVar[str] = "dsl"

    def __init__(self, width: int = 32) -> None:
        super().__init__(width=width)
        self.one, self.two = nn.Linear(LARGEST_PROBABILITIES + 2, width), nn.Linear(width, 1)

    def forward(self, q: Tensor, position: Tensor) -> Tensor:
        """Return logits (n,) of acceptance from unscaled distributions (n, V) and positions in the draft (n,), from 0."""
        return self.logits_of_features(self.inputs(q, position))

    def inputs(self, q: Tensor, position: Tensor) -> Tensor:
        """Return features (n, 12). For vocabularies below ten tokens the missing probabilities are 0."""
        largest = q.topk(min(LARGEST_PROBABILITIES, q.shape[-1]), -1).values.float()
        padded = F.pad(largest, (0, LARGEST_PROBABILITIES - largest.shape[-1]))
        return torch.cat([padded, entropy(q).unsqueeze(-1).float(), position.unsqueeze(-1).float() / LONGEST_DRAFT], -1)

    def logits_of_features(self, inputs: Tensor) -> Tensor:
        """Return logits (n,) of features (n, 12)."""
        logits: Tensor = self.two(F.relu(self.one(inputs))).squeeze(-1)
        return logits

    def accepts(self, q: Tensor, position: Tensor) -> Tensor:
        """Return P(accept) (n,)."""
        return self(q, position).sigmoid()  # type: ignore[no-any-return]  # nn.Module.__call__ is untyped

    def require_finite_output(self) -> None:
        _require_number(self.logits_of_features(self.one.weight[:1]))
