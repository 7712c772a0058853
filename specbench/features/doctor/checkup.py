"""All checks of this machine and installation, in order."""

from collections.abc import Iterator
from pathlib import Path

from specbench.config.pair import PACKAGE
from specbench.features.doctor.installation_checks import bundled, extra, hub, package, python, sandbox
from specbench.features.doctor.machine_checks import (
    clock,
    cpu_kernels,
    disk_space,
    gpus,
    load,
    memory,
    memory_bandwidth,
    processor,
    timed,
)  # fmt: skip
from specbench.kernels import find_kernels
from specbench.machine.accelerator import GIB
from specbench.machine.check import Check
from specbench.machine.hardware import fingerprint
from specbench.machine.threads import cores_here

RESULTS_BYTES = GIB
EXTRAS = {
    "torchao": "quantization = ... in a pair needs it: pip install 'specbench[quantization]'",
    "gguf": "gguf_file = ... in a pair needs it: pip install 'specbench[gguf]'",
    "matplotlib": "plots need it: pip install matplotlib",
}


def checks(results: Path) -> Iterator[Check]:
    """Yield all checks, in a few seconds. Without torch, the checks that need it are skipped."""
    yield python()
    needed = [package(name) for name in ("torch", "transformers")]
    yield from needed
    if any(check.state == "fail" for check in needed):
        return
    facts = fingerprint()
    device = "cuda" if "gpu" in facts else "cpu"
    yield from (processor(facts, cores_here()), load(facts), memory(facts))
    yield cpu_kernels(find_kernels())
    yield from gpus(facts.get("gpu"))
    yield memory_bandwidth(device)
    yield clock(timed(device))
    yield disk_space("disk for results", results, RESULTS_BYTES)
    yield from hub()
    yield sandbox()
    yield from (extra(name, help_) for name, help_ in EXTRAS.items())
    yield bundled(PACKAGE / "tiny")
