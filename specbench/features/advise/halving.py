"""Successive halving of the candidates: measured on one part of the prompts after another, half of them dropped each time."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specbench.analysis.intervals import Estimate
from specbench.analysis.quality import bounded_score_change, scores_by_prompt, scores_of
from specbench.analysis.run_summary import RunSummary
from specbench.features.advise.advice_runs import AdviceRuns
from specbench.features.advise.advice_work import (
    PARTS,
)
from specbench.features.advise.candidates import Candidate, CandidateResult
from specbench.runs.run_folder import read

LOSSY_FINALISTS = 2  # of the methods that are not lossless, after their first part


@dataclass
class SuccessiveHalving:
    """The candidates that are still measured: lossless ones in `names`, the others in `others`.

    `results` holds the result of every candidate, also of dropped ones. `final` is the last run, and `part` the number of its
    part of the prompts. One of `others` may lose at most `max_drop` of the score.
    """

    results: dict[str, CandidateResult]
    names: list[str]
    others: list[str]
    max_drop: float
    final: RunSummary
    part: int = 1
    is_out_of_time: bool = False

    def run(self, parts: AdviceRuns, deadline: float) -> None:
        """Measure the candidates on the remaining parts, and drop slow ones after each part but the last.

        Ends early if all candidates are slower than the baseline. No part is begun that would probably end after `deadline`,
        in seconds of `time.monotonic`.
        """
        while self.part < len(PARTS):
            if time.monotonic() + parts.slowest > deadline:
                self.is_out_of_time = True
                return
            self.part += 1
            measured = [*self.names, *self.others]
            self.final = parts.measure(self.part, measured)
            add_measurements(self.results, self.final, measured)
            if all(_is_slower(self.results[name].measured) for name in measured):
                return
            if self.part < len(PARTS):
                self._keep_fastest()

    def _keep_fastest(self) -> None:
        """Drop the slower half of the lossless candidates; before the last part, keep only the fastest.

        Of the others, drop candidates that lose too much of the score, and keep the fastest LOSSY_FINALISTS; before the last
        part, only the fastest. The last part has one of each kind, so a lossless one is left if the other loses too much.
        """
        is_last = self.part == len(PARTS) - 1
        self.names = fastest(self.results, self.names, 1 if is_last else max(len(self.names) // 2, 1))
        allowed = [name for name in self.others if not self.results[name].loses_score(self.max_drop)]
        self.others = fastest(self.results, allowed, 1 if is_last else LOSSY_FINALISTS)

    @property
    def best(self) -> str:
        """The fastest remaining candidate that is lossless or keeps the score."""
        return selected(
            self.results,
            [*self.names, *(name for name in self.others if self.results[name].keeps_score(self.max_drop))],
        )


def add_measurements(results: dict[str, CandidateResult], run: RunSummary, names: Iterable[str]) -> None:
    """Replace the speedups and score changes in the results of these candidates with the values of a run.

    Scores are not compared if the baseline scores 0, since they cannot drop then.
    """
    rows = {row.method: row for row in run.methods}
    score = run.score(rows[run.baseline])
    is_scored = score is not None and score.value > 0.0
    folder = Path(run.folder)
    prompts = {record.sample: record.prompt for record in read(folder)}
    scores = scores_by_prompt(scores_of(folder), prompts) if is_scored else None
    for name in names:
        change = bounded_score_change(name, run.baseline, scores) if scores else None
        results[name] = replace(
            results[name],
            measured=rows[name].speedup,
            score_change=change,
            parts=results[name].parts + 1,
            on_first=results[name].on_first or rows[name].speedup,
        )


def fastest(results: Mapping[str, CandidateResult], names: Sequence[str], count: int) -> list[str]:
    return sorted(names, key=lambda name: -results[name].speedup)[:count]


def selected(results: Mapping[str, CandidateResult], names: Sequence[str]) -> str:
    """Return the fastest of these candidates. One without an estimate is returned only if no candidate has an estimate."""
    estimated = [name for name in names if results[name].measured or results[name].predicted]
    return fastest(results, estimated or names, 1)[0]


def _is_slower(speedup: Estimate | None) -> bool:
    return speedup is not None and speedup.high is not None and speedup.high < 1.0


def best_of(
    results: Mapping[str, CandidateResult], candidates: Sequence[Candidate], count: int, compared: Iterable[str] = ()
) -> list[str]:
    """Return the candidates to measure: those with the highest predicted speed, then those without a prediction.

    Returns `count` candidates, plus the best one of each head in `compared` that is not among them. Candidates without a
    prediction get up to half of the `count` places, since only a measurement can show that they are fast.
    """
    unpredicted = [candidate.name for candidate in candidates if results[candidate.name].predicted is None]
    predicted = [candidate.name for candidate in candidates if results[candidate.name].predicted is not None]
    unpredicted = unpredicted[: count // 2] if predicted else unpredicted[:count]
    chosen = [*fastest(results, predicted, count - len(unpredicted)), *unpredicted]
    for head in compared:
        own = [candidate.name for candidate in candidates if candidate.drafter == head]
        if not {*own} & {*chosen}:
            chosen += fastest(results, own, 1)
    return chosen
