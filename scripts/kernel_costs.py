"""Measure products of a few rows by every kernel of this machine, part of `make bench`: writes results/kernels.md.

Decoding on a CPU is as fast as its products read their matrices. Each row of the table is a shape, a dtype and a number of
rows; each cell is the weights' bytes per second. Kernels alternate in one process, over so many matrices that no cache holds
them. The page says where the built-in rule, `specbench.kernels.rule()`, loses more than 5 % to another kernel.
"""

import argparse
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from scripts.sections import environment, processor, write_section
from specbench import kernels
from specbench.machine.memory import read_bandwidth, use_huge_pages
from specbench.models.panel_codes import Codes, CodesProduct, PanelCodes
from specbench.models.products import PANELED, KernelProduct, Panels

OUT = Path("results/kernels.md")
SHAPES = (  # (out, in)
    (576, 192), (192, 512), (1024, 512), (2560, 768), (768, 2048), (16000, 1536), (20000, 192), (192, 20000),
)  # fmt: skip
FORMS = {  # bits, inputs that share a scale (0: all), dtype of the scales, inputs that are rounded together (0: none)
    "int8": (8, 0, torch.float32, 0),
    "int4": (4, 128, torch.bfloat16, 0),
    "int8-a8": (8, 0, torch.float32, 128),
    "int4-a8": (4, 128, torch.bfloat16, 128),
    "Q8_0": (8, 32, torch.float16, 32),
    "Q4_0": (4, 32, torch.float16, 32),
}
ROWS = (1, 2, 4, 5, 8, 16)
BYTES = 200 << 20  # of the matrices that one measurement reads
CODED = 3  # times as many matrices, whose codes no cache holds either
REPEATS = 7
PADDED = 4  # rows that smaller blocks are filled up to, for oneDNN
LOSS = 0.05  # share of its speed at which the rule is said to lose
INTRODUCTION = [
    "# Products of a few rows on a CPU",
    "",
    "GB/s of weights: the bytes of a matrix (out, in) over the time of its product with a number of rows; the median of "
    f"{REPEATS - 1} passes over {BYTES >> 20} MB of matrices, which no cache holds. The kernels alternate in one process. "
    "*mm* is `torch.mm` with the matrix transposed, (in, out), *mm, (out, in)* with the matrix as it is loaded, *mv* "
    "`torch.mv` with it, *oneDNN* the packed product of oneDNN, and *padded* the same with blocks filled up to "
    f"{PADDED} rows. `avx512` and `avx2` are those of `specbench/kernels/`. A dash means not applicable. "
    "Tables of codes have the time of a product with quantized weights over that in float32, by the rule's kernel, on "
    f"{CODED} times as many matrices. *Q8_0* and *Q4_0* have the groups and the scales of these types of GGUF, with inputs "
    "rounded to 8 bits. Made by `make bench`, with one section per processor.",
]
_onednn: Any = torch.ops.mkldnn
Run = Callable[[], object]


class Speed(NamedTuple):
    """The speeds of one product by kernel, in bytes of weights per second."""

    dtype: str
    shape: tuple[int, int]
    rows: int
    threads: int
    of: dict[str, float]


@dataclass(frozen=True)
class Matrices:
    """Matrices of one shape (out, in), in every layout."""

    plain: list[Tensor]
    transposed: list[Tensor]
    panels: dict[str, list[Panels]]
    onednn: list[Tensor]

    def runs(self, x: Tensor) -> dict[str, Run]:
        """Return the products with x (n, in) by every kernel that has them."""
        n, padded = len(x), torch.cat([x, x.new_zeros(max(0, PADDED - len(x)), x.shape[1])])
        runs: dict[str, Run] = {name: partial(_all, products, x) for name, products in self.panels.items()}
        runs["mm"] = lambda: [torch.mm(x, matrix) for matrix in self.transposed]
        runs["mm, (out, in)"] = lambda: [torch.mm(x, matrix.t()) for matrix in self.plain]
        if n == 1:
            runs["mv"] = lambda: [torch.mv(matrix, x[0]) for matrix in self.plain]
        if self.onednn:
            runs["oneDNN"] = lambda: [_packed_product(x, matrix) for matrix in self.onednn]
        if self.onednn and n < PADDED:
            runs["padded"] = lambda: [_packed_product(padded, matrix) for matrix in self.onednn]
        return runs


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure products of a few rows by every kernel of this machine.")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"])
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    lines: list[str] = []
    for threads in args.threads:  # a process each: the number of threads is fixed before the first product
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            lines += pool.apply(part, (threads, args.dtypes))
    lines.append(environment())
    write_section(args.out, processor(), lines, INTRODUCTION)
    print("\n".join(lines))


