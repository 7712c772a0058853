"""Hostile programs in the sandbox, of both kinds (tests/fixtures/hostile.py)."""

import random
import socket
from pathlib import Path
from string import Template

from specbench.errors import MissingAsset
from specbench.sandbox import ProgramLimits, Sandbox
from tests.faults.attack import Outcome
from tests.fixtures.hostile import HOSTILE, NAME, UNIQUE, left

LIMITS = ProgramLimits(seconds=20.0, memory=2**28, file=UNIQUE)
BRIEF = ProgramLimits(seconds=0.5, memory=2**28, file=UNIQUE)


def hostile(trials: int, seed: int, folder: Path) -> Outcome:
    """Run programs that try to pass, to escape, to stay or to take: none passes, and nothing of them is left."""
    outcome, kinds = Outcome(), []
    for kind in ("bwrap", "unshare"):
        try:
            kinds.append(Sandbox.find(kind))
        except MissingAsset as error:
            outcome.skipped = str(error)
    if not kinds:
        return outcome
    outcome.skipped = ""
    names = random.Random(seed).sample(sorted(HOSTILE), len(HOSTILE))
    canary = folder / "canary"
    canary.write_text("untouched")
    with socket.create_server(("127.0.0.1", 0)) as inet, socket.socket(socket.AF_UNIX) as unix:
        unix.bind("\0" + NAME)
        unix.listen()
        words = {
            "canary": repr(str(canary)), "home": repr(str(Path.home())), "here": repr(__file__), "name": NAME,
            "port": inet.getsockname()[1], "pids": [],
        }  # fmt: skip
        for trial in range(trials):
            name, sandbox = names[(trial // len(kinds)) % len(names)], kinds[trial % len(kinds)]
            program, succeeded, reason = HOSTILE[name]
            test = f"def check(candidate):\n    got = candidate()\n    assert {succeeded}, repr(got)[:80]\n"
            limits = BRIEF if reason == "timeout" else LIMITS
            found = sandbox.check(Template(program).substitute(words), test, "f", limits=limits)
            problems = [f"passed under {sandbox.kind}"] if found.passed else []
            problems += [f"left {len(left())} processes under {sandbox.kind}"] if left() else []
            problems += ["changed a file of the host"] if canary.read_text() != "untouched" else []
            outcome.add(name, problems)
    return outcome
