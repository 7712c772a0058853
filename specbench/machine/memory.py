"""Memory: its measured bandwidth, huge pages of weights on Linux, and freed memory that goes back to the system."""

import ctypes
import sys
import time
from functools import cache
from typing import Any

import torch

PAGE = 1 << 21  # bytes of a huge page
MADV_COLLAPSE = 25  # Linux 6.1; it works whatever the system's setting for transparent huge pages is
COPIED = {"cuda": 4 << 30, "cpu": 1 << 27}  # bytes per device, more than a cache holds
COPIES = 6
WARMED = 0.5  # seconds of copies until a GPU's clocks have risen


def use_huge_pages(address: int, size: int) -> None:
    """Move the whole huge pages within `size` bytes at an address to huge pages, in place.

    They take a tenth to a third off forwards that read more memory than the caches hold. Does nothing on a system that
    has none, and for memory that cannot move.
    """
    first, end = -(-address // PAGE) * PAGE, (address + size) // PAGE * PAGE
    if end > first and sys.platform == "linux":
        _libc().madvise(first, end - first, MADV_COLLAPSE)


def return_freed_memory() -> None:
    """Return memory that was freed in pieces to the system, which glibc would keep."""
    if sys.platform == "linux" and hasattr(_libc(), "malloc_trim"):
        _libc().malloc_trim(0)


@cache
def _libc() -> Any:
    """Return the C library, with the types of `madvise`, whose addresses do not fit an int."""
    library = ctypes.CDLL(None)
    library.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return library


def copy_bandwidth(device: str) -> float:
    """Return the bytes per second, read and written, of a plain copy: the memory bandwidth available to reading weights.

    The best of COPIES copies of a block that no cache holds. A GPU is warmed up first, and timed by its own events.
    """
    size = COPIED[device]
    if device == "cuda":
        size = min(size, torch.cuda.mem_get_info()[0] // 4)
    block = torch.empty(size, dtype=torch.uint8, device=device).zero_()
    copy = torch.empty_like(block)

    def seconds() -> float:
        if device != "cuda":
            begin = time.perf_counter()
            copy.copy_(block)
            return time.perf_counter() - begin
        cuda: Any = torch.cuda
        start, end = (cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        copy.copy_(block)
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    until = time.perf_counter() + (WARMED if device == "cuda" else 0.0)
    while time.perf_counter() < until:
        seconds()
    return 2 * size / min(seconds() for _ in range(COPIES))
