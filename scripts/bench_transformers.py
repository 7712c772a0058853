"""Compare decoding by specbench and by transformers in one run: `make bench`.

`ar` is compared with `hf-generate`, and `sd` with `hf-assisted` at the same draft length. All four share the loaded weights,
prompts, greedy decoding, fixed length and clocks, and alternate prompt by prompt. Times are of whole calls, prefill included.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from scripts.sections import environment, processor, write_section
from specbench.analysis.intervals import Estimate
from specbench.analysis.method_records import complete, seconds
from specbench.analysis.speed import identical_output, speedup
from specbench.analysis.summary import summarize
from specbench.cli.console import TerminalObserver
from specbench.cli.report import newest
from specbench.config.construct import construct
from specbench.config.options import Options
from specbench.config.pair import Pair
from specbench.config.presets import preset
from specbench.config.request import Access, Request
from specbench.errors import ConfigError, ExitCode
from specbench.experiment.pipeline import run
from specbench.files import write
from specbench.reporting.columns import BY_KEY
from specbench.runs.run_folder import read

RUNS = Path("build/bench")
PEERS = {"ar": "hf-generate", "sd": "hf-assisted"}
GOALS = {"ar": 1.7, "sd": 2.2}  # speed on the tiny pair, relative to transformers
MOST_OUTSIDE = {"ar": 0.08, "sd": 0.12}  # goals: share of decoding time outside model forwards
INTRODUCTION = [
    "# specbench against transformers on a CPU",
    "",
    "Times are of whole calls, prefill included, with 95 % intervals over prompts. Goals are for the tiny pair. Made by"
    " `make bench`, with one section per processor.",
]
LEAST_OF_THEORY = 0.9  # goal: measured speedup of sd over its prediction from measured acceptance and costs


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare with transformers on the tiny pair, or on any other.")
    parser.add_argument("--pair", default="tiny", help="a pair with roles draft and target")
    parser.add_argument("--draft", help="a folder; with --target, instead of a pair")
    parser.add_argument("--target", help="a folder")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--gamma", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("results/cpu-peers.md"))
    args = parser.parse_args()
    pair = _two_folders(args.draft, args.target) if args.draft or args.target else args.pair
    options = Options(
        gamma=(("", (args.gamma,)),),
        data=(("", "synthetic"),),
        limit=args.prompts,
        max_new_tokens=args.tokens,
        ignore_eos=True,
        repeats=args.repeats,
        device="cpu",
        dtype="float32",
        overrides=(("task.shots", 0),),
    )
    request = Request(
        methods=("sd", *PEERS.values()), pair=pair, tasks=("gsm8k",), options=options, out=RUNS,
        access=Access(fresh=True),
    )  # fmt: skip
    if run(request, TerminalObserver()).some_failed:
        raise SystemExit(ExitCode.SOME_FAILED)
    write_section(args.out, processor(), _section(newest(RUNS)[0], _models(pair)), INTRODUCTION)
    print(args.out.read_text(encoding="utf-8"))


def _two_folders(draft: str | None, target: str | None) -> str:
    """Write a pair file for two model folders, and return its path."""
    if not draft or not target:
        raise ConfigError("--draft and --target go together")
    path = RUNS / f"{Path(draft).name}-{Path(target).name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    paths = {role: json.dumps(str(Path(folder).resolve())) for role, folder in (("draft", draft), ("target", target))}
    write(path, "".join(f"[models.{role}]\npath = {folder}\n" for role, folder in paths.items()))
    return str(path)


def _models(pair: str) -> str:
    found = preset("pair", pair)
    models = construct(Pair, found.table, str(found.path)).models
    return f"{found.name} ({Path(models['draft'].path).name} and {Path(models['target'].path).name})"


def _section(folder: Path, models: str) -> list[str]:
    records, summary = list(read(folder)), summarize(folder)
    rows = {row.method: row for row in summary.methods}
    decoding, env = summary.decoding, summary.environment
    gamma = summary.traits(rows["sd"]).draft_length
    lines = [
        f"Pair {models}, engine {summary.spec.engine}, float32, greedy, {decoding.max_new_tokens} new tokens,"
        f" {summary.data.samples} synthetic prompts x {decoding.repeats} repeats, draft length {gamma}. The four methods"
        " alternate in one process.",
        "",
        "| specbench | transformers | ms/token, specbench | ms/token, transformers | speedup | goal | same tokens |",
        "| :-- | :-- | --: | --: | --: | --: | --: |",
    ]
    for name, peer in PEERS.items():
        mine, other = complete(records, name), complete(records, peer)
        ratio: Estimate = speedup(mine, other, end_to_end=True)
        lines.append(
            f"| {name} | {peer} | {_ms(mine):.2f} | {_ms(other):.2f} | {_times(ratio)} | {GOALS[name]:.2f}x |"
            f" {identical_output(mine, other):.0%} |"
        )
    lines += [
        "",
        "| method | ms/decoded token | outside forwards | goal, at most | of memory bandwidth | acceptance |",
        "| :-- | --: | --: | --: | --: | --: |",
    ]
    for name, row in rows.items():
        most = f"{MOST_OUTSIDE[name]:.0%}" if name in MOST_OUTSIDE else "–"
        outside, bound, accepted = (
            BY_KEY[key].text(summary, row) for key in ("outside_forwards", "bound_share", "acceptance_rate")
        )
        lines.append(
            f"| {name} | {1e3 / (row.tokens_per_second or 1.0):.2f} | {outside} | {most} | {bound} | {accepted} |"
        )
    sd = rows["sd"]
    assert sd.speedup
    corrected, predicted, cost_ratio, share = (
        BY_KEY[key].text(summary, sd) for key in ("corrected", "predicted", "cost_ratio", "measured_over_corrected")
    )
    lines += [
        "",
        f"Speedup of specbench's sd over its ar, decoding alone: {_times(sd.speedup)}. This is {share} of the {corrected}"
        f" predicted from the measured acceptance, c = {cost_ratio} and block costs (goal: {LEAST_OF_THEORY:.2f}). If a block"
        f" cost as much as one token, the prediction would be {predicted}.",
        "",
        environment(env),
    ]
    return lines


def _ms(rows: list[Any]) -> float:
    return 1e3 * sum(seconds(r, end_to_end=True) for r in rows) / sum(len(r.tokens) for r in rows)


def _times(ratio: Estimate) -> str:
    return f"{ratio.value:.2f}x" if ratio.low is None else f"{ratio.value:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}]"


if __name__ == "__main__":
    main()
