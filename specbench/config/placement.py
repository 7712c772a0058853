"""Where a model runs: on one device, in layers over several, or with split tensors. Importing it does not import torch."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from specbench.errors import ConfigError

Parallel = Literal["none", "layers", "tensor"]
ONE_DEVICE = re.compile(r"cpu|cuda|cuda:\d+")
FORMS = "ROLE=DEVICE, ROLE=layers:DEVICES or ROLE=tensor:DEVICES, such as target=cuda:1 or target=layers:0,1"


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The placement of one model.

    `devices` are the names of its devices (`cuda:0`, `cpu`, `disk`), empty for the run's device. With `layers`, each device
    holds consecutive layers, of at most `memory_gib` if given. With `tensor`, every matrix is split, and each device has a
    process of its own.
    """

    parallel: Parallel = "none"
    devices: tuple[str, ...] = ()
    memory_gib: tuple[float, ...] = ()

    @property
    def label(self) -> str | None:
        """The placement in words, for run specs and tables; None for the run's device."""
        if not self.devices:
            return None
        names = ", ".join(self.devices)
        return names if self.parallel == "none" else f"{self.parallel} on {names}"

    @property
    def processes(self) -> int:
        """The number of processes that decode with this model."""
        return len(self.devices) if self.parallel == "tensor" else 1


def placement_of(
    device: str, devices: Sequence[int | str], parallel: Parallel, memory_gib: Sequence[float]
) -> Placement:
    """Return the placement that the keys of a pair's model describe. Raises ValueError if they conflict."""
    if device and not ONE_DEVICE.fullmatch(device):
        raise ValueError(f"device = '{device}' must be cpu, cuda or cuda:N")
    if parallel == "none":
        if devices or memory_gib:
            raise ValueError('devices and memory_gib need parallel = "layers" or "tensor"')
        return Placement(devices=(device,) if device else ())
    if device:
        raise ValueError(f'device and parallel = "{parallel}" conflict: name the devices in `devices`')
    names = tuple(f"cuda:{each}" if isinstance(each, int) else "cuda:0" if each == "cuda" else each for each in devices)
    if len(names) < 2:
        raise ValueError(f'parallel = "{parallel}" needs at least two `devices`, such as [0, 1]')
    are_valid = [ONE_DEVICE.fullmatch(name) or (name == "disk" and parallel == "layers") for name in names]
    if not all(are_valid):
        allowed = "numbers of GPUs, cpu or disk" if parallel == "layers" else "numbers of GPUs, or cpu for each process"
        raise ValueError(f"devices = {list(devices)} must be {allowed}")
    if parallel == "tensor" and len({name.partition(":")[0] for name in names}) > 1:
        raise ValueError(f"devices = {list(devices)}: the processes of split tensors are all on GPUs or all on the CPU")
    if len(set(names)) < len(names) and set(names) != {"cpu"}:
        raise ValueError(f"devices = {list(devices)} names a device twice")
    if names[0] == "disk":
        raise ValueError("the first of several devices must not be disk")
    if "disk" in names and not memory_gib:
        raise ValueError("devices with disk need memory_gib, a limit for each device")
    if memory_gib and (parallel == "tensor" or len(memory_gib) != len(names)):
        raise ValueError('memory_gib has one limit per device, for parallel = "layers"')
    return Placement(parallel=parallel, devices=names, memory_gib=tuple(memory_gib))


def place_overrides(texts: Sequence[str]) -> list[tuple[str, Any]]:
    """Return the overrides of `--place` options, which replace the placement in a pair's file.

    Raises ConfigError for a text that is not one of FORMS.
    """
    overrides: list[tuple[str, Any]] = []
    for text in texts:
        role, equals, where = text.partition("=")
        kind, colon, names = where.partition(":")
        key = f"pair.models.{role}"
        if equals and role and kind in ("layers", "tensor") and colon:
            devices = [int(name) if name.isdecimal() else name for name in names.split(",")]
            overrides += [(f"{key}.device", ""), (f"{key}.parallel", kind), (f"{key}.devices", devices)]
        elif equals and role and ONE_DEVICE.fullmatch(where):
            overrides += [(f"{key}.device", where), (f"{key}.parallel", "none"), (f"{key}.devices", [])]
        else:
            raise ConfigError(f"--place {text}: expected {FORMS}")
    return overrides
