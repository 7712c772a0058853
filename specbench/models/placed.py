"""Models on several devices: in layers by accelerate, and sessions between devices."""

import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from specbench.config.pair import Placement
from specbench.decoding import drafting
from specbench.decoding.sampling import Draft, Sampler, Tree
from specbench.decoding.session import AuxLayers, Session, Usage
from specbench.decoding.trees import Growth, growth
from specbench.errors import MissingAsset

NO_ACCELERATE = (
    "parallel = \"layers\" needs accelerate, which is not installed\n  help: pip install 'specbench[placement]'"
)


def loading_settings(placement: Placement) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` for a model that is split; empty for one on one device.

    Raises MissingAsset without accelerate.
    """
    return {"device_map": "auto", **_limits(placement)} if placement.parallel == "layers" else {}


def _limits(placement: Placement) -> dict[str, Any]:
    """Return the memory that accelerate may use: the limit or all free memory of named devices, nothing of others."""
    try:
        from accelerate.utils import get_max_memory  # an extra
    except ImportError:
        raise MissingAsset(NO_ACCELERATE) from None
    free = get_max_memory()
    names = [_key(name) for name in placement.devices]
    limits = [int(limit * 2**30) for limit in placement.memory_gib] or [free.get(name, 0) for name in names]
    settings: dict[str, Any] = {"max_memory": dict.fromkeys(free, 0) | dict(zip(names, limits, strict=True))}
    if "disk" in names:
        del settings["max_memory"]["disk"]  # the disk takes what fits nowhere else
        settings["offload_folder"] = tempfile.mkdtemp(prefix="specbench-offload-")
    return settings


def remove_with(model: object, settings: Mapping[str, Any]) -> None:
    """Remove the folder of offloaded weights when the model is no longer used."""
    if folder := settings.get("offload_folder"):
        weakref.finalize(model, shutil.rmtree, folder, ignore_errors=True)


def _key(name: str) -> int | str:
    """Return accelerate's key of a device."""
    kind, _, number = name.partition(":")
    return int(number or 0) if kind == "cuda" else kind


def numbered(device: torch.device) -> torch.device:
    """Return a GPU with its number, so that `cuda` and the current GPU compare equal."""
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", torch.cuda.current_device())


@contextmanager
def on(device: torch.device) -> Iterator[None]:
    """Make a GPU the current device, which events, graphs and kernels of libraries refer to."""
    if device.type != "cuda" or numbered(device) == numbered(torch.device("cuda")):
        yield
        return
    with torch.cuda.device(device):
        yield


class MovedSession:
    """A session of a model on another device than the run's: its logits are copied to the run's device.

    Drafts are drawn token by token on the run's device, where the random numbers are. `moved` counts the copied bytes.
    """

    def __init__(self, session: Session, device: torch.device, home: torch.device) -> None:
        self._session, self._device, self._home = session, device, home
        self.moved = 0

    def keep_states(self, aux_layers: AuxLayers = ()) -> None:
        self._session.keep_states(aux_layers)

    @property
    def usage(self) -> Usage:
        return self._session.usage

    def score(self, ids: list[int], start: int, tree: Tree | None = None) -> Tensor:
        with on(self._device):
            return self._here(self._session.score(ids, start, tree))

    def roll(self, ids: list[int], k: int, sampler: Sampler, eos: frozenset[int]) -> Draft:
        return drafting.roll(self, ids, k, sampler, eos)

    def growth(self, ids: list[int], room: int, eos: frozenset[int]) -> Growth:
        return growth(self, ids, room, eos)

    def room(self, ids: list[int]) -> int:
        return self._session.room(ids)

    def hidden(self, ids: list[int], start: int, aux_layers: AuxLayers = ()) -> Tensor:
        with on(self._device):
            return self._here(self._session.hidden(ids, start, aux_layers))

    def cached_length(self, ids: list[int]) -> int:
        return self._session.cached_length(ids)

    def logits_of(self, states: Tensor) -> Tensor:
        with on(self._device):
            return self._here(self._session.logits_of(states.to(self._device)))

    def finish(self) -> None:
        with on(self._device):
            self._session.finish()

    def _here(self, values: Tensor) -> Tensor:
        self.moved += values.nbytes
        return values.to(self._home)
