"""Code that runs inside the sandbox, passed to `python -I -S -c` as text: a supervisor, and the worker that it forks.

It is one long file because the sandbox has no access to the package, so that nothing else can be imported there.

The supervisor is process 1 of the PID namespace. It applies what must hold for all processes of the sandbox, then ends it
when the worker exits or when the other end of the socket closes, whichever way the process there ended. The program's side
cannot stop it: process 1 gets no SIGKILL or SIGSTOP from inside, its memory is closed to others, and its parent-death signal
and descriptors are its own. Without isolation it is an ordinary process, which a hostile program can kill.

The worker is one of two sides: the program's side answers calls, the tests' side makes them and decides.
Frames on one socket: four bytes of length, then that many bytes. Both sides first send a list of the protections that could
not be set up, as JSON, and get their job as JSON. The program's side then sends what went wrong while loading (nothing if all
is well), and answers each call with a value. The tests' side sends b"C" and a call, b"F" and a reason, or b"P".
Only the tests' socket can carry a verdict.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import json
import os
import resource
import select
import signal
import struct
import sys
import time
import types
from collections import Counter, OrderedDict, defaultdict

TYPE_CHECKING = False  # typing takes 4 ms to import, in each process of each check
if TYPE_CHECKING:
    from typing import Any

try:
    import ctypes
except ImportError:  # an interpreter that was built without libffi
    ctypes = None  # type: ignore[assignment]  # a build of Python without it

CHANNEL = 3
DESCRIPTORS = 64
LONGEST_LINE = 200  # characters of an exception that travel
CLEANUP = 5.0  # seconds that a supervisor without a PID namespace kills for
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 22, 24, 38
SECCOMP_MODE_FILTER = 2
KEYCTL_JOIN_SESSION_KEYRING = 1
CLONE_NEWNS, CLONE_NEWUSER = 0x2_0000, 0x1000_0000
PROC_READ_ONLY = 0x102F  # MS_BIND, MS_REMOUNT, and MS_NOEXEC, MS_NODEV, MS_NOSUID, which cannot be taken away
CAPABILITY_VERSION_3 = 0x2008_0522


class Settings:
    """The settings of a sandbox, which it gets as JSON in its only argument."""

    def __init__(self, role: str, limits: dict[str, int], seccomp: str, keyctl: int, nobody: int, scratch: str) -> None:
        self.role = role  # "program" or "tests"
        self.limits = limits  # of resource.setrlimit, by name
        self.seccomp = seccomp  # the filter in hexadecimal; empty if the architecture is unknown
        self.keyctl = keyctl  # the number of that system call, or -1
        self.nobody = nobody  # the user id to become in a last user namespace; 0 if that is already done
        self.scratch = scratch  # the directory to make, work in and remove; empty in a PID namespace, which has its own


def keep_channel() -> None:
    """Move the socket from standard input to CHANNEL, close all else but standard error, and clear the environment."""
    os.dup2(0, CHANNEL, inheritable=False)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(null, descriptor)
    os.closerange(CHANNEL + 1, 4096)
    os.environ.clear()


def enter_last_user_namespace(libc: Any, nobody: int) -> None:
    """Become `nobody` without any capability, below which no user namespace can be made, with /proc read-only.

    unshare(1) cannot do this: to map ids /proc must be writable, and to remount it a capability is needed afterwards.
    The namespace owns a copy of the mounts, whose restrictions cannot be taken away in it.
    """
    user, group = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0:
        sys.exit(f"no user namespace ({os.strerror(ctypes.get_errno())})")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{nobody} {user} 1"), ("gid_map", f"{nobody} {group} 1")):
        write_text(f"/proc/self/{name}", text)
    write_text("/proc/sys/user/max_user_namespaces", "0")
    succeed(libc.mount(None, b"/proc", None, ctypes.c_ulong(PROC_READ_ONLY), None))
    for capability in range(int(read_text("/proc/sys/kernel/cap_last_cap")) + 1):
        prctl(libc, PR_CAPBSET_DROP, capability)
    succeed(libc.capset(struct.pack("Ii", CAPABILITY_VERSION_3, 0), bytes(24)))  # effective, permitted, inheritable


def harden(settings: Settings) -> list[str]:
    """Apply the protections that all processes inherit. Returns missing ones; exits if a required one is missing.

    The filter is required with isolation. A new session keyring is not: keyrings can only be reached by calls that the
    filter denies. A raised oom_score_adj is not required either: it selects the process that the kernel kills first.
    """
    missing = []
    try:
        if ctypes is None:
            raise OSError("this Python has no ctypes")
        libc = ctypes.CDLL(None, use_errno=True)
        if settings.nobody:
            enter_last_user_namespace(libc, settings.nobody)
        if not settings.scratch:  # without a PID namespace the supervisor outlives its parent, to clean up
            prctl(libc, PR_SET_PDEATHSIG, signal.SIGKILL)  # again: a change of credentials has cleared it
        prctl(libc, PR_SET_DUMPABLE, 0)  # /proc/PID/mem of the supervisor would be writable for its user
        prctl(libc, PR_SET_CHILD_SUBREAPER, 1)
        if libc.syscall(settings.keyctl, KEYCTL_JOIN_SESSION_KEYRING, None) < 0 and ctypes.get_errno() != errno.ENOSYS:
            missing.append(f"no separate session keyring ({os.strerror(ctypes.get_errno())})")
        install_filter(libc, bytes.fromhex(settings.seccomp))
    except OSError as error:
        reason = f"no seccomp filter ({error.strerror or error})"
        if not settings.scratch:
            sys.exit(reason)
        missing.append(reason)
    if read_text("/proc/self/oom_score_adj") != "1000":
        missing.append("oom_score_adj not raised")
    return missing


def prctl(libc: Any, option: int, value: int, pointer: Any = None) -> None:
    succeed(libc.prctl(option, ctypes.c_ulong(value), pointer, None, None))


def succeed(result: int) -> None:
    """Raise the OSError of a call into libc that returned -1."""
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def install_filter(libc: Any, program: bytes) -> None:
    if not program:
        raise OSError(f"system calls of {os.uname().machine} are not known")
    instructions = ctypes.create_string_buffer(program)
    header = struct.pack("HP", len(program) // 8, ctypes.addressof(instructions))  # struct sock_fprog
    prctl(libc, PR_SET_NO_NEW_PRIVS, 1)
    prctl(libc, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.create_string_buffer(header, len(header)))


def read_text(path: str) -> str:
    with contextlib.suppress(OSError), open(path) as file:
        return file.read().strip()
    return ""


def write_text(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def supervise(worker: int, scratch: str) -> None:
    """Wait until the worker exits or the other end of the socket closes, then end the sandbox."""
    poll = select.poll()
    poll.register(os.pidfd_open(worker), select.POLLIN)
    poll.register(CHANNEL, 0)  # a hang-up is always reported
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps orphans, which count against the limit
    poll.poll()
    if scratch:
        kill_descendants()
        remove_tree(scratch)
        os.killpg(0, signal.SIGKILL)  # what was forked faster than it was killed, and this process
    os._exit(0)  # the kernel kills all others of the PID namespace


def kill_descendants() -> None:
    """Kill children until there are none. This process is a subreaper, so it inherits the children of a child that died."""
    until = time.monotonic() + CLEANUP
    while (children := read_text(f"/proc/self/task/{os.getpid()}/children").split()) and time.monotonic() < until:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        time.sleep(0.001)


def remove_tree(directory: str) -> None:
    """Remove a directory as far as possible. shutil takes 10 ms to import."""
    os.chdir("/")
    for folder, folders, files in os.walk(directory, topdown=False):
        for remove, names in (
            (os.unlink, files + folders),
            (os.rmdir, folders),
        ):  # links to folders are among the folders
            for name in names:
                with contextlib.suppress(OSError):
                    remove(os.path.join(folder, name))
    with contextlib.suppress(OSError):
        os.rmdir(directory)


def contain(settings: Settings) -> None:
    """Take on the limits of a worker for good, and close standard error."""
    os.dup2(0, 2)
    if not settings.scratch:
        os.setsid()  # a signal to one's own process group must not leave the PID namespace
    for name, soft_limit in settings.limits.items():
        hard = resource.getrlimit(getattr(resource, name))[1]
        value = soft_limit if hard == resource.RLIM_INFINITY else min(soft_limit, hard)
        resource.setrlimit(getattr(resource, name), (value, value))


def send(data: bytes) -> None:
    view = memoryview(struct.pack(">I", len(data)) + data)
    while view:
        view = view[os.write(CHANNEL, view) :]


def receive() -> bytes:
    """Return the next frame. Raises EOFError if the peer has closed the socket."""
    (size,) = struct.unpack(">I", read(4))
    return read(size)


def read(size: int) -> bytes:
    parts = []
    while size:
        part = os.read(CHANNEL, min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def encode(value: Any) -> Any:
    """JSON of plain data: everything but None, bool, int, float, str and list is tagged. Raises TypeError for the rest.

    Types are compared exactly, since a subclass can bring an `__eq__` of its own. The standard library's dictionaries go as
    plain ones.
    """
    kind = type(value)
    if value is None or kind in (bool, str, float):
        return value
    if kind is int:
        return value if -(2**63) <= value < 2**63 else {"int": hex(value)}
    if kind is list:
        return [encode(item) for item in value]
    if kind in (tuple, set, frozenset):
        return {kind.__name__: [encode(item) for item in value]}
    if kind in (dict, OrderedDict, defaultdict, Counter):  # equal to a dict of the same items
        return {"dict": [[encode(key), encode(item)] for key, item in value.items()]}
    if kind is bytes:
        return {"bytes": value.hex()}
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    raise TypeError(f"a value of type {kind.__name__} is not plain data")


def decode(data: Any) -> Any:
    if isinstance(data, list):
        return [decode(item) for item in data]
    if not isinstance(data, dict):
        return data
    ((kind, inner),) = data.items()
    if kind == "int":
        return int(inner, 16)
    if kind == "bytes":
        return bytes.fromhex(inner)
    if kind == "complex":
        return complex(*inner)
    if kind == "dict":
        return {decode(key): decode(item) for key, item in inner}
    return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](decode(item) for item in inner)


def first_line_of_message(error: BaseException) -> str:
    """Return the first line of an exception's message."""
    try:
        return str(error).strip().partition("\n")[0][:LONGEST_LINE]
    except BaseException:  # an object of the program, whose `__str__` may fail
        return ""


