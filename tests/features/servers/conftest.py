"""A small checkpoint that test servers decode."""

from pathlib import Path

import pytest

from tests.fixtures import odd_pairs


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> Path:
    return odd_pairs.save(tmp_path_factory.mktemp("served") / "model", odd_pairs.Odd(window=1024))
