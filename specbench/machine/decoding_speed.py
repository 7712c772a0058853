"""Assumed speed of a forward on an accelerator, by engine, for plans made before anything was measured on it.

A forward takes the longer of two times: reading its weights and its cache at a share of the bandwidth, and the host's work
per layer. Every constant here is assumed. `make gpu-bench` measures the shares on a GPU; no result of it is published yet.
"""

from dataclasses import dataclass

from specbench.machine.accelerator import Accelerator

COPY_SHARE = 0.9  # assumed: bandwidth of a plain copy over the nominal one, where a machine's file has no measurement
PREFILL_SHARE = (0.3, 0.6)  # assumed: share of the nominal bfloat16 throughput that reading a prompt reaches


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
    speed = ENGINES[engine]
    bandwidth = machine.bandwidth_gb_s * 1e9 * (machine.copy_share or COPY_SHARE)
    return max(bytes_ / (bandwidth * speed.share[fast]), layers * speed.layer[fast]) + speed.forward[fast]


def prefill_seconds(machine: Accelerator, parameters: int, tokens: int, fast: bool) -> float:
    """Return the seconds that reading a prompt takes by its arithmetic: two operations per parameter and token."""
    return 2.0 * parameters * tokens / (machine.bf16_tflops * 1e12 * PREFILL_SHARE[fast])
