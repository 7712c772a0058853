"""Test the prediction of the best draft length on six settings. Run by `make draft-lengths`.

Each setting is one interleaved run of `sd` at the draft lengths 1 to 8, on randomly drawn prompts. The best length is
predicted from the records of length 5 on one half of the prompts. The best measured length is chosen on the same half. Their
speeds are compared on the other half. Of each prompt, only the fastest repeat counts, since other programs can only add
time.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

import specbench
from specbench.analysis.intervals import Estimate, interval_of_ratio
from specbench.analysis.length_predictions import LONGEST, predict
from specbench.analysis.method_records import Records, complete, seconds
from specbench.analysis.number_format import HUNDREDTHS, TIMES
from specbench.analysis.speed import tokens_per_second
from specbench.analysis.summary import summary_of
from specbench.data import task
from specbench.files import write
from specbench.reporting.formats.writers import markdown_table
from specbench.reporting.tables import Table
from specbench.runs.record import Record
from specbench.runs.run_folder import load, spec_of

PAGE = Path("results/draft-lengths.md")
MEASURED = 5  # the draft length from whose records the others are predicted
TOKENS = 48  # of an output, at most
LEAST = 0.97  # of the speed of the best length
SETTINGS = (
    ("tiny-7b", "gsm8k", 0.0), ("tiny-7b", "gsm8k", 1.0), ("tiny-llama-3", "cnndm", 0.0), ("tiny-llama-2", "gsm8k", 1.0),
    ("tiny-3b", "wmt", 0.0), ("tiny-t5-small-large", "wmt", 1.0),
)  # fmt: skip


class Trial(NamedTuple):
    """One setting: the predicted length, the best of all lengths, and the best of the lengths that have a prediction.

    `ratio` is the speed of the predicted length over the speed of the best length, on other prompts. `within` is the same for
    the best length with a prediction.
    """

    place: str
    predicted: int
    longest: int  # that has a prediction
    best: int
    ratio: Estimate
    best_within: int
    within: Estimate
    speedups: dict[int, float]


def main() -> None:
    parser = argparse.ArgumentParser(description="Test the prediction of the best draft length.")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--draw", type=int, default=7, help="random seed of the drawn prompts")
    parser.add_argument("--runs", type=Path, default=Path("build/draft-lengths"))
    parser.add_argument("--out", type=Path, default=PAGE)
    args = parser.parse_args()
    task.DRAW_SEED = args.draw  # other prompts than those on which the cost model was fitted
    trials, folders = [], []
    for pair, name, temperature in SETTINGS:
        result = specbench.run(
            "sd", pair, name, out=args.runs, sample=args.prompts, repeats=args.repeats, temperature=temperature,
            max_new_tokens=TOKENS, over={"gamma": list(range(1, LONGEST + 1))},
        )  # fmt: skip
        (folder,) = result.folders
        folders.append(folder)
        trials.append(trial(folder, f"{pair}, {name}, T = {temperature:g}"))
        print(f"{trials[-1].place}: predicted {trials[-1].predicted}, best {trials[-1].best}", flush=True)
    write(args.out, page(trials, folders, args))


def trial(folder: Path, place: str) -> Trial:
    """Compare the predicted length of a run with the best measured one, on prompts that were not used to choose either."""
    spec, records = spec_of(folder), load(folder).records
    samples = list(dict.fromkeys(record.sample for record in records))
    first, second = set(samples[::2]), set(samples[1::2])

    def rows_of(name: str, half: set[str]) -> Records:
        return [record for record in complete(records, name) if record.sample in half]

    names = {length: f"sd(gamma={length})" for length in range(1, LONGEST + 1)}
    theory = spec.methods[names[MEASURED]].traits.theory
    predictions = predict(theory, rows_of(names[MEASURED], first), rows_of(spec.baseline, first))
    predicted = max(predictions, key=lambda each: each.speedup.value).gamma
    longest = predictions[-1].gamma

    def speed(length: int) -> float:
        return tokens_per_second(fastest(rows_of(names[length], first)))

    best, within = max(names, key=speed), max(range(1, longest + 1), key=speed)
    base = tokens_per_second(fastest(complete(records, spec.baseline)))
    speedups = {length: tokens_per_second(fastest(complete(records, name))) / base for length, name in names.items()}
    ratios = [ratio_of(rows_of(names[predicted], second), rows_of(names[each], second)) for each in (best, within)]
    return Trial(place, predicted, longest, best, ratios[0], within, ratios[1], speedups)


def fastest(rows: Records) -> list[Record]:
    """Return the fastest repeat of each prompt, by seconds per token."""
    found: dict[str, Record] = {}
    for record in rows:
        known = found.get(record.sample)
        if known is None or seconds(record) / len(record.tokens) < seconds(known) / len(known.tokens):
            found[record.sample] = record
    return list(found.values())


def ratio_of(rows: Records, others: Records) -> Estimate:
    """Return the ratio of two speeds by the fastest repeats, with its 95 % interval over prompts."""
    pairs = {record.sample: [record] for record in fastest(rows)}
    for record in fastest(others):
        pairs[record.sample].append(record)
    table = np.array([[x for each in both for x in (len(each.tokens), seconds(each))] for both in pairs.values()])
    return interval_of_ratio(table, lambda sums: sums[..., 0] / sums[..., 1] / (sums[..., 2] / sums[..., 3]))


def page(trials: Sequence[Trial], folders: Sequence[Path], args: argparse.Namespace) -> str:
    """Return the page as Markdown."""
    environment = summary_of(folders[0]).environment
    passed = [
        sum(ratio.value >= LEAST for ratio in ratios)
        for ratios in zip(*((x.within, x.ratio) for x in trials), strict=True)
    ]
    heads = ["setting", "lengths with a prediction", "predicted", "best of these", "speed of predicted / best of these"]
    rows = [
        [
            each.place, f"1 to {each.longest}", *map(str, (each.predicted, each.best_within)),
            HUNDREDTHS.text(each.within), str(each.best), HUNDREDTHS.text(each.ratio),
        ]
        for each in trials
    ]  # fmt: skip
    heads += [f"best of 1 to {LONGEST}", "speed of predicted / best"]
    lengths = range(1, LONGEST + 1)
    speeds = [[each.place, *(TIMES.text(each.speedups[length]) for length in lengths)] for each in trials]
    return f"""# Prediction of the best draft length

