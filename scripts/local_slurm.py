"""Run a command beside a Slurm cluster of one node, this machine: `python -m scripts.local_slurm -- COMMAND ...`.

Needs root and the Debian packages slurm-wlm and munge. The daemons run in a temporary folder and end
with the command. The configuration is for tests: no accounting, no cgroups, and every processor is shared.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sinfo", "scontrol")
SECONDS = 30.0  # until the node is ready
KEY_BYTES = 1024  # of munge's secret
CONFIG = """\
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={controller}
SlurmdPort={node}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MailProg=/bin/true
ReturnToService=2
MinJobAge=30
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


def missing() -> list[str]:
    """Return what this machine lacks for a cluster: programs, or root."""
    lacking = [name for name in PROGRAMS if shutil.which(name, path=_search_path()) is None]
    return lacking + ([] if os.geteuid() == 0 else ["root"])


@contextmanager
def cluster() -> Iterator[dict[str, str]]:
    """Run a cluster, and yield the environment variables of its clients. Raises RuntimeError if the node does not start."""
    if lacking := missing():
        raise RuntimeError(f"{', '.join(lacking)}: missing; help: apt-get install slurm-wlm munge, as root")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True)))
        folder.chmod(0o755)  # munge rejects a folder that others can write to, and its clients must read it
        for name in ("state", "spool"):
            (folder / name).mkdir()
        host = socket.gethostname().partition(".")[0]
        config = CONFIG.format(
            host=host, folder=folder, cpus=os.cpu_count(), controller=_free_port(), node=_free_port()
        )
        (folder / "slurm.conf").write_text(config)
        environment = {**os.environ, "SLURM_CONF": f"{folder}/slurm.conf", "PATH": _search_path()}
        _authentication(folder, environment, stack)
        for program in (["slurmctld", "-D"], ["slurmd", "-D"]):
            _daemon([*program, "-f", f"{folder}/slurm.conf"], environment, stack)
        _wait_for_node(folder, environment)
        yield environment
        subprocess.run(["scancel", "--user", "root"], env=environment, check=False)


def _authentication(folder: Path, environment: dict[str, str], stack: ExitStack) -> None:
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(KEY_BYTES))
    files = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "log", "pid", "seed")]
    _daemon(["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *files], environment, stack)


def _daemon(command: Sequence[str], environment: dict[str, str], stack: ExitStack) -> None:
    """Start a daemon that is stopped with the cluster."""
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    stack.callback(process.wait)
    stack.callback(process.terminate)


def _wait_for_node(folder: Path, environment: dict[str, str]) -> None:
    """Wait until the node is idle."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        found = subprocess.run(
            ["sinfo", "-h", "-o", "%T"], env=environment, capture_output=True, text=True, check=False
        )
        if found.stdout.strip() == "idle":
            return
        time.sleep(0.2)
    logs = [path.read_text()[-1000:] for path in sorted(folder.glob("*.log"))]
    raise RuntimeError("\n".join(["the node did not start", *logs]))


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _search_path() -> str:
    """Return PATH with the folders of daemons."""
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def main() -> int:
    """Run the command of the command line, and return its exit code."""
    command = sys.argv[2:] if sys.argv[1:2] == ["--"] else sys.argv[1:]
    if not command:
        sys.exit("usage: python -m scripts.local_slurm -- COMMAND ...")
    try:
        with cluster() as environment:
            return subprocess.run(command, env=environment, check=False).returncode
    except RuntimeError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    sys.exit(main())
