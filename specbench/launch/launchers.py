"""The launchers by name."""

from pathlib import Path

from specbench.config.construct import Table
from specbench.errors import ConfigError
from specbench.experiment.request import SuiteRequest
from specbench.launch.launcher import Launcher
from specbench.launch.local import LocalLauncher, gpus_here
from specbench.launch.ray_cluster import ray_launcher
from specbench.launch.slurm import slurm_launcher

LOCAL = ("jobs", "gpu")  # settings


def launcher_of(name: str, settings: Table, request: SuiteRequest, folder: Path) -> Launcher:
    """Return the launcher of a name with its settings. `folder` is the suite's.

    Raises ConfigError for an unknown setting, and MissingAsset for a launcher that is not installed or not reachable.
    """
    devices = {line.options.device for line in request.suite.grid}
    if name == "slurm":
        return slurm_launcher(settings, folder)
    if name == "ray":
        return ray_launcher(settings, may_use_gpu=devices != {"cpu"})
    if unknown := set(settings) - set(LOCAL):
        raise ConfigError(f"launcher local: unknown setting '{min(unknown)}'; known: {', '.join(LOCAL)}")
    jobs = settings.get("jobs", 0)
    if not isinstance(jobs, int) or jobs < 0:
        raise ConfigError(f"launcher local: jobs = {jobs!r} must be a number of at least 0")
    return LocalLauncher(gpus_here(str(settings.get("gpu", ""))) if devices != {"cpu"} else [], jobs)
