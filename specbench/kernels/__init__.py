"""Kernels for decoding on an x86-64 CPU, in C++: products of a few rows with a matrix, and whole decoder layers.

The sources beside this file are compiled when they are first needed, with the C++ compiler of the machine, and kept in the
user's cache folder. One library serves all sets of instructions; the processor's flags select one of them when it is
loaded. Without a compiler, or on another processor, models use torch's own products, which are slower.

`rule()` names which kernels compute matrix products on this machine. It depends on the processor's flags, on whether there
is a compiler, and on SPECBENCH_KERNELS, never on a timing or a time limit, so that token ids are reproducible. All sets of
instructions give the same bits.
"""

import ctypes
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from specbench.errors import ConfigError
from specbench.kernels.library_folder import LibraryFolder, NoLibrary

SOURCES = ("cpu.cpp", "products.inc", "bytes.inc", "layers.inc")
LEVELS = ("avx512", "avx2")  # sets of instructions, the fastest first
TORCH = "torch"  # the rule without these kernels
SELECT = "SPECBENCH_KERNELS"  # environment variable: a level, or `torch`
_SECONDS: list[float] = []  # durations of compilations that were not reported yet
OPENMP = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")

Pointer = ctypes.c_void_p
Long = ctypes.c_int64


class MatrixStruct(ctypes.Structure):
    """`Matrix` of cpu.cpp."""

    _fields_ = (
        *((name, Pointer) for name in ("panels", "bias", "scale", "zero")),
        *((name, Long) for name in ("inputs", "outputs", "group", "bits", "scales", "block")),
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
    sources = Path(__file__).parent
    try:
        place = LibraryFolder(folder, sources, SOURCES)
        if reason := place.distrusted:
            return Missing(reason, "correct its owner and mode, or set XDG_CACHE_HOME")
        if place.has_library:
            with suppress(OSError, AttributeError):  # a damaged file is compiled again
                return _loaded(place.path)
        begin = time.perf_counter()
        place.compile()
        _SECONDS.append(time.perf_counter() - begin)
        if not place.has_library:
            return Missing(
                f"{place.path} is incomplete after it was compiled", "free disk space, or set XDG_CACHE_HOME"
            )
    except NoLibrary as error:
        return Missing(error.reason, error.help)
    except OSError:
        return None
    try:
        return _loaded(place.path)
    except (OSError, AttributeError) as error:  # such as a folder from which nothing may be executed
        return Missing(f"{place.path} cannot be loaded: {error}", "set XDG_CACHE_HOME")


def _folders() -> Sequence[Path]:
    """Return the folders that compiled kernels may be in: the user's cache, and a temporary one of this user."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        caches = [Path(base) if base else Path.home() / ".cache"]
    except RuntimeError:  # no home
        caches = []
    return [
        *(place / "specbench" / "kernels" for place in caches),
        Path(tempfile.gettempdir()) / f"specbench-kernels-{os.getuid()}",
    ]


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
