"""Compare replayed rounds with the rounds of runs, on 35 methods and settings: `make replay` writes results/replay.md.

At temperature 0, the outputs of all methods are equal except at near ties, and the rounds, drafted and accepted tokens of a
replay must equal the run's. Above it, the runs' outputs are other samples of the same distribution, and tokens per round
must agree within the noise over prompts.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from specbench.analysis.intervals import by_repeat, interval_of_ratio
from specbench.analysis.method_records import complete, round_count
from specbench.analysis.replay import ExpectedRounds
from specbench.cli.console import TerminalObserver
from specbench.config.options import Options
from specbench.config.request import Access, Request
from specbench.experiment.loaded_models import LoadedModels
from specbench.experiment.pipeline import MeasureOptions, measure
from specbench.features.advise.candidate_set import candidate_of, register_for_advice
from specbench.features.advise.recordings import Recording, record_outputs
from specbench.files import write
from specbench.methods.recorded_drafts import Replay, replay_of
from specbench.resolution.resolve import resolve
from specbench.runs.record import Record
from specbench.runs.run_folder import read

OUT, RUNS = Path("results/replay.md"), Path("build/replay")
DRAFTERS = {"tiny": "draft", "tiny-3": "math", "tiny-t5": "draft"}
PAGE = """# Replayed rounds against real ones

Each row compares the rounds of a method in a run with those that a replay expects from the recorded outputs of the run's
baseline (`specbench/analysis/replay.py`). gsm8k, synthetic, {prompts} prompts, {tokens} new tokens. Made by `make replay`.

- Greedy rows count the outputs whose *rounds* and accepted tokens are as replayed, and those whose *drafted* tokens are.
  Outputs that differ from the baseline's, at near ties, are left out and counted as *other text*. Drafted tokens differ where
  a wrong token is an EOS, ends a draft by a stop rule, or has no children in a tree, and in chains, where a draft goes on
  after a token that the target will reject.
- Sampled rows compare tokens per round. The difference has a 95 % interval over prompts, since the run's outputs are other
  samples.

| pair | T | method | outputs | other text | rounds | drafted | tokens/round, run | replayed | difference |
| :-- | --: | :-- | --: | --: | --: | --: | --: | --: | --: |
"""


@dataclass(frozen=True)
class Comparison:
    """A method in a setting: its records and the replays of the baseline's outputs for the same prompts and repeats."""

    pair: str
    temperature: float
    method: str
    records: Sequence[Record]
    replays: Sequence[ExpectedRounds]
    base: Sequence[Record]

    @property
    def row(self) -> str:
        """The comparison as a row of the page."""
        same = [record.tokens == other.tokens for record, other in zip(self.records, self.base, strict=True)]
        greedy = self.temperature == 0.0
        cells = ["–", "–", "–"]
        if greedy:
            compared = [
                (_counts(record), (rounds.rounds, rounds.accepted_tokens, rounds.drafted_tokens))
                for record, rounds, is_same in zip(self.records, self.replays, same, strict=True)
                if is_same
            ]
            rounds_equal = sum(counts[:2] == expected[:2] for counts, expected in compared)
            drafted_equal = sum(counts[2] == expected[2] for counts, expected in compared)
            cells = [
                str(same.count(False)),
                f"{rounds_equal} of {len(compared)}",
                f"{drafted_equal} of {len(compared)}",
            ]
        run, replayed, difference = self._lengths([not greedy or is_same for is_same in same])
        return (
            f"| {self.pair} | {self.temperature:g} | {self.method} | {len(self.records)} | {' | '.join(cells)} |"
            f" {run:.3f} | {replayed:.3f} | {difference} |"
        )

    def _lengths(self, kept: Sequence[bool]) -> tuple[float, float, str]:
        """Return tokens per round in the run and replayed, and their ratio - 1 with its interval."""
        chosen = [
            (record, rounds, other)
            for record, rounds, other, keep in zip(self.records, self.replays, self.base, kept, strict=True)
            if keep
        ]
        table = by_repeat(
            (len(record.tokens), round_count([record]), len(other.tokens), rounds.rounds, len(record.tokens), record.prompt,
             record.repeat)
            for record, rounds, other in chosen
        )  # fmt: skip
        tokens, rounds_of_run, others, replayed, _ = table.sum(axis=(0, 1))
        lengths = tokens / rounds_of_run, others / replayed
        ratio = interval_of_ratio(table, lambda sums: (sums[..., 0] / sums[..., 1]) / (sums[..., 2] / sums[..., 3]))
        interval = "" if ratio.low is None or ratio.high is None else f" [{ratio.low - 1:+.1%}, {ratio.high - 1:+.1%}]"
        return (*lengths, f"{ratio.value - 1:+.1%}{interval}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare replayed rounds with those of real runs.")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    rows = [
        comparison.row
        for pair in DRAFTERS
        for temperature in (0.0, 1.0)
        for comparison in compare(pair, temperature, args.prompts, args.tokens)
    ]
    page = PAGE.format(prompts=args.prompts, tokens=args.tokens) + "\n".join(rows) + "\n"
    write(args.out, page)
    print(page)


