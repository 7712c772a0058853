"""Isolation of sandboxed processes: separate namespaces, with bubblewrap or util-linux, and a filter of system calls.

With util-linux the last step, a user namespace without capabilities, is the worker's first. Both give the interpreter a
read-only view of /usr and of its prefix, a read-only /proc of its own, few devices, one small tmpfs at /tmp, no network,
no capabilities, no way to gain any, and no further user namespaces. Nothing else of the host is there. /proc is read-only
so that a program cannot reset its oom_score_adj or write to the memory of process 1.

The seccomp filter is a deny list, as a classic BPF program. It covers the calls that reach what namespaces and resource
limits do not cover (keyrings, memory that belongs to no process, other processes' memory, locks on files of the host) and
the parts of the kernel that Python programs do not need and that had most of the privilege escalations.
"""

import errno
import os
import platform
import shutil
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

from specbench.vocabulary import SandboxKind

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


def missing_tools(kind: SandboxKind) -> str:
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


# What a process could keep beyond its limits: RLIMIT_AS does not count memory that is not mapped.
MEMORY_WITHOUT_OWNER = """
    shmget shmat shmdt shmctl semget semop semtimedop semctl msgget msgsnd msgrcv msgctl
    mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr memfd_create memfd_secret
"""
KEYRINGS = "add_key request_key keyctl"
OTHER_PROCESSES = "ptrace process_vm_readv process_vm_writev process_madvise process_mrelease pidfd_getfd kcmp"
NAMESPACES_AND_MOUNTS = """
    unshare setns mount umount2 pivot_root chroot fsopen fsconfig fsmount fspick move_mount open_tree open_tree_attr
    mount_setattr name_to_handle_at open_by_handle_at
"""
KERNEL = """
    io_uring_setup io_uring_enter io_uring_register userfaultfd bpf perf_event_open fanotify_init personality
    init_module finit_module delete_module kexec_load kexec_file_load reboot swapon swapoff acct quotactl quotactl_fd
    syslog vhangup adjtimex settimeofday clock_settime clock_adjtime
    mbind get_mempolicy set_mempolicy set_mempolicy_home_node migrate_pages move_pages
"""
KERNEL_X86 = "ioperm iopl modify_ldt uselib ustat sysfs _sysctl create_module get_kernel_syms query_module nfsservctl"
LOCKS = "flock"  # reading a file of the host suffices to lock it
DENIED = f"{MEMORY_WITHOUT_OWNER} {KEYRINGS} {OTHER_PROCESSES} {NAMESPACES_AND_MOUNTS} {KERNEL} {LOCKS}".split()

# Since Linux 5.1 new system calls have the same number everywhere.
COMMON = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435, "pidfd_getfd": 438,
    "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443, "memfd_secret": 447, "process_mrelease": 448,
    "set_mempolicy_home_node": 450, "open_tree_attr": 467,
}  # fmt: skip
X86_64 = COMMON | {
    "shmget": 29, "shmat": 30, "shmctl": 31, "shmdt": 67, "semget": 64, "semop": 65, "semctl": 66, "semtimedop": 220,
    "msgget": 68, "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "mq_open": 240, "mq_unlink": 241, "mq_timedsend": 242,
    "mq_timedreceive": 243, "mq_notify": 244, "mq_getsetattr": 245, "memfd_create": 319,
    "add_key": 248, "request_key": 249, "keyctl": 250,
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312,
    "unshare": 272, "setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161,
    "name_to_handle_at": 303, "open_by_handle_at": 304,
    "userfaultfd": 323, "bpf": 321, "perf_event_open": 298, "fanotify_init": 300, "personality": 135,
    "init_module": 175, "finit_module": 313, "delete_module": 176, "kexec_load": 246, "kexec_file_load": 320,
    "reboot": 169, "swapon": 167, "swapoff": 168, "acct": 163, "quotactl": 179, "syslog": 103, "vhangup": 153,
    "adjtimex": 159, "settimeofday": 164, "clock_settime": 227, "clock_adjtime": 305,
    "mbind": 237, "set_mempolicy": 238, "get_mempolicy": 239, "migrate_pages": 256, "move_pages": 279,
    "ioperm": 173, "iopl": 172, "modify_ldt": 154, "uselib": 134, "ustat": 136, "sysfs": 139, "_sysctl": 156,
    "create_module": 174, "get_kernel_syms": 177, "query_module": 178, "nfsservctl": 180,
    "socket": 41, "socketpair": 53, "clone": 56, "flock": 73, "fcntl": 72,
}  # fmt: skip
AARCH64 = COMMON | {
    "shmget": 194, "shmctl": 195, "shmat": 196, "shmdt": 197, "semget": 190, "semctl": 191, "semtimedop": 192,
    "semop": 193, "msgget": 186, "msgctl": 187, "msgrcv": 188, "msgsnd": 189, "mq_open": 180, "mq_unlink": 181,
    "mq_timedsend": 182, "mq_timedreceive": 183, "mq_notify": 184, "mq_getsetattr": 185, "memfd_create": 279,
    "add_key": 217, "request_key": 218, "keyctl": 219,
    "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272,
    "unshare": 97, "setns": 268, "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51,
    "name_to_handle_at": 264, "open_by_handle_at": 265,
    "userfaultfd": 282, "bpf": 280, "perf_event_open": 241, "fanotify_init": 262, "personality": 92,
    "init_module": 105, "finit_module": 273, "delete_module": 106, "kexec_load": 104, "kexec_file_load": 294,
    "reboot": 142, "swapon": 224, "swapoff": 225, "acct": 89, "quotactl": 60, "syslog": 116, "vhangup": 58,
    "adjtimex": 171, "settimeofday": 170, "clock_settime": 112, "clock_adjtime": 266,
    "mbind": 235, "get_mempolicy": 236, "set_mempolicy": 237, "migrate_pages": 238, "move_pages": 239,
    "socket": 198, "socketpair": 199, "clone": 220, "flock": 32, "fcntl": 25,
}  # fmt: skip

