"""Compare heads that draft with a draft model and prompt lookup. Run by `make head-table`."""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

import specbench
from specbench.analysis.intervals import Estimate, by_prompt, interval_of_ratio, interval_of_sums
from specbench.analysis.run_metrics import Records, complete, paired, seconds
from specbench.analysis.run_summary import RunSummary
from specbench.analysis.summary import summary_of
from specbench.config.options import Options
from specbench.config.pair import Pair
from specbench.config.pair import folder as folder_of
from specbench.files import write
from specbench.models.heads.head import provenance_in
from specbench.reporting.column import HUNDREDTHS, TIMES
from specbench.reporting.formats.writers import markdown_table
from specbench.reporting.tables import Table
from specbench.resolution.selection import read_pair
from specbench.runs.run_folder import load

PAGE = Path("results/heads.md")
METHODS = ("eagle", "eagle3", "dflash", "dspark", "sd", "pld")
TASKS = ("gsm8k", "humaneval", "mmlu", "cnndm", "xsum", "wmt")
BASELINE = "ar"
POSITIONS = 5  # of a draft, whose acceptance the table has
HEADINGS = ["method", "draft", "tokens/round", *(f"position {i + 1}" for i in range(POSITIONS)), "speedup over ar"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare heads that draft.")
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--pair", default="tiny")
    parser.add_argument("--runs", type=Path, default=Path("build/head-table"))
    parser.add_argument("--out", type=Path, default=PAGE)
    args = parser.parse_args()
    pair = read_pair(args.pair, Options())[1]
    sections, folders = [], list[Path]()
    for temperature in (0.0, 1.0):
        result = specbench.run(
            list(METHODS), args.pair, list(TASKS), out=args.runs, limit=args.prompts, repeats=args.repeats,
            temperature=temperature, max_new_tokens=96,
        )  # fmt: skip
        folders = list(result.folders)
        sections += [f"T = {temperature:g}:", "", markdown_table(table(folders)), ""]
    write(args.out, page(sections, folders[0], trained(pair), args))


def table(folders: Sequence[Path]) -> Table:
    """Return the table of the runs of all tasks together."""
    records = [(summary_of(folder), load(folder).records) for folder in folders]
    return Table("", HEADINGS, [row_of(method, records) for method in METHODS])


def row_of(method: str, records: Sequence[tuple[RunSummary, Records]]) -> list[str]:
    """Return the cells of a method."""
    rounds = [
        (f"{summary.task}/{row.prompt}", entry)
        for summary, rows in records
        for row in complete(rows, method)
        for entry in row.rounds
    ]
    cells = [HUNDREDTHS.text(share((entry.tokens, 1, prompt) for prompt, entry in rounds))]
    for i in range(POSITIONS):
        tested = [(int(entry.accepted > i), 1, prompt) for prompt, entry in rounds if entry.tested > i]
        cells.append(HUNDREDTHS.text(share(tested)) if tested else "–")
    times = [
        (seconds(row), len(row.tokens), len(base.tokens), seconds(base), f"{summary.task}/{row.prompt}")
        for summary, rows in records
        for row, base in zip(*paired(complete(rows, method), complete(rows, BASELINE)), strict=True)
    ]
    speedup = interval_of_ratio(
        by_prompt(times), lambda sums: sums[..., 3] / sums[..., 2] * sums[..., 1] / sums[..., 0]
    )
    return [f"`{method}`", records[0][0].spec.methods[method].traits.draft_length, *cells, TIMES.text(speedup)]


def share(rows: Iterable[tuple[int, int, str]]) -> Estimate:
    """Return the sum of the first numbers over that of the second, with its interval over prompts."""
    return interval_of_sums(by_prompt(rows), lambda sums: sums[..., 0] / sums[..., 1])


def trained(pair: Pair) -> str:
    """Return a table of the training of the pair's heads."""
    rows = []
    for kind in (name for name in METHODS if name in pair.heads):
        found = provenance_in(folder_of(pair.heads[kind].path, Path()) or Path())
        cells = (found.report.get(key) for key in ("train_texts", "steps", "epochs"))
        rows.append([f"`{kind}`", *(f"{cell:,.0f}" if isinstance(cell, int | float) else "–" for cell in cells)])
    return markdown_table(Table("", ["head", "training texts", "steps", "epochs"], rows))


def page(sections: Sequence[str], folder: Path, training: str, args: argparse.Namespace) -> str:
    """Return the results as Markdown."""
    environment, tables = summary_of(folder).environment, "\n".join(sections)
    threads = f"{environment['threads']} thread{'s' if environment['threads'] > 1 else ''}"
    revision = environment["git"].get("revision", "unknown")[:9]
    return f"""# Heads that draft, on a CPU

`make head-table` measured these methods on the pair `{args.pair}`: {args.prompts} prompts of each of {len(TASKS)} synthetic
tasks x {args.repeats} repeats, all methods and the baseline interleaved, lean engine, float32, on {environment["cpu"]},
{threads}, at revision {revision}. The model has 3.3 million parameters, so the page shows what a head costs next to a small
target, not what it gains on a large one. Speedups are of decoding time per token, over all prompts together. Intervals are
95 % intervals over prompts. *Position i* is the acceptance rate of the i-th drafted token, given that those before it were
accepted.

Written before the measurement: EAGLE-1 accepts most at the first position, since it was trained on the base's features;
DSpark accepts at least as much as DFlash at positions after the first; and no head is faster than `ar`, since one of its
layers in PyTorch's operators takes about as long as the target's seven in C++.

{tables}
{training}
"""


if __name__ == "__main__":
    main()
