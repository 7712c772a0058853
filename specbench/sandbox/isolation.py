"""Command lines that start an interpreter in separate namespaces, with bubblewrap or util-linux.

With util-linux the last step, a user namespace without capabilities, is the worker's first. Both give the interpreter a
read-only view of /usr and of its prefix, a read-only /proc of its own, few devices, one small tmpfs at /tmp, no network, no
capabilities, no way to gain any, and no further user namespaces. Nothing else of the host is there. /proc is read-only so
that a program cannot reset its oom_score_adj or write to the memory of process 1.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Literal

SandboxKind = Literal["bwrap", "unshare", "none"]
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/ld.so.cache")
NOBODY = 65534
AS_NOBODY = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]  # a limit on processes does not bind root
FILES = 1024  # in the tmpfs that `unshare` mounts; bubblewrap has no such option

# Inherited by all processes of a cell, since nothing inside can write to it. With privileges this is also the minimum.
LAUNCH = 'echo 1000 2>/dev/null >/proc/self/oom_score_adj; exec "$@"'
# Arguments: the interpreter's prefix or nothing, the size of /tmp in bytes, the command. Runs as process 1, as root of
# its mounts. What stands at a path is built up below /tmp, which hides the host's own, and then becomes the root.
MOUNTS = f"""\
set -eu
PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t tmpfs -o mode=0755,nosuid,nodev none /tmp
cd /tmp
for path in {" ".join(SYSTEM)} "$1"; do
    if [ -L "$path" ]; then cp -P "$path" ".$path"
    elif [ -d "$path" ]; then mkdir -p ".$path"; mount -o bind,ro "$path" ".$path"
    elif [ -e "$path" ]; then mkdir -p ".${{path%/*}}"; : > ".$path"; mount -o bind,ro "$path" ".$path"
    fi
done
mkdir -p dev proc tmp old
for node in null urandom; do : > dev/$node; mount --bind /dev/$node dev/$node; done
mount -t proc -o nosuid,nodev,noexec proc proc
[ ! -e proc/keys ] || mount --bind /dev/null proc/keys
mount -t tmpfs -o "mode=1777,nosuid,nodev,size=$2,nr_inodes={FILES}" none tmp
pivot_root . old
cd /tmp
umount -l /old
rmdir /old
mount -o remount,bind,ro /
shift 2
exec "$@"
"""


def interpreters() -> list[tuple[str, str]]:
    """Return (executable, prefix) of the interpreters to try: first the one that runs this package, then the system's."""
    current = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    system = os.path.realpath("/usr/bin/python3")
    candidates = [(current, os.path.realpath(sys.base_prefix))]
    return [*candidates, (system, "/usr")] if Path(system).exists() and system != current else candidates


def missing(kind: SandboxKind) -> str:
    """Return the missing tools of a sandbox kind as text."""
    tools = {"none": [], "bwrap": ["bwrap"], "unshare": ["unshare", "setpriv", "mount", "pivot_root"]}[kind]
    tools = [*tools, "setpriv"] if kind == "bwrap" and os.geteuid() == 0 else tools
    absent = [tool for tool in tools if not which(tool)]
    return f"{' and '.join(absent)} not found" if absent else ""


def command(kind: SandboxKind, python: str, prefix: str, scratch: int) -> list[str]:
    """Return a command line to which the interpreter's arguments are appended. `scratch` is the size of /tmp in bytes."""
    outside = "" if Path(prefix).is_relative_to("/usr") else prefix
    isolate = {"bwrap": _bwrap, "unshare": _unshare, "none": lambda *_: []}[kind]
    return ["/bin/sh", "-c", LAUNCH, "sandbox", *isolate(outside, scratch), python, "-I", "-S", "-B"]


def which(tool: str) -> str:
    """Return the path of a tool, or an empty string. Also searches /sbin, which is missing from the PATH of many users."""
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
        *"--die-with-parent --as-pid-1 --new-session --clearenv".split(),
        *view,
        *["--proc", "/proc", *(["--ro-bind", "/dev/null", "/proc/keys"] if os.path.exists("/proc/keys") else [])],
        *["--remount-ro", "/proc"],
        *"--dev /dev --remount-ro /dev".split(),  # /dev brings a /dev/shm without a size
        *f"--size {scratch} --tmpfs /tmp --remount-ro / --chdir /tmp --".split(),
    ]


def _unshare(outside: str, scratch: int) -> list[str]:
    root, setpriv, unshare = os.geteuid() == 0, which("setpriv"), which("unshare")
    return [
        *[setpriv, "--pdeathsig", "KILL", "--", unshare, *([] if root else ["--user", "--map-root-user"])],
        *"--mount --pid --fork --kill-child --net --ipc --uts --cgroup --".split(),
        *["/bin/sh", "-c", MOUNTS, "sandbox", outside, str(scratch)],
        *([setpriv, *AS_NOBODY, "--"] if root else []),
    ]
