"""Drafts of varying length, SPRINTER, and chains on the bundled pairs: `make drafts`. Run it alone on the machine.

All methods of a page's task are one cell, interleaved prompt by prompt.
"""

import argparse
from pathlib import Path

from specbench.cli.progress import Terminal
from specbench.config.options import Options
from specbench.experiment.chain_profile import BASELINE, levels_of, pairings
from specbench.experiment.pipeline import run
from specbench.experiment.request import Request
from specbench.experiment.run_spec import read_pair
from specbench.files import write
from specbench.report.chain_profile import Profile, forwards_table, kinds_of, pairs_table, verdicts
from specbench.report.notes import notes
from specbench.report.tables import markdown_table, tables

RUNS = Path("build/drafts")
LENGTHS = ["sprinter", "adaedl", "specdec++", "dsl", "confidence", "sd"]
CHAINS = ["polybasic", "polybasic-model", "polybasic-pld", "eagle", "pld", "sd"]
VARIANTS = (("sprinter.head", ["sprinter", "sprinter-q"]),)  # the paper's features, and with q(x) and entropy besides
SHOWN = 3  # tables of a run: speed, what explains it, and what is special about its methods


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Measure adaptive draft lengths, SPRINTER and chains on the tiny pairs."
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="a folder with wiki_summary/test.jsonl and spec_bench/question.jsonl"
    )
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--questions", type=int, default=16, help="of Spec-Bench, second turns besides")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results"))
    args = parser.parse_args()
    wiki, questions = args.data / "wiki_summary" / "test.jsonl", args.data / "spec_bench" / "question.jsonl"
    parts = [SPRINTER_HEAD]
    for task, data in (("gsm8k", "synthetic"), ("wiki-summary", str(wiki))):
        for temperature in (0.0, 1.0):
            options = Options(
                limit=args.prompts,
                repeats=args.repeats,
                device="cpu",
                data=data,
                temperature=temperature,
                over=VARIANTS,
            )
            parts.append(_page(LENGTHS, "tiny", task, options))
    _write(args.out / "sprinter-tiny.md", parts, args.data)
    options = Options(limit=args.questions, repeats=args.repeats, device="cpu", data=str(questions), temperature=0.0)
    parts = [CHAINS_HEAD, _profile("spec-bench", options), _page(CHAINS, "tiny-polybasic", "spec-bench", options)]
    options = Options(limit=args.prompts, repeats=args.repeats, device="cpu", data="synthetic", temperature=0.0)
    parts += [_profile("gsm8k", options), _page(CHAINS, "tiny-polybasic", "gsm8k", options)]
    _write(args.out / "polybasic-tiny.md", parts, args.data)


SPRINTER_HEAD = """# Adaptive draft lengths and SPRINTER on the tiny pair

The bundled draft and target with the bundled heads, draft length up to 20 for adaptive lengths and 5 for `sd`. gsm8k is the
synthetic twin, which models and heads were trained on (other rows); wiki-summary is real text, of which they know nothing:
its scores say nothing, its speeds say what methods do where draft and target disagree. Two verifiers stand side by side: the
paper's, which sees the draft's state alone, and one that sees q(x) and the entropy as well. Made by `make drafts`.

![ROC of the verifiers on unseen texts](sprinter-tiny-roc.svg)"""
CHAINS_HEAD = """# Chains on the tiny pair

A target of 3.3M parameters, a copy of it with 4-bit weights as the middle, and an EAGLE head trained on each of the two; the
draft model and prompt lookup as other drafters. Prompts are Spec-Bench's real questions, both turns, of which these models
know nothing: their answers are no answers, and acceptance is what it is on such text. The synthetic twin of gsm8k, on which
they were trained, stands below. Made by `make drafts`."""


def _write(path: Path, parts: list[str], data: Path) -> None:
    """The page, with the data files' names as they are under their folder."""
    write(path, "\n\n".join(parts).replace(f"{data}/", "") + "\n")


def _page(names: list[str], pair: str, task: str, options: Options) -> str:
    """A run's first tables and its notes."""
    (summary,), _ = run(Request(methods=tuple(names), pair=pair, tasks=(task,), options=options, out=RUNS), Terminal())
    shown = [table for table in tables(summary) if table.title != "Time"][:SHOWN]
    lines = "\n".join(f"- {note}" for note in notes(summary))
    return "\n\n".join([f"## {task}, T = {options.temperature:g}", *map(markdown_table, shown), lines])


def _profile(task: str, options: Options) -> str:
    """What `specbench profile` said first."""
    levels = levels_of("polybasic")
    _, pair = read_pair("tiny-polybasic", options)
    brief = Options(
        limit=8,
        repeats=1,
        device="cpu",
        data=options.data,
        temperature=0.0,
        gamma=(5,),
        max_new_tokens=64,
        ignore_eos=True,
    )
    methods = tuple(pairings(levels, pair, 5))
    (summary,), _ = run(
        Request(methods=methods, pair="tiny-polybasic", tasks=(task,), options=brief, out=RUNS), Terminal()
    )
    found = Profile(Path(summary.folder), levels, BASELINE, kinds_of(summary))
    said = "\n".join(f"- {line}" for line in verdicts(found))
    parts = [
        f"## What `specbench profile -p tiny-polybasic -t {task}` says before",
        *map(markdown_table, (forwards_table(found), pairs_table(found))),
    ]
    return "\n\n".join([*parts, said])


if __name__ == "__main__":
    main()
