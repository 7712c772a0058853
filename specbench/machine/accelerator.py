"""Machines to plan for: the nominal figures of an accelerator, from configs/machines/ or a TOML file."""

from dataclasses import dataclass

from specbench.config.construct import construct
from specbench.config.presets import names, preset

GIB = 1 << 30
SMALLEST, LARGEST = 1e-3, 1e9  # of memory, bandwidth and throughput: beyond it, estimates overflow


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """One accelerator by its data sheet.

    `memory_gib` is the memory that a process can use, `bandwidth_gb_s` the nominal memory bandwidth in 10^9 bytes per second,
    and `bf16_tflops` the dense bfloat16 throughput. `copy_share` is the measured bandwidth of a plain copy over the nominal
    one; 0 if it was not measured.
    """

    name: str
    description: str = ""
    memory_gib: float
    bandwidth_gb_s: float
    bf16_tflops: float
    copy_share: float = 0.0

    def __post_init__(self) -> None:
        for key in ("memory_gib", "bandwidth_gb_s", "bf16_tflops"):
            if not SMALLEST <= getattr(self, key) <= LARGEST:
                raise ValueError(f"{key} = {getattr(self, key):g} must be from {SMALLEST:g} to {LARGEST:g}")
        if self.copy_share and not SMALLEST <= self.copy_share <= 1.0:
            raise ValueError(f"copy_share = {self.copy_share:g} must be 0 (not measured), or from {SMALLEST:g} to 1")

    @property
    def memory(self) -> float:
        """Its memory in bytes."""
        return self.memory_gib * GIB


def read_accelerator(name: str) -> Accelerator:
    """Return the machine of a name or of a path to a TOML file. Raises ConfigError for an unknown name or a mistake."""
    found = preset("machine", name)
    return construct(Accelerator, found.table, str(found.path))


def smallest_with(bytes_: float) -> Accelerator | None:
    """Return the bundled machine with the least memory of at least this many bytes; None if none has as much."""
    fitting = [each for each in map(read_accelerator, names("machine")) if each.memory >= bytes_]
    return min(fitting, key=lambda each: each.memory, default=None)
