"""`specbench doctor`: check whether this machine and installation are suitable for measurements."""

import asyncio
import dataclasses
import json
import os
import platform
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from specbench.cli.app import wrapped
from specbench.cli.params import Json
from specbench.config.pair import PACKAGE
from specbench.data.hub import local_checksum, look_for_hub, offline_mode
from specbench.errors import ConfigError, ExitCode, MissingAsset
from specbench.http_client import KEY, RequestFailed, Server
from specbench.kernels import Kernels, Missing, find_kernels
from specbench.machine.accelerator import GIB
from specbench.machine.check import Check, State
from specbench.machine.hardware import Fingerprint, fingerprint, gpu_processes
from specbench.machine.threads import VARIABLE, Cores, cores_here
from specbench.reporting import escaping
from specbench.sandbox import NoSandbox, Sandbox
from specbench.vocabulary import SandboxKind

PYTHON = (3, 11)
RESULTS_BYTES = GIB
CACHE_BYTES = 20 * GIB  # a pair of a 7B model and a small one
MEMORY_BYTES = 2 * GIB
BUSY = 0.5  # of the cores
SPREAD = 0.05  # of a fixed computation's time, beyond which small speed-ups are noise
REPEATS = 5
SERVER_SECONDS = 60.0  # longest duration of a request to a server that is checked
EXTRAS = {
    "torchao": "quantization = ... in a pair needs it: pip install 'specbench[quantization]'",
    "gguf": "gguf_file = ... in a pair needs it: pip install 'specbench[gguf]'",
    "matplotlib": "plots need it: pip install matplotlib",
}
INDENT = 23  # of the second line of an item
STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def checks(results: Path) -> Iterator[Check]:
    """Yield all checks, in a few seconds. Without torch, the checks that need it are skipped."""
    yield _python()
    needed = [_package(name) for name in ("torch", "transformers")]
    yield from needed
    if any(check.state == "fail" for check in needed):
        return
    facts = fingerprint()
    device = "cuda" if "gpu" in facts else "cpu"
    yield from (cpu(facts, cores_here()), load(facts), _memory(facts))
    yield cpu_kernels(find_kernels())
    yield from gpu(facts.get("gpu"))
    from specbench.machine.memory import copy_bandwidth, read_bandwidth  # imports torch, which may be missing

    reading, copying = (bandwidth(device) / 1e9 for bandwidth in (read_bandwidth, copy_bandwidth))
    yield Check(
        "memory bandwidth", "ok", f"{reading:.1f} GB/s reading, {copying:.1f} GB/s copying, read and written ({device})"
    )
    yield clock(_timed(device))
    yield disk("disk for results", results, RESULTS_BYTES)
    yield from hub()
    yield sandbox()
    yield from (_extra(name, help_) for name, help_ in EXTRAS.items())
    yield bundled(PACKAGE / "tiny")


def _python() -> Check:
    least = ".".join(map(str, PYTHON))
    state: State = "ok" if sys.version_info >= PYTHON else "fail"
    return Check("python", state, platform.python_version(), "" if state == "ok" else f"use Python {least} or newer")


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


def cpu(facts: Fingerprint, cores: Cores) -> Check:
    """Return the check of the processor, and of the number of threads."""
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
    """Return the check of the load by other programs."""
    text = f"{facts['load_1min']:.2f} in the last minute"
    if facts["load_1min"] > BUSY * facts["cores"]:
        return Check("load", "warn", text, "speeds will vary while other programs run")
    return Check("load", "ok", text)


def _memory(facts: Fingerprint) -> Check:
    info = Path("/proc/meminfo")
    lines = info.read_text().splitlines() if info.exists() else []
    free = next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable")), None)
    text = f"{facts['memory_gib']} GiB" + ("" if free is None else f", {free / GIB:.1f} GiB available")
    if free is not None and free < MEMORY_BYTES:
        return Check("memory", "warn", text, "little memory is available; end other programs")
    return Check("memory", "ok", text)


