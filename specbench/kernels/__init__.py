"""Kernels for decoding on an x86-64 CPU, in C++: products of a few rows with a matrix, and whole decoder layers.

The sources beside this file are compiled when they are first needed, with the C++ compiler of the machine, and kept in the
user's cache folder. One library serves all sets of instructions; the processor's flags select one of them when it is
loaded. Without a compiler, or on another processor, models use torch's own products, which are slower.

`rule()` names which kernels compute matrix products on this machine. It depends on the processor's flags, on whether there
is a compiler, and on SPECBENCH_KERNELS, never on a timing, so that token ids are reproducible. All sets of instructions give
the same bits.
"""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from specbench.errors import ConfigError

SOURCES = ("cpu.cpp", "products.inc", "layers.inc")
LEVELS = ("avx512", "avx2")  # sets of instructions, the fastest first
TORCH = "torch"  # the rule without these kernels
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-O3", "-std=c++17", "-ffp-contract=fast", "-fno-math-errno", "-Wno-psabi", "-shared", "-fPIC")
SELECT = "SPECBENCH_KERNELS"  # environment variable: a level, or `torch`
LIMIT = 300  # seconds of a compilation
_SECONDS: list[float] = []  # durations of compilations that were not reported yet
OPENMP = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")

Pointer = ctypes.c_void_p
Long = ctypes.c_int64


class MatrixStruct(ctypes.Structure):
    """`Matrix` of cpu.cpp."""

    _fields_ = (
        *((name, Pointer) for name in ("panels", "bias", "scale", "zero")),
        *((name, Long) for name in ("inputs", "outputs", "group", "bits")),
    )


class LayerStruct(ctypes.Structure):
    """`Layer` of cpu.cpp."""

    _fields_ = (
        *((name, MatrixStruct) for name in ("qkv", "out", "up", "down")),
        *((name, Pointer) for name in ("norm", "norm_mlp", "head_norm")),
        ("scale", ctypes.c_float), ("head_eps", ctypes.c_float), ("rotates", ctypes.c_int32), ("window", Long),
    )  # fmt: skip


class ForwardStruct(ctypes.Structure):
    """`Forward` of cpu.cpp."""

    _fields_ = (
        ("layers", ctypes.POINTER(LayerStruct)),
        *((name, Long) for name in ("count", "hidden", "heads", "kv_heads", "dim", "rotary", "wide")),
        ("norm", Pointer), ("eps", ctypes.c_float), ("x", Pointer), ("out", Pointer),
        *((name, Long) for name in ("n", "first", "total")),
        ("cache", Pointer), ("capacity", Long), ("is_bfloat16", Long),
        *((name, Pointer) for name in ("cos", "sin", "masks", "inputs", "shared", "own")),
    )  # fmt: skip


@dataclass(frozen=True)
class Kernels:
    """The compiled library, for one set of instructions. `width` is the number of outputs per panel."""

    library: ctypes.CDLL
    name: str
    level: int
    width: int


@dataclass(frozen=True)
class Missing:
    """Why this machine has no kernels, and how to fix it; empty if it cannot be fixed."""

    reason: str
    help: str = ""


def kernels() -> Kernels | None:
    """Return the kernels of this machine, compiled first if necessary; None if it has none."""
    found = find_kernels()
    return found if isinstance(found, Kernels) else None


def all_levels() -> list[Kernels]:
    """Return the kernels of every set of instructions that this processor has, whichever of them is in use."""
    found = kernels()
    return [each for name in LEVELS if found and isinstance(each := _of_level(found.library, name), Kernels)]


def rule() -> str:
    """Return which kernels compute matrix products on this machine: the name of a set of instructions, or `torch`."""
    found = kernels()
    return found.name if found else TORCH


def newly_compiled() -> float:
    """Return the seconds that compiling took, if this process did it since the last call; else 0."""
    find_kernels()
    return _SECONDS.pop() if _SECONDS else 0.0


@cache
def find_kernels() -> Kernels | Missing:
    """Return the kernels of this machine, or why there are none. Raises ConfigError for an unknown name in SELECT."""
    chosen = os.environ.get(SELECT, "")
    if chosen not in ("", TORCH, *LEVELS):
        raise ConfigError(f"{SELECT} = {chosen} is none of {', '.join((*LEVELS, TORCH))}")
    if chosen == TORCH:
        return Missing(f"{SELECT} = {TORCH}")
    if platform.machine() not in ("x86_64", "AMD64"):
        return Missing(f"there are none for {platform.machine()} processors")
    failed = Missing("no folder for the compiled kernels can be written", "set XDG_CACHE_HOME")
    for folder in _folders():
        found = _in_folder(folder)
        if isinstance(found, ctypes.CDLL):
            return _of_level(found, chosen)
        failed = found or failed
    return failed


