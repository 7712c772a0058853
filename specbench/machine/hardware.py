"""The fingerprint of machine and software in env.json, and conditions under which two measurements are comparable.

Also the processor time that other programs use during a measurement.
"""

import hashlib
import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta

from specbench import kernels

if TYPE_CHECKING:
    import torch

ATTENTION = {  # torch's attention backends in the order of preference; cuDNN's makes a plan for every new length
    "flash": "flash_sdp_enabled", "memory-efficient": "mem_efficient_sdp_enabled", "math": "math_sdp_enabled",
    "cudnn": "cudnn_sdp_enabled",
}  # fmt: skip
PACKAGES = "torch torchao transformers tokenizers huggingface_hub datasets evaluate rouge_score sacrebleu numpy".split()


LIBRARIES = ("torch", "torchao", "transformers", "tokenizers", "numpy")  # these affect the last bits of numbers
CARD = {
    "gpu driver": "driver_version", "cuda": "cuda", "gpu power limit": "power.limit", "gpu attention": "attention",
    "gpu float32 products": "float32_products", "gpu bfloat16 sums": "bfloat16_sums",
}  # fmt: skip
MACHINE = ("cpu", "instructions", "kernels", "cores", "threads", "os", "python")
TIMING = (*MACHINE, "gpu", *CARD, *LIBRARIES, "untimed")  # these affect speeds
CODE = ("revision", "changed", "code")  # the version of specbench
PACKAGED = ("specbench", "specbench.cli", "specbench.tasks")
Conditions = dict[str, str | int | float | bool | None]  # by the names in TIMING and CODE; empty strings if unknown
STAT = Path("/proc/stat")
BUSY_COLUMNS = (0, 1, 2, 5, 6, 7)  # columns of /proc/stat: user, nice, system, irq, softirq, steal


class Revision(TypedDict):
    """The checkout that a package ran from; empty for an installed wheel."""

    revision: NotRequired[str]
    dirty: NotRequired[bool]


class Fingerprint(TypedDict):
    """The machine, accelerator, software, revision and load."""

    cpu: str
    instructions: NotRequired[str]
    kernels: NotRequired[str]  # `kernels.rule()`, of runs on a CPU; earlier run folders have none
    cores: int
    threads: int
    threads_reason: NotRequired[str]  # why it is that number
    memory_gib: float
    load_1min: float
    os: str
    python: str
    packages: dict[str, str]
    git: Revision
    code: NotRequired[str]
    argv: list[str]
    date: NotRequired[str]  # of the start, in UTC
    gpu: NotRequired[dict[str, str | None]]
    untimed: NotRequired[bool]  # other runs shared the device


@dataclass(frozen=True)
class ForwardCheck:
    """Median seconds of a forward of one token after `context` tokens, by the engine and by transformers' own modules.

    Both read the same weights and were timed when the model was loaded.
    """

    context: Annotated[int, Meta(gt=0)]
    reference_seconds: Annotated[float, Meta(gt=0.0)]  # by transformers' own modules
    seconds: Annotated[float, Meta(gt=0.0)]


class Environment(Fingerprint):
    """A run folder's env.json: the fingerprint, and what was measured before decoding.

    Folders of earlier revisions have no read bandwidth. `forward_checks` are by role, of models that another engine than
    `eager` runs. `translations` say, of draft models with another tokenizer, how many of their tokens the target has.
    """

    copy_bytes_per_second: Annotated[float, Meta(gt=0.0)]
    read_bytes_per_second: NotRequired[Annotated[float, Meta(gt=0.0)]]
    forward_checks: NotRequired[dict[str, ForwardCheck]]
    translations: NotRequired[dict[str, str]]


@dataclass(frozen=True)
class Bandwidth:
    """The memory bandwidth that forwards are compared with: of reading, or of a copy where reading was not measured."""

    bytes_per_second: float
    kind: Literal["read", "copy"]


