"""What a head is: a small module, in a folder of its own, that says which model's states it was trained on.

`head.safetensors` holds the weights, and in its metadata the kind, the module's own settings and its provenance, so that a
head is one file to pass on. EAGLE heads are in the format of the published ones (`heads/eagle.py`).
"""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, ClassVar, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from specbench.errors import ConfigError, MissingAsset, hint

FILE = "head.safetensors"
UNREADABLE = (  # what a file that is no head can raise
    OSError, ValueError, RuntimeError, SafetensorError, UnpicklingError, EOFError, KeyError, TypeError, AttributeError,
)  # fmt: skip
Identity = dict[str, Any]  # of a model: source, revision or checksum, ...


@dataclass(frozen=True)
class Provenance:
    """Where a head comes from. `base` is the model whose states or laws it reads, `target` the one whose verdict it foresees.

    Both are as runs record them. `data` says which texts, with their checksum; `settings` how it was trained; `report` what
    was measured on texts that it was not trained on.
    """

    base: Identity = field(default_factory=dict)
    target: Identity = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)


class Head(nn.Module):
    """A module that is one of a `kind`. Its settings are the keywords of its constructor."""

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type["Head"]]] = {}

    def __init_subclass__(cls) -> None:
        Head.kinds[cls.kind] = cls

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.settings = settings
        self.provenance = Provenance()

    def save(self, folder: Path) -> None:
        """Write head.safetensors, weights in the precision that they have."""
        folder.mkdir(parents=True, exist_ok=True)
        told = {"kind": self.kind, "settings": self.settings, "provenance": dataclasses.asdict(self.provenance)}
        weights = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        part = folder / f"{FILE}.part"  # a head is there whole or not at all
        save_file(weights, part, metadata={"specbench": json.dumps(told, ensure_ascii=False)})
        part.rename(folder / FILE)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The head that lies in a folder. Raises MissingAsset where there is none, or it cannot be read."""
        path = folder / FILE
        if not path.is_file():
            raise MissingAsset(f"no {cls.kind} head in {folder} (no {FILE}); train one: specbench train {cls.kind}")
        try:
            with safe_open(path, "pt") as file:
                told = json.loads((file.metadata() or {}).get("specbench", "{}"))
                weights: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (it is no dict)
            if told.get("kind") != cls.kind:
                raise ConfigError(f"{path} is a head of kind {told.get('kind')!r}, not '{cls.kind}'")
            head = cls(**told["settings"])
            head.load_state_dict(weights)
            head.provenance = Provenance(**told["provenance"])
        except ConfigError:
            raise
        except UNREADABLE as error:
            raise MissingAsset(f"{path} cannot be read as a {cls.kind} head: {in_one_line(error)}") from None
        return head

    def placed(self, device: torch.device) -> Self:
        """The head as it is used: on the device, in float32, without gradients."""
        return self.to(device=device, dtype=torch.float32).eval().requires_grad_(False)


def provenance_in(folder: Path) -> Provenance:
    """The provenance that the head in a folder records; empty where it records none, or cannot be read."""
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, "pt") as file:
                told = json.loads((file.metadata() or {}).get("specbench", "{}"))
            return Provenance(**told.get("provenance", told))
        except UNREADABLE:
            continue
    return Provenance()


def kind_named(kind: str) -> type[Head]:
    """The class of a kind. Raises ConfigError, with the nearest one, where there is none."""
    if kind not in Head.kinds:
        raise ConfigError(f"unknown kind of head '{kind}'{hint(kind, Head.kinds)}")
    return Head.kinds[kind]


def in_one_line(error: Exception) -> str:
    """What a library said over several lines, such as which weights do not fit."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) < 300 else text[:300] + " ..."


def same_model(one: Identity, two: Identity) -> bool:
    """Whether two identities name the same weights: by checksum or commit where both are known, else by source.

    Precision and quantization may differ: a head goes with a faithful copy of its model, if less well.
    """
    for key in ("checksum", "revision"):
        if one.get(key) and two.get(key):
            return bool(one[key] == two[key])
    return bool(one.get("source") == two.get("source"))


def described(model: Identity) -> str:
    """A model in a message: its source and what tells it from others of that name."""
    mark = model.get("checksum") or model.get("revision")
    return f"{model.get('source', 'an unknown model')}" + (f" ({str(mark)[:12]})" if mark else "")