def line_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line_of_message(error)}"[:LONGEST_LINE].rstrip(": ")


def serve(program: str, entry_point: str) -> None:
    """Run the program: load it, then answer calls until the socket closes."""
    module = types.ModuleType("program")
    sys.modules["program"] = module  # dataclasses and pickle look a class's module up
    try:
        exec(compile(program, "<program>", "exec"), module.__dict__)
        if entry_point not in module.__dict__:
            raise NameError(f"{entry_point} is not defined")
    except BaseException as error:
        send(line_of(error).encode(errors="replace"))
        return
    send(b"")
    while True:
        send(answer(module.__dict__[entry_point], receive()))


def answer(function: Any, call: bytes) -> bytes:
    try:
        arguments, keyword_arguments = decode(json.loads(call))
        reply = {"value": encode(function(*arguments, **keyword_arguments))}
        return json.dumps(reply).encode()
    except BaseException as error:
        return json.dumps({"error": [type(error).__name__, first_line_of_message(error)]}).encode()


def examine(preamble: str, test: str, entry_point: str) -> None:
    """Run the tests. The verdict is "passed" only if `check` returns."""
    module = types.ModuleType("tests")
    sys.modules["tests"] = module
    scope = module.__dict__
    try:
        exec(compile(preamble, "<preamble>", "exec"), scope)
        scope[entry_point] = ask  # some tests call the function by its name
        exec(compile(test, "<test>", "exec"), scope)
        scope["check"](ask)
    except BaseException as error:
        send(b"F" + line_of(error).encode(errors="replace"))
    else:
        send(b"P")