def bandwidth_of(environment: Environment) -> Bandwidth:
    """Return the read bandwidth of a run; its copy bandwidth if the run is older than that measurement."""
    read = environment.get("read_bytes_per_second")
    return Bandwidth(environment["copy_bytes_per_second"], "copy") if read is None else Bandwidth(read, "read")


def fingerprint(device: str = "cpu") -> Fingerprint:
    """Return the fingerprint of this machine and process, for measurements on a device. It names kernels for `cpu` only."""
    import torch

    out: Fingerprint = {
        "cpu": _cpu(),
        "instructions": _instructions(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_1min": round(os.getloadavg()[0], 2),
        "os": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES if _version(name)},
        "git": _git(),
        "code": code_checksum(),
        "argv": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "date": datetime.now(UTC).date().isoformat(),
    }
    if device == "cpu":
        out["kernels"] = kernels.rule()
    if torch.cuda.is_available():
        out["gpu"] = _gpu()
    return out


def configure(device: "torch.device") -> None:
    """Set GPU options that affect speed and last bits. env.json records them (docs/engines.md).

    Float32 products are exact (no TF32), bfloat16 and float16 products are summed in float32, and attention runs on flash
    kernels where there is no mask, else on memory-efficient ones.
    """
    import torch

    if device.type != "cuda":
        return
    torch.set_float32_matmul_precision("highest")
    matmul = torch.backends.cuda.matmul
    matmul.allow_bf16_reduced_precision_reduction = matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.enable_flash_sdp(True)
    torch.backends.cuda.enable_mem_efficient_sdp(True)
    torch.backends.cuda.enable_math_sdp(True)
    torch.backends.cuda.enable_cudnn_sdp(False)


def conditions(environment: Fingerprint) -> Conditions:
    """Return the parts of a fingerprint that affect a measurement: TIMING and CODE; empty strings if unknown."""
    facts: Mapping[str, Any] = environment
    gpu, packages, git = facts.get("gpu", {}), facts["packages"], facts.get("git", {})
    machine = {key: facts.get(key, "") for key in MACHINE}
    card = {"gpu": gpu.get("name", "none")} | {key: gpu.get(field) or "" for key, field in CARD.items()}
    code = {"revision": git.get("revision", ""), "changed": bool(git.get("dirty")), "code": facts.get("code", "")}
    libraries = {name: packages.get(name, "") for name in LIBRARIES}
    return machine | card | libraries | code | ({"untimed": True} if facts.get("untimed") else {})


def incomparable(one: Conditions, other: Conditions) -> list[str]:
    """Return the conditions in which two measurements differ, with both values; empty if their times can be compared."""
    keys = (*TIMING, *CODE)
    differing = [(key, one.get(key, ""), other.get(key, "")) for key in keys if one.get(key, "") != other.get(key, "")]
    return [f"{key}: {'unknown' if a == '' else a} | {'unknown' if b == '' else b}" for key, a, b in differing]


