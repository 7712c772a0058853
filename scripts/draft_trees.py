"""Compare draft trees with chains, at the costs of a 7B model. Run by `make draft-trees`."""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

import specbench
from specbench.analysis.intervals import Estimate, by_prompt, interval_of_ratio
from specbench.analysis.method_records import Records, complete, seconds
from specbench.analysis.number_format import HUNDREDTHS, TIMES
from specbench.analysis.run_summary import RunSummary
from specbench.analysis.summary import summary_of
from specbench.files import write
from specbench.reporting.formats.writers import markdown_table
from specbench.reporting.tables import Table
from specbench.runs.record import Record
from specbench.runs.run_folder import load

PAGE = Path("results/draft-trees.md")
METHODS = ("eagle", "eagle-tree", "eagle2", "sd", "sd-block", "sd-tree")
HEADINGS = [
    "method", "drafted tokens/round", "tokens/round", "ms/round", "acceptance", "by rank", "speedup over ar", "best tree",
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare draft trees with chains.")
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--runs", type=Path, default=Path("build/draft-trees"))
    parser.add_argument("--out", type=Path, default=PAGE)
    args = parser.parse_args()
    sections, folder = [], args.runs
    for temperature in (0.0, 1.0):
        result = specbench.run(
            list(METHODS), "tiny-7b", "gsm8k", out=args.runs, limit=args.prompts, repeats=args.repeats,
            temperature=temperature,
        )  # fmt: skip
        (folder,) = result.folders
        sections += [f"T = {temperature:g}:", "", markdown_table(table(folder)), ""]
    write(args.out, page(sections, folder, args))


def table(folder: Path) -> Table:
    """Return the table of a run, fastest method first."""
    summary, records = summary_of(folder), load(folder).records
    rows = {method: row_of(summary, method, complete(records, method)) for method in METHODS}
    speed = {row.method: row.number("speedup") or 0.0 for row in summary.methods}
    return Table("", HEADINGS, [rows[method] for method in sorted(METHODS, key=lambda name: -speed[name])])


def row_of(summary: RunSummary, method: str, rows: Records) -> list[str]:
    """Return the cells of a method."""
    row = next(each for each in summary.methods if each.method == method)
    speedup, acceptance = row.value("speedup"), row.number("acceptance_rate")
    assert isinstance(speedup, Estimate) and acceptance is not None
    ranks = " ".join(f"{rate:.2f}" for rate in row.acceptance_by_rank[:4])
    return [
        f"`{method}`",
        HUNDREDTHS.text(per_round(rows, lambda r: sum(x.drafted for x in r.rounds))),
        HUNDREDTHS.text(per_round(rows, lambda r: len(r.tokens))),
        HUNDREDTHS.text(per_round(rows, lambda r: 1e3 * seconds(r))),
        f"{acceptance:.3f}",
        ranks or "–",
        TIMES.text(speedup),
        row.best_tree.text if row.best_tree else "–",
    ]


def per_round(rows: Records, amount: Callable[[Record], float]) -> Estimate:
    """Return an amount per round with its interval over prompts."""
    sums: np.ndarray = by_prompt((amount(r), len(r.rounds), r.prompt) for r in rows)
    return interval_of_ratio(sums, lambda totals: totals[..., 0] / totals[..., 1])


def page(sections: list[str], folder: Path, args: argparse.Namespace) -> str:
    """Return the results as Markdown."""
    environment = summary_of(folder).environment
    tables = "\n".join(sections)
    return f"""# Draft trees on a CPU

`make draft-trees` measured `specbench run -m {",".join(METHODS)} -p tiny-7b -t gsm8k` on synthetic data:
{args.prompts} prompts x {args.repeats} repeats, all methods and the baseline interleaved, lean engine, float32, on
{environment["cpu"]}, {environment["threads"]} {"thread" if environment["threads"] == 1 else "threads"}, at revision
{environment["git"].get("revision", "unknown")[:9]}. Speedups are of decoding. Intervals are 95 % intervals over prompts.

{tables}
A tree commits more tokens per round than a chain of the same drafter if second and later children are accepted often enough.
The bundled models agree on most tokens, so little is left for them. Trees are compute-bound on a CPU: the target's forward of
26 tokens takes a multiple of that of one token ([block-prices.md](block-prices.md)), while a GPU at batch size 1 is bound by
the weights that it reads. No GPU was measured.

*by rank* is the acceptance rate of first, second, third and fourth children, given that the earlier ones were rejected. *best
tree* is the static tree that theory prefers at the measured acceptance by rank and forward times: tokens, depth, predicted
speedup.
"""


if __name__ == "__main__":
    main()
