"""Hostile programs as data, for tests and longer campaigns: what each does, when it has succeeded, how its check must end."""

import platform
import secrets
from pathlib import Path

import pytest

from specbench.errors import MissingAsset
from specbench.sandbox import Sandbox, seccomp

UNIQUE = 2**20 + 4096 + secrets.randbelow(2**19)  # bytes: the command line of every process of ours holds this limit
NAME = f"specbench{UNIQUE}"  # of files, sockets and keys
SECRET = secrets.token_hex(16)  # what programs are asked for, and what only the tests know
SILENT = f"got == {SECRET!r}"  # nothing that a program can compute
DONE = "failed: AssertionError: 'done'"  # the attack ran to its end, and was in vain
NONE = r"failed: AssertionError: \[\]$"  # none of what was tried has succeeded

X86_64 = platform.machine() == "x86_64"
ARCHITECTURE = seccomp.ARCHITECTURES.get(platform.machine())
NUMBERS = ARCHITECTURE.numbers if ARCHITECTURE else {}
# `call` returns what the kernel does: a negative error number, or something else.
CALL = f"""\
import ctypes, os, signal, sys, time
libc = ctypes.CDLL(None, use_errno=True)
numbers = {NUMBERS}
def call(name, *arguments):
    number = numbers[name] if name in numbers else name
    done = libc.syscall(ctypes.c_long(number), *(a if a is None or type(a) is bytes else ctypes.c_long(a) for a in arguments))
    return -ctypes.get_errno() if done < 0 else done
"""
HIDE = """\
for n in range(1, 65):
    try: signal.signal(n, signal.SIG_IGN)
    except (OSError, ValueError): pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
libc.prctl(1, 0, 0, 0, 0)
libc.prctl(4, 1, 0, 0, 0)
"""  # every signal, the parent-death signal, and being unreadable for others


def find(kind: str) -> Sandbox:
    """Return a sandbox of a kind; skips the test, with the reason, where it does not work here."""
    try:
        return Sandbox.find(kind)
    except MissingAsset as missing:
        pytest.skip(str(missing))


