"""The folder of the compiled kernels: what is trusted, and what is compiled again."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specbench.kernels.library_folder import LibraryFolder, NoLibrary

SOURCE = 'extern "C" int answer() { return 42; }\n'


@pytest.fixture
def folder(tmp_path):
    """A folder without a library."""
    (tmp_path / "a.cpp").write_text(SOURCE)
    return LibraryFolder(tmp_path / "cache", tmp_path, ["a.cpp"])


def compiler(path: Path, text: str) -> str:
    """Write a program that stands for the compiler, and return its path."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def compiled(folder: LibraryFolder, tmp_path: Path, monkeypatch, keep: int | None = None) -> None:
    """Let a compiler write a real library, or only its first `keep` bytes."""
    import _struct

    head = "" if keep is None else f"-c {keep}"
    write = f'for to; do :; done; {"head " + head if head else "cat"} {_struct.__file__} > "$to"'
    monkeypatch.setenv("CXX", compiler(tmp_path / "fake-c++", write))
    folder.compile()


def test_a_compiled_library_is_whole_and_belongs_to_its_user_alone(folder, tmp_path, monkeypatch):
    compiled(folder, tmp_path, monkeypatch)
    assert folder.has_library and not folder.distrusted
    assert [path.stat().st_mode & 0o077 for path in (tmp_path / "cache", *(tmp_path / "cache").iterdir())] == [0, 0, 0]


def test_a_truncated_library_is_not_loaded_even_if_its_checksum_fits(folder, tmp_path, monkeypatch):
    compiled(folder, tmp_path, monkeypatch, keep=9000)
    assert not folder.has_library


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.chmod(0o722), "can be written by other users"),
        (lambda path: (path.rename(path.with_name("x.so")), path.symlink_to(path.with_name("x.so"))), "is a link"),
        (lambda path: path.parent.chmod(0o770), "can be written by other users"),
        (lambda path: os.chown(path, 12345, -1), "belongs to another user"),
    ],
    ids=["file mode", "file link", "folder mode", "owner"],
)
def test_a_library_that_others_could_replace_is_not_trusted(folder, tmp_path, monkeypatch, damage, reason):
    compiled(folder, tmp_path, monkeypatch)
    try:
        damage(folder.path)
    except PermissionError:
        pytest.skip("changing the owner needs root")
    assert reason in folder.distrusted


def test_a_folder_that_is_a_link_is_not_trusted(tmp_path):
    (tmp_path / "a.cpp").write_text(SOURCE)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "elsewhere")
    assert "is a link" in LibraryFolder(tmp_path / "cache", tmp_path, ["a.cpp"]).distrusted


@pytest.mark.parametrize(
    ("command", "reason"), [(" ", "not a program"), ("'c++", "not a command"), ("no-c++", "not a program")]
)
def test_a_wrong_compiler_is_an_error_with_its_name(folder, monkeypatch, command, reason):
    monkeypatch.setenv("CXX", command)
    with pytest.raises(NoLibrary, match=reason) as caught:
        folder.compile()
    assert repr(command) in caught.value.reason


def test_an_interrupted_compilation_ends_the_children_of_the_compiler(tmp_path):
    (tmp_path / "a.cpp").write_text(SOURCE)
    pid = tmp_path / "pid"
    path = compiler(tmp_path / "slow-c++", f"sleep 600 & echo $! > {pid}.part; mv {pid}.part {pid}; wait")
    code = (
        "from pathlib import Path\nfrom specbench.kernels.library_folder import LibraryFolder\n"
        f"here = Path({str(tmp_path)!r})\nLibraryFolder(here / 'cache', here, ['a.cpp']).compile()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "CXX": path}, stderr=subprocess.DEVNULL)
    while not pid.exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) != 0
    child = Path("/proc") / pid.read_text().strip() / "stat"
    while child.exists() and child.read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.02)
