"""Jobs as processes of this machine: each on free GPUs, or one after another on the CPU."""

import fcntl
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from specbench.config.construct import Table, at_least, construct
from specbench.errors import ConfigError
from specbench.features.launch.job import LEASES, Job
from specbench.runs.run_state import RunState


@dataclass(frozen=True)
class Gpu:
    """A GPU by its UUID, and its product name."""

    uuid: str
    kind: str

    @property
    def lease(self) -> Path:
        """The lock file of a job that uses the GPU, the same for all drivers on this machine."""
        return Path(tempfile.gettempdir()) / f"specbench-{self.uuid}.lock"


@dataclass(frozen=True, kw_only=True)
class LocalSettings:
    """Jobs at a time (0: one per device), GPUs of each job, and the product name of the GPUs to use."""

    jobs: int = 0
    gpus: int = 1
    gpu: str = ""

    def __post_init__(self) -> None:
        at_least(self, jobs=0, gpus=1)


def local_launcher(settings: Table, may_use_gpu: bool) -> "LocalLauncher":
    """Return the launcher of this machine. Raises ConfigError for a wrong setting."""
    local = construct(LocalSettings, settings, "launcher local")
    gpus = gpus_here(local.gpu) if may_use_gpu else []
    if gpus and local.gpus > len(gpus):
        raise ConfigError(f"launcher local: gpus = {local.gpus}, and there are {len(gpus)}")
    return LocalLauncher(gpus, local.jobs, local.gpus)


@dataclass
class LocalLauncher:
    """Processes that outlive their driver. A job holds the locks of its GPUs, `per_job` of them, until it ends.

    Without GPUs, one job runs at a time. With several, `jobs`, times are invalid, and runs are marked as untimed.
    """

    gpus: Sequence[Gpu] = ()
    jobs: int = 0
    per_job: int = 1
    name: str = "local"
    outlives: bool = True
    warning: str = ""
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def shared(self) -> bool:
        """Whether more than one job runs on the CPU at a time."""
        return not self.gpus and self.jobs > 1

    def free(self, active: int) -> int:
        if not self.gpus:
            return max((self.jobs or 1) - active, 0)
        most = len(self.gpus) // self.per_job
        most = min(self.jobs, most) if self.jobs else most
        return min(max(most - active, 0), sum(map(_is_free, self.gpus)) // self.per_job)

    def submit(self, jobs: Sequence[Job]) -> list[str]:
        identifiers = []
        for job in jobs:
            leases = self._leases()
            if self.gpus and not leases:  # another driver was faster
                break
            identifiers.append(self._start(job, leases))
        return identifiers

    def poll(self, jobs: Mapping[str, Job]) -> dict[str, RunState]:
        return {identifier: RunState.running for identifier in jobs if self._is_alive(identifier)}

    def cancel(self, jobs: Mapping[str, Job]) -> None:
        for identifier in jobs:
            if self._is_alive(identifier):
                with suppress(ProcessLookupError):
                    os.killpg(int(identifier.partition("@")[0]), signal.SIGTERM)
                if process := self._processes.get(identifier):
                    process.wait()

    def _start(self, job: Job, leases: Mapping[str, int]) -> str:
        environment = {**os.environ, LEASES: ",".join(map(str, leases.values()))}
        if self.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(leases)
        job.folder.mkdir(parents=True, exist_ok=True)
        try:
            process = subprocess.Popen(
                job.performing, start_new_session=True, env=environment, pass_fds=tuple(leases.values()),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        finally:
            for lease in leases.values():
                os.close(lease)  # the job holds it
        identifier = f"{process.pid}@{_began(process.pid)}"
        self._processes[identifier] = process
        return identifier

    def _leases(self) -> dict[str, int]:
        """Lock the GPUs of a job. Returns the descriptors by UUID, none if too few GPUs are free."""
        leases: dict[str, int] = {}
        for gpu in self.gpus:
            if len(leases) < self.per_job and (lease := _leased(gpu)) is not None:
                leases[gpu.uuid] = lease
        if self.gpus and len(leases) < self.per_job:
            for lease in leases.values():
                os.close(lease)
            return {}
        return leases

    def _is_alive(self, identifier: str) -> bool:
        if process := self._processes.get(identifier):
            return process.poll() is None
        pid, _, began = identifier.partition("@")
        return bool(began) and _began(int(pid)) == began


def gpus_here(kind: str = "") -> list[Gpu]:
    """Return the GPUs of one kind: of this name, or of the first GPU. Raises ConfigError if none has the name."""
    import torch  # slow to import

    gpus = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(index)
        gpus.append(Gpu(f"GPU-{properties.uuid}", properties.name))
    name = kind or (gpus[0].kind if gpus else "")
    if kind and not any(gpu.kind == kind for gpu in gpus):
        raise ConfigError(
            f"gpu = '{kind}': none here; known: {', '.join(sorted({gpu.kind for gpu in gpus})) or 'none'}"
        )
    return [gpu for gpu in gpus if gpu.kind == name]


def _leased(gpu: Gpu) -> int | None:
    """Lock a GPU's file. Returns its descriptor; None if a job holds it."""
    descriptor = os.open(gpu.lease, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    with suppress(PermissionError):  # the file of another user
        os.fchmod(descriptor, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _is_free(gpu: Gpu) -> bool:
    descriptor = _leased(gpu)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is not None


def _began(pid: int) -> str:
    """Return when a process began, in ticks since boot; empty if there is none, or only a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]