def ask(*arguments: Any, **keyword_arguments: Any) -> Any:
    """Return the candidate for the tests. It raises exceptions as built-in types of the same name, or as Exception."""
    send(b"C" + json.dumps(encode([list(arguments), keyword_arguments])).encode())
    reply = json.loads(receive())
    if "value" in reply:
        return decode(reply["value"])
    raise exception(*reply["error"])


def exception(name: str, message: str) -> Exception:
    kind = getattr(builtins, name, None)
    if kind in (StopIteration, StopAsyncIteration):  # would end a loop of the tests as if all calls had been made
        kind = RuntimeError
    if isinstance(kind, type) and issubclass(kind, Exception):
        with contextlib.suppress(TypeError):  # some want more than a text
            return kind(message)
    return Exception(f"{name}: {message}")


def main() -> None:
    settings = Settings(**json.loads(sys.argv[1]))
    keep_channel()
    if settings.scratch:
        os.mkdir(settings.scratch, 0o700)
        os.chdir(settings.scratch)
    missing = harden(settings)
    supervisor = os.getpid()
    worker = os.fork()
    if worker:
        supervise(worker, settings.scratch)  # if the parent has died already, the closed socket shows it
    contain(settings)
    if ctypes is not None:
        prctl(ctypes.CDLL(None, use_errno=True), PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        os._exit(1)
    with contextlib.suppress(EOFError, BrokenPipeError):
        send(json.dumps(missing).encode())
        job = json.loads(receive())
        if settings.role == "program":
            serve(**job)
        else:
            examine(**job)
    os._exit(0)  # without waiting for threads and exit handlers


if __name__ == "__main__":
    main()
