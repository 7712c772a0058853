"""Kernels for decoding on an x86-64 CPU, in C++: products of a few rows with a matrix, and whole decoder layers.

The sources beside this file are compiled when they are first needed, with the C++ compiler of the machine, and kept in the
user's cache folder. One library serves all sets of instructions; the processor's flags select one of them when it is
loaded. Without a compiler, or on another processor, models use torch's own products, which are slower.

`rule()` names what multiplies on this machine. It depends on the processor's flags and on whether there is a compiler,
never on a timing, so that token ids are reproducible. The outputs of all sets of instructions are equal to the bit.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SOURCES = ("cpu.cpp", "layers.inc")
LEVELS = ("avx512", "avx2")  # sets of instructions, the fastest first
TORCH = "torch"  # the rule without these kernels
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-O3", "-std=c++17", "-ffp-contract=fast", "-fno-math-errno", "-Wno-psabi", "-shared", "-fPIC")
LINKED = ("-ldl",)
SELECT = "SPECBENCH_KERNELS"  # environment variable: a level, or `torch`
SECONDS = 300  # limit of a compilation
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
        ("cache", Pointer), ("capacity", Long), ("is_half", Long),
        *((name, Pointer) for name in ("cos", "sin", "masks", "shared", "own")),
    )  # fmt: skip


@dataclass(frozen=True)
class Kernels:
    """The compiled library, for one set of instructions.

    `width` is the number of outputs per panel. `compile_seconds` is 0 if the library was in the cache.
    """

    library: ctypes.CDLL
    name: str
    level: int
    width: int
    compile_seconds: float


@dataclass(frozen=True)
class Missing:
    """Why there are no kernels on this machine, and what helps."""

    reason: str
    help: str = ""


def kernels() -> Kernels | None:
    """Return the kernels of this machine, compiled first if necessary; None if it has none."""
    found = find_kernels()
    return found if isinstance(found, Kernels) else None


def rule() -> str:
    """Return the name of what multiplies on this machine: a set of instructions, or `torch`."""
    found = kernels()
    return found.name if found else TORCH


@cache
def find_kernels() -> Kernels | Missing:
    """Return the kernels of this machine, or why there are none."""
    chosen = os.environ.get(SELECT, "")
    if chosen == TORCH:
        return Missing(f"{SELECT} = {TORCH}")
    if platform.machine() not in ("x86_64", "AMD64"):
        return Missing(f"no kernels for {platform.machine()} processors")
    begin = time.perf_counter()
    compiled = _compiled()
    if isinstance(compiled, Missing):
        return compiled
    path, is_new = compiled
    seconds = time.perf_counter() - begin if is_new else 0.0
    try:
        library = _loaded(path)
    except (OSError, AttributeError) as error:
        return Missing(f"{path} cannot be loaded: {error}", "delete it")
    for name in (chosen,) if chosen else LEVELS:
        level = library.specbench_level(name.encode())
        if level >= 0:
            return Kernels(library, name, level, library.specbench_width(level), seconds)
    return Missing(f"this processor has none of {', '.join(LEVELS)}" if not chosen else f"no kernels for {chosen} here")


def _compiled() -> tuple[Path, bool] | Missing:
    """Return the library, compiled unless it is in the cache, and whether it was compiled now."""
    compiler = _compiler()
    if compiler is None:
        return Missing("there is no C++ compiler", "install g++, for faster decoding on this CPU")
    folder = Path(__file__).parent
    digest = hashlib.sha256("\0".join((compiler, *FLAGS)).encode())
    for name in SOURCES:
        digest.update((folder / name).read_bytes())
    file = f"kernels-{digest.hexdigest()[:16]}.so"
    for place in _folders():
        if (path := place / file).exists():
            return path, False
        try:
            place.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=place) as own:  # another process may compile the same file
                if error := _compile(compiler, folder / SOURCES[0], Path(own) / file):
                    return Missing(f"{compiler} failed: {error}", "g++ 9 or newer, or clang 10 or newer, is needed")
                os.replace(Path(own) / file, path)
        except OSError:  # a folder that cannot be written
            continue
        return path, True
    return Missing("no folder for the compiled kernels can be written", "set XDG_CACHE_HOME")


def _compiler() -> str | None:
    """Return the path of the C++ compiler: $CXX, or the first of COMPILERS."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else COMPILERS
    return next((path for name in names if (path := shutil.which(name))), None)


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


def _compile(compiler: str, source: Path, to: Path) -> str:
    """Compile a source file. Returns the first line of the compiler's error; empty if there was none."""
    command = [compiler, *FLAGS, str(source), "-o", str(to), *LINKED]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"it took more than {SECONDS} s"
    lines = [line for line in done.stderr.splitlines() if "error" in line.lower()] or done.stderr.splitlines()
    return "" if done.returncode == 0 else (lines[0] if lines else f"exit code {done.returncode}")


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
