"""The seccomp filter and what else is taken from sandboxed programs, on this machine and, by simulation, on others."""

import errno
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import specbench
from specbench.errors import MissingAsset
from specbench.sandbox import ProgramLimits, Sandbox, isolation
from specbench.sandbox.isolation import ALLOW, ARCHITECTURES, ERRNO, KILL_PROCESS
from tests.fixtures.hostile import CALL, HOSTILE, find

CALM = ProgramLimits(seconds=20.0)
HEADERS = {
    "x86_64": [f"/usr/include/{prefix}asm/unistd_64.h" for prefix in ("", "x86_64-linux-gnu/")],
    "aarch64": ["/usr/include/asm-generic/unistd.h"],
}
needs_filter = pytest.mark.skipif(platform.machine() not in ARCHITECTURES, reason="no filter for this architecture")


@pytest.fixture(scope="module", params=["bwrap", "unshare"])
def sandbox(request) -> Sandbox:
    return find(request.param)


@pytest.fixture(scope="module", params=["bwrap", "unshare", "none"])
def any_sandbox(request) -> Sandbox:
    return find(request.param)


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_system_call_numbers_match_the_kernel_headers(machine):
    path = next((Path(name) for name in HEADERS[machine] if Path(name).exists()), None)
    if path is None:
        pytest.skip("the kernel's headers are not installed")
    found = {name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", path.read_text())}
    table = ARCHITECTURES[machine].numbers
    newest = max(found.values())
    assert {name: found.get(name) for name, number in table.items() if number <= newest} == {
        name: number for name, number in table.items() if number <= newest
    }
    assert len(set(table.values())) == len(table)


def simulate(program: bytes, audit: int, number: int, first: int = 0, second: int = 0) -> int:
    """Return the action of a filter, by an interpreter of its instructions."""
    data = struct.pack("<IIQ6Q", number, audit, 0, first, second, 0, 0, 0, 0)
    lines = list(struct.iter_unpack("<HBBI", program))
    place, value = 0, 0
    while True:
        code, when_true, when_false, operand = lines[place]
        place += 1
        if code == isolation.RETURN:
            return operand
        if code == isolation.LOAD:
            (value,) = struct.unpack_from("<I", data, operand)
            continue
        holds = {
            isolation.JUMP_EQUAL: value == operand,
            isolation.JUMP_AT_LEAST: value >= operand,
            isolation.JUMP_ANY_BIT: bool(value & operand),
        }[code]
        place += when_true if holds else when_false


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_filter_denies_what_is_listed_and_nothing_else(machine):
    architecture, other = ARCHITECTURES[machine], ARCHITECTURES["aarch64" if machine == "x86_64" else "x86_64"]
    found = isolation.filter_for_machine(machine)
    assert found is not None

    def action(number: int, first: int = 0, second: int = 0) -> int:
        return simulate(found.program, architecture.audit, number, first, second)

    numbers = architecture.numbers
    denied = {numbers[name] for name in architecture.denied}
    special = {numbers[name] for name in ("clone", "clone3", "socket", "socketpair")}
    assert {action(number) for number in denied} == {ERRNO | errno.EPERM}
    assert {action(number) for number in range(600) if number not in denied | special} == {ALLOW}
    assert action(numbers["clone3"]) == ERRNO | errno.ENOSYS
    threads, fork, vfork = 0x3D0F00, 0x1200011, 0x4111  # the flags that glibc uses
    assert {action(numbers["clone"], flags) for flags in (threads, fork, vfork)} == {ALLOW}
    for bit in (17, 25, 26, 27, 28, 29, 30):
        assert action(numbers["clone"], 1 << bit | 17) == ERRNO | errno.EPERM
    for name in ("socket", "socketpair"):
        assert {family for family in range(64) if action(numbers[name], family) == ALLOW} == {1}
    denied_commands = {command for command in range(2048) if action(numbers["fcntl"], 0, command) != ALLOW}
    assert denied_commands == {6, 7, 37, 38, 1024}  # record locks, open file description locks, leases
    assert simulate(found.program, other.audit, 1) == simulate(found.program, 0x4000_0003, 1) == KILL_PROCESS  # i386
    if machine == "x86_64":
        assert action(isolation.X32) == action(isolation.X32 + 520) == KILL_PROCESS


@needs_filter
def test_every_denied_call_fails_with_eperm(any_sandbox):
    program = f"{CALL}def f(names): return [name for name in names if call(name, 0, 0, 0, 0, 0, 0) != -1]"
    denied = list(ARCHITECTURES[platform.machine()].denied)
    test = f"def check(f):\n    assert f({denied}) == [], f({denied})"
    assert any_sandbox.check(program, test, "f", limits=CALM).reason == "passed"


ORDINARY = """
import asyncio, collections, dataclasses, functools, hashlib, heapq, itertools, math, os, random, re, string, subprocess
import tempfile, threading, time, typing

@dataclasses.dataclass
class Point:
    x: int
    y: int = 2

async def later():
    await asyncio.sleep(0.001)
    return 7

def f():
    found, thread = [], None
    thread = threading.Thread(target=lambda: found.append(math.factorial(20)))
    thread.start()
    thread.join()
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "file"), "w+") as file:
            file.write("text")
        found.append(os.listdir(folder))
    found.append(subprocess.run(["/bin/sh", "-c", "echo $((6 * 7))"], capture_output=True, text=True).stdout)
    child = os.fork()
    if not child:
        os._exit(3)
    found.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    found.append(asyncio.run(later()))
    found.append(random.Random(0).randrange(10) in range(10) and len(os.urandom(4)))
    found.append(hashlib.md5(b"x").hexdigest()[:4])
    found.append(re.sub("a+", "b", "caat"))
    found.append(dataclasses.astuple(Point(1)))
    found.append(time.time() > 0 and os.cpu_count() > 0)
    return found
"""


def test_ordinary_programs_pass(any_sandbox):
    expected = [2432902008176640000, ["file"], "42\n", 3, 7, 4, "9dd4", "cbt", (1, 2), True]
    test = f"def check(f):\n    assert f() == {expected}, f()"
    assert any_sandbox.check(ORDINARY, test, "f", limits=CALM).reason == "passed"


STATUS = "def f():\n return dict(line[:-1].split(':\\t', 1) for line in open('/proc/self/status') if ':\\t' in line)"


def test_a_program_has_no_capability_and_cannot_gain_one(sandbox):
    expected = dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), "0" * 16) | {"NoNewPrivs": "1"}
    expected |= {"Seccomp": "2", "Uid": "\t".join(["65534"] * 4), "Gid": "\t".join(["65534"] * 4)}
    test = f"def check(f):\n    got = f()\n    assert {{name: got[name] for name in {expected}}} == {expected}, got"
    assert sandbox.check(STATUS, test, "f", limits=CALM).reason == "passed"


