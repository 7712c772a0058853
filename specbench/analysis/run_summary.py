"""Summaries of runs, typed: what summary.json and the JSON report contain.

`speedup_steps` returns the steps from the theoretical speedup to the measured one: which part of a round costs how much of
it. Each step replaces one idealization by what was measured, and its speedup includes all steps before it. So the factors
between steps multiply to measured / theory, and the last two steps are the measured speedups themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from specbench.analysis.baseline import BaselineSpeed, SlowBaseline, slow_baseline
from specbench.analysis.costs import run_sizes, sizes_of
from specbench.analysis.intervals import Estimate
from specbench.analysis.length_predictions import LengthPrediction
from specbench.analysis.method_metrics import ChainLevel
from specbench.analysis.method_records import Records, paired, seconds, token_count
from specbench.analysis.metric import Value, Values
from specbench.analysis.predictions import BreakEven
from specbench.analysis.ranking import Rank
from specbench.analysis.theory import BestTree
from specbench.decoding.traits import Traits
from specbench.files import checked
from specbench.machine.hardware import Environment, bandwidth_of
from specbench.runs.run_folder import MetricTable
from specbench.runs.run_spec import Clock, DataSpec, DecodingSpec, HeadSource, ModelSource, RunSpec
from specbench.vocabulary import Simulation

SCHEMA = 9  # of summary.json; raised when what a summary contains, or how it is computed, changes
SPEC = "spec"  # the field of RunSummary that is parsed separately
SLOW = "slow_baseline"  # the property of RunSummary that the table contains
VALUES = "values"  # the field of MethodSummary whose entries are keys of the JSON row


@dataclass(frozen=True, kw_only=True)
class SpeedupSteps:
    """Speedups over the baseline, each with one more measured part.

    `rounds`: the measured numbers of forwards, each at the cost of one token, without time outside forwards. It is below the
    theory if drafts end early or tokens are not accepted independently. `drafting`: the drafting models' measured seconds.
    `blocks`: the verifying models' measured seconds, so the cost of blocks. `host`: the time outside forwards of both sides,
    which makes it the measured decoding speedup. `prefill`: prefill of both sides, the measured end-to-end speedup.
    """

    rounds: float
    drafting: float
    blocks: float
    host: float
    prefill: float


def speedup_steps(verifiers: Sequence[str], rows: Records, base: Records) -> SpeedupSteps | None:
    """Return the steps of a method. `verifiers` are the baseline's models; all other models draft.

    None without rounds, without forwards of single tokens, for a method that does not run these models, and for models that
    run at the same time, whose seconds do not add up.
    """
    ours, theirs = paired(rows, base)
    overlap = any(usage.overlapped_seconds for row in ours for usage in row.models.values())
    if overlap or not any(row.rounds for row in ours):
        return None
    roles = dict.fromkeys(role for row in ours for role in row.models)
    ones = {role: run_sizes(ours, theirs, role).get(1) for role in roles}
    single = {role: one[1] / one[0] for role, one in ones.items() if one}
    if not all(role in single and role in roles for role in verifiers):
        return None
    of_model = {role: sizes_of(ours, role).values() for role in roles}
    spent = {role: sum(seconds_ for _, seconds_ in sizes) for role, sizes in of_model.items()}
    ideal = {role: sum(count for count, _ in of_model[role]) * single.get(role, 0.0) for role in roles}
    drafters = [role for role in roles if role not in verifiers]
    if any(role not in single and spent[role] for role in drafters):
        return None
    tokens, of_base = token_count(ours), token_count(theirs)
    of_forwards = sum(row.models[role].seconds for row in theirs for role in verifiers if role in row.models)
    forward = of_forwards / of_base  # the first forward of an output is prefill on both sides

    def over(time: float) -> float:
        return tokens * forward / time

    def measured_speedup(end_to_end: bool) -> float:
        mine, other = (sum(seconds(row, end_to_end) for row in side) for side in (ours, theirs))
        return (tokens / mine) / (of_base / other)

    verified = sum(ideal[role] for role in verifiers)
    drafted = sum(spent[role] for role in drafters)
    if not verified:
        return None
    return SpeedupSteps(
        rounds=over(verified + sum(ideal[role] for role in drafters)),
        drafting=over(verified + drafted),
        blocks=over(sum(spent[role] for role in verifiers) + drafted),
        host=measured_speedup(end_to_end=False),
        prefill=measured_speedup(end_to_end=True),
    )


@dataclass(frozen=True)
class CapturedGraphs:
    """CUDA graphs that were captured during the run, outside all timings."""

    graphs: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class MethodSummary:
    """One method of a run.

    `values` has every registered run metric (`specbench/analysis/metric.py`) by its name, and the predictions of
    theory. It is empty if all generations failed. `quality` has every score by the name of its metric, None if it is
    undefined. `score_change` is the main score minus the baseline's. `rank` is the rank by speed, and
    `predicted_lengths` the predicted speedup of other draft lengths. `break_even` says from which acceptance rate and
    draft cost the method pays.
    """

    method: str
    preset: str
    label: str  # the method's name, with labels of what is not real about the models
    generations: int
    failed: int
    first_error: str | None
    prompts: int
    tokens: int = 0
    values: Values = field(default_factory=dict)
    acceptance_by_position: list[float] = field(default_factory=list)
    survival: list[float] = field(
        default_factory=list
    )  # share of drafts of which the first, second, ... token was accepted
    acceptance_by_rank: list[float] = field(default_factory=list)  # of the first, second, ... children in trees
    acceptance_by_model: dict[str, float] = field(default_factory=dict)
    forwards_per_token: dict[str, float] = field(default_factory=dict)
    round_milliseconds: dict[str, float] = field(default_factory=dict)
    length_counts: dict[int, int] = field(default_factory=dict)  # rounds by the tokens that they committed
    counters: dict[str, float] = field(default_factory=dict)  # what the method counted in its rounds
    window_cuts: dict[str, float] = field(default_factory=dict)  # share of generations that each model's window ended
    levels: list[ChainLevel] = field(default_factory=list)  # of a chain, innermost first
    groups: dict[str, Values] = field(default_factory=dict)  # metrics by subject or category
    quality: dict[str, Estimate | None] = field(default_factory=dict)
    quality_by_group: dict[str, Estimate | None] = field(default_factory=dict)
    score_change: Estimate | None = None
    rank: Rank | None = None
    predicted_lengths: list[LengthPrediction] = field(default_factory=list)
    break_even: BreakEven | None = None
    best_tree: BestTree | None = None
    steps: SpeedupSteps | None = None  # from the theoretical speedup to the measured one
    no_answer: float | None = None  # share of generations without an answer

    def __repr__(self) -> str:
        return f"<MethodSummary {self.label}: {self.generations} generations, {self.failed} failed>"

    def value(self, name: str) -> Value:
        """Return a run metric or prediction; None if it is not defined for this method."""
        return self.values.get(name)

    def number(self, name: str) -> float | None:
        """Return a run metric or prediction without its interval."""
        value = self.values.get(name)
        if isinstance(value, Estimate):
            return value.value
        return value[0] if isinstance(value, tuple) else value

    @property
    def is_measured(self) -> bool:
        """Whether any generation completed."""
        return self.generations > 0

    @property
    def speedup(self) -> Estimate | None:
        """Decoding speedup over the baseline; None for the baseline."""
        value = self.values.get("speedup")
        return value if isinstance(value, Estimate) else None

    @property
    def acceptance_rate(self) -> float | None:
        return self.number("acceptance_rate")

    @property
    def accepted_length(self) -> float | None:
        return self.number("accepted_length")

    @property
    def tokens_per_second(self) -> float | None:
        return self.number("tokens_per_second")


@dataclass(frozen=True, kw_only=True)
class SummaryState:
    """What was measured of a run: its state, and a summary of each method, the baseline first.

    `stamp` identifies the files that the summary was computed from, and `schema` the code. `imported` is the archive that the
    run came from; empty for a run that was measured here. `problems` are lines of samples.jsonl that do not count.
    `metrics` are the metrics of the scores, and `headline` is the task's main metric. `clock` is the run's, or end to end if
    the two clocks disagree or prefill is a large share of the time.
    """

    schema: int = SCHEMA
    stamp: str
    clock: Clock  # of the headline
    run: str
    folder: str
    imported: str = ""
    environment: Environment
    complete: bool
    problems: list[str]
    captured: CapturedGraphs
    metrics: list[MetricTable]
    headline: str
    scored_by: str  # the version of the task that computed the scores
    not_executed: bool
    scored: bool
    methods: list[MethodSummary]


@dataclass(frozen=True, kw_only=True)
class RunSummary(SummaryState):
    """One run: its spec, its state, and a summary of each method."""

    spec: RunSpec

    def __repr__(self) -> str:
        state = "complete" if self.complete else "incomplete"
        return f"<RunSummary {self.spec.words}: {state}, {self.folder}>"

    @property
    def pair(self) -> str:
        """The pair's name."""
        return self.spec.pair.name

    @property
    def task(self) -> str:
        """The task and its version."""
        return self.spec.task.label

    @property
    def simulated(self) -> Simulation:
        """What is not real about the models."""
        return self.spec.pair.simulated

    @property
    def is_of_real_models_and_data(self) -> bool:
        """Whether neither the models nor the prompts are synthetic, so that a paper's values can stand beside the results."""
        return not self.simulated and self.data.source != "synthetic"

    @property
    def data(self) -> DataSpec:
        return self.spec.task.data

    @property
    def decoding(self) -> DecodingSpec:
        return self.spec.decoding

    @property
    def models(self) -> dict[str, ModelSource]:
        return self.spec.pair.models

    @property
    def heads(self) -> dict[str, HeadSource]:
        return self.spec.pair.heads

    @property
    def baseline(self) -> str:
        """The label of the baseline."""
        return self.spec.baseline

    @property
    def target(self) -> str:
        """The model that verifies last; empty for a run without models."""
        return next(reversed(self.models), "")

    @property
    def is_timed(self) -> bool:
        """Whether times mean something: no other run shared the device."""
        return not self.environment.get("untimed", False)

    @property
    def end_to_end(self) -> bool:
        """Whether the run's main speedup includes prefill."""
        return self.clock == "end to end"

    @property
    def slow_baseline(self) -> SlowBaseline | None:
        """By how much at most a slow baseline overstates the speedups, and why; None if nothing shows that it does."""
        row = next((row for row in self.measured_methods if row.method == self.baseline), None)
        if row is None or not self.is_timed:
            return None
        traits, checks = self.traits(row), self.environment.get("forward_checks", {})
        roles = [role for role in traits.roles if role in self.models]
        return slow_baseline(
            BaselineSpeed(
                method=row.method,
                parameters=sum(self.models[role].parameters for role in roles),
                forward_bytes=sum(self.models[role].forward_bytes for role in roles),
                share=row.number("bound_share"),
                bandwidth=bandwidth_of(self.environment),
                checks=[checks.get(role) for role in roles],
            )
        )

    def traits(self, method: MethodSummary) -> Traits:
        """Return the traits of a method, recorded when the run was resolved."""
        return self.spec.methods[method.method].traits

    def lossless(self, method: MethodSummary) -> bool | None:
        """Return whether a method declares the baseline's output distribution; None if it declares none."""
        return self.spec.methods[method.method].lossless

    def contradicted(self, method: MethodSummary) -> bool:
        """Return whether a method that declares the baseline's distribution committed greedy tokens that it excludes."""
        return self.lossless(method) is True and bool(method.number("wrong_tokens"))

    def keeps_distribution(self, method: MethodSummary) -> bool:
        """Return whether a method declares the baseline's distribution, and its greedy tokens do not contradict that."""
        return self.lossless(method) is True and not self.contradicted(method)

    @property
    def title(self) -> str:
        """The pair and the task, with everything that differs from their presets."""
        return ", ".join([self.pair, self.task, *self.spec.changes])

    def score(self, method: MethodSummary) -> Estimate | None:
        """Return a method's score by the task's main metric."""
        return method.quality.get(self.headline)

    @property
    def measured_methods(self) -> list[MethodSummary]:
        """The methods of which a generation completed."""
        return [method for method in self.methods if method.is_measured]

    @property
    def score_groups(self) -> list[str]:
        """The groups of prompts that have a score."""
        return sorted({group for method in self.measured_methods for group in method.quality_by_group})

    @property
    def speed_groups(self) -> list[str]:
        """The groups of prompts that have a speed."""
        return sorted({group for method in self.measured_methods for group in method.groups})

    @property
    def placement(self) -> str:
        """The models that are not on the run's device, with their placement; empty if there are none."""
        return "; ".join(f"{role}: {model.placement}" for role, model in self.models.items() if model.placement)

    @property
    def machine(self) -> str:
        """The accelerator; without one, the processor."""
        return self.environment.get("gpu", {}).get("name") or self.environment["cpu"]


