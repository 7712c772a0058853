"""Test advice on eight cases: `make advise-trials`, which writes results/advise.md.

For each case, `advise` is run. Then, case by case, every candidate is measured once on other prompts, in a process of its
own. The advised candidate should be within TOLERANCE of the fastest, and the intervals of the predictions and of the gain
should contain the measured speedups.
"""

import argparse
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path

from specbench.analysis.intervals import Estimate
from specbench.analysis.number_format import NONE, TIMES
from specbench.cli.console import TerminalObserver
from specbench.config.options import Options
from specbench.config.request import Access, Request
from specbench.experiment.loaded_models import LoadedModels
from specbench.experiment.pipeline import MeasureOptions, measure
from specbench.features.advise.advice_runs import AdviceRequest
from specbench.features.advise.advising import advise
from specbench.features.advise.answer import answer
from specbench.features.advise.candidate_set import register_for_advice
from specbench.features.advise.candidates import Advice, Candidate
from specbench.files import write
from specbench.resolution.resolve import resolve

OUT, RUNS = Path("results/advise.md"), Path("build/advise")
PARTS = ("1/8", "5/16", "13/16", "3/4")  # of the prompts, for the advice
OTHERS = "2/2"  # the rest, on which every candidate is measured
TOLERANCE = 0.05
LOSING = """[models.draft]
path = "specbench:tiny/models/code"

[models.target]
path = "specbench:tiny/models/target"

[defaults]
data = "synthetic"
tasks = ["gsm8k"]
"""
RANDOM = """description = "Random weights of 25M and 3M, synthetic logits"
weights = "dummy"
logits = "synthetic"
acceptance = 0.8

[models.draft]
path = "specbench:tiny/models/target"
config = { num_hidden_layers = 2, hidden_size = 192, intermediate_size = 512 }

[models.target]
path = "specbench:tiny/models/target"
[models.target.config]
num_hidden_layers = 8
hidden_size = 448
intermediate_size = 1216
num_attention_heads = 7
num_key_value_heads = 7

[defaults]
data = "synthetic"
tasks = ["gsm8k"]

[defaults.task.gsm8k]
shots = 0
max_new_tokens = 48
"""
PAGE = """# Advice against measurements of every candidate

Each case is advised by `specbench advise` with {repeats} repeats of 16 prompts, outputs of up to 48 tokens.
After the advice on the last case, every candidate of each case is measured once, on as many other prompts, in a process of
its own.

*gain* is that of the advice, with its interval for a later run. *later* and *fastest* are the decoding speedups over the
target alone of the later measurement. *inside* says whether the interval of the gain contains *later*. *within 5 %* compares
*later* with *fastest*; where the advice is not to speculate, the target alone is compared; where it does not decide, nothing
is. *predicted* counts candidates whose predicted 95 % interval contains the measured speedup. Made by `make advise-trials`.

| case | seconds | advised | gain | later | inside | fastest | later | within 5 % | predicted |
| :-- | --: | :-- | --: | --: | :-- | :-- | --: | :-- | --: |
"""


@dataclass(frozen=True)
class Case:
    """A pair and a task, and its label on the page."""

    words: str
    pair: str
    task: str
    prompts: int = 16  # for the advice, and as many others
    temperature: float = 0.0

    @property
    def options(self) -> Options:
        """The options of its runs, on all of its prompts."""
        return Options(
            data=(("", "synthetic"),),
            limit=2 * self.prompts,
            device="cpu",
            dtype="float32",
            temperature=self.temperature,
            max_new_tokens=48,
        )


