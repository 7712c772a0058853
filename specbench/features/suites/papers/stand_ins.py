"""Bundled pairs that stand for pairs of a paper: their costs beside the paper's, and where they decide an outcome themselves.

A bundled pair that `stands_for` a pair of the paper has the same roles. The bytes of weights that a forward of one token
reads are known for both from configs alone. Papers print speeds and rarely acceptance rates, so the paper's rate is the one
at which theory gives its printed speed, at its models' ratio of bytes and with blocks that cost as much as one token.

A comparison of speedups says nothing about a method if its outcome follows from the stand-in's costs and acceptance rate.
That is the case if theory expects the outcome from the numbers measured here, by MARGIN or more, the measured ratio agrees
with that expectation, theory expects the opposite from the paper's numbers, and one of the numbers differs. The same rule
applies to claims that cannot fail and to claims that cannot hold. It needs printed speeds, and settings that differ from the
printed ones in the draft length only (decisions 0052 and 0055).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from specbench.analysis.costs import ForwardCosts, Sizes, forward_costs, sizes_of
from specbench.analysis.formula import AssumedRates, formula_of
from specbench.analysis.points import Point, Reference, reference_of
from specbench.analysis.run_summary import RunSummary
from specbench.config.construct import construct
from specbench.config.pair import ModelSpec, Pair
from specbench.config.presets import names, preset
from specbench.decoding.traits import Theory
from specbench.features.suites.papers.comparisons import FEWEST_REJECTIONS
from specbench.features.suites.suite import Suite, read_suite
from specbench.resolution.selection import read_pair
from specbench.runs.record import Record
from specbench.runs.run_folder import load
from specbench.runs.settings import short_key

PRECISION = "bfloat16"  # of the paper's weights
SPEEDS = ("papers_speedup", "speedup", "end_to_end_speedup", "geometric_mean_speedup")  # values that theory predicts
PRINTED_SPEED = "papers_speedup"  # the printed value that implies an acceptance rate
LENGTHS = ("accepted_length", "average_tokens")  # printed values that measure acceptance themselves
MARGIN = 1.1  # theory expects an outcome if its ratio lies beyond the bound by this factor
NEAR = 0.07  # difference of acceptance rates up to which a stand-in accepts as the paper's pair does
SIMILAR = 1.15  # ratio of costs up to which they are alike
RULE = (2, SPEEDS, MARGIN, NEAR, SIMILAR, FEWEST_REJECTIONS)  # its version and limits, which the ledger hashes
HALVINGS = 40
LENGTH_KEY = "gamma"  # of a draft length
SUITES_WITH_SPEEDS = ("se-table2", "se-table3", "se-table4", "spec-bench-leaderboard")


@dataclass(frozen=True)
class ModelBytes:
    """A model or head of a pair: its source, and the bytes of weights that a forward of one token reads."""

    source: str
    forward: float


@cache
def model_bytes(pair: str, precision: str = PRECISION) -> dict[str, ModelBytes]:
    """Return the models and drafting heads of a bundled pair, by role and name. No weights are read.

    `precision` is that of weights that are not quantized. Raises ConfigError or MissingAsset for a pair that cannot be
    resolved.
    """
    import torch  # imported here, with what needs it, to keep `--help` fast

    from specbench.models.heads.head_size import size_of_head
    from specbench.models.resolve_models import Execution, resolve_models

    source = preset("pair", pair)
    specs = construct(Pair, source.table, str(source.path))
    on = Execution(torch.device("cpu"), precision, elsewhere=True)
    models = resolve_models(specs, tuple(specs.models), source.path.parent, on)
    sizes = {}
    for role, model in models.items():
        kind = f", {model.spec.quantization}" if model.spec.quantization else ""
        sizes[role] = ModelBytes(f"{model.spec.path}{kind}", float(model.size.forward_bytes))
    for head, spec in specs.heads.items():
        if spec.drafts:
            size = size_of_head(spec.kind, spec.base, models[spec.base])
            sizes[head] = ModelBytes(spec.path, float(size.forward_bytes))
    return sizes


def stands_for(pair: str) -> str:
    """Return the bundled pair of a paper that a bundled pair stands for; empty if there is none."""
    original = str(preset("pair", pair).table.get("stands_for", "")) if pair in names("pair") else ""
    return original if original in names("pair") else ""


class PrintedSpeed(NamedTuple):
    """A speed that a table of a paper prints, and the draft lengths that the table covers; empty if the method has none."""

    row: Reference
    lengths: tuple[tuple[int, ...], ...]


@cache
def printed_speeds(pair: str) -> tuple[PrintedSpeed, ...]:
    """Return the speeds that tables print for a pair of a paper, without those of groups of prompts."""
    return tuple(
        PrintedSpeed(row, draft_lengths(name, row.method, pair))
        for name in SUITES_WITH_SPEEDS
        for row in reference_of(name)
        if row.pair == pair and row.metric == PRINTED_SPEED and not row.group
    )


def draft_lengths(suite: str, method: str, pair: str) -> tuple[tuple[int, ...], ...]:
    """Return the draft lengths at which a suite measures a method of a pair, one number per drafting model."""
    found: list[object] = []
    for line in read_suite(suite).grid:
        if method in line.methods and pair in line.pairs:
            for key, values in line.options.over:
                scope, *_, last = key.split(".")
                found += values if (scope, last) == (method, LENGTH_KEY) else []
            found += [lengths for scope, lengths in line.options.gamma if scope in ("", method)]
    return tuple(dict.fromkeys(tuple(each) if isinstance(each, list | tuple) else (int(str(each)),) for each in found))


def fastest(theories: Iterable[Theory], sizes: Mapping[str, float], baseline: Sequence[str], rate: float) -> float:
    """Return the speedup of the fastest of several settings of a method in theory, at one acceptance rate.

    Every forward costs `sizes` of its model, whatever it reads. `baseline` are the models that the baseline runs for each
    token.
    """
    per_token = sum(sizes[role] for role in baseline)
    speedups = []
    for theory in theories:
        counts = formula_of(theory)(theory, AssumedRates(acceptance=rate, deferred=1.0))
        if counts is not None:
            seconds = [sizes[role] for role in theory.models]
            speedups.append(counts.speedup(lambda i, _, seconds=seconds: seconds[i], per_token))  # type: ignore[misc]
    return max(speedups, default=0.0)


def implied_rate(
    theories: Sequence[Theory], sizes: Mapping[str, float], baseline: Sequence[str], speedup: float
) -> float | None:
    """Return the acceptance rate at which `fastest` is a printed speedup; None if no rate gives it."""
    low, high = 0.0, 1.0
    if not fastest(theories, sizes, baseline, low) <= speedup <= fastest(theories, sizes, baseline, high):
        return None
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if fastest(theories, sizes, baseline, middle) < speedup else (low, middle)
    return (low + high) / 2.0


def has_other_costs(run: RunSummary) -> bool:
    """Return whether a run replaced the costs of its pair, so that its models no longer stand for those of the paper."""
    models = construct(Pair, preset("pair", run.pair).table, run.pair).models if run.pair in names("pair") else {}
    return not _has_costs_of(run, models)


def pairs_with_earlier_costs(suite: Suite, runs: Iterable[RunSummary]) -> list[str]:
    """Return the pairs whose runs were measured with costs that no line of the suite gives them now."""
    earlier = set()
    for run in runs:
        now = [read_pair(pair, line.options)[1].models for line, pair, _ in suite.parts() if pair == run.pair]
        if now and not any(_has_costs_of(run, models) for models in now):
            earlier.add(run.pair)
    return sorted(earlier)


def _has_costs_of(run: RunSummary, models: Mapping[str, ModelSpec]) -> bool:
    """Return whether the models of a run have the costs that these models of a pair have."""
    return all(models[role].cost == model.cost for role, model in run.spec.pair.models.items() if role in models)


def same_task(one: str, two: str) -> bool:
    """Return whether two tasks are equal but for the variant of the prompt."""
    return one.partition(":")[0] == two.partition(":")[0]


class Block(NamedTuple):
    """The tokens of a model's most frequent blocks, and the time of such a forward over that of one token."""

    size: int
    cost: float


