"""Huge pages, and memory that goes back to the system."""

import re
from pathlib import Path

import pytest
import torch

from specbench.machine.memory import PAGE, return_freed_memory, use_huge_pages

SMAPS = Path("/proc/self/smaps")


def huge_bytes(address: int) -> int:
    """Return the bytes on huge pages of the mapping that contains an address."""
    inside = False
    for line in SMAPS.read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= address < int(found[2], 16)
        elif inside and line.startswith("AnonHugePages"):
            return 1024 * int(line.split()[1])
    raise AssertionError("no mapping contains the address")


def test_contents_stay_and_the_memory_moves():
    """Of ten tensors, since the kernel gives small pages where no huge one is free."""
    kept, most = [], 0
    for _ in range(10):
        weights = torch.arange(4 * PAGE // 4, dtype=torch.float32)
        before = weights.clone()
        use_huge_pages(weights.data_ptr(), weights.nbytes)
        assert torch.equal(weights, before)
        if not SMAPS.exists():
            pytest.skip("needs Linux")
        kept.append(weights)
        most = max(most, huge_bytes(weights.data_ptr() + 2 * PAGE))
        if most >= 3 * PAGE:
            break
    if not most:
        pytest.skip("needs Linux 6.1 with transparent huge pages")
    assert most >= 3 * PAGE


@pytest.mark.parametrize("size", [0, 1, PAGE - 1])
def test_memory_below_one_page_stays(size):
    use_huge_pages(PAGE + 1, size)  # an address that is not mapped


def test_freed_memory_goes_back():
    """Blocks of 64 KiB, of which every other one is freed: glibc alone would keep them."""
    blocks = [torch.ones(1 << 14) for _ in range(2048)]
    before = resident()
    del blocks[::2]
    return_freed_memory()
    if before - resident() < 1 << 24:
        pytest.skip("needs glibc, with blocks of this size on its heap")
    assert all(bool((block == 1).all()) for block in blocks)


def resident() -> int:
    """Return the bytes of anonymous memory of this process."""
    if not SMAPS.exists():
        pytest.skip("needs Linux")
    found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found
    return 1024 * int(found[1])
