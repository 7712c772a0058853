"""The sandbox: right programs pass, wrong ones fail, and a hostile one can do no more than return values."""

import ctypes
import json
import os
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from string import Template

import pytest

from specbench.errors import MissingAsset
from specbench.sandbox import ProgramLimits, ProgramVerdict, Sandbox, isolation
from tests.fixtures.hostile import HOSTILE, NAME, NUMBERS, SECRET, UNIQUE, find, left

REAL = Path(__file__).parents[3] / "shared" / "data" / "humaneval" / "test.jsonl"
CALM = ProgramLimits(seconds=20.0, memory=2**28, file=UNIQUE)
BRIEF = ProgramLimits(seconds=0.5, memory=2**28, file=UNIQUE)  # for what never ends


@pytest.fixture(scope="module", params=["bwrap", "unshare"])
def sandbox(request) -> Sandbox:
    return find(request.param)


@pytest.fixture(scope="module", params=["bwrap", "unshare", "none"])
def any_sandbox(request) -> Sandbox:
    return find(request.param)


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
def test_correct_programs_pass_and_wrong_ones_fail(any_sandbox, program, reason):
    limits = BRIEF if reason.startswith("timeout") else CALM
    assert any_sandbox.check(program, TEST_ADD, "add", limits=limits) == ProgramVerdict(reason == "passed", reason)
    assert not left()


VALUES = """[
    None, True, 0, -1, 2**63, -(2**200), 0.1, -0.0, 1e300, float("inf"), float("-inf"), 1 - 2j, "", "\\0\\n\\ud800é",
    b"\\0\\xff", [], [[1], (2,)], (), ((),), {}, {(1, "a"): [2], 3: {4: 5}, None: True}, set(), {1, "1"}, frozenset({(1,)}),
]"""


def test_plain_data_is_passed_both_ways_unchanged(sandbox):
    test = f"""
def normalized(value):  # sets have another order in every process
    return sorted(map(repr, value)) if isinstance(value, set) else repr(value)

def check(candidate):
    for value in {VALUES}:
        found = candidate(value)
        assert type(found) is type(value) and normalized(found) == normalized(value), (found, value)
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


def test_exceptions_are_passed_as_built_in_types(sandbox):
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


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """What stands outside: a file, two servers, and what the programs know of them."""
    canary = tmp_path_factory.mktemp("canary") / "file"
    canary.write_text("untouched")
    with socket.create_server(("127.0.0.1", 0)) as inet, socket.socket(socket.AF_UNIX) as unix:
        unix.bind("\0" + NAME)
        unix.listen()
        libc = ctypes.CDLL(None)
        # Session keyring
        libc.syscall(NUMBERS.get("add_key", -1), b"user", NAME.encode(), SECRET.encode(), len(SECRET), -3)
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


def problems() -> list[dict[str, str]]:
    if not REAL.exists():
        pytest.skip("the real data lies beside a development checkout only")
    return [json.loads(line) for line in REAL.read_text().splitlines()]


def test_canonical_solutions_of_humaneval_pass(sandbox):
    def verdict(row: dict[str, str]) -> ProgramVerdict:
        program = row["prompt"] + row["canonical_solution"]
        return sandbox.check(program, row["test"], row["entry_point"], row["prompt"], CALM)

    rows = problems()[::4]  # a slow test of tests/data/test_tasks.py runs them all
    with ThreadPoolExecutor(2) as pool:
        found = dict(zip((row["task_id"] for row in rows), pool.map(verdict, rows), strict=True))
    assert len(found) == 41
    assert not {name: verdict.reason for name, verdict in found.items() if not verdict.passed}


def test_a_solution_without_its_last_line_fails(sandbox):
    for row in problems()[::41]:
        body = row["canonical_solution"].rstrip().rpartition("\n")[0] or "    pass"
        found = sandbox.check(row["prompt"] + body + "\n", row["test"], row["entry_point"], row["prompt"], CALM)
        assert found.reason.startswith("failed: "), row["task_id"]


def test_a_missing_sandbox_tool_is_reported_with_help(monkeypatch):
    monkeypatch.setattr(isolation, "which", lambda tool: "")
    with pytest.raises(
        MissingAsset, match=r"bwrap.* not found.*unshare.* not found.*install bubblewrap.*--sandbox none"
    ):
        Sandbox.find()
    assert Sandbox.find("none").signature.startswith("sandbox:none|python:3.")


def test_a_sandbox_without_a_process_limit_is_rejected(monkeypatch, sandbox):
    """The deliberate break: the programs' side never takes its limits on."""
    monkeypatch.setattr(ProgramLimits, "of_process", lambda self: {"RLIMIT_FSIZE": UNIQUE})
    with pytest.raises(MissingAsset, match="processes are not limited"):
        Sandbox.find(sandbox.kind)
    assert not left()


def test_a_sandbox_that_does_not_start_gives_no_verdict(sandbox):
    with pytest.raises(RuntimeError, match=r"did not start: .*No such file"):
        Sandbox(sandbox.kind, "/usr/bin/no-such-python", "/usr").check(ADD, TEST_ADD, "add", limits=CALM)
    assert not left()


def test_signatures(sandbox):
    assert sandbox.signature.startswith(f"sandbox:{sandbox.kind}|python:3.")


def test_stop_iteration_of_a_program_does_not_end_loops_of_the_tests(sandbox):
    program = "def f(x):\n    raise StopIteration\n"
    test = "def check(f):\n    assert all(map(lambda x: f(x) == x, [1, 2]))\n"
    assert sandbox.check(program, test, "f").reason.startswith("failed: RuntimeError")
