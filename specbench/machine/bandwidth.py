"""Measured memory bandwidth."""

import time
from typing import Any

import torch

COPIED = {"cuda": 4 << 30, "cpu": 1 << 27}  # bytes per device, more than a cache holds
COPIES = 6
WARMED = 0.5  # seconds of copies until a GPU's clocks have risen


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