def gpu(facts: dict[str, str | None] | None) -> Iterator[Check]:
    """Yield checks of the CUDA device and of other processes on it."""
    if facts is None:
        yield Check("gpu", "ok", "no CUDA device: everything runs on the CPU")
        return
    texts = (f"{value}" if key == "name" else f"{key} {value}" for key, value in facts.items())
    yield Check("gpu", "ok", ", ".join(texts))
    others = gpu_processes()
    if others is None:
        help_ = "driver, clocks, power limit and other processes are unknown; install nvidia-smi"
        yield Check("gpu processes", "warn", "no nvidia-smi", help_)
    elif others:
        yield Check("gpu processes", "warn", "; ".join(others), "others use the GPU: speeds will vary")
    else:
        yield Check("gpu processes", "ok", "none but this one")


def _timed(device: str) -> list[float]:
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


def disk(name: str, folder: Path, least: int) -> Check:
    """Return the check of the free disk space at a folder, which may not exist yet."""
    there = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(there).free
    text = f"{free / GIB:.1f} GiB free at {folder}"
    if not os.access(there, os.W_OK):
        return Check(name, "warn", f"{there} cannot be written to", "name another folder: --out, or HF_HOME")
    if free < least:
        return Check(name, "warn", text, f"less than {least / GIB:.0f} GiB: use another disk with --out or HF_HOME")
    return Check(name, "ok", text)


def hub() -> Iterator[Check]:
    """Yield checks of the hub's cache, connection and token."""
    from huggingface_hub import constants, get_token

    yield disk("disk for models", Path(constants.HF_HUB_CACHE), CACHE_BYTES)
    help_ = (
        "bundled pairs and local folders work; download others with `specbench fetch` on a machine with network access"
    )
    may_connect = not offline_mode()
    look_for_hub()
    if not may_connect:
        yield Check("hub", "warn", "offline mode is on (HF_HUB_OFFLINE)", help_)
    elif offline_mode():
        yield Check("hub", "warn", f"{constants.ENDPOINT} does not answer", help_)
    else:
        yield Check("hub", "ok", constants.ENDPOINT)
    yield Check("hub token", "ok", "set" if get_token() else "none; gated models need one: `hf auth login`")


def sandbox() -> Check:
    """Return which sandboxes generated code can run in here, and which protections they lack."""
    works, fails, weak = [], [], False
    for kind in (SandboxKind.bwrap, SandboxKind.unshare):
        try:
            lacking = Sandbox.find(kind).weaknesses()
        except NoSandbox as error:
            fails += [f"{tried}: {wrong}" for tried, wrong in error.tried]
        except RuntimeError as error:
            fails.append(f"{kind}: {error}")
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
    """Return the check of the bundled models and heads."""
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
        return Check("bundled", "fail", f"missing: {', '.join(empty)}", "reinstall specbench")
    return Check("bundled", "ok", ", ".join(f"{len(paths)} {kind}" for kind, paths in kinds.items()) + ", readable")


def _of_server(url: str, key_env: str) -> list[Check]:
    """Return the checks of a model server. Raises ConfigError and MissingAsset."""
    from specbench.cli.console import TerminalObserver
    from specbench.features.servers.server_checks import check_server  # imports torch

    try:
        return asyncio.run(check_server(Server(url, key_env, SERVER_SECONDS), observer=TerminalObserver()))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    except RequestFailed as error:
        raise MissingAsset(f"{url}: {error}") from None


def doctor(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of run folders.")] = Path("results"),
    server: Annotated[
        str, typer.Option("--server", help="Check a model server at this URL instead: what `specbench server` can use.")
    ] = "",
    key_env: Annotated[str, typer.Option("--key-env", help="Environment variable with the server's key.")] = KEY,
    as_json: Json = False,
) -> None:
    """Check this machine or a server: one line per item, with advice.

    Python, packages, processor, GPU, memory, disk, hub, sandbox and clock.

    Exit code 4 if something that every run needs is missing.
    """
    console = Console(highlight=False, markup=False, soft_wrap=True)
    done = []
    for check in _of_server(server, key_env) if server else checks(out):
        done.append(check)
        if not as_json:  # each as soon as it is known
            advice = f"; help: {escaping.terminal(check.help)}" if check.help else ""
            line = Text(wrapped(f"{check.state:<5}{check.name:<18}{escaping.terminal(check.found)}{advice}", INDENT))
            line.stylize(STYLES[check.state], 0, len(check.state))
            console.print(line)
    if as_json:
        print(json.dumps([dataclasses.asdict(check) for check in done], indent=2))
    sys.exit(ExitCode.MISSING if any(check.state == "fail" for check in done) else ExitCode.OK)