class StandIns:
    """The stand-ins among the pairs of some runs, and the points of these and other runs. Reads records once.

    Runs whose pair has other costs than its own are left out (`has_other_costs`).
    """

    def __init__(self, summaries: Sequence[RunSummary], points: Sequence[Point]) -> None:
        self.summaries, self.points = summaries, points
        self._implied: dict[tuple[str, str], float | None] = {}
        self._blocks: dict[tuple[str, str, str], Block | None] = {}

    @cached_property
    def pairs(self) -> dict[str, str]:
        """The pairs that stand for a pair of the paper, and its name."""
        found = {summary.pair: stands_for(summary.pair) for summary in self.summaries}
        return {pair: original for pair, original in found.items() if original}

    @cached_property
    def _by_run(self) -> dict[str, RunSummary]:
        return {summary.run: summary for summary in self.summaries}

    @cached_property
    def _records(self) -> dict[str, list[Record]]:
        return {summary.run: load(Path(summary.folder)).records for summary in self.summaries}

    def bytes_here(self, pair: str) -> dict[str, ModelBytes]:
        """Return the bytes that the models and heads of a stand-in read, in the precision of its runs."""
        models = next(summary.models for summary in self.summaries if summary.pair == pair)
        return model_bytes(pair, next(iter(models.values())).dtype)

    def paper_sizes(self, pair: str) -> dict[str, float]:
        """Return the bytes that the models and heads of the paper's pair read, by role and name."""
        return {role: size.forward for role, size in model_bytes(self.pairs[pair]).items()}

    def theory(self, point: Point) -> Theory | None:
        """Return the theory of a point's method, if the sizes of its models are known for the paper's pair.

        None for a curve, and for a setting that differs from the printed ones in more than the draft length.
        """
        run = self._by_run.get(point.run)
        spec = run.spec.methods.get(point.name) if run is not None else None
        if spec is None or any(short_key(key) != LENGTH_KEY for key in point.settings):
            return None
        theory, known = spec.traits.theory, self.paper_sizes(point.pair).keys()
        return theory if theory is not None and {*theory.models, *self.baseline(point)} <= known else None

    def baseline(self, point: Point) -> tuple[str, ...]:
        """Return the models that the baseline of a point's run runs for each token."""
        summary = self._by_run[point.run]
        return summary.spec.methods[summary.baseline].traits.roles

    def implied(self, point: Point) -> float | None:
        """Return the acceptance rate that the paper's printed speeds imply for a point's method, task and temperature.

        It is the mean over the printed tasks if the point's own is not among them. None if the paper prints none, or one
        that no acceptance rate reaches in theory.
        """
        key = (point.run, point.method)  # a run has one task and temperature
        if key not in self._implied:
            self._implied[key] = self._implied_rate(point)
        return self._implied[key]

    def _implied_rate(self, point: Point) -> float | None:
        rates = [self._implied_by(speed, point) for speed in self.printed(point)]
        return fmean(rate for rate in rates if rate is not None) if rates and None not in rates else None

    def printed(self, point: Point) -> list[PrintedSpeed]:
        """Return the printed speeds of a point's method, temperature and task; of all printed tasks if its own is not one."""
        speeds = [each for each in printed_speeds(self.pairs[point.pair]) if each.row.method == point.method]
        speeds = [each for each in speeds if each.row.T in ("", f"{point.T:g}")]
        return [each for each in speeds if same_task(each.row.task, point.task)] or speeds

    def _implied_by(self, speed: PrintedSpeed, like: Point) -> float | None:
        """Return the acceptance rate that one printed speed implies, for the best of the table's draft lengths."""
        theories = self._theories(like)
        if theories and speed.lengths:
            theories = [replace(theories[0], gamma=length) for length in speed.lengths]
        sizes = self.paper_sizes(like.pair)
        return implied_rate(theories, sizes, self.baseline(like), speed.row.value) if theories else None

    def _theories(self, like: Point) -> list[Theory]:
        """Return the theories of all settings of a point's method in its run to which printed speeds apply."""
        return [theory for point in self._settings(like) if (theory := self.theory(point)) is not None]

    def _settings(self, like: Point) -> list[Point]:
        """Return the points of all settings of a point's method in its run."""
        return [p for p in self.points if (p.run, p.method, p.group) == (like.run, like.method, "")]

    def seconds_of(self, pair: str, role: str) -> float | None:
        """Return the seconds of a model's forward of one token; None if it never read one token alone."""
        costs = self._costs(pair, role)
        return costs.of(1) if costs is not None and self._sizes(pair, role).get(1) else None

    def block_of(self, pair: str, role: str, method: str = "") -> Block | None:
        """Return a model's most frequent blocks with their cost; None without blocks. `method` is a label, by default all."""
        key = (pair, role, method)
        if key not in self._blocks:
            costs, sizes = self._costs(pair, role), self._sizes(pair, role, method)
            blocks = Counter({size: count for size, (count, _) in sizes.items() if size > 1})
            self._blocks[key] = None
            if costs is not None and blocks and costs.of(1):
                ((size, _),) = blocks.most_common(1)
                self._blocks[key] = Block(size, costs.of(size) / costs.of(1))
        return self._blocks[key]

    def _sizes(self, pair: str, role: str, method: str = "") -> Sizes:
        runs = [summary.run for summary in self.summaries if summary.pair == pair]
        return sizes_of((each for run in runs for each in self._records[run] if method in ("", each.method)), role)

    def _costs(self, pair: str, role: str) -> ForwardCosts | None:
        return forward_costs(self._sizes(pair, role))

    def decides(self, sides: Sequence[Point], bound: float, value: str, is_above: bool, is_best: bool = False) -> str:
        """Return by which numbers the stand-in alone decides an outcome; empty if it does not.

        The value of the first point is above (`is_above`) or below `bound` times that of the second, or `bound` itself.
        `is_best` says that both were chosen among the settings of their methods.
        """
        if value not in SPEEDS or any(p.pair not in self.pairs or p.group or p.is_curve for p in sides):
            return ""
        speeds = [speed for each in sides if (speed := self._speeds(each, is_best))]
        if len(speeds) < len(sides):
            return ""
        here, there = (_over_bound(each, bound) for each in zip(*speeds, strict=True))
        measured = _over_bound([each.number(value) or 0.0 for each in sides], bound)
        ours, theirs = (here, there) if is_above else (1.0 / here, 1.0 / there)
        numbers = [text for each in sides for text in self._different(each)]
        is_as_expected = 1.0 / MARGIN <= measured / here <= MARGIN
        if ours < MARGIN or theirs >= 1.0 or not numbers or not is_as_expected:
            return ""
        expects = (
            f"theory expects {here:.2f} times the bound from the numbers here, and {there:.2f} times from the paper's"
        )
        return f"{', '.join(dict.fromkeys(numbers))}: {expects}"

    def _speeds(self, point: Point, is_best: bool) -> tuple[float, float] | None:
        """Return the speedup of a point's method that theory expects from the numbers here, and from the paper's.

        Of the best setting, both are those of the setting that is the fastest in theory.
        """
        if point.baseline:
            return 1.0, 1.0
        theory, rate = self.theory(point), self.implied(point)
        settings = self._settings(point) if is_best else [point]
        here = max((each.number("corrected") or 0.0 for each in settings), default=0.0)
        if theory is None or rate is None or not here:
            return None
        theories = self._theories(point) if is_best else [theory]
        there = fastest(theories, self.paper_sizes(point.pair), self.baseline(point), rate)
        return (here, there) if there else None

    def _different(self, point: Point) -> list[str]:
        """Return the numbers in which a point's stand-in differs from the paper's pair, in words."""
        theory, rate = self.theory(point), self.implied(point)
        measured = point.number("acceptance_rate")
        if theory is None:
            return []
        texts = []
        if rate is not None and measured is not None and abs(measured - rate) > NEAR:
            texts.append(
                f"{point.name} on {point.task} accepts {measured:.2f} of the drafted tokens (paper, implied: {rate:.2f})"
            )
        first, last = theory.models[0], theory.models[-1]
        ours, paper = self.bytes_here(point.pair), self.paper_sizes(point.pair)
        here, there = ours[first].forward / ours[last].forward, paper[first] / paper[last]
        if not 1.0 / SIMILAR <= here / there <= SIMILAR:
            texts.append(f"a forward of {first} reads {here:.3f} of the bytes of one of {last} (paper {there:.3f})")
        block = self.block_of(point.pair, last, point.name)
        if block is not None and block.cost > SIMILAR:
            texts.append(f"a forward of {last} over {block.size} tokens takes {block.cost:.2f} times as long as of one")
        return texts


def _over_bound(speeds: Sequence[float], bound: float) -> float:
    """Return a speed over a bound, or over another speed and a factor."""
    return speeds[0] / bound / (speeds[1] if len(speeds) > 1 and speeds[1] else 1.0)
