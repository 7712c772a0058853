"""Test the prediction of the best draft length on ten settings. Run by `make draft-lengths`.

Each setting is one interleaved run of `sd` at the draft lengths 1 to 8. The best length is predicted from the records of
length 5 on one half of the prompts. The best measured length is chosen on the same half. Their speeds are compared on the
other half.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import specbench
from specbench.analysis.bootstrap import Estimate
from specbench.analysis.draft_lengths import LONGEST, predict
from specbench.analysis.rows import Rows, complete
from specbench.analysis.speed import speedup, tokens_per_second
from specbench.analysis.summary import summary_of
from specbench.files import write
from specbench.report.formats import HUNDREDTHS, TIMES
from specbench.report.tables import Table, markdown_table
from specbench.runs.run_folder import load, spec_of

PAGE = Path("results/draft-lengths.md")
MEASURED = 5  # the draft length from whose records the others are predicted
LEAST = 0.97  # of the speed of the best length
SETTINGS = (
    ("tiny", "gsm8k", 0.0), ("tiny", "gsm8k", 1.0), ("tiny", "humaneval", 0.0), ("tiny", "mmlu", 0.0),
    ("tiny", "cnndm", 0.0), ("tiny", "cnndm", 1.0), ("tiny", "xsum", 0.0), ("tiny", "wmt", 0.0),
    ("tiny-t5", "xsum", 0.0), ("tiny-t5", "wmt", 1.0),
)  # fmt: skip


class Trial(NamedTuple):
    """One setting: the predicted and the best length, the ratio of their speeds on other prompts, and all measured speeds."""

    place: str
    predicted: int
    best: int
    ratio: Estimate
    speedups: dict[int, float]

    @property
    def passed(self) -> bool:
        return self.ratio.value >= LEAST


def main() -> None:
    parser = argparse.ArgumentParser(description="Test the prediction of the best draft length.")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--runs", type=Path, default=Path("build/draft-lengths"))
    parser.add_argument("--out", type=Path, default=PAGE)
    args = parser.parse_args()
    trials, folders = [], []
    for pair, task, temperature in SETTINGS:
        result = specbench.run(
            "sd", pair, task, out=args.runs, limit=args.prompts, repeats=args.repeats, temperature=temperature,
            over={"gamma": list(range(1, LONGEST + 1))},
        )  # fmt: skip
        (folder,) = result.folders
        folders.append(folder)
        trials.append(trial(folder, f"{pair}, {task}, T = {temperature:g}"))
        print(f"{trials[-1].place}: predicted {trials[-1].predicted}, best {trials[-1].best}", flush=True)
    write(args.out, page(trials, folders, args))


def trial(folder: Path, place: str) -> Trial:
    """Compare the predicted length of a run with the best measured one, on prompts that chose neither."""
    spec, records = spec_of(folder), load(folder).records
    samples = list(dict.fromkeys(record.sample for record in records))
    first, second = set(samples[::2]), set(samples[1::2])

    def rows_of(name: str, half: set[str]) -> Rows:
        return [record for record in complete(records, name) if record.sample in half]

    names = {length: f"sd(gamma={length})" for length in range(1, LONGEST + 1)}
    theory = spec.methods[names[MEASURED]].traits.theory
    predictions = predict(theory, rows_of(names[MEASURED], first), rows_of(spec.baseline, first))
    predicted = max(predictions, key=lambda each: each.speedup.value).gamma
    best = max(names, key=lambda length: tokens_per_second(rows_of(names[length], first)))
    base = tokens_per_second(complete(records, spec.baseline))
    speedups = {length: tokens_per_second(complete(records, name)) / base for length, name in names.items()}
    ratio = speedup(rows_of(names[predicted], second), rows_of(names[best], second))
    return Trial(place, predicted, best, ratio, speedups)


def page(trials: Sequence[Trial], folders: Sequence[Path], args: argparse.Namespace) -> str:
    """Return the page as Markdown."""
    environment = summary_of(folders[0]).environment
    passed = sum(each.passed for each in trials)
    heads = ["setting", "predicted", "best of one half", "speed of predicted / best", f"at least {LEAST}"]
    rows = [
        [each.place, str(each.predicted), str(each.best), HUNDREDTHS.text(each.ratio), "yes" if each.passed else "no"]
        for each in trials
    ]
    lengths = range(1, LONGEST + 1)
    speeds = [[each.place, *(TIMES.text(each.speedups[length]) for length in lengths)] for each in trials]
    return f"""# Prediction of the best draft length

`make draft-lengths` measured `sd` at the draft lengths 1 to {LONGEST} with the bundled models on synthetic data:
{args.prompts} prompts, decoded {args.repeats} times, of each setting, all lengths and the baseline interleaved, on
{environment["cpu"]}, {environment["threads"]} {"thread" if environment["threads"] == 1 else "threads"}, at revision
{environment["git"].get("revision", "unknown")[:9]}.

The length is predicted from the records of length {MEASURED} on one half of the prompts, and the best measured length is
chosen on the same half. Both are compared on the other half, with a 95 % bootstrap interval over its prompts.

{markdown_table(Table("", heads, rows))}

In {passed} of {len(trials)} settings, the predicted length reaches at least {LEAST} of the speed of the best one.

**Measured speedup over ar, decoding, by draft length, on all prompts**

{markdown_table(Table("", ["setting", *map(str, lengths)], speeds))}
"""


if __name__ == "__main__":
    main()
