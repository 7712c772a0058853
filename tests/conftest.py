"""Isolation of test modules, and a closing summary of skipped tests: what is missing, and the command that installs it."""

import os
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from specbench.config import presets
from specbench.experiment import runner

os.environ.pop("COLUMNS", None)  # pytest-xdist sets it; without it, output that is not a terminal is wide

USERNS = "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
NEEDS = (  # a pattern of reasons, what is missing, and how to get it; the first that fits counts
    (r"bwrap( and setpriv)? not found", "bubblewrap", "sudo apt-get install bubblewrap"),
    (r"(unshare|setpriv|mount|pivot_root) not found|needs setpriv", "util-linux", "sudo apt-get install util-linux"),
    (r"no sandbox works here(?!.*no seccomp filter)", "user namespaces", USERNS),
    (r"chromium", "Chromium", "sudo apt-get install chromium chromium-driver"),
    (r"selenium", "selenium", "pip install selenium"),
    (r"torchao", "torchao", "pip install 'specbench[quantization]'"),
    (r"pdflatex", "pdflatex", "sudo apt-get install texlive-latex-base"),
    (r"kernel's headers", "kernel headers", "sudo apt-get install linux-libc-dev"),
)


@pytest.fixture(autouse=True, scope="module")
def without_other_modules_plugins() -> Iterator[None]:
    """Remove the presets of plugins that a module's tests have loaded, since `-t` tries all tasks without a name."""
    before = dict(presets._ADDED)
    yield
    presets._ADDED.clear()
    presets._ADDED.update(before)


@pytest.fixture(autouse=True, scope="session")
def bandwidth_measured_once() -> Iterator[None]:
    """Measure the memory bandwidth once per process instead of once per run folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "copy_bandwidth", cache(runner.copy_bandwidth))
        yield


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print one line for each thing that skipped tests need. Under pytest-xdist, this runs in the controlling process."""
    found: Counter[tuple[str, str]] = Counter()
    others = 0
    for report in terminalreporter.stats.get("skipped", []):
        need = missing(reason(report))
        if need:
            found[need] += 1
        else:
            others += 1
    if not found:
        return
    terminalreporter.section("skipped because something is missing")
    for (what, command), count in sorted(found.items(), key=lambda item: (-item[1], item[0])):
        terminalreporter.line(
            f"{count} tests need {what}: {command}" if count > 1 else f"1 test needs {what}: {command}"
        )
    if others:
        terminalreporter.line(f"{others} skipped for other reasons: pytest -rs shows them")


def reason(report: Any) -> str:
    """Return why a test was skipped."""
    where = report.longrepr
    return str(where[2] if isinstance(where, list | tuple) else where)


def missing(text: str) -> tuple[str, str] | None:
    """Return what a reason says is missing and the command that installs it; None for a reason of another kind."""
    return next(((what, command) for pattern, what, command in NEEDS if re.search(pattern, text, re.IGNORECASE)), None)
