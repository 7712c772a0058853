"""Advice on a pair: the candidates, what was predicted and measured of each, and which one is selected."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specbench.analysis.intervals import Estimate
from specbench.analysis.predictions import BreakEven
from specbench.analysis.prices import Drafter
from specbench.analysis.run_summary import MethodSummary, RunSummary
from specbench.config.construct import Table


@dataclass(frozen=True, eq=False)
class Candidate:
    """A method that may be advised: the name that it is registered with, its TOML, and its drafting model or head, if any.

    A candidate that is not lossless changes the distribution of the output.
    """

    name: str
    table: Table
    drafter: str = ""
    lossless: bool = True

    @property
    def proposer(self) -> dict[str, Any]:
        """The table of its proposer; empty for a method without one."""
        table: Any = self.table.get("proposer", {})
        return dict(table)

    @property
    def kind(self) -> Drafter | None:
        """How it drafts, for prices; None for methods that are measured only."""
        if not self.lossless:
            return None
        if "stop" in self.proposer:
            return "stopped"
        kinds: dict[str, Drafter] = {
            "model": "model", "model-tree": "tree", "eagle": "head", "pld": "lookup", "chain": "chain",
        }  # fmt: skip
        return kinds.get(str(self.proposer.get("name")))

    @property
    def gamma(self) -> int:
        """The longest draft, in tokens; 0 for a tree."""
        return int(self.proposer.get("gamma", 0))


@dataclass(frozen=True, kw_only=True, eq=False)
class CandidateResult:
    """A candidate, its predicted and its measured decoding speedup. `why` says why there is no prediction.

    `parts` is the number of parts after the first that it was measured on; `measured` is that of the last one, and
    `score_change` its main score minus that of the target alone, there.
    """

    candidate: Candidate
    predicted: Estimate | None = None
    why: str = ""
    measured: Estimate | None = None
    score_change: Estimate | None = None
    parts: int = 0

    @property
    def speedup(self) -> float:
        """The best estimate of the speedup: measured, else predicted, else 1."""
        estimate = self.measured or self.predicted
        return estimate.value if estimate else 1.0

    def keeps_score(self, max_drop: float) -> bool:
        """Whether the candidate is lossless, or its interval excludes that the score drops by more than `max_drop`."""
        change = self.score_change
        return self.candidate.lossless or (change is not None and change.low is not None and change.low >= -max_drop)

    def loses_score(self, max_drop: float) -> bool:
        """Whether the interval excludes that the score drops by at most `max_drop`."""
        change = self.score_change
        return (
            not self.candidate.lossless and change is not None and change.high is not None and change.high < -max_drop
        )


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The advised candidate and what the advice rests on.

    `results` are all candidates, the selected one first. `gain` is its measured decoding speedup on held-out prompts; None if
    it was not measured there. `pilot` is the run that gave the prices, `pilot_row` its first method, `final` the last run.
    `max_drop` is the largest allowed drop of the main score, in [0, 1]; None if only lossless candidates were compared.
    """

    results: Sequence[CandidateResult]
    gain: Estimate | None
    pilot: RunSummary
    pilot_row: MethodSummary
    break_even: BreakEven | None
    block_price: float | None
    final: RunSummary
    is_out_of_time: bool = False
    max_drop: float | None = None

    @property
    def best(self) -> CandidateResult:
        """The advised candidate."""
        return self.results[0]

    @property
    def pays(self) -> bool | None:
        """Whether the selected candidate is faster than the baseline; None if its interval does not tell."""
        gain = self.gain or self.best.measured
        if gain is None or gain.low is None or gain.high is None:
            return None
        return True if gain.low > 1.0 else False if gain.high < 1.0 else None

    @property
    def is_usable(self) -> bool:
        """Whether the selected candidate is faster than the baseline, as measured, or as predicted if no time limit ended."""
        gain = self.gain or self.best.measured or (None if self.is_out_of_time else self.best.predicted)
        return gain is not None and gain.low is not None and gain.low > 1.0

    @property
    def front(self) -> list[CandidateResult]:
        """The Pareto front: the candidates measured last that neither another one nor the target alone dominates."""
        last = max(result.parts for result in self.results)
        scored = {
            result: (result.speedup, result.score_change.value)
            for result in self.results
            if result.parts == last and result.measured and result.score_change
        }
        others = [(1.0, 0.0), *scored.values()]
        return [result for result, point in scored.items() if not any(_dominates(other, point) for other in others)]

    @property
    def faster_but_unproven(self) -> list[CandidateResult]:
        """The candidates measured last that are faster than the selected one, and may lose more score than allowed."""
        last = max(result.parts for result in self.results)
        return [
            result
            for result in self.results
            if result.parts == last
            and result.speedup > self.best.speedup
            and self.max_drop is not None
            and not result.keeps_score(self.max_drop)
            and not result.loses_score(self.max_drop)
        ]


def _dominates(other: tuple[float, float], point: tuple[float, float]) -> bool:
    """Return whether another speed and score are at least as good in both, and better in one."""
    return other != point and other[0] >= point[0] and other[1] >= point[1]
