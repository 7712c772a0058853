"""Memory of weights on Linux: huge pages, and freed memory that goes back to the system."""

import ctypes
import sys
from functools import cache
from typing import Any

PAGE = 1 << 21  # bytes of a huge page
MADV_COLLAPSE = 25  # Linux 6.1; it works whatever the system's setting for transparent huge pages is


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
