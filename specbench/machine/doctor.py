"""Floor 0: whether this machine and this installation are fit to measure on, check by check."""

import os
import platform
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from specbench.config.pair import PACKAGE
from specbench.data.hub import local_checksum, look_for_hub, offline_mode
from specbench.errors import MissingAsset
from specbench.machine.hardware import copy_bandwidth, fingerprint, gpu_processes
from specbench.sandbox import Sandbox

State = Literal["ok", "warn", "fail"]  # fail: no run works without it
PYTHON = (3, 11)
GIB = 1 << 30
RESULTS_BYTES = GIB
CACHE_BYTES = 20 * GIB  # a pair of a 7B model and a small one
MEMORY_BYTES = 2 * GIB
BUSY = 0.5  # of the cores
SPREAD = 0.05  # of a fixed computation's time, beyond which small speed-ups are noise
REPEATS = 5
EXTRAS = {
    "torchao": "quantization = ... in a pair needs it: pip install 'specbench[quantization]'",
    "matplotlib": "plots need it: pip install matplotlib",
}


@dataclass(frozen=True)
class Check:
    """One thing looked at: its state, what was found, and what to do where something is to be done."""

    name: str
    state: State
    found: str
    help: str = ""


def checks(results: Path) -> Iterator[Check]:
    """Every check in turn, in some seconds in all. Those that need torch are left out where it is missing."""
    yield _python()
    needed = [_package(name) for name in ("torch", "transformers")]
    yield from needed
    if any(check.state == "fail" for check in needed):
        return
    found = fingerprint()
    device = "cuda" if "gpu" in found else "cpu"
    yield from (_cpu(found), _load(found), _memory(found))
    yield from _gpu(found.get("gpu"))
    yield Check("memory bandwidth", "ok", f"{copy_bandwidth(device) / 1e9:.1f} GB/s, read and written ({device})")
    yield clock(_timed(device))
    yield _disk("disk for results", results, RESULTS_BYTES)
    yield from _hub()
    yield sandbox()
    yield from (_extra(name, help_) for name, help_ in EXTRAS.items())
    yield bundled(PACKAGE / "tiny")


def _python() -> Check:
    wanted = ".".join(map(str, PYTHON))
    state: State = "ok" if sys.version_info >= PYTHON else "fail"
    return Check("python", state, platform.python_version(), "" if state == "ok" else f"use Python {wanted} or newer")


def _package(name: str) -> Check:
    version = _version(name)
    return Check(name, "ok", version) if version else Check(name, "fail", "not installed", f"pip install {name}")


def _extra(name: str, help_: str) -> Check:
    version = _version(name)
    return Check(name, "ok", version) if version else Check(name, "warn", "not installed", help_)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _cpu(found: dict[str, Any]) -> Check:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else found["cores"]
    told = f"{found['cpu']}, {usable} of {found['cores']} cores, {found['threads']} threads"
    if found["threads"] > usable:
        return Check("cpu", "warn", told, f"threads wait for one another: OMP_NUM_THREADS={usable}")
    return Check("cpu", "ok", told)


def _load(found: dict[str, Any]) -> Check:
    told = f"{found['load_1min']:.2f} in the last minute"
    if found["load_1min"] > BUSY * found["cores"]:
        return Check("load", "warn", told, "other programs run here: speeds will vary; wait for them to end")
    return Check("load", "ok", told)


def _memory(found: dict[str, Any]) -> Check:
    info = Path("/proc/meminfo")
    lines = info.read_text().splitlines() if info.exists() else []
    free = next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable")), None)
    told = f"{found['memory_gib']} GiB" + ("" if free is None else f", {free / GIB:.1f} GiB available")
    if free is not None and free < MEMORY_BYTES:
        return Check("memory", "warn", told, "little is left: end other programs")
    return Check("memory", "ok", told)