def to_table(summary: RunSummary) -> dict[str, Any]:
    """Return a summary as built-in containers, the values of each method next to its other keys, the spec under `spec`."""
    state = {key: value for key, value in vars(summary).items() if key != SPEC}
    table: dict[str, Any] = msgspec.to_builtins(state, str_keys=True)
    for method in table["methods"]:
        method |= method.pop(VALUES)
    shown = {"pair": summary.pair, "task": summary.task, "simulated": summary.simulated, "baseline": summary.baseline}
    slow = msgspec.to_builtins(summary.slow_baseline)
    return {**shown, SLOW: slow, **table, SPEC: summary.spec.to_toml()}


def from_table(table: dict[str, Any], where: str) -> RunSummary:
    """Return the summary that `to_table` wrote. Raises ConfigError, naming `where` and the key, if it is invalid."""
    names = {name for name in MethodSummary.__dataclass_fields__ if name != VALUES}
    methods = [
        {key: value for key, value in method.items() if key in names}
        | {VALUES: {key: value for key, value in method.items() if key not in names}}
        for method in table["methods"]
    ]
    state = {key: table[key] for key in SummaryState.__dataclass_fields__ if key in table}
    parsed = checked({**state, "methods": methods}, SummaryState, where)
    return RunSummary(spec=RunSpec.from_toml(table[SPEC], f"{where}: spec"), **vars(parsed))
