"""The files of published draft heads, and which drafter they are, found by content. No code of a repository is run.

Producers: SafeAILab (EAGLE), SpecForge and SGLang, NVIDIA, nebius, speculators (vLLM, Red Hat AI), DeepSpec, z-lab.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from specbench.errors import MissingAsset
from specbench.models.heads.head import UNREADABLE, Provenance, in_one_line, recorded_in
from specbench.models.heads.head_config import Config, NamingKeys
from specbench.models.heads.head_weights import WEIGHTS, block_size, dequantized, read_weights, require_finite

CONFIG = "config.json"
SPECULATORS = "speculators_model_type"  # the key that marks a checkpoint of speculators
MARKOV = "markov_head."  # in names of DSpark's weights


class Drafter(StrEnum):
    """The kind of a published drafter, as a message names it."""

    eagle1 = "an EAGLE-1 head"
    eagle3 = "an EAGLE-3 head"
    p_eagle = "a P-EAGLE head"
    dflash = "a DFlash drafter"
    dspark = "a DSpark drafter"
    medusa = "Medusa heads"
    mtp = "an MTP head"


BY_SPECULATORS = {
    "eagle3": Drafter.eagle3, "peagle": Drafter.p_eagle, "dflash": Drafter.dflash, "dspark": Drafter.dspark,
    "mtp": Drafter.mtp,
}  # fmt: skip
BY_ARCHITECTURE = {  # parts of names, lower case
    "eagle3": Drafter.eagle3, "dspark": Drafter.dspark, "dflash": Drafter.dflash, "medusa": Drafter.medusa,
    "mtp": Drafter.mtp,
}  # fmt: skip
BY_KEY = {"dflash_config": Drafter.dflash, "markov_rank": Drafter.dspark, "medusa_num_heads": Drafter.medusa}
BY_WEIGHT = {  # beginnings of names
    "midlayer.": Drafter.eagle3, "d2t": Drafter.eagle3, "mask_hidden": Drafter.p_eagle, "mtp_layers.": Drafter.mtp,
    "hidden_norm.": Drafter.dflash,
}  # fmt: skip


@dataclass(frozen=True)
class HeadFiles:
    """A head's folder: its config.json, its weights by name, and the provenance that specbench recorded in them."""

    folder: Path
    config: Mapping[str, Any]
    weights: dict[str, Tensor]
    provenance: Provenance

    @classmethod
    def read(cls, folder: Path) -> "HeadFiles":
        """Read safetensors or PyTorch files, in one part or several. Raises MissingAsset, with the file, if it cannot."""
        if not (folder / CONFIG).is_file():
            raise MissingAsset(f"no draft head in {folder} (no {CONFIG})")
        try:
            config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
            if not isinstance(config, dict):
                raise MissingAsset(f"{folder} cannot be read as a draft head: {CONFIG} is not a table")
            weights = dequantized(folder, read_weights(folder), block_size(config))
            provenance = recorded_in(folder / WEIGHTS) if (folder / WEIGHTS).is_file() else Provenance()
        except UNREADABLE as error:
            raise MissingAsset(f"{folder} cannot be read as a draft head: {in_one_line(error)}") from None
        require_finite(folder, weights)
        return cls(folder, config, weights, provenance)

    @property
    def keys(self) -> Config:
        """The config, with typed access to its keys."""
        return Config(self.folder, self.config)

    @cached_property
    def naming(self) -> NamingKeys:
        """The keys that say which drafter the files hold. Raises MissingAsset, naming the key, for a wrong value."""
        return self.keys.read(NamingKeys)

    @property
    def drafter(self) -> Drafter:
        """Which drafter the files hold. A block drafter with a Markov head is DSpark, one without is DFlash.

        Raises MissingAsset for a kind of speculators that is unknown.
        """
        if self.named not in (Drafter.dflash, Drafter.dspark):
            return self.named
        has_markov = bool(self.naming.markov_rank) or any(MARKOV in name for name in self.weights)
        return Drafter.dspark if has_markov else Drafter.dflash

    @property
    def named(self) -> Drafter:
        """The drafter by the config, else by the weights. DeepSpec's DFlash files name DSpark, which `drafter` checks."""
        if kind := self.naming.speculators_model_type:
            if kind not in BY_SPECULATORS:
                raise MissingAsset(f"{self.folder} holds a drafter of speculators of the unknown type {kind!r}")
            return BY_SPECULATORS[kind]
        names = _architectures(self.config)
        for found in (
            next((kind for part, kind in BY_ARCHITECTURE.items() if part in names), None),
            next((kind for key, kind in BY_KEY.items() if key in self.config), None),
            next(
                (kind for start, kind in BY_WEIGHT.items() if any(name.startswith(start) for name in self.weights)),
                None,
            ),
        ):
            if found is not None:
                return found
        fc, width = self.weights.get("fc.weight"), self.naming.hidden_size
        return Drafter.eagle3 if fc is not None and width and fc.numel() > 2 * width * len(fc) else Drafter.eagle1


def names_drafter(config: Mapping[str, Any]) -> bool:
    """Return whether a config alone says that its folder holds a drafter."""
    names = _architectures(config)
    return (
        SPECULATORS in config or any(key in config for key in BY_KEY) or any(part in names for part in BY_ARCHITECTURE)
    )


def _architectures(config: Mapping[str, Any]) -> str:
    """Return the architectures that a config names, in lower case."""
    names = config.get("architectures")
    return " ".join(map(str, names)).lower() if isinstance(names, list) else ""
