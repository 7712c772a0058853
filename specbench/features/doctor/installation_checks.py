"""Checks of the installation: Python, packages, bundled models, the hub and sandboxes."""

import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from specbench.data.hub import local_checksum, look_for_hub, offline_mode
from specbench.features.doctor.machine_checks import disk_space
from specbench.machine.accelerator import GIB
from specbench.machine.check import Check, State
from specbench.sandbox import NoSandbox, Sandbox
from specbench.vocabulary import SandboxKind

PYTHON = (3, 11)
CACHE_BYTES = 20 * GIB  # a pair of a 7B model and a small one


def python() -> Check:
    """Return the check of the version of Python."""
    least = ".".join(map(str, PYTHON))
    state: State = "ok" if sys.version_info >= PYTHON else "fail"
    return Check("python", state, platform.python_version(), "" if state == "ok" else f"use Python {least} or newer")


def package(name: str) -> Check:
    """Return the check of a package that every run needs."""
    version = version_of(name)
    return Check(name, "ok", version) if version else Check(name, "fail", "not installed", f"pip install {name}")


def extra(name: str, help_: str) -> Check:
    """Return the check of a package that some features need."""
    version = version_of(name)
    return Check(name, "ok", version) if version else Check(name, "warn", "not installed", help_)


def version_of(name: str) -> str:
    """Return the version of an installed package; empty if it is missing."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def hub() -> Iterator[Check]:
    """Yield checks of the hub's cache, connection and token."""
    from huggingface_hub import constants, get_token

    yield disk_space("disk for models", Path(constants.HF_HUB_CACHE), CACHE_BYTES)
    help_ = (
        "bundled pairs and local folders work; download others with `specbench fetch` on a machine with network access"
    )
    may_connect = not offline_mode()
    look_for_hub()
    if not may_connect:
        yield Check("hub", "warn", "offline mode is on (HF_HUB_OFFLINE)", help_)
    elif offline_mode():
        yield Check("hub", "warn", f"{constants.ENDPOINT} does not answer", help_)
    else:
        yield Check("hub", "ok", constants.ENDPOINT)
    yield Check("hub token", "ok", "set" if get_token() else "none; gated models need one: `hf auth login`")


def sandbox() -> Check:
    """Return which sandboxes generated code can run in here, and which protections they lack."""
    works, fails, weak = [], [], False
    for kind in (SandboxKind.bwrap, SandboxKind.unshare):
        try:
            lacking = Sandbox.find(kind).weaknesses()
        except NoSandbox as error:
            fails += [f"{tried}: {wrong}" for tried, wrong in error.tried]
        except RuntimeError as error:
            fails.append(f"{kind}: {error}")
        else:
            works.append(f"{kind} works" + (f", but: {', '.join(lacking)}" if lacking else ""))
            weak |= bool(lacking)
    if weak:
        help_ = "generated code can run; the docstring of specbench.sandbox says what these protections are for"
        return Check("sandbox", "warn", "; ".join(works + fails), help_)
    if works:
        return Check("sandbox", "ok", "; ".join(works + fails))
    help_ = "only --allow-code-execution needs one: install bubblewrap (0.8 or newer)"
    return Check("sandbox", "warn", "; ".join(fails), help_)


def bundled(folder: Path) -> Check:
    """Return the check of the bundled models and heads."""
    kinds = {kind: sorted(path for path in (folder / kind).glob("*") if path.is_dir()) for kind in ("models", "heads")}
    empty = [kind for kind, paths in kinds.items() if not paths]
    for path in (path for paths in kinds.values() for path in paths):
        try:
            local_checksum(path)
        except OSError as error:
            empty.append(f"{path.name} ({error.strerror})")
        if not any(path.glob("*.safetensors")):
            empty.append(f"{path.name} (no weights)")
    if empty:
        return Check("bundled", "fail", f"missing: {', '.join(empty)}", "reinstall specbench")
    return Check("bundled", "ok", ", ".join(f"{len(paths)} {kind}" for kind, paths in kinds.items()) + ", readable")
