"""The machine code of the kernels: how many instructions a multiplication takes in the innermost loops.

A compiler once made scalar code of a conversion of vectors. Quantized products took ten times as long, and no bit changed.
Times depend on the machine, so instructions are counted.
"""

import re
import shutil
import subprocess
from functools import cache

import pytest

from specbench import kernels
from specbench.kernels import all_levels

MULTIPLY = re.compile(r"vfmadd\d+ps|vpdpbusd|vpmaddubsw")
MOST = {
    "32": 4.5,
    "16": 5.5,
    "8": 5.0,
    "4": 6.5,
    "bytes 8": 10.0,
    "bytes 4": 7.0,
}  # instructions for each multiplication
FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$")
LINE = re.compile(r"^\s*([0-9a-f]+):\t(\S+)\s*(.*)")
STORE = re.compile(r"%[yz]mm\d+,[^,]*\(")  # operands of a vector's store

pytestmark = pytest.mark.skipif(
    kernels.kernels() is None or shutil.which("objdump") is None, reason="no kernels on this machine, or no objdump"
)


@cache
def functions() -> dict[str, list[tuple[int, str, str]]]:
    """Return the instructions of every function: address, name and operands."""
    path = all_levels()[0].library._name
    text = subprocess.run(
        ["objdump", "-d", "-C", "--no-show-raw-insn", path], capture_output=True, text=True, check=True
    ).stdout
    found: dict[str, list[tuple[int, str, str]]] = {}
    for line in text.splitlines():
        if head := FUNCTION.match(line):
            now = found.setdefault(head[1], [])
        elif each := LINE.match(line):
            now.append((int(each[1], 16), each[2], each[3]))
    return found


def inner_loop(code: list[tuple[int, str, str]]) -> tuple[float, list[str]]:
    """Return the instructions for each multiplication in the loop over inputs, and the operands of its vector stores.

    Of the innermost loops it has the fewest instructions for each multiplication; loops over groups have more.
    """
    loops = []
    for at, (address, name, operands) in enumerate(code):
        target = operands.partition(" ")[0]
        if name.startswith("j") and re.fullmatch(r"[0-9a-f]+", target) and code[0][0] <= int(target, 16) <= address:
            loops.append((next(i for i, each in enumerate(code) if each[0] >= int(target, 16)), at))
    inner = [
        one for one in loops if not any(other != one and one[0] <= other[0] and other[1] <= one[1] for other in loops)
    ]
    found = []
    for begin, end in inner:
        body = code[begin : end + 1]
        multiplications = sum(bool(MULTIPLY.match(name)) for _, name, _ in body)
        if multiplications:
            found.append((len(body) / multiplications, [to for _, _, to in body if STORE.match(to)]))
    return min(found)


def kind_of(name: str) -> tuple[str, int] | None:
    """Return the form of the weights and the number of rows of a kernel; None for another function."""
    if found := re.search(r"(?:plain|vnni)::multiply_panels<(\d), (\d)>", name):
        return f"bytes {found[2]}", int(found[1])
    if found := re.search(r"multiply_panels<(\d), (\d), (\d+), \w+( short)?>", name):
        return found[3], int(found[1])
    return None


@pytest.mark.parametrize("rows", [1, 2, 5, 6, 8])
@pytest.mark.parametrize("form", MOST)
def test_a_multiplication_takes_few_instructions_and_most_sums_stay_in_registers(form, rows):
    kernels_of_form = {name: code for name, code in functions().items() if kind_of(name) == (form, rows)}
    assert kernels_of_form, "the names of the functions have changed"
    for name, code in kernels_of_form.items():
        instructions, stores = inner_loop(code)
        assert instructions <= MOST[form], name
        assert len(stores) < rows, (
            name
        )  # each sum of a row is two vectors; 8-bit sums of five rows leave one register too few
