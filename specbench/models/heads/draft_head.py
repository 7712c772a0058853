"""The base class of heads that draft from states of their base, in published formats."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Self

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from specbench.config.construct import Table
from specbench.decoding.session import AuxLayers
from specbench.errors import MissingAsset
from specbench.files import read_json
from specbench.models.heads.head import UNREADABLE, Head, in_one_line
from specbench.models.heads.head_config import Config, NamingKeys
from specbench.models.heads.head_files import CONFIG, Drafter, HeadFiles, names_drafter


class DraftHead(Head, ABC):
    """A head that drafts. Subclasses with a `drafter` read the files of that drafter, and `versions` lists them."""

    drafter: ClassVar[Drafter]
    versions: ClassVar[dict[Drafter, type["DraftHead"]]] = {}

    aux_layers: AuxLayers = ()  # the states of the base that it reads
    states: int = 1  # their number
    state_width: int  # the width H of the base's states
    rows: int = 0  # tokens of its base's embedding, once it goes with a base
    is_partial: bool = False  # whether its logits leave tokens out, which then have -inf

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "drafter" in cls.__dict__:
            DraftHead.versions[cls.drafter] = cls

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the head in a folder, of the version that its files hold.

        Raises MissingAsset if there is none, if it cannot be read, or if its files hold another drafter.
        """
        files = HeadFiles.read(folder)
        version = cls.versions.get(files.drafter)
        if version is None or not issubclass(version, cls):
            known = " and ".join(drafter.value for drafter, each in cls.versions.items() if issubclass(each, cls))
            other = f"; help: --head {version.kind}={folder}" if version else ""
            raise MissingAsset(f"{folder} holds {files.drafter.value}; the kind '{cls.kind}' reads {known}{other}")
        try:
            head = version.of_files(files)
        except UNREADABLE as error:
            raise MissingAsset(f"{folder} cannot be read as {files.drafter.value}: {in_one_line(error)}") from None
        head.provenance = files.provenance
        return head

    @classmethod
    def of_files(cls, files: HeadFiles) -> Self:
        """Return the head that the files hold. Only subclasses with a `drafter` implement this."""
        raise TypeError(f"{cls.__name__} reads no files of its own")

    @abstractmethod
    def goes_with(self, embedding: Tensor, config: PreTrainedConfig) -> Self:
        """Move the head to the device and dtype of its base's embedding (V, H).

        The head uses that embedding if it has none of its own. `config` is the base's. Raises ConfigError, naming the key, if
        the head is not one of such a base.
        """

    def made_up(self, n: int) -> tuple[Tensor, Tensor]:
        """Return tokens (n,), the last of the base's among them, and random states (n, m H) of them, for a trial forward."""
        like, generator = self.parameter, torch.Generator().manual_seed(0)
        tokens = torch.arange(n, device=like.device) * (self.rows - 1) // max(1, n - 1)
        states = torch.randn(n, self.states * self.state_width, generator=generator)
        return tokens, states.to(like.device, like.dtype)

    def of_base(self, read: Tensor) -> Tensor:
        """Return zeros (n, V) in place of the base's logits of what the base's LM head reads (n, H), for a trial forward."""
        if read.shape[-1] != self.state_width:
            raise MissingAsset(
                f"the base's LM head reads {self.state_width} numbers, and the head returns {read.shape[-1]}"
            )
        return read.new_zeros(len(read), self.rows)

    @property
    @abstractmethod
    def parameter(self) -> Tensor:
        """One of its weights, on its device and in its dtype."""


def require_numbers(*results: Tensor) -> None:
    """Raise MissingAsset if a result of a trial forward has NaN or an infinite value, or no finite logit in a row."""
    for each in results:
        if not bool(each.amax(-1).isfinite().all()):
            raise MissingAsset("its output on random states has NaN or infinite values")


def kind_in(folder: Path) -> str:
    """Return the kind of the head whose published files are in a folder, or of the MTP layer of a checkpoint.

    Raises MissingAsset if there is none, or if it is a drafter that is not supported.
    """
    path = folder / CONFIG
    config = read_json(path, Table) if path.is_file() else {}
    naming = Config(folder, config).read(NamingKeys)
    if not names_drafter(config) and (naming.num_nextn_predict_layers or naming.model_type == "qwen3_next"):
        return "mtp"
    drafter = HeadFiles.read(folder).drafter
    if drafter not in DraftHead.versions:
        raise MissingAsset(f"{folder}: {drafter.value}: not supported")
    return DraftHead.versions[drafter].kind
