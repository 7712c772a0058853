"""Isolation of test modules, and the closing summary of skipped tests."""

import gc
import os
from collections.abc import Iterator
from functools import cache

import pytest

from specbench.config import presets
from specbench.experiment import runner
from specbench.models.engines import Lean
from tests.fixtures.skip_summary import pytest_terminal_summary  # noqa: F401  (a hook)

os.environ.pop("COLUMNS", None)  # pytest-xdist sets it; without it, output that is not a terminal is wide


@pytest.fixture(autouse=True, scope="module")
def without_other_modules_plugins() -> Iterator[None]:
    """Remove the presets of plugins that a module's tests have loaded, since `-t` tries all tasks without a name."""
    before = dict(presets._ADDED)
    yield
    presets._ADDED.clear()
    presets._ADDED.update(before)


@pytest.fixture(autouse=True, scope="module")
def imports_not_collected() -> None:
    """Leave what is alive before a module, above all imports, out of collections of garbage: each run has one at its end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def collected_again() -> Iterator[None]:
    """Return to collections at the end what was left out, since the plugin of hypothesis looks for referrers."""
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True, scope="session")
def bandwidth_measured_once() -> Iterator[None]:
    """Measure the memory bandwidth once per process instead of once per run folder."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("copy_bandwidth", "read_bandwidth"):
            patch.setattr(runner, name, cache(getattr(runner, name)))
        yield


@pytest.fixture(autouse=True, scope="session")
def forwards_not_checked() -> Iterator[None]:
    """Load models without timing a forward beside transformers' own: it takes longer than loading a toy model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lean, "is_checked", False)
        yield