def _gpu(found: dict[str, Any] | None) -> Iterator[Check]:
    """The CUDA device as it was found, and who else is on it."""
    if found is None:
        yield Check("gpu", "ok", "no CUDA device: everything runs on the CPU")
        return
    yield Check("gpu", "ok", ", ".join(f"{key} {value}" if key != "name" else value for key, value in found.items()))
    others = gpu_processes()
    if others is None:
        help_ = "driver, clocks, power limit and neighbours are unknown; install the driver's nvidia-smi"
        yield Check("gpu processes", "warn", "no nvidia-smi", help_)
    elif others:
        yield Check("gpu processes", "warn", "; ".join(others), "others use the GPU: speeds will vary")
    else:
        yield Check("gpu processes", "ok", "none but this one")


def _timed(device: str) -> list[float]:
    """Seconds of one fixed product of matrices, REPEATS times over."""
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
    """How far apart repeats of the same computation lie, slowest minus fastest over the median."""
    spread = (max(seconds) - min(seconds)) / statistics.median(seconds)
    told = f"the same product took {1e3 * min(seconds):.1f} to {1e3 * max(seconds):.1f} ms, a spread of {spread:.1%}"
    if spread > SPREAD:
        return Check("clock", "warn", told, "speeds here are not steady: use more --repeats, or a quieter machine")
    return Check("clock", "ok", told)


def _disk(name: str, folder: Path, wanted: int) -> Check:
    """What is free where a folder is, or will be."""
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    free = shutil.disk_usage(there).free
    told = f"{free / GIB:.1f} GiB free at {folder}"
    if not os.access(there, os.W_OK):
        return Check(name, "warn", f"{there} cannot be written to", "name another folder: --out, or HF_HOME")
    if free < wanted:
        return Check(
            name, "warn", told, f"less than {wanted / GIB:.0f} GiB: name a folder on another disk: --out, or HF_HOME"
        )
    return Check(name, "ok", told)


def _hub() -> Iterator[Check]:
    """The hub's cache, whether the hub answers, and whether a token is there."""
    from huggingface_hub import constants, get_token

    yield _disk("disk for models", Path(constants.HF_HUB_CACHE), CACHE_BYTES)
    help_ = "bundled pairs and local folders run; bring others by `specbench fetch` where there is a network"
    asked = not offline_mode()
    look_for_hub()
    if not asked:
        yield Check("hub", "warn", "offline mode is on (HF_HUB_OFFLINE)", help_)
    elif offline_mode():
        yield Check("hub", "warn", f"{constants.ENDPOINT} does not answer", help_)
    else:
        yield Check("hub", "ok", constants.ENDPOINT)
    yield Check("hub token", "ok", "set" if get_token() else "none; gated models need one: `hf auth login`")


def sandbox() -> Check:
    """Return which sandboxes generated code can run in here, and which protections they lack."""
    works, fails, weak = [], [], False
    for kind in ("bwrap", "unshare"):
        try:
            lacking = Sandbox.find(kind).weaknesses()
        except (MissingAsset, RuntimeError) as error:
            fails.append(str(error).partition("(")[2].partition("): ")[0] or f"{kind}: {error}")
        else:
            works.append(f"{kind} works" + (f", but: {', '.join(lacking)}" if lacking else ""))
            weak |= bool(lacking)
    if weak:
        help_ = "generated code can run; the docstring of specbench.sandbox says what these protections are for"
        return Check("sandbox", "warn", "; ".join(works + fails), help_)
    if works:
        return Check("sandbox", "ok", "; ".join(works + fails))
    help_ = "only --allow-code-execution needs one: install bubblewrap (0.8 or newer)"
    return Check("sandbox", "warn", "; ".join(fails), help_)


def bundled(folder: Path) -> Check:
    """Whether the models and heads that come with the package are there and can be read."""
    kinds = {kind: sorted(path for path in (folder / kind).glob("*") if path.is_dir()) for kind in ("models", "heads")}
    empty = [kind for kind, paths in kinds.items() if not paths]
    for path in (path for paths in kinds.values() for path in paths):
        try:
            local_checksum(path)
        except OSError as error:
            empty.append(f"{path.name} ({error.strerror})")
        if not any(path.glob("*.safetensors")):
            empty.append(f"{path.name} (no weights)")
    if empty:
        return Check("bundled", "fail", f"missing: {', '.join(empty)}", "install specbench anew")
    return Check("bundled", "ok", ", ".join(f"{len(paths)} {kind}" for kind, paths in kinds.items()) + ", readable")
