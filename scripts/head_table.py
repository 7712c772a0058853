"""Compare heads that draft with a draft model and prompt lookup, at the costs of a 7B model. Run by `make head-table`."""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import specbench
from specbench.analysis.intervals import Estimate, by_prompt, interval_of_ratio, interval_of_sums
from specbench.analysis.method_records import Records, complete, paired, seconds
from specbench.analysis.number_format import HUNDREDTHS, TIMES
from specbench.analysis.run_summary import RunSummary
from specbench.analysis.summary import summary_of
from specbench.config.options import Options
from specbench.config.pair import Pair
from specbench.config.pair import folder as folder_of
from specbench.files import write
from specbench.models.heads.head import provenance_in
from specbench.reporting.formats.writers import markdown_table
from specbench.reporting.tables import Table
from specbench.resolution.selection import read_pair
from specbench.runs.run_folder import load

PAGE = Path("results/heads.md")
PAIR, TASKS, TOKENS = "tiny-7b", ("gsm8k", "cnndm", "wmt"), 64
METHODS = ("eagle", "eagle3", "dflash", "dspark", "sd", "pld")
BASELINE = "ar"
POSITIONS = 5  # of a draft, whose acceptance the table has
HEADINGS = ["method", "draft", "tokens/round", *(f"position {i + 1}" for i in range(POSITIONS)), "speedup over ar"]


class Row(NamedTuple):
    """What was measured of a method: tokens per round, the acceptance of each position that was tested, and the speedup."""

    draft: str
    tokens: Estimate
    positions: list[Estimate]
    speedup: Estimate


Rows = dict[str, Row]  # by method
Check = Callable[[Rows], bool]
HEADS = ("eagle", "eagle3", "dflash", "dspark")


class Expectation(NamedTuple):
    """A sentence that was written before the measurement, and whether rows agree with it."""

    says: str
    holds: Check


def later(rows: Rows, method: str) -> list[float]:
    """Return the acceptance of a method's positions after the first."""
    return [rate.value for rate in rows[method].positions[1:]]


