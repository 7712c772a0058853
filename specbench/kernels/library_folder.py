"""The folder of the compiled kernels: whose it is, whether its library is whole, and how the library is compiled.

A library runs with the rights of the process that loads it. So the folder and its files must belong to this user, must not be
writable by others, and must not be links.
"""

import hashlib
import os
import shlex
import shutil
import signal
import stat
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-O3", "-std=c++17", "-ffp-contract=fast", "-fno-math-errno", "-Wno-psabi", "-shared", "-fPIC")
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # of a 64-bit file
SEGMENT = struct.Struct("<IIQQQQQQ")


class NoLibrary(Exception):
    """The library cannot be compiled.

    Args:
        reason: Why.
        help: How to fix it.
    """

    def __init__(self, reason: str, help: str) -> None:
        super().__init__(reason)
        self.reason, self.help = reason, help


class LibraryFolder:
    """A folder for the library that is compiled from these sources. It is created if it does not exist.

    Args:
        folder: The folder.
        sources: The folder of the sources.
        names: The files that the library depends on, the one to compile first.

    Raises:
        OSError: The folder cannot be created.
    """

    def __init__(self, folder: Path, sources: Path, names: Sequence[str]) -> None:
        digest = hashlib.sha256("\0".join(FLAGS).encode())
        for name in names:
            digest.update((sources / name).read_bytes())
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder, self._source = folder, sources / names[0]
        self.path = folder / f"kernels-{digest.hexdigest()[:16]}.so"
        self._checksum = self.path.with_suffix(".sha256")

    @property
    def distrusted(self) -> str:
        """Why the folder or a file in it could be another user's; empty if none is."""
        for path, is_kind in ((self._folder, stat.S_ISDIR), (self.path, stat.S_ISREG), (self._checksum, stat.S_ISREG)):
            try:
                found = path.lstat()
            except FileNotFoundError:
                continue
            if not is_kind(found.st_mode):
                return f"{path} is a link or of another kind than expected"
            if found.st_uid != os.getuid():
                return f"{path} belongs to another user"
            if found.st_mode & OTHERS_WRITE:
                return f"{path} can be written by other users"
        for path in self._folder.absolute().parents:  # another user could replace the folder
            found = path.stat()
            is_open = found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX
            if is_open or found.st_uid not in (0, os.getuid()):
                return f"{path}, in which the folder is, can be changed by other users"
        return ""

    @property
    def has_library(self) -> bool:
        """Whether the library has the checksum that was written beside it, and is not truncated.

        A truncated library would end the process when it is read, also where its checksum fits.
        """
        try:
            content = self.path.read_bytes()
            return hashlib.sha256(content).hexdigest() == self._checksum.read_text() and _is_whole(content)
        except (OSError, UnicodeDecodeError):
            return False

    def compile(self) -> None:
        """Compile the library. Raises NoLibrary without a working compiler, and OSError if the folder cannot be written.

        There is no time limit, since the kernels that a machine uses must not depend on one. If this process is interrupted,
        the compiler and its children end too.
        """
        compiler = _compiler()
        with tempfile.TemporaryDirectory(dir=self._folder) as own:  # another process may compile the same file
            to, checksum = Path(own) / self.path.name, Path(own) / "checksum"
            if error := _compile(compiler, self._source, to):
                raise NoLibrary(f"{' '.join(compiler)} failed: {error}", "use g++ 9 or newer, or clang 10 or newer")
            for file, mode in ((to, 0o700), (checksum, 0o600)):
                file.touch()
                file.chmod(mode)
            checksum.write_text(hashlib.sha256(to.read_bytes()).hexdigest())
            os.replace(to, self.path)
            os.replace(checksum, self._checksum)


def _is_whole(content: bytes) -> bool:
    """Return whether all segments and section headers of a 64-bit ELF file are within it."""
    if len(content) < ELF_HEADER.size or content[:5] != b"\x7fELF\x02":
        return False
    *_, program, section, _, _, program_size, programs, section_size, sections, _ = ELF_HEADER.unpack_from(content)
    ends = [program + programs * program_size, section + sections * section_size]
    if max(ends) > len(content) or (programs and program_size < SEGMENT.size):
        return False
    headers = (SEGMENT.unpack_from(content, program + i * program_size) for i in range(programs))
    return all(offset + size <= len(content) for _, _, offset, _, _, size, _, _ in headers)


def _compiler() -> list[str]:
    """Return the command of the C++ compiler: $CXX, or the first of COMPILERS. Raises NoLibrary."""
    given = os.environ.get("CXX", "")
    try:
        words = shlex.split(given)
    except ValueError as error:  # such as an open quote
        raise NoLibrary(f"CXX = {given!r} is not a command: {error}", "unset it, or name a C++ compiler") from None
    for name, *rest in [words] if words else [] if given else [[name] for name in COMPILERS]:
        if path := shutil.which(name):
            return [path, *rest]
    if given:
        raise NoLibrary(f"CXX = {given!r} is not a program", "unset it, or name a C++ compiler")
    raise NoLibrary("there is no C++ compiler", "install g++, or set CXX")


def _compile(compiler: Sequence[str], source: Path, to: Path) -> str:
    """Compile a source file. Returns the first line of the compiler's error; empty if there was none."""
    command = [*compiler, *FLAGS, str(source), "-o", str(to)]
    try:
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return str(error)
    try:
        _, errors = process.communicate()
    except BaseException:  # Ctrl-C
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    if process.returncode == 0 and to.exists():
        return ""
    lines = [line for line in errors.splitlines() if "error" in line.lower()] or errors.splitlines()
    return lines[0] if lines else f"exit code {process.returncode}, without a message"
