"""Quality against relative latency, five leniences a rule, on the encoder-decoder pair's twins: `make cascades`.

All variants of a task and the large model are one cell of the toolkit, interleaved prompt by prompt.
"""

import argparse
from pathlib import Path
from typing import Any

from specbench.analysis.summary import summarise
from specbench.cli.progress import Terminal
from specbench.config.options import Options
from specbench.errors import ExitCode
from specbench.experiment.pipeline import run
from specbench.experiment.request import Request
from specbench.files import write
from specbench.report.columns import over, relative_latency, score
from specbench.report.notes import notes
from specbench.report.tables import Table, markdown_table

RUNS = Path("build/cascades")
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
    return f"## {summary['task']}\n\n{markdown_table(_table(summary))}\n\n" + "\n".join(
        f"- {note}" for note in notes(summary)
    )


def _table(summary: dict[str, Any]) -> Table:
    metric, base, large = summary["headline"], summary["baseline"], list(summary["models"])[-1]
    heads = ["method", metric, "relative latency", "tokens an answer", "end to end over ar", "rule rate", "acceptance"]
    heads.append("large-model calls/token")
    rows = []
    for row in summary["methods"]:
        rule, acceptance = row["rule_rate"], row["acceptance_rate"]
        rows.append([
            row["label"],
            score(metric)(row),
            relative_latency(base)(row),
            f"{row['tokens'] / row['generations']:.1f}",
            over(base, "end_to_end_speedup")(row),
            "–" if rule is None else f"{rule:.0%}",
            "–" if acceptance is None else f"{acceptance:.3f}",
            f"{row['forwards_per_token'].get(large, 0.0):.2f}",
        ])  # fmt: skip
    return Table("", heads, rows)


if __name__ == "__main__":
    main()