@dataclass(frozen=True)
class Trial:
    """The advice on a case, and the speedups that every candidate reaches on other prompts."""

    case: Case
    advice: Advice
    seconds: float
    measured: dict[str, Estimate] = field(default_factory=dict)

    @property
    def later(self) -> Estimate | None:
        """The later speedup of the selected candidate; None if its gain was not measured."""
        return self.measured.get(self.advice.best.candidate.name) if self.advice.gain else None

    @property
    def is_inside(self) -> bool | None:
        """Whether the interval of the gain contains the later speedup; None without an interval."""
        return _contains(self.advice.gain, self.later)

    @property
    def is_inside_prompts(self) -> bool | None:
        """Whether the interval over prompts contains the later speedup, in the first of the final runs; None without one."""
        return _contains(self.advice.repeats[0], self.later) if self.advice.repeats else None

    @property
    def fastest(self) -> str:
        """The candidate that is the fastest on other prompts; empty if the target alone is faster."""
        best = max(self.measured, key=lambda name: self.measured[name].value)
        return best if self.measured[best].value > 1.0 else ""

    @property
    def advised(self) -> str:
        """The advised candidate; empty if the advice is not to speculate."""
        return self.advice.best.candidate.name if self.advice.pays else ""

    @property
    def is_near(self) -> bool:
        """Whether the advised candidate is nearly as fast as the fastest."""
        return self._speed(self.advised) >= (1.0 - TOLERANCE) * self._speed(self.fastest)

    @property
    def contained(self) -> tuple[int, int]:
        """How many predicted intervals contain the measured speedup, and how many there are."""
        predicted = {each.candidate.name: each.predicted for each in self.advice.results if each.predicted}
        inside = [
            estimate.low <= self.measured[name].value <= estimate.high
            for name, estimate in predicted.items()
            if estimate.low is not None and estimate.high is not None
        ]
        return sum(inside), len(inside)

    @property
    def row(self) -> str:
        """The trial as a row of the page."""
        inside, count = self.contained
        near = "not decided" if self.advice.pays is None else "yes" if self.is_near else "no"
        within = {True: "yes", False: "no", None: NONE}[self.is_inside]
        return (
            f"| {self.case.words} | {self.seconds:.0f} | {self.advice.best.candidate.name if self.advice.gain else 'ar'} |"
            f" {TIMES.text(self.advice.gain)} | {TIMES.text(self.later)} | {within} |"
            f" {self.fastest or 'ar'} | {self._text(self.fastest)} | {near} | {inside} of {count} |"
        )

    @property
    def details(self) -> str:
        """The candidates of the case, and the advice in words."""
        lines = [f"## {self.case.words}", "", *answer(self.advice)][:3]
        lines += ["", "| candidate | predicted | measured on other prompts |", "| :-- | --: | --: |"]
        lines += [
            f"| {each.candidate.name} | {TIMES.text(each.predicted)} | {TIMES.text(self.measured[each.candidate.name])} |"
            for each in self.advice.results
        ]
        return "\n".join(lines)

    def _speed(self, name: str) -> float:
        return self.measured[name].value if name else 1.0

    def _text(self, name: str) -> str:
        return TIMES.text(self.measured[name]) if name else "1.00x"


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare advice with measurements of every candidate.")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--cases", type=int, nargs="+", help="numbers of the cases, from 1; all by default")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    trials = []
    for number, case in enumerate(cases(), 1):
        if args.cases and number not in args.cases:
            continue
        trials.append(advised(case, args.repeats))
        print("\n".join(answer(trials[-1].advice)), flush=True)
    trials = [measured_later(each, args.repeats) for each in trials]
    page = PAGE.format(repeats=args.repeats) + "\n".join(each.row for each in trials)
    decided = [each for each in trials if each.advice.pays is not None]
    inside, count = (sum(counts) for counts in zip(*(each.contained for each in trials), strict=True))
    page += f"\n\nTogether, {sum(each.is_near for each in decided)} of {len(decided)} decided cases are within"
    page += (
        f" {TOLERANCE:.0%} of the fastest, and {inside} of {count} predicted intervals contain the measured speedup.\n"
    )
    of_gain, of_prompts = (
        _share([each.is_inside for each in trials]),
        _share([each.is_inside_prompts for each in trials]),
    )
    page += (
        f"The interval of the gain contains the later speedup in {of_gain}; the interval over prompts of one run would"
    )
    page += f" in {of_prompts}.\n\n"
    page += "\n\n".join(each.details for each in trials) + "\n"
    write(args.out, page)
    print(page)


def _contains(interval: Estimate | None, value: Estimate | None) -> bool | None:
    if interval is None or value is None or interval.low is None or interval.high is None:
        return None
    return interval.low <= value.value <= interval.high


def _share(outcomes: Sequence[bool | None]) -> str:
    known = [outcome for outcome in outcomes if outcome is not None]
    return f"{sum(known)} of {len(known)} cases"


def cases() -> Sequence[Case]:
    """Return the cases: bundled pairs with the costs of larger ones, random weights, and a draft as large as its target."""
    RUNS.mkdir(parents=True, exist_ok=True)
    for name, text in (("losing", LOSING), ("random", RANDOM)):
        (RUNS / f"{name}.toml").write_text(text, encoding="utf-8")
    greedy = {
        "tiny-7b": ("gsm8k", "wmt"),
        "tiny-vicuna-7b-polybasic": ("cnndm",),
        "tiny-t5-small-large": ("xsum",),
    }
    sampled = (("tiny-7b", "gsm8k"), ("tiny-llama-2", "gsm8k"))
    return [
        *(Case(f"{pair}, {task}", pair, task) for pair, tasks in greedy.items() for task in tasks),
        *(Case(f"{pair}, {task}, T = 1", pair, task, temperature=1.0) for pair, task in sampled),
        Case("random weights, synthetic acceptance 0.8, gsm8k", str(RUNS / "random.toml"), "gsm8k"),
        Case("a draft as large as the target, gsm8k", str(RUNS / "losing.toml"), "gsm8k"),
    ]


def advised(case: Case, repeats: int) -> Trial:
    """Advise on a case."""
    options = replace(case.options, repeats=repeats)
    begin = time.monotonic()
    request = AdviceRequest(
        pair=case.pair, task=case.task, options=options, out=RUNS / "runs", access=Access(fresh=True), parts=PARTS
    )
    advice = advise(request, TerminalObserver())
    return Trial(case, advice, time.monotonic() - begin)


def measured_later(trial: Trial, repeats: int) -> Trial:
    """Return a trial with the speedup of every candidate on other prompts, measured in another process."""
    candidates = [each.candidate for each in trial.advice.results]
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        measured = pool.submit(_measure, trial.case, candidates, repeats).result()
    return replace(trial, measured=measured)


def _measure(case: Case, candidates: Sequence[Candidate], repeats: int) -> dict[str, Estimate]:
    """Return the speedup of every candidate on other prompts."""
    register_for_advice(candidates)
    names = tuple(each.name for each in candidates)
    options = replace(case.options, shard=OTHERS, repeats=repeats)
    request = Request(methods=names, pair=case.pair, tasks=(case.task,), options=options, out=RUNS / "runs")
    (plan,) = resolve(request).plans
    (summary,) = measure(
        plan, plan.runs, LoadedModels(), MeasureOptions(access=Access(fresh=True)), TerminalObserver()
    ).summaries
    return {row.method: row.speedup for row in summary.methods if row.speedup}


if __name__ == "__main__":
    main()
