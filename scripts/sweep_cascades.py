"""Quality against relative latency, five leniences a rule, on the encoder-decoder pair's twins: `make cascades`.

All variants of a task and the large model are one cell of the toolkit, interleaved prompt by prompt.
"""

import argparse
from pathlib import Path

from specbench.analysis.run_summary import RunSummary
from specbench.analysis.summary import summarise
from specbench.cli.progress import Terminal
from specbench.config.options import Options
from specbench.errors import ExitCode
from specbench.experiment.pipeline import run
from specbench.experiment.request import Request
from specbench.files import write
from specbench.report.column import Column
from specbench.report.columns import column_of, columns_of
from specbench.report.notes import notes
from specbench.report.run_tables import SPEED
from specbench.report.tables import Table, markdown_table

RUNS = Path("build/cascades")
VALUES = (
    "relative_latency", "answer_length", "end_to_end_speedup", "rule_rate", "acceptance_rate", "target_calls",
)  # fmt: skip
SHARES = [0.1, 0.3, 0.5, 0.7, 0.9]
LENIENCES: dict[str, tuple[str, list[float]]] = {  # what is swept of each rule, from nearly always the large model on
    "cascade-chow": ("target.alpha", SHARES),
    "cascade-chow-log": ("target.h0", [0.1, 0.3, 0.8, 1.6, 3.0]),
    "cascade-diff": ("target.alpha", [-0.3, 0.0, 0.1, 0.3, 0.6]),
    "cascade-diff-log": ("target.alpha", [-0.5, 0.0, 0.4, 1.0, 2.0]),
    "cascade-opt": ("target.alpha", [-0.5, 0.0, 0.3, 1.0, 4.0]),
    "cascade-opt-log": ("target.alpha", [-1.0, 0.0, 0.6, 2.0, 8.0]),
    "cascade-token": ("target.alpha", SHARES),
    "lossy": ("target.alpha", SHARES),
    "lossy-star": ("target.alpha", SHARES),
    "bild-star": ("target.alpha", [0.05, 0.15, 0.3, 0.5, 0.8]),
    "token-cascade": ("target.alpha", SHARES),
    "seq-cascade": ("quantile", list(reversed(SHARES))),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Sweep every rule of the cascades paper on the tiny encoder-decoder pair."
    )
    parser.add_argument("--pair", default="tiny-t5", help="a pair with roles draft and target")
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results/cascades-tiny-t5.md"))
    args = parser.parse_args()
    options = Options(
        limit=args.prompts,
        repeats=args.repeats,
        device="cpu",
        over=tuple((f"{name}.{key}", values) for name, (key, values) in LENIENCES.items()),
    )
    pages = []
    for task in ("wmt", "xsum"):
        request = Request(methods=(*LENIENCES, "ar-draft"), pair=args.pair, tasks=(task,), options=options, out=RUNS)
        if run(request, Terminal()).some_failed:
            raise SystemExit(ExitCode.SOME_FAILED)
        folders = [path.parent for path in RUNS.glob(f"*_{task}_*/samples.jsonl")]
        pages.append(_page(max(folders, key=lambda folder: (folder / "samples.jsonl").stat().st_mtime)))
    write(args.out, "\n".join([_head(args), "\n\n".join(pages), ""]))
    print(args.out.read_text(encoding="utf-8"))


def _head(args: argparse.Namespace) -> str:
    return f"""# Cascades on the {args.pair} pair

Quality against relative latency: five leniences of every rule, from nearly always the large model to nearly always the small
one, T = 1, draft length 5, bonus deferred. Relative latency is seconds an answer, end to end, over the large model's, with
outputs as long as they came; below 1 is faster. The pair and the data are synthetic: this says what the rules do, nothing
about the paper's models. Made by `make cascades`.
"""


def _page(folder: Path) -> str:
    summary = summarise(folder)
    return f"## {summary.task}\n\n{markdown_table(_table(summary))}\n\n" + "\n".join(
        f"- {note}" for note in notes(summary)
    )


def _table(summary: RunSummary) -> Table:
    scores = [column for column in columns_of(SPEED, summary) if column.key == summary.headline]
    columns: list[Column] = [column_of("method"), *scores, *map(column_of, VALUES)]
    rows = [[column.text(summary, row) for column in columns] for row in summary.measured]
    return Table("", [column.title_in(summary) for column in columns], rows)


if __name__ == "__main__":
    main()
