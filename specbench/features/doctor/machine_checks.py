"""Checks of the hardware and of what else runs on it: processor, memory, GPU, disk, and how steady the clock is."""

import os
import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from specbench.kernels import Kernels, Missing
from specbench.machine.accelerator import GIB
from specbench.machine.check import Check
from specbench.machine.hardware import Fingerprint, gpu_processes
from specbench.machine.threads import VARIABLE, Cores

MEMORY_BYTES = 2 * GIB
BUSY = 0.5  # of the cores
SPREAD = 0.05  # of a fixed computation's time, beyond which small speed-ups are noise
REPEATS = 5


def processor(facts: Fingerprint, cores: Cores) -> Check:
    """Return the check of the processor, its free cores and the number of threads."""
    text = f"{facts['cpu']}, {cores.usable} of {facts['cores']} cores, {cores.free} free"
    if VARIABLE in os.environ and facts["threads"] > cores.usable:
        help_ = f"{VARIABLE} gives {facts['threads']} threads, more than cores; unset it"
        return Check("cpu", "warn", text, help_)
    return Check("cpu", "ok", text)


def cpu_kernels(found: Kernels | Missing) -> Check:
    """Return the check of the kernels for decoding on a CPU."""
    if isinstance(found, Kernels):
        return Check("cpu kernels", "ok", found.name)
    return Check(
        "cpu kernels", "warn", f"{found.reason}: PyTorch computes the matrix products, more slowly", found.help
    )


def load(facts: Fingerprint) -> Check:
    """Return the check of other programs that run."""
    text = f"{facts['load_1min']:.2f} in the last minute"
    if facts["load_1min"] > BUSY * facts["cores"]:
        return Check("load", "warn", text, "speeds will vary while other programs run")
    return Check("load", "ok", text)


def memory(facts: Fingerprint) -> Check:
    """Return the check of the available memory."""
    info = Path("/proc/meminfo")
    lines = info.read_text().splitlines() if info.exists() else []
    free = next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable")), None)
    text = f"{facts['memory_gib']} GiB" + ("" if free is None else f", {free / GIB:.1f} GiB available")
    if free is not None and free < MEMORY_BYTES:
        return Check("memory", "warn", text, "little memory is available; end other programs")
    return Check("memory", "ok", text)


def gpus(gpu: dict[str, str | None] | None) -> Iterator[Check]:
    """Yield checks of the CUDA device and of other processes on it."""
    if gpu is None:
        yield Check("gpu", "ok", "no CUDA device: everything runs on the CPU")
        return
    texts = (f"{value}" if key == "name" else f"{key} {value}" for key, value in gpu.items())
    yield Check("gpu", "ok", ", ".join(texts))
    others = gpu_processes()
    if others is None:
        help_ = "driver, clocks, power limit and other processes are unknown; install nvidia-smi"
        yield Check("gpu processes", "warn", "no nvidia-smi", help_)
    elif others:
        yield Check("gpu processes", "warn", "; ".join(others), "others use the GPU: speeds will vary")
    else:
        yield Check("gpu processes", "ok", "none but this one")


def timed(device: str) -> list[float]:
    """Return the seconds of REPEATS products of the same matrices."""
    import torch

    cuda = device == "cuda"
    size, rounds = (4096, 20) if cuda else (384, 40)
    block, seconds = torch.ones(size, size, device=device), []
    for _ in range(REPEATS + 1):  # the first warms up
        if cuda:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(rounds):
            block @ block
        if cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return seconds[1:]


def clock(seconds: list[float]) -> Check:
    """Return the check of timing noise: slowest minus fastest over the median time of the same computation."""
    spread = (max(seconds) - min(seconds)) / statistics.median(seconds)
    text = f"the same product took {1e3 * min(seconds):.1f} to {1e3 * max(seconds):.1f} ms, a spread of {spread:.1%}"
    if spread > SPREAD:
        return Check("clock", "warn", text, "speeds here are not steady: use more --repeats, or a quieter machine")
    return Check("clock", "ok", text)


def memory_bandwidth(device: str) -> Check:
    """Return the measured bandwidth of the memory. Imports torch."""
    from specbench.machine.memory import copy_bandwidth, read_bandwidth

    reading, copying = (bandwidth(device) / 1e9 for bandwidth in (read_bandwidth, copy_bandwidth))
    text = f"{reading:.1f} GB/s reading, {copying:.1f} GB/s copying, read and written ({device})"
    return Check("memory bandwidth", "ok", text)


def disk_space(name: str, folder: Path, least: int) -> Check:
    """Return the check of the free disk space at a folder, which may not exist yet."""
    there = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(there).free
    text = f"{free / GIB:.1f} GiB free at {folder}"
    if not os.access(there, os.W_OK):
        return Check(name, "warn", f"{there} cannot be written to", "name another folder: --out, or HF_HOME")
    if free < least:
        return Check(name, "warn", text, f"less than {least / GIB:.0f} GiB: use another disk with --out or HF_HOME")
    return Check(name, "ok", text)
