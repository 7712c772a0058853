"""Heads: small trained modules, each in a folder that names the model it was trained with.

`head.safetensors` holds the weights, and in its metadata the kind, the module's own settings and its provenance, so
that a head is a single file. EAGLE heads use the published format (`heads/eagle.py`).

Besides the base class, the heads that predict whether a drafted token is accepted: SPRINTER's verifier, and the heads of
SpecDec++ and DSL.
"""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, ClassVar, Literal, Self, get_args

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from specbench.config.construct import Table
from specbench.decoding.targets.deferral import entropy
from specbench.errors import ConfigError, MissingAsset, hint

FILE = "head.safetensors"
UNREADABLE = (  # errors that reading a damaged file can raise
    OSError, ValueError, RuntimeError, SafetensorError, UnpicklingError, EOFError, KeyError, TypeError, AttributeError,
)  # fmt: skip
Identity = Table  # of a model: source, revision or checksum, ...
Features = Literal["state", "token", "state+token", "q", "entropy", "q+entropy", "state+q+entropy"]
FEATURES: tuple[str, ...] = get_args(Features)
LARGEST_PROBABILITIES = 10  # probabilities of q among the features
LONGEST_DRAFT = 20.0  # draft length that positions are divided by


@dataclass(frozen=True)
class Provenance:
    """How a head was trained.

    `base` is the model whose states or distributions it reads, `target` the one whose acceptance it predicts.

    Both are identities as runs record them. `data` describes the texts, with their checksum; `settings` the training;
    `report` the results on texts that it was not trained on.
    """

    base: Identity = field(default_factory=dict)
    target: Identity = field(default_factory=dict)
    data: Table = field(default_factory=dict)
    settings: Table = field(default_factory=dict)
    report: Table = field(default_factory=dict)


class Head(nn.Module):
    """A module of a `kind`. Its settings are the keywords of its constructor."""

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type["Head"]]] = {}

    def __init_subclass__(cls) -> None:
        Head.kinds[cls.kind] = cls

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.settings = settings
        self.provenance = Provenance()

    def save(self, folder: Path) -> None:
        """Write head.safetensors, in the weights' own precision."""
        folder.mkdir(parents=True, exist_ok=True)
        metadata = {"kind": self.kind, "settings": self.settings, "provenance": dataclasses.asdict(self.provenance)}
        weights = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        part = folder / f"{FILE}.part"  # renamed when complete, so that no partial head is left
        save_file(weights, part, metadata={"specbench": json.dumps(metadata, ensure_ascii=False)})
        part.rename(folder / FILE)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the head in a folder. Raises MissingAsset if there is none or it cannot be read."""
        path = folder / FILE
        if not path.is_file():
            raise MissingAsset(f"no {cls.kind} head in {folder} (no {FILE}); train one: specbench train {cls.kind}")
        try:
            with safe_open(path, "pt") as file:
                metadata = json.loads((file.metadata() or {}).get("specbench", "{}"))
                weights: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (file is not a dict)
            if metadata.get("kind") != cls.kind:
                raise ConfigError(f"{path} is a head of kind {metadata.get('kind')!r}, not '{cls.kind}'")
            head = cls(**metadata["settings"])
            head.load_state_dict(weights)
            head.provenance = Provenance(**metadata["provenance"])
        except ConfigError:
            raise
        except UNREADABLE as error:
            raise MissingAsset(f"{path} cannot be read as a {cls.kind} head: {in_one_line(error)}") from None
        return head

    def placed(self, device: torch.device) -> Self:
        """Return the head ready for use: on the device, in float32, without gradients."""
        return self.to(device=device, dtype=torch.float32).eval().requires_grad_(False)


def provenance_in(folder: Path) -> Provenance:
    """Return the provenance that the head in a folder records; empty if it records none or cannot be read."""
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, "pt") as file:
                metadata = json.loads((file.metadata() or {}).get("specbench", "{}"))
            return Provenance(**metadata.get("provenance", metadata))
        except UNREADABLE:
            continue
    return Provenance()


def kind_named(kind: str) -> type[Head]:
    """Return the class of a kind. Raises ConfigError, with the nearest name, if there is none."""
    if kind not in Head.kinds:
        raise ConfigError(f"unknown kind of head '{kind}'{hint(kind, Head.kinds)}")
    return Head.kinds[kind]


def in_one_line(error: Exception) -> str:
    """Return a library's error message on one line, shortened."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) < 300 else text[:300] + " ..."


def same_model(one: Identity, two: Identity) -> bool:
    """Return whether two identities name the same weights: by checksum or commit if both are known, else by source.

    Precision and quantization may differ: a head still works with a faithful copy of its model, if less well.
    """
    for key in ("checksum", "revision"):
        if one.get(key) and two.get(key):
            return bool(one[key] == two[key])
    return bool(one.get("source") == two.get("source"))


def described(model: Identity) -> str:
    """Return a model for a message: its source, and the start of its checksum or commit."""
    mark = model.get("checksum") or model.get("revision")
    return f"{model.get('source', 'an unknown model')}" + (f" ({str(mark)[:12]})" if mark else "")


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
