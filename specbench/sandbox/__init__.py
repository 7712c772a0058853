"""Run untrusted programs against tests, in two separate sandboxes.

The tests call the program through this process, and only plain data comes back; their verdict comes over a socket that the
program's process does not have. So a program that exits, prints, patches, forges or hides can do no more than return values.
It has no access to the tests.

What isolates, and what happens on a machine without it:

- Namespaces, the limit on processes, a seccomp filter (so x86-64 or AArch64, and an interpreter with ctypes): required.
  Without one of them `Sandbox.find` raises MissingAsset with the reason. Without the filter, programs could reach keyrings
  and SysV memory.
- A separate session keyring: `weaknesses` lists its absence. The filter already denies all calls that reach keyrings.
- A raised oom_score_adj: `weaknesses`. It decides which process is killed when memory runs out, not what a program can do.
- schedstat, by which a busy machine extends deadlines: `weaknesses`. Without it, correct programs can time out under load.

A cell ends with this process, even if this process gets SIGKILL or ends during startup: the socket of the cell's supervisor
closes, and the supervisor also gets a parent-death signal. Kind "none" isolates nothing, though it uses the filter if
possible. Without a PID namespace the supervisor kills its descendants and removes its directory, unless a program has
killed or stopped it.
"""

import json
import math
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from specbench.errors import MissingAsset
from specbench.sandbox import isolation, process
from specbench.sandbox.isolation import NOBODY, command, interpreters, missing_tools
from specbench.sandbox.process import Cell, Deadline, FrameTooLong, ProcessGone, RunQueue
from specbench.sandbox.worker import DESCRIPTORS, LONGEST_LINE, Settings
from specbench.vocabulary import SandboxKind

HELP = "install bubblewrap (0.8 or newer), or type --sandbox none to run without isolation"
CellJob = dict[str, str]
WORKER = Path(__file__).with_name("worker.py")


@dataclass(frozen=True)
class ProgramVerdict:
    """`reason` is "passed", or one line that begins with "failed", "timeout" or "crashed"."""

    passed: bool
    reason: str


@dataclass(frozen=True)
class ProgramLimits:
    """What a check may use. Memory and file size are limits of each process, as is its CPU time, a second above `seconds`."""

    # Wall clock, from when both sandboxes are up to the verdict, without the time that this thread and the main threads of
    # the two workers waited for a CPU, and at most process.STRETCH times as long in all. So a timeout means that the program
    # computed, slept or blocked for this long, not that the machine was busy.
    seconds: float = 3.0
    memory: int = 512 * 2**20  # bytes of address space
    file: int = 2**20  # bytes
    scratch: int = 16 * 2**20  # bytes of the one directory that can be written to; no limit without isolation
    processes: int = 16  # and threads; without isolation all of this user's count, and root has no limit
    message: int = 16 * 2**20  # bytes of one call or one value, as JSON

    def of_process(self) -> dict[str, int]:
        return {
            "RLIMIT_CPU": math.ceil(self.seconds) + 1,
            "RLIMIT_AS": self.memory,
            "RLIMIT_FSIZE": self.file,
            "RLIMIT_NPROC": self.processes,
            "RLIMIT_NOFILE": DESCRIPTORS,
            "RLIMIT_MSGQUEUE": 0,
            "RLIMIT_CORE": 0,
        }


class NoSandbox(MissingAsset):
    """No sandbox works on this machine. `tried` has each backend, with the reason why it does not work."""

    def __init__(self, tried: Sequence[tuple[SandboxKind, str]]) -> None:
        super().__init__(tried)  # the argument, with which copy and pickle make it again
        self.tried = tried

    def __str__(self) -> str:
        reasons = "; ".join(f"{kind}: {wrong}" for kind, wrong in self.tried)
        return f"no sandbox works here ({reasons}): {HELP}"


