"""Compare heads that draft with a draft model and prompt lookup. Run by `make head-table`.

Each call measures one section of the page.
"""

import argparse
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

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
BASELINE = "ar"
POSITIONS = 5  # of a draft, whose acceptance the table has
HEADINGS = ["method", "draft", "tokens/round", *(f"position {i + 1}" for i in range(POSITIONS)), "speedup over ar"]
TITLE = "# Heads that draft, on a CPU"
INTRODUCTION = """Heads next to a draft model and prompt lookup. All methods and the baseline are interleaved, on the
lean engine in float32. Speedups are of decoding time per token, over all prompts together. Intervals are 95 %
intervals over prompts. *Position i* is the acceptance rate of the i-th drafted token, given that those before it were
accepted."""


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


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of the page: what is known about a pair, what is measured, and what was expected before."""

    heading: str
    about: str
    expected: tuple[Expectation, ...]
    tasks: tuple[str, ...]
    tokens: int
    prompts: int
    repeats: int


def later(rows: Rows, method: str) -> list[float]:
    """Return the acceptance of a method's positions after the first."""
    return [rate.value for rate in rows[method].positions[1:]]


def no_head_is_faster(rows: Rows) -> bool:
    """Return whether no head is faster than `ar` beyond the noise."""
    return all((rows[head].speedup.low or 0.0) <= 1.0 for head in HEADS)


def fastest(rows: Rows, methods: Iterable[str]) -> str:
    """Return the method with the largest speedup."""
    return max(methods, key=lambda method: rows[method].speedup.value)


TINY = Section(
    heading="The bundled target at the cost of a 7B model",
    about="""The pair `tiny-7b`: a target of 3.3 million parameters. Unused neurons give the target and its heads the cost
ratios of Llama-2-7B and its heads.""",
    expected=(
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
    ),
    tasks=("gsm8k", "cnndm", "wmt"),
    tokens=64,
    prompts=6,
    repeats=1,
)
SMOLLM2 = Section(
    heading="SmolLM2-135M-Instruct",
    about="""A real model (Apache-2.0) of 135 million parameters, dequantized from a GGUF of 4-bit weights. The heads were
trained on its greedy outputs to 420 of GSM8K's training questions, about 46,000 tokens, 19,000 of them in the
answers, in less than an hour of one core each. Published heads see thousands of times as many. EAGLE-3 drafts 8,192
of the 49,152 tokens, the other heads all of them. DFlash and DSpark have two layers. The draft model of `sd` is the
bundled target, which has another tokenizer.""",
    expected=(
        Expectation(
            "EAGLE-3 accepts more than EAGLE-1 after the first position, since it was trained on drafts of five tokens",
            lambda rows: all(x > y for x, y in zip(later(rows, "eagle3"), later(rows, "eagle"), strict=False)),
        ),
        Expectation(
            "EAGLE-3 is the fastest head, since its LM head is the smallest",
            lambda rows: fastest(rows, HEADS) == "eagle3",
        ),
        Expectation(
            "no head is faster than `ar`, since verifying six tokens takes about twice as long as one on this processor",
            no_head_is_faster,
        ),
        Expectation("`pld` is the fastest method", lambda rows: fastest(rows, METHODS) == "pld"),
        Expectation(
            "`sd` is slower than `ar`, since its draft shares few tokens with the target",
            lambda rows: (rows["sd"].speedup.high or math.inf) < 1.0,
        ),
    ),
    tasks=("gsm8k",),
    tokens=96,
    prompts=20,
    repeats=1,
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare heads that draft.")
    parser.add_argument("--smollm2", type=Path, help="pair of SmolLM2 and its heads; without it, the bundled pair")
    parser.add_argument("--data", type=Path, help="GSM8K's test rows, for SmolLM2")
    parser.add_argument("--prompts", type=int, default=0)
    parser.add_argument("--runs", type=Path, default=Path("build/head-table"))
    parser.add_argument("--out", type=Path, default=PAGE)
    args = parser.parse_args()
    section, name = (SMOLLM2, str(args.smollm2)) if args.smollm2 else (TINY, "tiny-7b")
    pair = read_pair(name, Options())[1]
    tables, measured = [], dict[float, Rows]()
    for temperature in (0.0, 1.0):
        result = specbench.run(
            list(METHODS), name, list(section.tasks), out=args.runs, limit=args.prompts or section.prompts, data=args.data,
            repeats=section.repeats, temperature=temperature, max_new_tokens=section.tokens,
        )  # fmt: skip
        folders = list(result.folders)
        measured[temperature] = rows = rows_of(folders)
        tables += [f"T = {temperature:g}:", "", markdown_table(table(rows)), ""]
    text = text_of(section, tables, outcomes(section.expected, measured), folders[0], trained(pair))
    sections = sections_of(args.out.read_text(encoding="utf-8")) if args.out.exists() else {}
    sections[section.heading] = text
    write(args.out, page(sections))


def sections_of(text: str) -> dict[str, str]:
    """Return the sections of a page by heading."""
    return {part.partition("\n")[0]: part.partition("\n")[2].strip() for part in text.split("\n## ")[1:]}


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


def text_of(section: Section, tables: Sequence[str], found: Sequence[str], folder: Path, training: str) -> str:
    """Return a section as Markdown."""
    summary = summary_of(folder)
    environment, data = summary.environment, summary.data
    threads = f"{environment['threads']} thread{'s' if environment['threads'] > 1 else ''}"
    revision = environment["git"].get("revision", "unknown")[:9]
    kind = "synthetic data" if data.source == "synthetic" else "real data"
    lines, outcome = "\n".join(tables), "\n".join(found)
    return f"""{section.about} Measured by `make head-table` on {kind}: {data.samples} prompts of each task
({", ".join(section.tasks)}) x {section.repeats} repeat{"s" if section.repeats > 1 else ""}, at most {section.tokens} tokens,
on {environment["cpu"]}, {threads}, at revision {revision}.

Expectations, written before the measurement, with outcomes:

{outcome}

{lines}
{training}"""


def page(sections: Mapping[str, str]) -> str:
    """Return the results as Markdown."""
    return "\n\n".join([TITLE, INTRODUCTION, *(f"## {heading}\n\n{text}" for heading, text in sections.items())]) + "\n"


if __name__ == "__main__":
    main()
