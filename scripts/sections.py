"""The form of the pages in results/: a title, what is measured, the results, and the environment as a line of JSON.

A timed page has one section per processor. A measurement replaces the section of its own processor only.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from specbench.files import write
from specbench.machine.hardware import Fingerprint, fingerprint

CPUINFO = Path("/proc/cpuinfo")
FLAGS = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_tile",
    "asimd",
    "sve",
    "bf16",
)  # kernels are chosen by these
SOFTWARE = ("python", "packages", "git")
MACHINE = ("cpu", "cores", "threads", "load_1min")  # of a timed page
SECTION = re.compile(r"^## ", re.M)


def write_section(path: Path, heading: str, lines: Sequence[str], introduction: Sequence[str] = ()) -> None:
    """Write a section of a Markdown page, in place of an earlier one with this heading. Other sections are kept.

    The lines of a section have no heading of the second level. `introduction` is the text before the first section; by
    default, the page's text there is kept.
    """
    before, *sections = SECTION.split(path.read_text(encoding="utf-8") if path.exists() else "")
    texts = {text.partition("\n")[0]: text.partition("\n")[2].strip() for text in sections}
    texts[heading] = "\n".join(lines).strip()
    first = "\n".join(introduction) if introduction else before
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, "\n\n".join([first.strip(), *(f"## {key}\n\n{text}" for key, text in texts.items())]).lstrip() + "\n")


def environment(of_run: Fingerprint | None = None, is_timed: bool = True, **more: str) -> str:
    """Return an environment as JSON in a line of Markdown.

    Args:
        of_run: The recorded environment of a run; None is this machine. A run records its number of threads.
        is_timed: Whether the page has times, which depend on the machine.
        **more: Further facts, such as the version of a server.
    """
    facts = dict(of_run or fingerprint())
    keys = [key for key in MACHINE if of_run or key != "threads"] if is_timed else []
    return f"`{json.dumps({key: facts[key] for key in (*keys, *SOFTWARE)} | more)}`"


def processor(info: str | None = None) -> str:
    """Return the name, family, model and instruction sets of this processor, by which measurements are kept apart.

    Virtual machines give different processors one name. `info` is the text of /proc/cpuinfo.
    """
    text = info if info is not None else CPUINFO.read_text(encoding="utf-8")
    first = text.split("\n\n")[0].splitlines()
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first)}
    flags = set((facts.get("flags") or facts.get("Features", "")).split())
    return ", ".join([facts.get("model name") or "ARM", *_numbers(facts), " ".join(f for f in FLAGS if f in flags)])


def _numbers(facts: Mapping[str, str]) -> list[str]:
    if "cpu family" in facts:
        return [f"family {facts['cpu family']}", f"model {facts['model']}"]
    return [f"part {facts['CPU part']}"] if "CPU part" in facts else []
