"""The records of one method, and the registry of run metrics: numbers that are computed from these records.

To add a metric, write a function of the records in this package and decorate it with `metric`, `comparison` or
`metric_in_context`. The function's name is the metric's name. The first line of its docstring is its definition. A metric
appears in summary.json, in the JSON and CSV reports, and as a value for the tables of suites. To show it in the tables
of a run as well, add an entry to `specbench/reporting/columns.py`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from specbench.analysis.intervals import Estimate
from specbench.machine.hardware import Bandwidth
from specbench.runs.record import Record, RoundRecord
from specbench.runs.run_spec import MethodSpec, ModelSource

Records = Sequence[Record]
TIMED_UNITS = ("tokens/s", "s", "ms", "x")
TIMED_SHARES = (
    "drift",
    "speedup_drift",
    "repeat_spread",
    "longest_generation",
    "prefill_share",
    "other_load",
    "outside_forwards",
    "communication_share",
    "bound_share",
)


def complete(records: Records, method: str) -> list[Record]:
    """Return the records of one method that did not fail."""
    return [r for r in records if r.method == method and r.error is None]


def paired(rows: Records, base: Records) -> tuple[list[Record], list[Record]]:
    """Return the records of the (sample, repeat) pairs that are in both inputs, in the same order."""
    ours, theirs = ({(r.sample, r.repeat): r for r in side} for side in (rows, base))
    keys = [key for key in ours if key in theirs]
    return [ours[key] for key in keys], [theirs[key] for key in keys]


def seconds(row: Record, end_to_end: bool = False) -> float:
    """Return the seconds of a completed generation: of decoding, or end to end, which includes prefill."""
    assert row.decode_seconds is not None and row.prefill_seconds is not None
    return row.decode_seconds + (row.prefill_seconds if end_to_end else 0.0)


def token_count(rows: Records) -> int:
    """Return the number of committed tokens of all generations."""
    return sum(len(r.tokens) for r in rows)


def round_count(rows: Records) -> int:
    """Return the number of verification rounds of all generations. Without drafting, each token is a round."""
    return sum(len(r.rounds) or len(r.tokens) for r in rows)


def rounds_of(rows: Records) -> Iterator[RoundRecord]:
    """Return all recorded rounds of all generations."""
    return (x for r in rows for x in r.rounds)


# The registry of run metrics


class Spread(NamedTuple):
    """A mean with its standard deviation."""

    mean: float
    deviation: float


Value = float | int | Estimate | Spread | None  # None: not defined for this method
Values = dict[str, Value]  # by the metric's name
Compute = Callable[[Records, "Context"], Value]
Applies = Callable[[Records, "Context"], bool]
F = TypeVar("F", bound=Callable[..., Value])


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a metric may use besides the records of its method.

    `baseline` and `sd` are the records of the baseline and of plain speculative decoding; `sd` is empty, and `sd_method`
    None, if the run has no such method. For a method that is not lossless, `lossless` are the records of the fastest lossless
    one besides the baseline. `target` is the model that verifies last; `models` are by role.
    """

    baseline: Records
    sd: Records = ()
    lossless: Records = ()
    sd_method: MethodSpec | None = None
    method: MethodSpec
    baseline_roles: tuple[str, ...] = ()
    models: Mapping[str, ModelSource]
    bandwidth: Bandwidth
    target: str = ""
    later_turns: bool = False
    predicted_distance: float | None = None
    timed: bool = True  # whether times mean something


@dataclass(frozen=True)
class RunMetric:
    """A registered metric. It is left out for records to which it does not apply."""

    name: str
    unit: str
    definition: str
    compute: Compute
    applies: Applies
    by_group: bool = False  # whether it is also computed for each group of prompts

    @property
    def is_timed(self) -> bool:
        """Whether it depends on measured times."""
        return self.unit in TIMED_UNITS or self.name in TIMED_SHARES


METRICS: dict[str, RunMetric] = {}  # by name


def register(
    name: str, unit: str, function: Callable[..., Value], compute: Compute, applies: Applies, by_group: bool = False
) -> None:
    """Register a metric. Its definition is the first line of the function's docstring."""
    assert name not in METRICS, f"two metrics are called {name}"
    assert function.__doc__, f"the metric {name} needs a docstring"
    METRICS[name] = RunMetric(name, unit, function.__doc__.strip().splitlines()[0], compute, applies, by_group)


def metric(unit: str = "", by_group: bool = False) -> Callable[[F], F]:
    """Register a function of the method's records."""

    def decorate(function: F) -> F:
        register(function.__name__, unit, function, lambda rows, context: function(rows), _always, by_group)
        return function

    return decorate


def metric_in_context(unit: str = "") -> Callable[[F], F]:
    """Register a function of the method's records and a `Context`."""

    def decorate(function: F) -> F:
        register(function.__name__, unit, function, function, _always)
        return function

    return decorate


def comparison(unit: str = "x", by_group: bool = False) -> Callable[[F], F]:
    """Register a function of the records of a method and of its baseline. It is not computed for the baseline itself."""

    def decorate(function: F) -> F:
        register(
            function.__name__,
            unit,
            function,
            lambda rows, context: function(rows, context.baseline),
            is_compared,
            by_group,
        )
        return function

    return decorate


def is_compared(rows: Records, context: Context) -> bool:
    """Return whether these are not the baseline's own records, and both completed some of the same generations."""
    return bool(paired(rows, context.baseline)[0]) and rows[0].method != context.baseline[0].method


def has_sd(rows: Records, context: Context) -> bool:
    """Return whether these are not the records of `sd`, and both completed some of the same generations."""
    return bool(paired(rows, context.sd)[0]) and rows[0].method != context.sd[0].method


def compute(rows: Records, context: Context, by_group: bool = False) -> Values:
    """Return all metrics that apply to the records of one method, or those that are computed for each group of prompts."""
    chosen = (
        entry
        for entry in METRICS.values()
        if (entry.by_group or not by_group) and (context.timed or not entry.is_timed)
    )
    return {entry.name: entry.compute(rows, context) for entry in chosen if entry.applies(rows, context)}


def _always(rows: Records, context: Context) -> bool:
    return True