AF_UNIX = 1
FCNTL_LOCKS = (6, 7, 37, 38, 1024)  # F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW, F_SETLEASE
CLONE_NEW = 0x7E02_0000  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}; CLONE_NEWTIME is for clone3 and unshare alone
X32 = 0x4000_0000  # set in the numbers of x86-64's second ABI

# struct seccomp_data, little-endian: the number, the architecture, the instruction pointer, six arguments of 64 bits.
NUMBER, ARCHITECTURE, FIRST_ARGUMENT, SECOND_ARGUMENT = 0, 4, 16, 24
LOAD, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL_PROCESS, ERRNO = 0x7FFF_0000, 0x8000_0000, 0x0005_0000


@dataclass(frozen=True)
class Architecture:
    """The kernel's name of a system-call ABI (AUDIT_ARCH_*) and its numbers."""

    audit: int
    numbers: dict[str, int]
    denied: tuple[str, ...]


ARCHITECTURES = {
    "x86_64": Architecture(0xC000_003E, X86_64, (*DENIED, *KERNEL_X86.split())),
    "aarch64": Architecture(0xC000_00B7, AARCH64, tuple(DENIED)),
}


@dataclass(frozen=True)
class Filter:
    """A seccomp program as the kernel reads it, and the number of `keyctl`, for which libc has no function."""

    program: bytes
    keyctl: int


def filter_for_machine(machine: str = "") -> Filter | None:
    """Return the filter for a machine (default: platform.machine()), or None if its system calls are unknown."""
    architecture = ARCHITECTURES.get(machine or platform.machine())
    return Filter(assemble(architecture), architecture.numbers["keyctl"]) if architecture else None


def missing_filter() -> str:
    """Return why this machine has no filter, in words; empty if it has one."""
    return "" if filter_for_machine() else f"no seccomp filter for {platform.machine()}"


def assemble(architecture: Architecture) -> bytes:
    """Return the BPF program: denied calls fail with EPERM, calls of another ABI end the process."""
    number = architecture.numbers
    eperm = ERRNO | errno.EPERM
    lines = [
        _line(LOAD, ARCHITECTURE),
        *_unless(JUMP_EQUAL, architecture.audit, KILL_PROCESS),  # int 0x80, 32-bit programs
        _line(LOAD, NUMBER),
        *(_when(JUMP_AT_LEAST, X32, KILL_PROCESS) if architecture is ARCHITECTURES["x86_64"] else []),
    ]
    for name in architecture.denied:
        lines += _when(JUMP_EQUAL, number[name], eperm)
    # glibc retries with clone, whose flags are in a register, where a filter can read them.
    lines += _when(JUMP_EQUAL, number["clone3"], ERRNO | errno.ENOSYS)
    lines += _at(number["clone"], _when(JUMP_ANY_BIT, CLONE_NEW, eperm))
    for name in ("socket", "socketpair"):
        lines += _at(number[name], _unless(JUMP_EQUAL, AF_UNIX, ERRNO | errno.EAFNOSUPPORT))
    locks = [line for lock in FCNTL_LOCKS for line in _when(JUMP_EQUAL, lock, eperm)]
    lines += _at(number["fcntl"], locks, SECOND_ARGUMENT)
    return b"".join([*lines, _line(RETURN, ALLOW)])


def _line(code: int, value: int, when_true: int = 0, when_false: int = 0) -> bytes:
    """Return one instruction; the last two are numbers of instructions to skip."""
    return struct.pack("<HBBI", code, when_true, when_false, value)


def _when(test: int, value: int, action: int) -> list[bytes]:
    return [_line(test, value, 0, 1), _line(RETURN, action)]


def _unless(test: int, value: int, action: int) -> list[bytes]:
    return [_line(test, value, 1, 0), _line(RETURN, action)]


def _at(number: int, tests: list[bytes], argument: int = FIRST_ARGUMENT) -> list[bytes]:
    """Return `tests` on the low word of an argument of one call, which is allowed if none of them returns."""
    block = [_line(LOAD, argument), *tests, _line(RETURN, ALLOW)]
    return [_line(JUMP_EQUAL, number, 0, len(block)), *block]
