"""The base class of heads: small trained modules, each in a folder that names the model it was trained with.

`head.safetensors` holds the weights, and in its metadata the kind, the module's own settings and its provenance, so
that a head is a single file. EAGLE heads use the published format (`heads/eagle.py`).
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

from specbench.config.construct import Table
from specbench.errors import ConfigError, MissingAsset, hint
from specbench.models.heads.head_weights import require_finite, require_fit

FILE = "head.safetensors"
UNREADABLE = (  # errors that reading a damaged file can raise
    OSError, ValueError, RuntimeError, SafetensorError, UnpicklingError, EOFError, KeyError, TypeError, AttributeError,
)  # fmt: skip
Identity = Table  # of a model: source, revision or checksum, ...


@dataclass(frozen=True)
class Provenance:
    """How a head was trained.

    `base` is the model whose states or distributions it reads, and `target` the model whose acceptance it predicts. Both are
    identities as runs record them. `data` describes the texts, with their checksum, and `settings` the training. `report`
    has the results on texts that it was not trained on.
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
        if "kind" in cls.__dict__:  # not the versions of a kind
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
            with torch.device("meta"):  # sizes that the weights do not have are not allocated
                require_fit(f"{path} is not a {cls.kind} head", cls(**metadata["settings"]), weights)
            require_finite(path, weights)
            head = cls(**metadata["settings"])
            head.load_state_dict(weights)
            head.provenance = _provenance(metadata["provenance"])
        except ConfigError:
            raise
        except UNREADABLE as error:
            raise MissingAsset(f"{path} cannot be read as a {cls.kind} head: {in_one_line(error)}") from None
        return head

    def require_finite_output(self) -> None:
        """Run a forward on made-up inputs. Raises MissingAsset if a result is not finite.

        Loading calls it, so that a head that cannot decode is an error before anything is measured. Does nothing by default.
        """
        return

    def placed(self, device: torch.device) -> Self:
        """Return the head ready for use: on the device, in float32, without gradients."""
        return self.to(device=device, dtype=torch.float32).eval().requires_grad_(False)


def provenance_in(folder: Path) -> Provenance:
    """Return the provenance that the head in a folder records; empty if it records none or cannot be read."""
    for path in sorted(folder.glob("*.safetensors")):
        try:
            return recorded_in(path)
        except UNREADABLE:
            continue
    return Provenance()


def recorded_in(path: Path) -> Provenance:
    """Return the provenance in the metadata of a file of weights. Raises what a library raises for a damaged file."""
    with safe_open(path, "pt") as file:
        metadata = json.loads((file.metadata() or {}).get("specbench", "{}"))
    return _provenance(metadata.get("provenance", metadata))


def _provenance(table: Table) -> Provenance:
    """Return the provenance in a table. Raises TypeError if one of its parts is no table."""
    tables = {key: value for key, value in table.items() if isinstance(value, dict)}
    if wrong := sorted({*table} - {*tables}):
        raise TypeError(f"the provenance has no table {wrong[0]}")
    return Provenance(**tables)


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