def part(threads: int, dtypes: Sequence[str]) -> list[str]:
    """Return the lines on one number of threads."""
    torch.set_num_threads(threads)
    with torch.inference_mode():
        bandwidth = read_bandwidth("cpu")
        speeds = [speed for dtype in dtypes for shape in SHAPES for speed in measured(shape, dtype, threads)]
        ratios = [row for shape in SHAPES for row in code_rows(shape)] if kernels.kernels() else []
    return [*table(speeds, bandwidth), "", *losses(speeds), "", *code_table(ratios, threads), ""]


def measured(shape: tuple[int, int], dtype: str, threads: int) -> list[Speed]:
    """Return the speeds of products with matrices of one shape."""
    matrices, found = make(shape, getattr(torch, dtype)), []
    size = sum(matrix.nbytes for matrix in matrices.plain)
    for rows in ROWS:
        runs = matrices.runs(torch.randn(rows, shape[1]).to(getattr(torch, dtype)))
        times: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(REPEATS):
            for name, run in runs.items():
                begin = time.perf_counter()
                run()
                times[name].append(time.perf_counter() - begin)
        found.append(
            Speed(
                dtype, shape, rows, threads, {name: size / float(np.median(each[1:])) for name, each in times.items()}
            )
        )
    return found


class CodeRow(NamedTuple):
    """The times of products with codes over those in float32, by form."""

    shape: tuple[int, int]
    rows: int
    ratios: dict[str, float]