def _of_level(library: ctypes.CDLL, chosen: str) -> Kernels | Missing:
    """Return the kernels of a set of instructions, by default the fastest that the processor has."""
    for name in (chosen,) if chosen else LEVELS:
        level = library.specbench_level(name.encode())
        if level >= 0:
            return Kernels(library, name, level, library.specbench_width(level))
    return Missing(f"this processor does not have {chosen or ' or '.join(LEVELS)}")


def _in_folder(folder: Path) -> ctypes.CDLL | Missing | None:
    """Return the library in a folder, compiled first if it is missing; or why it cannot be used; None without access."""
    sources, digest = Path(__file__).parent, hashlib.sha256("\0".join(FLAGS).encode())
    for name in SOURCES:
        digest.update((sources / name).read_bytes())
    path = folder / f"kernels-{digest.hexdigest()[:16]}.so"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.getuid():  # another user could place a library there
            return None
        if _is_whole(path):
            with suppress(OSError, AttributeError):  # a damaged file is compiled again
                return _loaded(path)
        if isinstance(compiler := _compiler(), Missing):
            return compiler
        with tempfile.TemporaryDirectory(dir=folder) as own:  # another process may compile the same file
            begin, to = time.perf_counter(), Path(own) / path.name
            if error := _compile(compiler, sources / SOURCES[0], to):
                return Missing(f"{' '.join(compiler)} failed: {error}", "use g++ 9 or newer, or clang 10 or newer")
            checksum = Path(own) / "checksum"
            checksum.write_text(hashlib.sha256(to.read_bytes()).hexdigest())
            os.replace(to, path)
            os.replace(checksum, path.with_suffix(".sha256"))
            _SECONDS.append(time.perf_counter() - begin)
    except OSError:
        return None
    try:
        return _loaded(path)
    except (OSError, AttributeError) as error:  # such as a folder from which nothing may be executed
        return Missing(f"{path} cannot be loaded: {error}", "set XDG_CACHE_HOME")


def _is_whole(path: Path) -> bool:
    """Return whether a library has the checksum that was written beside it: a truncated one would end the process."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == path.with_suffix(".sha256").read_text()
    except OSError:
        return False


def _compiler() -> list[str] | Missing:
    """Return the command of the C++ compiler: $CXX, or the first of COMPILERS."""
    given = os.environ.get("CXX", "")
    commands = [shlex.split(given)] if given else [[name] for name in COMPILERS]
    for name, *rest in commands:
        if path := shutil.which(name):
            return [path, *rest]
    if given:
        return Missing(f"CXX = {given} is not a program", "unset it, or name a C++ compiler")
    return Missing("there is no C++ compiler", "install g++, or set CXX")


def _folders() -> Sequence[Path]:
    """Return the folders that compiled kernels may be in: the user's cache, and a temporary one of this user."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        caches = [Path(base) if base else Path.home() / ".cache"]
    except RuntimeError:  # no home
        caches = []
    return [
        *(place / "specbench" for place in caches),
        Path(tempfile.gettempdir()) / f"specbench-{os.getuid()}",
    ]


def _compile(compiler: Sequence[str], source: Path, to: Path) -> str:
    """Compile a source file. Returns the first line of the compiler's error; empty if there was none."""
    try:
        done = subprocess.run(
            [*compiler, *FLAGS, str(source), "-o", str(to)], capture_output=True, text=True, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        return f"it took more than {LIMIT} s"
    except OSError as error:
        return str(error)
    if done.returncode == 0 and to.exists():
        return ""
    lines = [line for line in done.stderr.splitlines() if "error" in line.lower()] or done.stderr.splitlines()
    return lines[0] if lines else f"exit code {done.returncode}, without a message"


def _loaded(path: Path) -> ctypes.CDLL:
    """Return the library with the types of its functions. It runs on torch's pool of threads if torch has loaded one."""
    library = ctypes.CDLL(str(path))
    library.specbench_level.argtypes = (ctypes.c_char_p,)
    library.specbench_width.restype = Long
    library.specbench_product.argtypes = (
        ctypes.c_int, ctypes.POINTER(MatrixStruct), Pointer, Long, Pointer, Pointer, ctypes.c_int
    )  # fmt: skip
    library.specbench_product.restype = None
    library.specbench_forward.argtypes = (ctypes.c_int, ctypes.POINTER(ForwardStruct), ctypes.c_int)
    library.specbench_forward.restype = None
    for size in (library.specbench_shared, library.specbench_own):
        size.argtypes, size.restype = (ctypes.POINTER(ForwardStruct),), Long
    library.specbench_threads.argtypes = (Pointer, Pointer, Pointer)
    library.specbench_threads.restype = None
    everything = ctypes.CDLL(None)
    if all(hasattr(everything, name) for name in OPENMP):
        library.specbench_threads(*(ctypes.cast(getattr(everything, name), Pointer) for name in OPENMP))
    return library
