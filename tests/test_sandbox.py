"""The sandbox: right programs pass, wrong ones fail, and a hostile one can do no more than return values."""

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from string import Template

import pytest

from specbench.errors import MissingAsset
from specbench.sandbox import Limits, Sandbox, Verdict, isolation

REAL = Path(__file__).parents[2] / "shared" / "data" / "humaneval" / "test.jsonl"
UNIQUE = 2**20 + 4096 + secrets.randbelow(2**19)  # bytes: the command line of every process of ours holds this limit
CALM = Limits(seconds=20.0, memory=2**28, file=UNIQUE)
BRIEF = Limits(seconds=0.5, memory=2**28, file=UNIQUE)  # for what never ends
NAME = f"specbench{UNIQUE}"  # of files and sockets
SECRET = secrets.token_hex(16)  # what programs are asked for, and what only the tests know


def find(kind: str) -> Sandbox:
    try:
        return Sandbox.find(kind)
    except MissingAsset as missing:
        pytest.skip(str(missing))  # bwrap or unshare does not work here, and why


@pytest.fixture(scope="module", params=["bwrap", "unshare"])
def sandbox(request) -> Sandbox:
    return find(request.param)


@pytest.fixture(scope="module", params=["bwrap", "unshare", "none"])
def any_sandbox(request) -> Sandbox:
    return find(request.param)


def left() -> list[str]:
    """Processes that checks of ours have left behind, by their command lines."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f'"RLIMIT_FSIZE": {UNIQUE}' in line or NAME in line:
            found.append(f"{path.parent.name}: {line[-100:]}")
    return found


ADD = "def add(a, b):\n    return a + b\n"
TEST_ADD = "def check(candidate):\n    assert candidate(2, 3) == 5\n    assert candidate('a', b='b') == 'ab'\n"


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (ADD, "passed"),
        (ADD.replace("+", "-"), "failed: AssertionError"),
        ("def add(a, b):\n    return a +\n", "failed: SyntaxError: invalid syntax (<program>, line 2)"),
        ("def plus(a, b):\n    return a + b\n", "failed: NameError: add is not defined"),
        ("def add(a, b):\n    return {}[a]\n", "failed: KeyError: '2'"),
        ("import no_such_module\n", "failed: ModuleNotFoundError: No module named 'no_such_module'"),
        ("def add(a, b):\n    yield a + b\n", "failed: TypeError: a value of type generator is not plain data"),
        ("class Odd(Exception): pass\ndef add(a, b):\n    raise Odd('x\\ny')", "failed: Exception: Odd: x"),
        ("def add(a, b):\n    while True: pass\n", "timeout: 0.5 s"),
        ("import os\ndef add(a, b):\n    os._exit(0)\n", "crashed: the process of the program ended"),
    ],
)
def test_right_passes_and_wrong_fails(any_sandbox, program, reason):
    limits = BRIEF if reason.startswith("timeout") else CALM
    assert any_sandbox.check(program, TEST_ADD, "add", limits=limits) == Verdict(reason == "passed", reason)
    assert not left()


VALUES = """[
    None, True, 0, -1, 2**63, -(2**200), 0.1, -0.0, 1e300, float("inf"), float("-inf"), 1 - 2j, "", "\\0\\n\\ud800é",
    b"\\0\\xff", [], [[1], (2,)], (), ((),), {}, {(1, "a"): [2], 3: {4: 5}, None: True}, set(), {1, "1"}, frozenset({(1,)}),
]"""


def test_plain_data_travels_both_ways_unchanged(sandbox):
    test = f"""
def told(value):  # whatever the order that a set has in this process
    return sorted(map(repr, value)) if isinstance(value, set) else repr(value)

def check(candidate):
    for value in {VALUES}:
        found = candidate(value)
        assert type(found) is type(value) and told(found) == told(value), (found, value)
    assert candidate(float("nan")) != candidate(float("nan"))
    assert candidate({VALUES}) == {VALUES}
"""
    assert sandbox.check("def same(x): return x", test, "same", limits=CALM).reason == "passed"


def test_the_tests_see_the_preamble_and_the_program_cannot_change_it(sandbox):
    preamble = "import math\ndef helper(x):\n    return x + 1\ndef solve(x):\n    '''Only words.'''\n"
    test = "def check(candidate):\n    assert candidate(1) == helper(1) == solve(1) == math.floor(2.5)\n"
    for body, passes in (("x + 1", True), ("x + 2", False)):
        program = f"def helper(x):\n    return x + 2\ndef solve(x):\n    return {body}\n"
        assert sandbox.check(program, test, "solve", preamble, CALM).passed is passes


def test_exceptions_travel_as_built_ins(sandbox):
    program = "def fail(name):\n    raise {'v': ValueError('v'), 'u': UnicodeDecodeError('a', b'', 0, 1, 'b')}[name]\n"
    test = """
def check(candidate):
    for name, kind in (("v", ValueError), ("k", KeyError), ("u", Exception)):
        try:
            candidate(name)
        except kind as error:
            assert not isinstance(error, BaseExceptionGroup)
        else:
            assert False