def left() -> list[str]:
    """Return the processes that checks of ours have left, by their command lines."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f'"RLIMIT_FSIZE": {UNIQUE}' in line or NAME in line:
            found.append(f"{path.parent.name}: {line[-100:]}")
    return found


def calls(*attempts: str) -> str:
    """Return a program whose `f` returns the attempts that did not fail. Each is the arguments of `call`."""
    tried = ", ".join(f"({attempt!r}, call({attempt}))" for attempt in attempts)
    return f"{CALL}def f():\n return [attempt for attempt, done in [{tried}] if done >= 0]"


# name -> (program; when the attack has succeeded, of what `f` returned; the verdict's reason). string.Template fills in, with
# $: canary (a file), home, here (a file of the checkout), name, port (a TCP server), pids (of processes outside).
HOSTILE: dict[str, tuple[str, str, str]] = {
    "fork-bomb": ("import os\ndef f():\n while 1:\n  try: os.fork()\n  except OSError: pass", SILENT, "timeout"),
    "fork-count": (
        "import os, time\ndef f():\n for n in range(99):\n  try:\n   if not os.fork(): time.sleep(60)\n"
        "  except OSError: return n\n return 99",
        "got > 16", r"failed: AssertionError: \d+$",
    ),
    "memory": ("def f():\n return len(bytearray(2**30))", "got == 2**30", "failed: MemoryError"),
    "memory-in-pieces": ("def f():\n a = []\n while 1: a.append(bytes(2**22) + b'x')", SILENT, "failed: MemoryError"),
    "disk": (
        "def f():\n n = 0\n try:\n  while n < 200:\n   open(f'd{n}', 'wb').write(bytes(2**20))\n   n += 1\n"
        " except OSError: pass\n return n",
        "got > 16", r"failed: AssertionError: \d+$",
    ),
    "large-file": ("def f():\n return open('d', 'wb').write(bytes(2**22))", "got == 2**22", "failed: OSError"),
    "many-files": (
        "def f():\n try:\n  for n in range(5000): open(f'd{n}', 'w').close()\n except OSError: pass\n return 'done'",
        SILENT, DONE,
    ),
    "loop": ("def f():\n while 1: pass", SILENT, "timeout"),
    "loop-while-loading": ("while 1: pass", SILENT, "timeout"),
    "sleep": ("import time\ndef f():\n time.sleep(60)", SILENT, "timeout"),
    "ignored-signals": (
        "import signal, time\nfor s in range(1, 65):\n try: signal.signal(s, signal.SIG_IGN)\n"
        " except (OSError, ValueError): pass\ndef f():\n while 1: time.sleep(9)",
        SILENT, "timeout",
    ),
    "drip": (
        "import os, time\ndef f():\n os.write(3, b'\\0\\0\\xff\\xff')\n while 1:\n  os.write(3, b'x')\n  time.sleep(.05)",
        SILENT, "timeout",
    ),
    "kill-parent": ("import os\ndef f():\n os.kill(os.getppid(), 9)\n return 'done'", SILENT, "failed|crashed"),
    "kill-everyone": ("import os\ndef f():\n os.kill(-1, 9)\n return 'done'", SILENT, "failed|crashed"),
    "kill-host-processes": (
        "import os\ndef f():\n n = 0\n for p in $pids:\n  try: os.kill(p, 0); n += 1\n  except OSError: pass\n return n",
        "got", "failed: AssertionError: 0",
    ),
    "exit-while-loading": ("import sys\nsys.exit(0)", SILENT, "failed: SystemExit"),
    "hard-exit-while-loading": ("import os\nos._exit(0)", SILENT, "crashed"),
    "exit": ("import sys\ndef f():\n sys.exit(0)", SILENT, "failed: Exception: SystemExit: 0"),
    "hard-exit": ("import os\ndef f():\n os._exit(0)", SILENT, "crashed"),
    "keyboard-interrupt": ("def f():\n raise KeyboardInterrupt", SILENT, "failed: Exception: KeyboardInterrupt"),
    "base-exception": ("def f():\n raise BaseException('passed')", SILENT, "failed: Exception: BaseException: passed"),
    "crash": ("import ctypes\ndef f():\n ctypes.string_at(0)", SILENT, "crashed"),
    "replaced-check": (
        "import sys\nm = sys.modules['__main__']\ncheck = m.check = m.examine = m.ask = lambda *a: None\n"
        "def f():\n return 'done'",
        SILENT, DONE,
    ),
    "patched-builtins": (
        "import builtins\nclass Never(Exception): pass\nbuiltins.AssertionError = Never\nbuiltins.isinstance ="
        " builtins.all = builtins.any = builtins.issubclass = lambda *a: True\ndef f():\n return 'done'",
        SILENT, "failed|crashed",
    ),
    "lying-equality": (
        "class Liar:\n def __eq__(self, other): return True\ndef f():\n return Liar()", SILENT, "not plain data",
    ),
    "lying-int": (
        "class Liar(int):\n def __eq__(self, other): return True\ndef f():\n return Liar()", SILENT, "not plain data",
    ),
    "lying-text-in-a-list": (
        "class Liar(str):\n def __eq__(self, other): return True\n __hash__ = str.__hash__\ndef f():\n return [Liar()]",
        f"got == [{SECRET!r}]", "not plain data",
    ),
    "lying-dict": (
        "class Liar(dict):\n def __eq__(self, other): return True\ndef f():\n return Liar()", SILENT, "not plain data",
    ),
    "lying-type": (
        "import builtins\nclass Liar:\n def __eq__(self, other): return True\nbuiltins.type = lambda x: str\n"
        "def f():\n return Liar()",
        SILENT, "failed",
    ),
    "at-exit": (
        "import atexit, os, sys\natexit.register(lambda: os.write(3, b'\\0\\0\\0\\1P'))\ndef f():\n return 'done'",
        SILENT, DONE,
    ),
    "every-descriptor": (
        "import os\ndef f():\n for n in range(256):\n  for w in (b'\\0\\0\\0\\1P', b'passed', b'P'):\n"
        "   try: os.write(n, w)\n   except OSError: pass\n return 'done'",
        SILENT, "failed|crashed",
    ),
    "forged-verdict": (
        "import sys\nm = sys.modules['__main__']\ndef f():\n m.send(b'P')\n m.send(b'P')\n return 'done'", SILENT, "failed",
    ),
    "forged-value": (
        "import sys\nm = sys.modules['__main__']\ndef f():\n m.send(b'{\"value\": {\"object\": [1]}}')\n return 'done'",
        SILENT, "failed: KeyError",
    ),
    "closed-descriptors": ("import os\ndef f():\n os.closerange(0, 256)\n return 'done'", SILENT, "crashed"),
    "frames-and-objects": (
        "import gc, sys\ndef f():\n seen, frame = [], sys._getframe()\n while frame:\n"
        "  seen += [frame.f_locals, frame.f_globals]\n  frame = frame.f_back\n"
        " return ''.join(['assert', ' got']) in repr(seen + [o for o in gc.get_objects() if type(o) in (dict, list, tuple)])",
        "got", "failed: AssertionError: False",
    ),
    "environment": (
        "import glob, os\ndef f():\n seen = repr(os.environ)\n for p in glob.glob('/proc/*/environ'):\n"
        "  try: seen += open(p).read()\n  except OSError: pass\n return seen",
        "'SPECBENCH_TEST_SECRET' in got", "failed: AssertionError",
    ),
    "home": (
        "import os\ndef f():\n return os.listdir($home) if os.path.exists($home) else []",
        "len(got) > 1", "failed: AssertionError",
    ),
    "repository": ("def f():\n return open($here).read()", "'hostile' in got", "failed: FileNotFoundError"),
    "passwords": ("def f():\n return open('/etc/passwd').read()", "'root' in got", "failed: FileNotFoundError"),
    "other-roots": (
        "import glob, os\ndef f():\n return any(os.path.exists(p + $canary) for p in glob.glob('/proc/*/root'))",
        "got", "failed: AssertionError: False",
    ),
    "link-outside": (
        "import os\ndef f():\n os.symlink($canary, 'link')\n open('link', 'w').write('x')\n return 'done'",
        "got", "failed: FileNotFoundError",
    ),
    "write-outside": (
        "def f():\n done = []\n for d in ('', '/usr', '/usr/bin', '/etc', '/dev', '/dev/shm', '/proc', $home):\n"
        "  try: open(d + '/$name', 'w').write('x'); done.append(d)\n  except OSError: pass\n return done",
        "got", r"failed: AssertionError: \[\]",
    ),
    "write-to-tmp": (
        "import os\ndef f():\n open('/tmp/$name', 'w').write('x')\n return 'done'", SILENT, DONE,
    ),
    "kernel-settings": (
        "import glob\ndef f():\n done = []\n for p in ['/proc/sysrq-trigger', '/proc/sys/kernel/core_pattern']"
        " + glob.glob('/proc/sys/vm/*') + glob.glob('/proc/sys/fs/*'):\n"
        "  try: open(p, 'r+').close(); done.append(p)\n  except OSError: pass\n return done",
        "got", r"failed: AssertionError: \[\]",
    ),
    "network": (
        "import socket\ndef f():\n socket.create_connection(('1.1.1.1', 53), .5)\n return 'done'",
        "got", "failed: OSError.*(unreachable|not supported)",
    ),
    "localhost": (
        "import socket\ndef f():\n socket.create_connection(('127.0.0.1', $port), .5)\n return 'done'",
        "got", "failed: (OSError|ConnectionRefusedError)",
    ),
    "abstract-socket": (
        "import socket\ndef f():\n socket.socket(socket.AF_UNIX).connect('\\0$name')\n return 'done'",
        "got", "failed: ConnectionRefusedError",
    ),
    "privileges": (
        "import ctypes, os\ndef f():\n c = ctypes.CDLL(None)\n done = {'mount': c.mount(b'none', b'/tmp', b'tmpfs', 0, 0),"
        " 'user': c.unshare(0x10000000), 'mounts': c.unshare(0x20000), 'umount': c.umount2(b'/usr', 2),\n"
        "  'remount': c.mount(None, b'/usr', None, 0x1020, None), 'root': c.setuid(0), 'chroot': c.chroot(b'/tmp'),\n"
        "  'node': c.mknod(b'/tmp/n', 0o60600, 0xfe00), 'raise': c.setrlimit(6, (ctypes.c_long * 2)(999, 999)),\n"
        "  'host': c.sethostname(b'x', 1)}\n return [k for k, v in done.items() if v == 0]",
        "got", r"failed: AssertionError: \[\]",
    ),
    "trace-parent": (
        "import ctypes, os\ndef f():\n c = ctypes.CDLL(None)\n return [p for p in $pids if c.ptrace(16, p, 0, 0) == 0]",
        "got", r"failed: AssertionError: \[\]",
    ),
    "much-output": (
        "import os, sys\ndef f():\n for n in range(50):\n  for out in (sys.stdout, sys.stderr): out.write('x' * 10**6)\n"
        " return 'done'",
        SILENT, DONE,
    ),
    "large-value": ("def f():\n return 'x' * (20 * 2**20)", "len(got) > 9", "failed: the program sent more than"),
    "deep-value": (
        "def f():\n a = []\n for n in range(10**5): a = [a]\n return a", "got", "failed: RecursionError|crashed",
    ),
    "deep-value-by-hand": (
        "import sys\nm = sys.modules['__main__']\ndef f():\n m.send(b'{\"value\": ' + b'[' * 10**6)\n return 'done'",
        "got", "failed|crashed",
    ),
    "generator": ("def f():\n return (n for n in range(3))", "list(got)", "not plain data"),
    "threads": (
        "import threading, time\ndef f():\n for n in range(2): threading.Thread(target=time.sleep, args=(600,)).start()\n"
        " return 'done'",
        SILENT, DONE,
    ),
    "daemon": (
        "import os\ndef f():\n if not os.fork():\n  os.setsid()\n  if not os.fork(): os.execv('/bin/sh', ['$name', '-c',"
        " 'sleep 600; sleep 600'])\n  os._exit(0)\n os.wait()\n return 'done'",
        SILENT, DONE,
    ),
    "session-keyring": (
        f"{CALL}def f():\n key = call('keyctl', 10, -3, b'user', b'{NAME}', 0)\n into = ctypes.create_string_buffer(64)\n"
        " libc.syscall(ctypes.c_long(numbers['keyctl']), 11, ctypes.c_long(key), into, ctypes.c_long(64))\n"
        " return into.value.decode()",
        SILENT, "failed: AssertionError: ''",
    ),
    "request-key": (calls(f"'request_key', b'user', b'{NAME}', None, -3"), "got", NONE),
    "add-key": (calls(*(f"'add_key', b'user', b'x', b'y', 1, {ring}" for ring in (-2, -3, -4, -5))), "got", NONE),
    "new-keyring": (calls("'keyctl', 1, None", "'keyctl', 0, -3, 1", "'keyctl', 0, -4, 1"), "got", NONE),
    "list-of-keys": ("def f():\n return open('/proc/keys').read()", f"{NAME!r} in got", "failed: PermissionError|: ''$"),
    "sysv-shared-memory": (calls("'shmget', 0, 2**29, 0o1600", "'shmat', 0, 0, 0", "'shmctl', 0, 2, 0"), "got", NONE),
    "sysv-semaphores": (calls("'semget', 0, 9, 0o1600", "'semop', 0, 0, 1", "'semctl', 0, 0, 2, 0"), "got", NONE),
    "sysv-messages": (calls("'msgget', 0, 0o1600", "'msgsnd', 0, b'xxxxxxxxx', 1, 0"), "got", NONE),
    "posix-messages": (calls("'mq_open', b'q', 0o102, 0o600, None"), "got", NONE),
    "memory-in-files": (
        "import os\ndef f():\n held = []\n while len(held) < 40:\n  held.append(os.memfd_create('m'))\n"
        "  os.write(held[-1], bytes(2**20))\n return 'done'",
        "got", "failed: PermissionError",
    ),
    "memory-exec": (
        "import os\ndef f():\n d = os.memfd_create('m')\n os.write(d, b'#!/bin/sh\\nexit 7')\n pid = os.fork()\n"
        " if not pid: os.execv(f'/proc/self/fd/{d}', ['m'])\n return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])",
        "got == 7", "failed: PermissionError",
    ),
    "io-uring": (calls("'io_uring_setup', 8, bytes(120)"), "got", NONE),
    "userfaultfd": (calls("'userfaultfd', 1", "'userfaultfd', 0"), "got", NONE),
    "bpf": (calls("'bpf', 0, bytes([1, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 1]) + bytes(99), 112"), "got", NONE),
    "perf-events": (calls("'perf_event_open', bytes([1, 0, 0, 0, 128]) + bytes(123), 0, -1, -1, 0"), "got", NONE),
    "no-randomization": (calls("'personality', 0x40000"), "got", NONE),
    "file-handles": (calls("'name_to_handle_at', -100, b'/usr', bytes([128] + [0] * 135), bytes(8), 0"), "got", NONE),
    "trace-oneself": (calls("'ptrace', 0, 0, 0, 0"), "got", NONE),
    "trace-supervisor": (calls("'ptrace', 16, 1, 0, 0", "'ptrace', 0x4206, 1, 0, 0"), "got", NONE),
    "trace-child": (
        f"{CALL}def f():\n child = os.fork()\n if not child: time.sleep(60)\n return [call('ptrace', 0x4206, child, 0, 0)]",
        "got == [0]", r"failed: AssertionError: \[-1\]",
    ),
    "memory-of-supervisor": (
        f"{CALL}def f():\n done = []\n for p in ('/proc/1/mem', '/proc/1/task/1/mem'):\n  for mode in ('rb', 'rb+'):\n"
        "   try: open(p, mode).close(); done.append(p)\n   except OSError: pass\n return done",
        "got", NONE,
    ),
    "memory-of-others": (calls("'process_vm_readv', 1, 0, 0, 0, 0, 0", "'process_vm_writev', 1, 0, 0, 0, 0, 0"), "got", NONE),
    "descriptors-of-supervisor": (
        f"{CALL}def f():\n d = os.pidfd_open(1)\n return [n for n in range(9) if call('pidfd_getfd', d, n, 0) >= 0]",
        "got", NONE,
    ),
    "limits-of-supervisor": (
        "import resource, time\ndef f():\n for r in range(16):\n  try: resource.prlimit(1, r, (0, 0))\n"
        "  except (OSError, ValueError): pass\n time.sleep(.1)\n return 'done'",
        SILENT, "failed|crashed",
    ),
    "stop-supervisor": (
        "import os, signal, time\ndef f():\n os.fork() or time.sleep(60)\n os.kill(1, signal.SIGSTOP)\n"
        " os.kill(-1, signal.SIGSTOP)\n return 'done'",
        SILENT, DONE,
    ),
    "socket-families": (
        "import socket\ndef f():\n done = []\n for family in range(2, 50):\n  for kind in (1, 2, 3, 5):\n"
        "   try: socket.socket(family, kind).close(); done.append(family)\n   except OSError: pass\n return done",
        "got", NONE,
    ),
    "vsock": (
        "import socket\ndef f():\n socket.socket(40, socket.SOCK_STREAM).connect((2, 1))\n return 'done'",
        "got", "failed: OSError.*not supported",
    ),
    "netlink": (
        "import socket\ndef f():\n s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)\n s.bind((0, 0))\n return 'done'",
        "got", "failed: OSError.*not supported",
    ),
    "reset-oom-score": (
        f"{CALL}def f():\n libc.prctl(4, 1, 0, 0, 0)\n for p in ('self', f'self/task/{{os.getpid()}}', f'{{os.getpid()}}'):\n"
        "  try: open(f'/proc/{p}/oom_score_adj', 'w').write('0')\n  except OSError: pass\n"
        " os.system('echo 0 2>/dev/null >/proc/self/oom_score_adj; cat /proc/self/oom_score_adj > s')\n"
        " return [open('/proc/self/oom_score_adj').read(), open('s').read()]",
        r"got != ['1000\n', '1000\n']", r"failed: AssertionError: \['1000",
    ),
    "user-namespace": (
        f"{CALL}def f():\n done = []\n for flag in (1 << 28, 1 << 17, 1 << 29, 1 << 30, 1 << 26, 1 << 27, 1 << 25):\n"
        "  if call('unshare', flag) >= 0: done.append(flag)\n  pid = call('clone', flag | 17, 0, 0, 0, 0)\n"
        "  if pid == 0: os._exit(0)\n  if pid != -1: done.append(pid)\n"
        " pid = call('clone3', (0x10000000).to_bytes(8, 'little') + bytes(80), 88)\n if pid == 0: os._exit(0)\n"
        " return done + ([pid] if pid >= 0 else [])",
        "got", NONE,
    ),
    "mount": (
        calls(
            "'mount', b'none', b'/tmp', b'tmpfs', 0, None", "'fsopen', b'tmpfs', 0", "'open_tree', -100, b'/tmp', 1",
            "'fspick', -100, b'/tmp', 0", "'umount2', b'/tmp', 2", "'mount', None, b'/proc', None, 0x102e, None",
            "'mount_setattr', -100, b'/proc', 0, bytes(32), 32", "'pivot_root', b'/tmp', b'/tmp'", "'chroot', b'/tmp'",
        ),
        "got", NONE,
    ),
    "enter-namespaces": (
        f"{CALL}def f():\n done = []\n libc.prctl(4, 1, 0, 0, 0)\n for p in ('1', 'self'):\n"
        "  for n in ('user', 'mnt', 'net', 'pid', 'ipc'):\n"
        "   try: d = os.open(f'/proc/{p}/ns/{n}', os.O_RDONLY)\n   except OSError: continue\n"
        "   if call('setns', d, 0) >= 0: done.append(n)\n   os.close(d)\n"
        " return done + [n for n in (0x10000000, 0x20000000) if call('setns', os.pidfd_open(1), n) >= 0]",
        "got", NONE,
    ),
    "hidden-daemons": (
        f"{CALL}def f():\n if not os.fork():\n  {HIDE.strip().replace(chr(10), chr(10) + '  ')}\n  os.setsid()\n"
        "  os.closerange(0, 256)\n  os.fork()\n  os.fork()\n  while 1: time.sleep(60)\n return 'done'",
        SILENT, DONE,
    ),
    "huge-frame": (
        "import os\ndef f():\n os.write(3, b'\\xff' * 4 + b'x' * 9)\n while 1: pass",
        SILENT, "failed: the program sent more than",
    ),
    "frame-cut-off": ("import os\ndef f():\n os.write(3, b'\\0\\0\\1\\0x')\n os._exit(0)", SILENT, "crashed"),
    "empty-frame": ("import os\ndef f():\n os.write(3, bytes(4))\n return 'done'", SILENT, "failed: JSONDecodeError"),
    "frame-of-noise": (
        "import os\ndef f():\n os.write(3, b'\\0\\0\\0\\x80' + os.urandom(128))\n return 'done'", SILENT, "failed",
    ),
    "many-frames": (
        "import os\ndef f():\n while 1: os.write(3, b'\\0\\0\\0\\1P' * 1000)", SILENT, "failed|crashed",
    ),
    "frames-from-children": (
        "import os, time\ndef f():\n for n in range(3):\n  if not os.fork():\n   while 1: os.write(3, b'\\0\\0\\0\\1P')\n"
        " time.sleep(.2)\n return 'done'",
        SILENT, "failed|crashed",
    ),
    "shut-down-socket": (
        "import socket\ndef f():\n socket.socket(fileno=3).shutdown(2)\n return 'done'", SILENT, "crashed",
    ),
    "socket-kept-by-child": (
        "import os, time\ndef f():\n if os.fork(): os._exit(0)\n time.sleep(60)", SILENT, "crashed",
    ),
}  # fmt: skip
if X86_64:
    HOSTILE["i386-call"] = (
        "import ctypes, mmap\ndef f():\n m = mmap.mmap(-1, 4096, prot=7)\n m.write(bytes.fromhex('b814000000cd80c3'))\n"
        " return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()",
        "got",
        "crashed",
    )  # getpid by int 0x80
    HOSTILE["x32-call"] = (calls("0x40000000 + 39"), "got", "crashed")
# Programs that sleep in `f` and try to survive a checker that is killed; $mark becomes the name of a thread once they sleep.
MARK = " libc.prctl(15, b'$mark', 0, 0, 0)\n while 1: time.sleep(600)"
STUBBORN: dict[str, str] = {
    "sleep": f"{CALL}def f():\n{MARK}",
    "hidden": f"{CALL}{HIDE}def f():\n{MARK}",
    "no-descriptors": f"{CALL}{HIDE}def f():\n os.closerange(0, 256)\n{MARK}",
    "daemons": (
        f"{CALL}{HIDE}def f():\n for n in range(3):\n  if not os.fork():\n   os.setsid()\n   os.fork()\n   time.sleep(600)\n"
        "   os._exit(0)\n"
        f" if not os.fork():\n  os.setsid()\n  os.execv('/bin/sh', ['{NAME}', '-c', 'sleep 600; sleep 600'])\n"
        f" time.sleep(.1)\n{MARK}"
    ),
    "stopped-others": (
        f"{CALL}{HIDE}def f():\n if os.fork(): time.sleep(600)\n for p in (1, -1): os.kill(p, signal.SIGSTOP)\n{MARK}"
    ),
    "stopped-supervisor": f"{CALL}{HIDE}def f():\n for p in (1, os.getppid()): os.kill(p, signal.SIGSTOP)\n{MARK}",
}