def free_bytes(device: str) -> int | None:
    """Return the free memory of a GPU, or of the host for `cpu`; None if it is not known."""
    kind, _, number = device.partition(":")
    if kind == "cuda":
        import torch

        free: int = torch.cuda.mem_get_info(int(number or 0))[0]
        return free
    info = Path("/proc/meminfo")
    if kind != "cpu" or not info.exists():
        return None
    fields = dict(line.split(":", 1) for line in info.read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024


@cache
def code_checksum() -> str:
    """Return a checksum of 16 hex digits of the package's sources in Python and C++."""
    digest = hashlib.sha256()
    for name in PACKAGED:
        spec = find_spec(name)
        assert spec is not None and spec.submodule_search_locations is not None
        folder = Path(next(iter(spec.submodule_search_locations)))
        for path in sorted(path for kind in ("*.py", "*.cpp", "*.inc") for path in folder.rglob(kind)):
            digest.update(f"{name}/{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _instructions() -> str:
    """Return a checksum of the processor's feature flags; empty if they are unknown.

    Libraries select kernels by these flags, which affects the last bits of sums. Processor names are not enough: virtual
    machines give different processors the same name.
    """
    info = Path("/proc/cpuinfo")
    keys = ("cpu family", "model", "stepping", "flags", "Features", "CPU part")
    lines = info.read_text().split("\n\n")[0].splitlines() if info.exists() else []
    features = [line for line in lines if line.partition(":")[0].strip() in keys]
    return hashlib.sha256("\n".join(features).encode()).hexdigest()[:8] if features else ""


def _gpu() -> dict[str, str | None]:
    """Return the state of the GPU before the measurement: clocks, power limit, and other processes."""
    import torch

    fields = "driver_version,clocks.sm,clocks.mem,power.limit,memory.used,utilization.gpu"
    this = f"--id=GPU-{torch.cuda.get_device_properties(0).uuid}"  # CUDA_VISIBLE_DEVICES may number devices otherwise
    values = _run("nvidia-smi", this, f"--query-gpu={fields}", "--format=csv,noheader").split("\n")[0].split(", ")
    state = dict(zip(fields.split(","), values, strict=False)) if values != [""] else {}
    return {"name": torch.cuda.get_device_name(), "cuda": torch.version.cuda, **state, **_arithmetic()}


def _arithmetic() -> dict[str, str]:
    """Return the settings that `configure` changes."""
    import torch

    backends: Any = torch.backends.cuda
    allowed = [name for name, query in ATTENTION.items() if getattr(backends, query)()]
    whole = not backends.matmul.allow_bf16_reduced_precision_reduction
    return {
        "attention": ", ".join(allowed),
        "float32_products": torch.get_float32_matmul_precision(),
        "bfloat16_sums": "float32" if whole else "reduced",
    }


def gpu_processes() -> list[str] | None:
    """Return other processes on the GPUs as `PID, NAME, MEMORY`; None without nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return None
    text = _run("nvidia-smi", "--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader")
    return [line for line in text.splitlines() if line.partition(",")[0] != str(os.getpid())]


def _git() -> Revision:
    """Return the revision of the checkout that this package runs from; empty for an installed wheel.

    It is dirty if files other than results were changed.
    """
    git = "git", "-C", str(Path(__file__).parent)
    if not (revision := _run(*git, "rev-parse", "HEAD")):
        return {}
    changed = _run(*git, "status", "--porcelain", "--", ":/", ":(exclude,top)results")
    return {"revision": revision, "dirty": bool(changed)}


@cache
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _run(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


class OtherLoad:
    """Measures the CPU seconds of other programs from its creation on, on all processors or on those with these numbers.

    Processes of this program, such as the workers of models that run in parallel, do not count. Time that a hypervisor
    gives to other guests does. The clock of /proc/stat ticks every 10 ms, so short times are inexact, and may be
    negative; their sums are exact.
    """

    def __init__(self, processors: Collection[int] = ()) -> None:
        self._processors = processors
        self._start = _others(processors)

    def seconds(self) -> float | None:
        """Return the CPU seconds of other programs so far, over these processors; None if they are unknown."""
        now = _others(self._processors)
        return None if now is None or self._start is None else now - self._start


def _others(processors: Collection[int] = ()) -> float | None:
    if not STAT.exists():
        return None
    names = {f"cpu{number}" for number in processors} or {"cpu"}
    rows = [words[1:] for line in STAT.read_text().splitlines() if (words := line.split()) and words[0] in names]
    busy = sum(int(row[i]) for row in rows for i in BUSY_COLUMNS if i < len(row)) / os.sysconf("SC_CLK_TCK")
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return (
        busy
        - sum(usage.ru_utime + usage.ru_stime for usage in usages)
        - sum(map(_seconds_of, _descendants(os.getpid())))
    )


def _descendants(pid: int) -> list[int]:
    """Return the running processes that a process has started, directly or not."""
    pids: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(word) for word in path.read_text().split()]
        except OSError:  # it has just ended
            continue
        for child in children:
            pids += [child, *_descendants(child)]
    return pids


def _seconds_of(pid: int) -> float:
    """Return the CPU seconds of a process; 0 if it has just ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime
