"""Archives to and from what is not a regular file, and names with characters that change how a terminal shows a line."""

import os
import random
import shutil
import stat
import zipfile
from pathlib import Path

from tests.faults.attack import Outcome, apart, here
from tests.faults.kills import FEW

RUN = ["run", "-m", "sd", "-t", "gsm8k", *FEW]
TARGETS = (
    "fifo",
    "link to a fifo",
    "device",
    "link to a device",
    "folder",
    "loop",
    "socket",
    "link",
    "broken link",
    "file",
)
SOURCES = (
    "fifo",
    "/dev/zero",
    "link to /dev/zero",
    "folder",
    "text",
    "cut",
    "noise",
    "sparse",
    "other zip",
    "traversal",
)
MOST_MEMORY = 4 * 2**30  # bytes of address space of an import, so that an unbounded read fails
HIDDEN = ("\u202e", "\u2066", "\x1b[31m", "\x07", "\x9b2J", "\u200b", "\r", "\x85")


def odd(trials: int, seed: int, folder: Path) -> Outcome:
    """Export to, and import from, odd files: these stay what they are, memory is bounded, and one line says what is wrong."""
    source = folder / "source"
    source.mkdir()
    assert here(RUN, source).code == 0
    assert (
        here(["archive", "export", next(source.glob("results/*/run.toml")).parent, "-o", "good.zip"], source).code == 0
    )
    outcome = Outcome()
    for trial in range(trials):
        rng, where = random.Random(f"{seed}:{trial}"), folder / f"trial-{trial}"
        shutil.copytree(source, where)
        number = (seed + trial) % (len(TARGETS) + len(SOURCES))
        if number < len(TARGETS):
            outcome.add(f"export to {TARGETS[number]}, trial {trial}", _exported(TARGETS[number], where))
        else:
            kind = SOURCES[number - len(TARGETS)]
            outcome.add(f"import of {kind}, trial {trial}", _imported(kind, where, rng))
        shutil.rmtree(where)
    return outcome


def hidden(trials: int, seed: int, folder: Path) -> Outcome:
    """Show presets and runs whose names and texts hold such characters: no command prints them."""
    outcome = Outcome()
    for trial in range(trials):
        rng, where = random.Random(f"{seed}:{trial}"), folder / f"trial-{trial}"
        where.mkdir()
        mark = HIDDEN[(seed + trial) % len(HIDDEN)]
        text = "".join(f"\\u{ord(c):04x}" for c in mark)
        (where / "own.toml").write_text(
            f'description = "a{text}b"\nproposer = {{ name = "model", role = "x{text}" }}\n'
        )
        (where / "task.toml").write_text(
            f'name = "custom"\ndescription = "a{text}b"\nfile = "rows.jsonl"\nprompt = "{text}{{question}}"\n'
        )
        (where / "rows.jsonl").write_text(f'{{"question": "a{text}b", "prompt": "a{text}b"}}\n')
        commands = [
            ["show", "method", "own.toml"],
            ["show", "task", "task.toml"],
            ["plan", "-m", "own.toml"],
            ["run", "-m", f"a{mark}b"],
            ["run", "-m", "ar", "-t", f"a{mark}b"],
            ["report", f"a{mark}b"],
            ["trace", f"One{mark}two", "-m", "sd", "-p", "tiny", "--max-new-tokens", 2],
            ["show", "method", f"a{mark}b"],
        ]
        for command in rng.sample(commands, 4):
            done = here(command, where)
            problems = done.problems()
            printed = [each for each in mark if each not in "\n" and each in done.out + done.err and each != "m"]
            problems += [f"prints U+{ord(each):04X}" for each in printed if not each.isprintable()]
            outcome.add(f"{command[0]} with {mark!r}, trial {trial}", problems)
    return outcome


def _exported(kind: str, where: Path) -> list[str]:
    out = where / "out.zip"
    if kind in ("fifo", "link to a fifo"):
        os.mkfifo(where / "pipe")
        out.symlink_to("pipe") if "link" in kind else (where / "pipe").rename(out)
    elif kind in ("device", "link to a device"):
        if os.geteuid() != 0:
            return []
        os.mknod(where / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        out.symlink_to("device") if "link" in kind else (where / "device").rename(out)
    elif kind == "folder":
        out.mkdir()
    elif kind == "loop":
        out.symlink_to(out)
    elif kind == "socket":
        os.mknod(out, stat.S_IFSOCK | 0o600)
    elif kind in ("link", "broken link"):
        (where / "real.zip").write_text("old") if kind == "link" else None
        out.symlink_to("real.zip")
    else:
        out.write_text("old")
    before = out.lstat()
    written = kind in ("link", "broken link", "file")
    done = here(["archive", "export", next(where.glob("results/*/run.toml")).parent, "-o", out], where)
    problems = done.problems({0} if written else {2})
    if kind != "file" and (out.lstat().st_mode, out.lstat().st_ino) != (before.st_mode, before.st_ino):
        problems.append("the file was replaced")
    if written and not zipfile.is_zipfile(out):
        problems.append("no archive was written")
    if extra := [path.name for path in where.iterdir() if "tmp" in path.name]:
        problems.append(f"left {extra}")
    return problems


def _imported(kind: str, where: Path, rng: random.Random) -> list[str]:
    path, good = where / "in.zip", (where / "good.zip").read_bytes()
    shutil.rmtree(where / "results")
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "/dev/zero":
        path = Path(kind)
    elif kind == "link to /dev/zero":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "sparse":
        with path.open("wb") as file:
            file.truncate(3 * 2**30)
    elif kind == "traversal":
        shutil.copy(where / "good.zip", path)
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("../outside.txt", "x")
    elif kind == "other zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("readme.txt", "x")
    else:
        at = rng.randrange(len(good))
        path.write_bytes(
            {"text": b"text", "cut": good[:at], "noise": good[:at] + rng.randbytes(40) + good[at + 40 :]}[kind]
        )
    wrapper = ("prlimit", f"--as={MOST_MEMORY}") if shutil.which("prlimit") else ()
    done = apart(["archive", "import", path], where, *wrapper)
    problems = done.problems({2} if kind != "noise" else {0, 2})
    if list(where.parent.glob("outside.txt")) or list(where.glob("outside.txt")):
        problems.append("wrote outside the folder of results")
    if done.code == 2 and list(where.glob("results/*/samples.jsonl")):
        problems.append("a rejected archive left a run")
    return problems
