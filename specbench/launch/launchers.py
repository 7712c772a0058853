"""The launchers by name."""

from pathlib import Path

from specbench.config.construct import Table
from specbench.errors import ConfigError
from specbench.experiment.request import SuiteRequest
from specbench.launch.launcher import Launcher
from specbench.launch.local import LocalLauncher, gpus_here
from specbench.launch.ray_cluster import ray_launcher
from specbench.launch.slurm import slurm_launcher

LOCAL = ("jobs", "gpu", "gpus")  # settings


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
    jobs, per_job = _number(settings, "jobs", 0), _number(settings, "gpus", 1)
    gpus = gpus_here(str(settings.get("gpu", ""))) if devices != {"cpu"} else []
    if gpus and per_job > len(gpus):
        raise ConfigError(f"launcher local: gpus = {per_job}, and there are {len(gpus)}")
    return LocalLauncher(gpus, jobs, per_job)


def _number(settings: Table, key: str, least: int) -> int:
    """Return a setting that is a number, by default the least one. Raises ConfigError for another value."""
    value = settings.get(key, least)
    if not isinstance(value, int) or value < least:
        raise ConfigError(f"launcher local: {key} = {value!r} must be a number of at least {least}")
    return value
