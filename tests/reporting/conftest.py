"""Runs that the tests of several modules report."""

from pathlib import Path

import pytest

from tests.fixtures.console import specbench


@pytest.fixture(scope="session")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    """A folder with runs of two methods on two tasks, and the run folders."""
    folder = tmp_path_factory.mktemp("pages")
    run = ("-m", "sd,pld", "-t", "gsm8k,wmt", "-n", "5", "--repeats", "1", "--max-new-tokens", "24", "--out", "mine")
    specbench("run", *run, cwd=folder)
    return folder, sorted((folder / "mine").glob("*_gsm8k_*")) + sorted((folder / "mine").glob("*_wmt_*"))