ADD, TEST_ADD = "def add(a, b): return a + b", "def check(add): assert add(2, 3) == 5"


def test_an_architecture_without_a_filter_is_rejected_with_its_name(monkeypatch, sandbox):
    monkeypatch.setattr(isolation.platform, "machine", lambda: "vax")
    with pytest.raises(MissingAsset, match="no seccomp filter for vax"):
        Sandbox.find(sandbox.kind)
    with pytest.raises(RuntimeError, match="did not start: no seccomp filter"):
        sandbox.check(ADD, TEST_ADD, "add", limits=CALM)


def test_a_kernel_that_rejects_the_filter_is_rejected(monkeypatch, sandbox):
    monkeypatch.setattr(isolation, "filter_for_machine", lambda: isolation.Filter(bytes(8), -1))
    with pytest.raises(MissingAsset, match=r"no seccomp filter \(Invalid argument\)"):
        Sandbox.find(sandbox.kind)


def without_ctypes(monkeypatch, tmp_path) -> None:
    worker = tmp_path / "worker.py"
    text = specbench.sandbox.WORKER.read_text()
    assert "    import ctypes\n" in text
    worker.write_text(text.replace("    import ctypes\n", "    raise ImportError\n"))
    monkeypatch.setattr(specbench.sandbox, "WORKER", worker)