@dataclass(frozen=True)
class Sandbox:
    """An isolation backend that works on this machine, and the interpreter that it runs."""

    kind: SandboxKind
    python: str
    prefix: str

    @classmethod
    def find(cls, backend: SandboxKind = SandboxKind.auto) -> "Sandbox":
        """Return the first of bubblewrap and `unshare` that contains a fork bomb here, with an interpreter that it can read.

        Tries by running one, in about a tenth of a second. "none" is taken as it is: limits and a kill, no isolation.
        Raises NoSandbox, with what was tried and what to do, where nothing works.
        """
        if backend == SandboxKind.none:
            return cls(SandboxKind.none, *interpreters()[0])
        tried: list[tuple[SandboxKind, str]] = []
        is_open = backend == SandboxKind.auto
        kinds = (SandboxKind.bwrap, SandboxKind.unshare) if is_open else (SandboxKind(backend),)
        for kind in kinds:
            wrong = missing_tools(kind) or isolation.missing_filter()
            for python, prefix in [] if wrong else interpreters():
                sandbox = cls(kind, python, prefix)
                wrong = sandbox._wrong()
                if not wrong:
                    return sandbox
            tried.append((kind, wrong))
        raise NoSandbox(tried)

    @cached_property
    def signature(self) -> str:
        """How, and by which Python, programs are judged."""
        version = subprocess.run([self.python, "-I", "-V"], capture_output=True, text=True, check=True).stdout
        return f"sandbox:{self.kind}|python:{version.split()[-1]}"

    def check(
        self, program: str, test: str, entry_point: str, preamble: str = "", limits: ProgramLimits | None = None
    ) -> ProgramVerdict:
        """Return whether `check(candidate)`, defined by `test`, returns for the function `entry_point` of `program`.

        The tests run after `preamble` and can use what it defines, except for `entry_point`, which is the program's.
        Arguments and values may be None, bool, int, float, complex, str, bytes, list, tuple, dict, set and frozenset, but no
        user-defined subclasses; a program that returns anything else fails. An exception arrives as the built-in exception of
        the same name, or else as Exception.
        When this returns, nothing of the check is left; under kind "none" a program that kills its parent can survive.
        Raises RuntimeError if a sandbox does not start or does not end, which gives no verdict on the program.
        """
        limits = limits or ProgramLimits()
        jobs: tuple[CellJob, CellJob] = (
            {"program": program, "entry_point": entry_point},
            {"preamble": preamble, "test": test, "entry_point": entry_point},
        )
        with ExitStack() as stack:
            cells = [self._cell(role, limits, stack) for role in ("program", "tests")]
            for cell in cells:
                cell.wait_ready()
            return _referee(cells[0], cells[1], jobs, limits)

    def _cell(self, role: str, limits: ProgramLimits, stack: ExitStack) -> Cell:
        isolated, filter_, scratch = self.kind != "none", isolation.filter_for_machine(), ""
        if not isolated:
            scratch = str(Path(tempfile.gettempdir()).resolve() / f"specbench-{secrets.token_hex(8)}")
            # The supervisor's task, but programs can kill it
            stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        program, keyctl = (filter_.program.hex(), filter_.keyctl) if filter_ else ("", -1)
        nobody = NOBODY if self.kind == "unshare" else 0
        settings = Settings(role, limits.of_process(), program, keyctl, nobody, scratch)
        start = command(self.kind, self.python, self.prefix, limits.scratch)
        cell = Cell(role, [*start, "-c", WORKER.read_text(), json.dumps(vars(settings))], limits.message, isolated)
        stack.callback(cell.kill)
        return cell

    def weaknesses(self) -> list[str]:
        """Return the protections that this machine lacks and that are not required. Raises RuntimeError as `check` does."""
        with ExitStack() as stack:
            weaknesses = self._cell("program", ProgramLimits(), stack).wait_ready()
        return (
            weaknesses
            if process.kernel_reports_waits()
            else [*weaknesses, "no schedstat, so busy machines shorten deadlines"]
        )

    def _wrong(self) -> str:
        """Return the reasons why this sandbox cannot contain a fork bomb; empty if it can."""
        limits = ProgramLimits(seconds=10)
        program = f"""\
import os, time

def bomb():
    for made in range({4 * limits.processes}):
        try:
            child = os.fork()
        except OSError:
            return made
        if child == 0:
            time.sleep(60)
    return made
"""
        test = f"def check(bomb):\n    assert bomb() < {limits.processes}, 'processes are not limited'"
        try:
            verdict = self.check(program, test, "bomb", limits=limits)
        except (RuntimeError, OSError) as error:
            return str(error)
        return "" if verdict.passed else verdict.reason


def _referee(program: Cell, tests: Cell, jobs: tuple[CellJob, CellJob], limits: ProgramLimits) -> ProgramVerdict:
    """Carry calls and values between the two, without looking into them, until the tests' side sends its verdict."""
    with closing(RunQueue(process.SCHEDSTAT_PATH)) as queue:
        until = Deadline(limits.seconds, (program.waited, tests.waited, queue.waited))
        return _relay(program, tests, jobs, limits, until)


def _relay(
    program: Cell, tests: Cell, jobs: tuple[CellJob, CellJob], limits: ProgramLimits, until: Deadline
) -> ProgramVerdict:
    try:
        program.send(json.dumps(jobs[0]).encode(), until)
        wrong = program.receive(until)
        if wrong:
            return _failed(wrong)
        tests.send(json.dumps(jobs[1]).encode(), until)
        while True:
            frame = tests.receive(until)
            if frame == b"P":
                return ProgramVerdict(True, "passed")
            if frame[:1] == b"F":
                return _failed(frame[1:])
            program.send(frame[1:], until)
            tests.send(program.receive(until), until)
    except TimeoutError:
        return ProgramVerdict(False, f"timeout: {limits.seconds:g} s")
    except ProcessGone as gone:
        return ProgramVerdict(False, f"crashed: the process of the {gone} ended")
    except FrameTooLong as big:
        return ProgramVerdict(False, f"failed: the {big} sent more than {limits.message} bytes")


def _failed(message: bytes) -> ProgramVerdict:
    """Return the failure with a line that can be printed."""
    line = "".join(c if c.isprintable() else "?" for c in message[:LONGEST_LINE].decode(errors="replace"))
    return ProgramVerdict(False, f"failed: {line}")