def code_rows(shape: tuple[int, int]) -> list[CodeRow]:
    """Return the times of products with quantized matrices of one shape, over those in float32. All forms alternate."""
    found = kernels.kernels()
    assert found is not None
    count = max(1, CODED * BYTES // (4 * shape[0] * shape[1]))
    products: dict[str, list[KernelProduct]] = {
        "float32": [Panels(found, torch.randn(shape)) for _ in range(count)],
        **{name: [coded(shape, name) for _ in range(count)] for name in FORMS},
    }
    rows = []
    for n in ROWS:
        x, times = torch.randn(n, shape[1]), {name: list[float]() for name in products}
        for _ in range(REPEATS):
            for name, each in products.items():
                begin = time.perf_counter()
                for product in each:
                    product.multiply(x, None)
                times[name].append(time.perf_counter() - begin)
        middle = {name: float(np.median(each[1:])) for name, each in times.items()}
        rows.append(CodeRow(shape, n, {name: middle[name] / middle["float32"] for name in FORMS}))
    return rows


def coded(shape: tuple[int, int], form: str) -> KernelProduct:
    """Return a product with a random quantized matrix."""
    (bits, group, dtype, block), (outputs, inputs) = FORMS[form], shape
    group = next((size for size in (group, 64, 32) if inputs % size == 0), inputs) if group else inputs
    block = next(size for size in (block, 64, 32) if group % size == 0) if block else 0
    codes = torch.randint(0, 256, shape, dtype=torch.uint8)
    codes = codes.view(torch.int8).clamp(-127) if bits == 8 else codes & 15
    scale = torch.rand(outputs, inputs // group).to(dtype)
    zero = scale.clone() if form.startswith("int4") else None
    found = kernels.kernels()
    assert found is not None
    layer = torch.nn.Linear(inputs, 1, bias=False)  # only its bias is read
    return CodesProduct([PanelCodes(layer, found.width, Codes(bits, codes, scale, zero), block)], None)


def code_table(rows: Sequence[CodeRow], threads: int) -> list[str]:
    """Return the lines of a Markdown table; none without kernels."""
    if not rows:
        return []
    count = "one thread" if threads == 1 else f"{threads} threads"
    return [
        f"Codes over float32, {count}:",
        "",
        f"| out x in | rows | {' | '.join(FORMS)} |",
        "| :-- | --: |" + " --: |" * len(FORMS),
        *(
            f"| {row.shape[0]} x {row.shape[1]} | {row.rows} | {' | '.join(f'{each:.2f}' for each in row.ratios.values())} |"
            for row in rows
        ),
    ]


def make(shape: tuple[int, int], dtype: torch.dtype) -> Matrices:
    """Return random matrices of a shape (out, in), in every layout that this machine has, on huge pages."""
    count = max(1, BYTES // (shape[0] * shape[1] * dtype.itemsize))
    plain = [torch.randn(shape).to(dtype) for _ in range(count)]
    transposed = [matrix.t().contiguous() for matrix in plain]
    for matrix in (*plain, *transposed):
        use_huge_pages(matrix.data_ptr(), matrix.nbytes)
    panels = {
        each.name: [Panels(each, matrix) for matrix in plain] for each in kernels.all_levels() if dtype in PANELED
    }
    onednn = []
    if torch._C._has_mkldnn and (dtype == torch.float32 or _onednn._is_mkldnn_bf16_supported()):
        onednn = [_onednn._reorder_linear_weight(matrix, None) for matrix in plain]
        for matrix in onednn:
            use_huge_pages(_onednn.data_ptr(matrix), _onednn._nbytes(matrix))
    return Matrices(plain, transposed, panels, onednn)


def _all(products: Sequence[Panels], x: Tensor) -> list[Tensor]:
    return [product(x) for product in products]


def _packed_product(x: Tensor, matrix: Tensor) -> Tensor:
    out: Tensor = _onednn._linear_pointwise(x, matrix, None, "none", [], "")
    return out


def table(speeds: Sequence[Speed], bandwidth: float) -> list[str]:
    """Return the lines of a Markdown table, the rule's kernel first."""
    names, threads = list(dict.fromkeys(name for speed in speeds for name in speed.of)), speeds[0].threads
    count = "one thread" if threads == 1 else f"{threads} threads"
    return [
        f"With {count}, a read bandwidth of {bandwidth / 1e9:.1f} GB/s, and the rule `{kernels.rule()}`:",
        "",
        f"| dtype | out x in | rows | {' | '.join(names)} |",
        "| :-- | :-- | --: |" + " --: |" * len(names),
        *(
            f"| {speed.dtype} | {speed.shape[0]} x {speed.shape[1]} | {speed.rows} |"
            f" {' | '.join(_cell(speed.of, name) for name in names)} |"
            for speed in speeds
        ),
    ]


def _cell(of: Mapping[str, float], name: str) -> str:
    return f"{of[name] / 1e9:.1f}" if name in of else "–"


def losses(speeds: Sequence[Speed]) -> list[str]:
    """Return where the built-in rule is slower than another kernel by more than LOSS."""
    rule = kernels.rule() if kernels.kernels() else "mm"
    lost = []
    for speed in speeds:
        best = max(speed.of, key=lambda name: speed.of[name])
        share = speed.of[rule] / speed.of[best]
        if share < 1.0 - LOSS:
            case = f"{speed.dtype}, {speed.shape[0]} x {speed.shape[1]}, {speed.rows} rows"
            lost.append(f"- {case}: {share:.0%} of {best}")
    where = "nowhere." if not lost else "here:"
    return [f"The rule loses more than {LOSS:.0%} {where}", *(["", *lost] if lost else [])]


if __name__ == "__main__":
    main()
