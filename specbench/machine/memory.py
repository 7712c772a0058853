"""Memory: its measured bandwidth, huge pages of weights on Linux, and freed memory that goes back to the system."""

import ctypes
import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

PAGE = 1 << 21  # bytes of a huge page
MADV_COLLAPSE = 25  # Linux 6.1; it works whatever the system's setting for transparent huge pages is
BLOCK = {"cuda": 4 << 30, "cpu": 1 << 27}  # bytes per device, more than a cache holds
COLUMNS = 4096  # of the matrix that a block is read as
REPETITIONS = 6  # of each kernel
WARMED = 0.5  # seconds of work until a GPU's clocks have risen


def use_huge_pages(address: int, size: int) -> None:
    """Move the whole huge pages within `size` bytes at an address to huge pages, in place.

    They take a tenth to a third off forwards that read more memory than the caches hold. Does nothing on a system that
    has none, and for memory that cannot move.
    """
    first, end = -(-address // PAGE) * PAGE, (address + size) // PAGE * PAGE
    if end > first and sys.platform == "linux":
        _libc().madvise(first, end - first, MADV_COLLAPSE)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Keep Python's garbage collector from running in a timed block: one full collection takes up to 0.3 s."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


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
    """Return the bytes per second, read and written, of a plain copy of a block that no cache holds.

    The best of REPETITIONS copies. A GPU is warmed up first, and timed by its own events.
    """
    block = _block(device)
    copy = torch.empty_like(block)
    return 2 * block.nbytes / _least_seconds(device, [lambda: copy.copy_(block)])


def read_bandwidth(device: str) -> float:
    """Return the bytes per second of only reading a block that no cache holds: the most that reading weights can reach.

    The best of REPETITIONS runs of several kernels that read each byte once, with torch's current number of threads. On a CPU
    the block is on huge pages, as weights are.
    """
    block = _block(device)
    if device == "cpu":
        use_huge_pages(block.data_ptr(), block.nbytes)
    numbers = block.view(torch.float32)  # (n,)
    matrix, (one, other) = numbers.view(-1, COLUMNS), numbers.chunk(2)  # (n / COLUMNS, COLUMNS), (n / 2,) each
    vector = torch.ones(COLUMNS, device=device)
    kernels: list[Callable[[], Tensor]] = [lambda: matrix.mv(vector), lambda: one.dot(other), numbers.sum]
    return block.nbytes / _least_seconds(device, kernels)


def _block(device: str) -> Tensor:
    """Return a block of zeros, (bytes,), of whole huge pages, that no cache holds."""
    size = BLOCK[device]
    if device == "cuda":
        size = min(size, torch.cuda.mem_get_info()[0] // 4) // PAGE * PAGE
    return torch.empty(size, dtype=torch.uint8, device=device).zero_()


def _least_seconds(device: str, kernels: Sequence[Callable[[], Tensor]]) -> float:
    """Return the seconds of the fastest of REPETITIONS runs of each kernel."""
    until = time.perf_counter() + (WARMED if device == "cuda" else 0.0)
    while time.perf_counter() < until:
        _seconds(device, kernels[0])
    return min(_seconds(device, kernel) for kernel in kernels for _ in range(REPETITIONS))


def _seconds(device: str, kernel: Callable[[], Tensor]) -> float:
    if device != "cuda":
        begin = time.perf_counter()
        kernel()
        return time.perf_counter() - begin
    cuda: Any = torch.cuda
    start, end = (cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    kernel()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3