"""
    assert sandbox.check(program, test, "fail", limits=CALM).reason == "passed"


# id -> (program; when the attack has succeeded, of what `f` returned; the verdict's reason). Words with $ are filled in.
SILENT = f"got == {SECRET!r}"  # nothing that a program can compute
DONE = "failed: AssertionError: 'done'"  # the attack ran to its end, and was in vain
HOSTILE = {
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
        "got", "failed: OSError.*unreachable",
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
}  # fmt: skip


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """What stands outside: a file, two servers, and what the programs know of them."""
    canary = tmp_path_factory.mktemp("canary") / "file"
    canary.write_text("untouched")
    with socket.create_server(("127.0.0.1", 0)) as inet, socket.socket(socket.AF_UNIX) as unix:
        unix.bind("\0" + NAME)
        unix.listen()
        yield {
            "canary": repr(str(canary)), "home": repr(str(Path.home())), "here": repr(__file__), "name": NAME,
            "port": inet.getsockname()[1], "pids": [os.getpid(), os.getppid()],
        }  # fmt: skip


@pytest.mark.parametrize("attack", HOSTILE)
def test_hostile_programs_fail_and_leave_nothing(sandbox, host, attack, monkeypatch):
    monkeypatch.setenv("SPECBENCH_TEST_SECRET", SECRET)
    program, succeeded, reason = HOSTILE[attack]
    test = f"def check(candidate):\n    got = candidate()\n    assert {succeeded}, repr(got)[:80]\n"
    limits = BRIEF if reason == "timeout" else CALM
    found = sandbox.check(Template(program).substitute(host), test, "f", limits=limits)
    assert not found.passed
    assert re.search(reason, found.reason), found.reason
    assert not left()
    canary = Path(host["canary"].strip("'"))
    assert [path.name for path in canary.parent.iterdir()] == ["file"]
    assert canary.read_text() == "untouched"
    assert not [d for d in ("/", "/tmp", "/usr", "/etc", "/dev/shm", Path.home()) if Path(d, NAME).exists()]


def test_a_killed_benchmark_takes_its_sandboxes_along(sandbox):
    code = f"""
from specbench.sandbox import Limits, Sandbox
program = "import time\\ndef f():\\n time.sleep(600)"
test = "def check(f): f()"
print("ready", flush=True)
{sandbox!r}.check(program, test, "f", limits=Limits(seconds=600, file={UNIQUE}))
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        parent.stdout.readline()
        until = time.monotonic() + 20
        while len(left()) < 4 and time.monotonic() < until:
            time.sleep(0.05)
        assert len(left()) >= 4, "two sandboxes of two processes at least"
        parent.send_signal(signal.SIGKILL)
    until = time.monotonic() + 20
    while left() and time.monotonic() < until:
        time.sleep(0.05)
    assert not left()


def problems() -> list[dict[str, str]]:
    if not REAL.exists():
        pytest.skip("the real data lies beside a development checkout only")
    return [json.loads(line) for line in REAL.read_text().splitlines()]


def test_canonical_solutions_of_humaneval_pass(sandbox):
    def verdict(row: dict[str, str]) -> Verdict:
        program = row["prompt"] + row["canonical_solution"]
        return sandbox.check(program, row["test"], row["entry_point"], row["prompt"], CALM)

    rows = problems()[::4]  # tests/test_tasks.py runs them all
    with ThreadPoolExecutor(2) as pool:
        found = dict(zip((row["task_id"] for row in rows), pool.map(verdict, rows), strict=True))
    assert len(found) == 41
    assert not {name: verdict.reason for name, verdict in found.items() if not verdict.passed}


def test_a_solution_without_its_last_line_fails(sandbox):
    for row in problems()[::41]:
        body = row["canonical_solution"].rstrip().rpartition("\n")[0] or "    pass"
        found = sandbox.check(row["prompt"] + body + "\n", row["test"], row["entry_point"], row["prompt"], CALM)
        assert found.reason.startswith("failed: "), row["task_id"]


def test_where_no_tool_is_found_the_message_says_what_to_do(monkeypatch):
    monkeypatch.setattr(isolation, "which", lambda tool: "")
    with pytest.raises(
        MissingAsset, match=r"bwrap.* not found.*unshare.* not found.*install bubblewrap.*--sandbox none"
    ):
        Sandbox.find()
    assert Sandbox.find("none").signature.startswith("sandbox:none|python:3.")


def test_a_sandbox_without_a_limit_on_processes_is_refused(monkeypatch, sandbox):
    """The deliberate break: the programs' side never takes its limits on."""
    monkeypatch.setattr(Limits, "of_process", lambda self: {"RLIMIT_FSIZE": UNIQUE})
    with pytest.raises(MissingAsset, match="processes are not limited"):
        Sandbox.find(sandbox.kind)
    assert not left()


def test_a_sandbox_that_does_not_start_is_no_verdict(sandbox):
    with pytest.raises(RuntimeError, match=r"did not start: .*No such file"):
        Sandbox(sandbox.kind, "/usr/bin/no-such-python", "/usr").check(ADD, TEST_ADD, "add", limits=CALM)
    assert not left()


def test_signatures(sandbox):
    assert sandbox.signature.startswith(f"sandbox:{sandbox.kind}|python:3.")


def test_a_programs_stop_iteration_ends_no_loop_of_the_tests(sandbox):
    program = "def f(x):\n    raise StopIteration\n"
    test = "def check(f):\n    assert all(map(lambda x: f(x) == x, [1, 2]))\n"
    assert sandbox.check(program, test, "f").reason.startswith("failed: RuntimeError")