def test_an_interpreter_without_ctypes_is_rejected(monkeypatch, sandbox, tmp_path):
    without_ctypes(monkeypatch, tmp_path)
    with pytest.raises(MissingAsset, match="this Python has no ctypes"):
        Sandbox.find(sandbox.kind)


def test_kind_none_runs_without_a_filter_and_reports_it(monkeypatch, tmp_path):
    assert find("none").check(ADD, TEST_ADD, "add", limits=CALM).passed
    without_ctypes(monkeypatch, tmp_path)
    assert find("none").check(ADD, TEST_ADD, "add", limits=CALM).passed
    assert find("none").weaknesses()[0] == "no seccomp filter (this Python has no ctypes)"


def test_missing_optional_protections_are_reported(monkeypatch, sandbox):
    assert sandbox.weaknesses() == []
    own = isolation.filter_for_machine()
    number = isolation.ARCHITECTURES[platform.machine()].numbers[
        "setns"
    ]  # a call that fails, as keyctl does in containers
    monkeypatch.setattr(isolation, "filter_for_machine", lambda: isolation.Filter(own.program, number))
    monkeypatch.setattr(isolation, "LAUNCH", 'exec "$@"')
    monkeypatch.setattr(specbench.sandbox.process, "SCHEDSTAT_PATH", "/proc/none")
    keyring, oom, schedstat = sandbox.weaknesses()
    assert keyring.startswith("no separate session keyring (")
    assert (oom, schedstat[:12]) == ("oom_score_adj not raised", "no schedstat")
    assert Sandbox.find(sandbox.kind).check(ADD, TEST_ADD, "add", limits=CALM).passed


AS_USER = """
import sys
from specbench.errors import MissingAsset
from specbench.sandbox import ProgramLimits, Sandbox
try:
    sandbox = Sandbox.find(sys.argv[1])
except MissingAsset as missing:
    sys.exit(f"skip: {missing}")
print(sandbox.weaknesses(), sandbox.check(*eval(sys.argv[2]), "f", limits=ProgramLimits(seconds=20)).reason)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as an ordinary user already")
@pytest.mark.parametrize("kind", ["bwrap", "unshare"])
@pytest.mark.parametrize("attack", ["ordinary", "reset-oom-score", "memory-of-supervisor", "list-of-keys", "mount"])
def test_the_same_holds_for_an_ordinary_user(kind, attack):
    python = shutil.which("python3", path="/usr/bin")
    if not (isolation.which("setpriv") and python):
        pytest.skip("needs setpriv and the system's Python")
    program, succeeded, reason = (ORDINARY, "len(got) != 10", "passed") if attack == "ordinary" else HOSTILE[attack]
    claim = f"not ({succeeded})" if attack == "ordinary" else succeeded
    test = f"def check(f):\n    got = f()\n    assert {claim}, repr(got)[:80]\n"
    with tempfile.TemporaryDirectory() as folder:  # pytest's own is closed to others, as the checkout may be
        package = Path(folder, "specbench")
        shutil.copytree(Path(specbench.sandbox.__file__).parent, package / "sandbox")
        for name in ("__init__.py", "errors.py", "vocabulary.py"):
            shutil.copy(Path(specbench.sandbox.__file__).parents[1] / name, package)
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
        user = [isolation.which("setpriv"), "--reuid=65534", "--regid=65534", "--clear-groups", "--"]
        command = [*user, python, "-B", "-c", AS_USER, kind, repr((program, test))]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={"PYTHONPATH": folder})
    if done.stderr.startswith("skip"):
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[] ")
    assert re.search(reason, done.stdout), done.stdout


@needs_filter
def test_a_programs_name_for_the_machine_is_the_hosts(sandbox):
    """What the host's tables were chosen by holds for the interpreter, too."""
    test = f"def check(f):\n    assert f() == {sys.byteorder, 2**63 - 1, platform.machine()!r}"
    program = "import platform, sys\ndef f(): return sys.byteorder, sys.maxsize, platform.machine()"
    assert sandbox.check(program, test, "f", limits=CALM).reason == "passed"
