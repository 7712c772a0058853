"""The launchers by name."""

from dataclasses import dataclass
from pathlib import Path

from specbench.config.construct import Table, at_least, construct
from specbench.errors import ConfigError
from specbench.launch.launcher import Launcher
from specbench.launch.local import LocalLauncher, gpus_here
from specbench.launch.ray_cluster import ray_launcher
from specbench.launch.slurm import slurm_launcher
from specbench.resolution.request import SuiteRequest


@dataclass(frozen=True, kw_only=True)
class LocalSettings:
    """Jobs at a time (0: one per device), GPUs of each job, and the product name of the GPUs to use."""

    jobs: int = 0
    gpus: int = 1
    gpu: str = ""

    def __post_init__(self) -> None:
        at_least(self, jobs=0, gpus=1)


def launcher_of(name: str, settings: Table, request: SuiteRequest, folder: Path) -> Launcher:
    """Return the launcher of a name with its settings. `folder` is the suite's.

    Raises ConfigError for an unknown setting, and MissingAsset for a launcher that is not installed or not reachable.
    """
    devices = {line.options.device for line in request.suite.grid}
    if name == "slurm":
        return slurm_launcher(settings, folder)
    if name == "ray":
        return ray_launcher(settings, may_use_gpu=devices != {"cpu"})
    local = construct(LocalSettings, settings, "launcher local")
    gpus = gpus_here(local.gpu) if devices != {"cpu"} else []
    if gpus and local.gpus > len(gpus):
        raise ConfigError(f"launcher local: gpus = {local.gpus}, and there are {len(gpus)}")
    return LocalLauncher(gpus, local.jobs, local.gpus)