EXPECTED = (
    Expectation(
        "EAGLE-1 accepts most at the first position, since it was trained on the base's features",
        lambda rows: max(HEADS, key=lambda head: rows[head].positions[0].value) == "eagle",
    ),
    Expectation(
        "DSpark accepts at least as much as DFlash at positions after the first",
        lambda rows: all(x >= y for x, y in zip(later(rows, "dspark"), later(rows, "dflash"), strict=False)),
    ),
    Expectation(
        "every head is faster than `ar`, since it reads a twentieth of the target's weights",
        lambda rows: all((rows[head].speedup.low or 0.0) > 1.0 for head in HEADS),
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare heads that draft.")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("build/head-table"))
    parser.add_argument("--out", type=Path, default=PAGE)
    args = parser.parse_args()
    tables, measured, folders = [], dict[float, Rows](), list[Path]()
    for temperature in (0.0, 1.0):
        result = specbench.run(
            list(METHODS), PAIR, list(TASKS), out=args.runs, limit=args.prompts, repeats=args.repeats,
            temperature=temperature, max_new_tokens=TOKENS,
        )  # fmt: skip
        folders = list(result.folders)
        measured[temperature] = rows = rows_of(folders)
        tables += [f"T = {temperature:g}:", "", markdown_table(table(rows)), ""]
    training = trained(read_pair(PAIR, Options())[1])
    write(args.out, page(tables, outcomes(EXPECTED, measured), folders[0], training))


def rows_of(folders: Sequence[Path]) -> Rows:
    """Return what was measured of each method, over the runs of all tasks together."""
    records = [(summary_of(folder), load(folder).records) for folder in folders]
    return {method: row_of(method, records) for method in METHODS}


def row_of(method: str, records: Sequence[tuple[RunSummary, Records]]) -> Row:
    """Return what was measured of a method."""
    rounds = [
        (f"{summary.task}/{row.prompt}", entry)
        for summary, rows in records
        for row in complete(rows, method)
        for entry in row.rounds
    ]
    tested = [
        [(int(entry.accepted > i), 1, prompt) for prompt, entry in rounds if entry.tested > i] for i in range(POSITIONS)
    ]
    times = [
        (seconds(row), len(row.tokens), len(base.tokens), seconds(base), f"{summary.task}/{row.prompt}")
        for summary, rows in records
        for row, base in zip(*paired(complete(rows, method), complete(rows, BASELINE)), strict=True)
    ]
    speedup = interval_of_ratio(
        by_prompt(times), lambda sums: sums[..., 3] / sums[..., 2] * sums[..., 1] / sums[..., 0]
    )
    draft = records[0][0].spec.methods[method].traits.draft_length
    return Row(
        draft,
        share((entry.tokens, 1, prompt) for prompt, entry in rounds),
        [within_one(share(each)) for each in tested if each],
        speedup,
    )


def table(rows: Rows) -> Table:
    """Return rows as a table."""
    cells = [
        [
            f"`{method}`", row.draft, HUNDREDTHS.text(row.tokens), *map(HUNDREDTHS.text, row.positions),
            *["–"] * (POSITIONS - len(row.positions)), TIMES.text(row.speedup),
        ]
        for method, row in rows.items()
    ]  # fmt: skip
    return Table("", HEADINGS, cells)


def outcomes(expected: Iterable[Expectation], measured: Mapping[float, Rows]) -> list[str]:
    """Return a line for each expectation, with the temperatures at which it holds and does not."""
    lines = []
    for says, holds in expected:
        found = {temperature: holds(rows) for temperature, rows in measured.items()}
        parts = [
            f"{word} at {' and '.join(f'T = {temperature:g}' for temperature, held in found.items() if held is value)}"
            for word, value in (("holds", True), ("**contradicted**", False))
            if value in found.values()
        ]
        lines.append(f"- {says[0].upper()}{says[1:]}: {', '.join(parts)}.")
    return lines


def share(rows: Iterable[tuple[int, int, str]]) -> Estimate:
    """Return the sum of the first numbers over that of the second, with its interval over prompts."""
    return interval_of_sums(by_prompt(rows), lambda sums: sums[..., 0] / sums[..., 1])


def within_one(rate: Estimate) -> Estimate:
    """Return a rate with its interval cut at 0 and 1."""
    if rate.low is None or rate.high is None:
        return rate
    return Estimate(rate.value, max(rate.low, 0.0), min(rate.high, 1.0))


def trained(pair: Pair) -> str:
    """Return a table of the training of the pair's heads."""
    rows = []
    for kind in (name for name in METHODS if name in pair.heads):
        found = provenance_in(folder_of(pair.heads[kind].path, Path()) or Path())
        cells = (found.report.get(key) for key in ("train_texts", "steps", "epochs"))
        rows.append([f"`{kind}`", *(f"{cell:,.0f}" if isinstance(cell, int | float) else "–" for cell in cells)])
    return markdown_table(Table("", ["head", "training texts", "steps", "epochs"], rows))


def page(tables: Sequence[str], found: Sequence[str], folder: Path, training: str) -> str:
    """Return the results as Markdown."""
    summary = summary_of(folder)
    environment, repeats = summary.environment, summary.decoding.repeats
    threads = f"{environment['threads']} thread{'s' if environment['threads'] > 1 else ''}"
    revision = environment["git"].get("revision", "unknown")[:9]
    lines, outcome = "\n".join(tables), "\n".join(found)
    return f"""# Heads that draft, on a CPU

Heads beside a draft model and prompt lookup, on the pair `{PAIR}`: a target of 3.3 million parameters. Unused neurons
give the target and its heads the cost ratios of Llama-2-7B and its heads. Measured by `make head-table` on synthetic
data: {summary.data.samples} prompts of each task ({", ".join(TASKS)}) x {repeats} repeat{"s" if repeats > 1 else ""}, at
most {TOKENS} tokens, on {environment["cpu"]}, {threads}, at revision {revision}. All methods and the baseline are
interleaved, on the lean engine in float32. Speedups are of decoding time per token, over all prompts together. Intervals
are 95 % intervals over prompts. *Position i* is the acceptance rate of the i-th drafted token, given that those before it
were accepted.

Expectations, written before the measurement, with outcomes:

{outcome}

{lines}
{training}
"""


if __name__ == "__main__":
    main()