def compare(pair: str, temperature: float, prompts: int, tokens: int) -> Iterator[Comparison]:
    """Run and replay the methods of one setting."""
    drafter = DRAFTERS[pair]
    of_model: dict[str, Any] = {"name": "model", "model": drafter}
    proposers: dict[str, dict[str, Any]] = {
        "sd-3": {**of_model, "gamma": 3},
        "sd-7": {**of_model, "gamma": 7},
        "confidence-8": {**of_model, "gamma": 8, "stop": {"name": "confidence"}},
        "pld": {"name": "pld"},
    }
    others = []
    if pair == "tiny":
        others = ["middle", "eagle"]
        head = {"head": "eagle", "base": "target"}
        proposers["eagle-5"] = {"name": "eagle", **head, "gamma": 5}
        proposers["chain"] = {"name": "chain", "model": "middle", "threshold": 6, "proposer": {**of_model, "gamma": 3}}
        if not temperature:
            proposers["eagle-tree"] = {"name": "eagle-tree", **head, "children": "chosen"}
    methods = [candidate_of(f"{name}@{pair}", proposer) for name, proposer in proposers.items()]
    if temperature:
        methods.append(candidate_of(f"sd-block-7@{pair}", {**of_model, "gamma": 7}, rejection={"name": "block"}))
    else:
        tree: dict[str, Any] = {"name": "model-tree", "model": drafter, "widths": [2, 1, 1], "children": "chosen"}
        methods.append(candidate_of(f"tree-2-1-1@{pair}", tree))
    register_for_advice(methods)
    options = Options(
        data=(("", "synthetic"),), limit=prompts, max_new_tokens=tokens, temperature=temperature, device="cpu",
        dtype="float32", repeats=1 if temperature == 0.0 else 4,
    )  # fmt: skip
    request = Request(
        methods=tuple(method.name for method in methods), pair=pair, tasks=("gsm8k",), options=options, out=RUNS
    )
    (plan,) = resolve(request).plans
    (run,) = plan.runs
    models = LoadedModels()
    measure(plan, plan.runs, models, MeasureOptions(access=Access()), TerminalObserver())
    recordings = {
        (each.record.sample, each.record.repeat): each
        for each in record_outputs(partial(models.of, plan), run, [drafter, *others])
    }
    records = list(read(run.folder))
    for method in methods:
        replayed = replay_of(run.methods[method.name], ("target",), temperature)
        assert isinstance(replayed, Replay), replayed
        mine = [record for record in complete(records, method.name) if (record.sample, record.repeat) in recordings]
        found: list[Recording] = [recordings[record.sample, record.repeat] for record in mine]
        yield Comparison(
            pair, temperature, method.name.partition("@")[0], mine, [replayed.rounds(each.output) for each in found],
            [each.record for each in found],
        )  # fmt: skip


def _counts(record: Record) -> tuple[int, int, int]:
    accepted, drafted = sum(entry.accepted for entry in record.rounds), sum(entry.drafted for entry in record.rounds)
    return round_count([record]), accepted, drafted


if __name__ == "__main__":
    main()
