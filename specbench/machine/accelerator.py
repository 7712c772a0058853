"""Machines to plan for: nominal figures of an accelerator, from configs/machines/ or a TOML file, and assumed speeds.

Before anything was measured, a forward takes the longer of two times: reading its weights and its cache at a share of the
bandwidth, and the host's work per layer. Every constant here is assumed. `make gpu-bench` measures the shares on a GPU; no
result of it is published yet.
"""

from dataclasses import dataclass

from specbench.config.construct import construct
from specbench.config.presets import names, preset

GIB = 1 << 30
SMALLEST, LARGEST = 1e-3, 1e9  # of memory, bandwidth and throughput: beyond it, estimates overflow
COPY_SHARE = 0.9  # assumed: bandwidth of a plain copy over the nominal one, where a machine's file has no measurement
PREFILL_SHARE = (0.3, 0.6)  # assumed: share of the nominal bfloat16 throughput that reading a prompt reaches


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
    source = preset("machine", name)
    return construct(Accelerator, source.table, str(source.path))


def smallest_with(bytes_: float) -> Accelerator | None:
    """Return the bundled machine with the least memory of at least this many bytes; None if none has as much."""
    fitting = [machine for machine in map(read_accelerator, names("machine")) if machine.memory >= bytes_]
    return min(fitting, key=lambda accelerator: accelerator.memory, default=None)


@dataclass(frozen=True)
class EngineSpeed:
    """An engine's assumed speed: a slow and a fast value of each.

    `share` is the share of the copy bandwidth that a forward of a large model reaches, `layer` the seconds of the host per
    layer, and `forward` the seconds per forward outside the model.
    """

    share: tuple[float, float]
    layer: tuple[float, float]
    forward: tuple[float, float]


ENGINES = {  # assumed
    "eager": EngineSpeed((0.4, 0.8), (800e-6, 250e-6), (1e-3, 2e-4)),
    "lean": EngineSpeed((0.5, 0.85), (300e-6, 100e-6), (5e-4, 1e-4)),
    "graph": EngineSpeed((0.6, 0.9), (30e-6, 8e-6), (3e-4, 5e-5)),
    "compiled": EngineSpeed((0.6, 0.95), (25e-6, 6e-6), (3e-4, 5e-5)),
}


def forward_seconds(machine: Accelerator, engine: str, bytes_: float, layers: int, fast: bool) -> float:
    """Return the seconds of a decoding forward that reads so many bytes, under the fast or the slow assumptions."""
    speed = ENGINES.get(engine, ENGINES["eager"])  # a plugin's engine is assumed to be as fast as eager
    bandwidth = machine.bandwidth_gb_s * 1e9 * (machine.copy_share or COPY_SHARE)
    return max(bytes_ / (bandwidth * speed.share[fast]), layers * speed.layer[fast]) + speed.forward[fast]


def prefill_seconds(machine: Accelerator, parameters: int, tokens: int, fast: bool) -> float:
    """Return the seconds that reading a prompt takes by its arithmetic: two operations per parameter and token."""
    return 2.0 * parameters * tokens / (machine.bf16_tflops * 1e12 * PREFILL_SHARE[fast])