`make draft-lengths` measured `sd` at the draft lengths 1 to {LONGEST} on synthetic data, with bundled models that have the
costs of larger ones: {args.prompts} random prompts, decoded {args.repeats} times, of each setting, outputs of up to {TOKENS}
tokens, all lengths and the baseline interleaved, on {environment["cpu"]},
{environment["threads"]} {"thread" if environment["threads"] == 1 else "threads"}, at revision
{environment["git"].get("revision", "unknown")[:9]}.

The length is predicted from the records of length {MEASURED} on one half of the prompts, and the best measured length is
chosen on the same half. Both are compared on the other half, with a 95 % interval over its prompts. A measured
speed is that of the fastest of the {args.repeats} repeats of each prompt, since other programs can only add time. The
prediction uses means over all repeats. A run at length {MEASURED} predicts no length whose blocks are more than 1.25 times as
long as its own, so a longer draft that is faster is not found; `specbench run --over gamma=auto` measures it.

The cost model has one constant, `DRAFT_HOST` in specbench/analysis/length_predictions.py. It was fitted to
measurements of the same models at their own cost. The settings of this page were not used for fitting.

{markdown_table(Table("", heads, rows))}

In {passed[0]} of {len(trials)} settings, the speed of the predicted length is at least {LEAST} of the speed of the best
length that has a prediction, and in {passed[1]} of {len(trials)} of that of the best of all lengths (point estimates).

**Measured speedup over ar, decoding, by draft length, on all prompts**

{markdown_table(Table("", ["setting", *map(str, lengths)], speeds))}
"""


if __name__ == "__main__":
    main()
