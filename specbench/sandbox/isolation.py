"""The command lines that put an interpreter into namespaces of its own, by bubblewrap or by util-linux.

Both leave it with a read-only view of /usr and of the interpreter's prefix, its own /proc, hardly a device, one small tmpfs
at /tmp, no network, no capabilities, no way to gain any, and no further user namespaces. Nothing else of the host is there.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Literal

Kind = Literal["bwrap", "unshare", "none"]
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/ld.so.cache")
NOBODY = "65534"
AS_NOBODY = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]  # a limit on processes does not bind root
FILES = 1024  # in the tmpfs that `unshare` mounts; bubblewrap has no such option

# Arguments: the interpreter's prefix or nothing, the size of /tmp in bytes, the command. Runs as process 1, as root of
# its mounts. What stands at a path is built up below /tmp, which hides the host's own, and then becomes the root.
MOUNTS = f"""\
set -eu
PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t tmpfs -o mode=0755,nosuid,nodev none /tmp
cd /tmp
for path in {" ".join(SYSTEM)} "$1"; do
    if [ -L "$path" ]; then ln -s "$(readlink "$path")" ".$path"
    elif [ -d "$path" ]; then mkdir -p ".$path"; mount -o bind,ro "$path" ".$path"
    elif [ -e "$path" ]; then mkdir -p ".${{path%/*}}"; : > ".$path"; mount -o bind,ro "$path" ".$path"
    fi
done
mkdir -p dev proc tmp old
for node in null urandom; do : > dev/$node; mount --bind /dev/$node dev/$node; done
mount -t proc -o nosuid,nodev,noexec proc proc
mount -t tmpfs -o "mode=1777,nosuid,nodev,size=$2,nr_inodes={FILES}" none tmp
pivot_root . old
cd /tmp
umount -l /old
rmdir /old
mount -o remount,bind,ro /
shift 2
exec "$@"
"""
# The last user namespace owns none of those mounts, and lets nobody make another.
LAST = """\
PATH=/usr/sbin:/usr/bin:/sbin:/bin
echo 0 > /proc/sys/user/max_user_namespaces || exit 1
exec setpriv --no-new-privs --inh-caps=-all --ambient-caps=-all --bounding-set=-all -- "$@"
"""


def interpreters() -> list[tuple[str, str]]:
    """(executable, prefix) to try in turn: what runs this package, so that verdicts fit it, then the system's."""
    own = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    system = os.path.realpath("/usr/bin/python3")
    found = [(own, os.path.realpath(sys.base_prefix))]
    return [*found, (system, "/usr")] if Path(system).exists() and system != own else found


def missing(kind: Kind) -> str:
    """The tools that `kind` needs and that are not here, in words."""
    tools = {"none": [], "bwrap": ["bwrap"], "unshare": ["unshare", "setpriv", "mount", "pivot_root"]}[kind]
    tools = [*tools, "setpriv"] if kind == "bwrap" and os.geteuid() == 0 else tools
    absent = [tool for tool in tools if not which(tool)]
    return f"{' and '.join(absent)} not found" if absent else ""


def command(kind: Kind, python: str, prefix: str, scratch: int) -> list[str]:
    """The start of a command line whose end is the interpreter's arguments. `scratch` is the size of /tmp in bytes."""
    outside = "" if Path(prefix).is_relative_to("/usr") else prefix
    python_alone = [python, "-I", "-S", "-B"]
    if kind == "none":
        return python_alone
    return [*(_bwrap(outside, scratch) if kind == "bwrap" else _unshare(outside, scratch)), *python_alone]


def which(tool: str) -> str:
    """Where a tool is, or an empty string. Administrators' folders are on few users' paths, and `mount` is in one."""
    return shutil.which(tool, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin") or ""


def _bwrap(outside: str, scratch: int) -> list[str]:
    view = []
    for path in (*SYSTEM, outside):
        if os.path.islink(path):
            view += ["--symlink", os.readlink(path), path]
        elif path and os.path.exists(path):
            view += ["--ro-bind", path, path]
    return [
        *([which("setpriv"), *AS_NOBODY, "--"] if os.geteuid() == 0 else []),
        which("bwrap"),
        *"--unshare-user --unshare-pid --unshare-net --unshare-ipc --unshare-uts --unshare-cgroup-try".split(),
        *f"--disable-userns --uid {NOBODY} --gid {NOBODY} --cap-drop ALL".split(),
        *"--die-with-parent --new-session --clearenv".split(),
        *view,
        *"--proc /proc --dev /dev --remount-ro /dev".split(),  # /dev brings a /dev/shm without a size
        *f"--size {scratch} --tmpfs /tmp --remount-ro / --chdir /tmp --".split(),
    ]


def _unshare(outside: str, scratch: int) -> list[str]:
    root, setpriv, unshare = os.geteuid() == 0, which("setpriv"), which("unshare")
    return [
        *[setpriv, "--pdeathsig", "KILL", "--", unshare, *([] if root else ["--user", "--map-root-user"])],
        *"--mount --pid --fork --kill-child --net --ipc --uts --cgroup --".split(),
        *["/bin/sh", "-c", MOUNTS, "sandbox", outside, str(scratch)],
        *([setpriv, *AS_NOBODY, "--"] if root else []),
        *f"{unshare} --user --map-user={NOBODY} --map-group={NOBODY} --keep-caps -- /bin/sh -c".split(),
        *[LAST, "sandbox"],
    ]
