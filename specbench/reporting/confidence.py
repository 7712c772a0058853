"""How far the conclusion of a run reaches: to the machine, or only to the run, with the reasons."""

from collections.abc import Iterator

from specbench.analysis.intervals import FEWEST
from specbench.analysis.ranking import fewest_prompts
from specbench.analysis.run_summary import MethodSummary, RunSummary
from specbench.reporting.column import CHANGE, PERCENT, TENTHS
from specbench.reporting.notes import counted
from specbench.runs.run_spec import DataSpec

OTHER_LOAD = 0.05  # share of the machine's processors from which on other programs count
MACHINE_DRIFT = 0.2  # of a method's speed, between the first and the last repeat
SPEEDUP_DRIFT = 0.1  # of a speedup, if it is more than its interval contains
REPEAT_SPREAD = 0.1  # of the baseline's time for the same tokens


def place(summary: RunSummary) -> str:
    """Return where a speedup holds: on this machine, on the machine of the archive, or only in this run."""
    if doubts(summary):
        return "in the imported run" if summary.imported else "in this run"
    return "on the machine of the archive" if summary.imported else "on this machine"


def doubts(summary: RunSummary) -> list[str]:
    """Return the reasons why another run may give other speeds; empty if there are none."""
    return [each for each in (_load(summary), *_drift(summary), _spread(summary), _single(summary)) if each]


def caution(summary: RunSummary) -> Iterator[str]:
    """Yield the sentence on why another run may give other speeds, and what would settle it."""
    if found := doubts(summary):
        repeats = summary.decoding.repeats
        disturbed = repeats > 1 and (_load(summary) or _spread(summary))  # which more repeats would not change
        more = "--fresh" if disturbed else f"--repeats {3 if repeats == 1 else 2 * repeats}"
        yield f"Another run may give other speeds: {'; '.join(found)}; help: {more} on an idle machine"


def few_prompts(summary: RunSummary) -> Iterator[str]:
    """Yield warnings about duplicate prompts, and about too few prompts for intervals or ranks."""
    data, measured = summary.data, summary.measured
    if measured:
        prompts, generations = measured[0].prompts, measured[0].generations
        if prompts < data.samples and generations == data.samples * summary.decoding.repeats:
            yield f"Only {prompts} of {data.samples} prompts are different; equal prompts count as one."
    fewest, wanted = min((row.prompts for row in measured), default=0), fewest_prompts(len(measured))
    if fewest < FEWEST:
        yield f"Intervals need at least {FEWEST} different prompts; {_too_small(data, FEWEST) or 'help: -n 20'}"
    elif fewest < wanted:
        size = _too_small(data, wanted)
        more = f"{wanted} are needed, and {size}" if size else f"help: -n {wanted}, or more for small differences"
        yield f"{fewest} prompts are too few to rank {len(measured)} methods; {more}"


def _too_small(data: DataSpec, wanted: int) -> str:
    """Return how many prompts a source has if these are fewer than wanted; else an empty string."""
    if data.source == "synthetic" or data.total >= wanted:
        return ""
    return f"{data.source} has {counted(data.total, 'prompt')}"


def _load(summary: RunSummary) -> str:
    loads = [load for row in summary.measured if (load := row.number("other_load")) is not None]
    cores, most = summary.environment["cores"], max(loads, default=0.0)
    if most <= OTHER_LOAD * cores:
        return ""
    return f"other programs used {TENTHS.number(most)} of {cores} processors"


def _drift(summary: RunSummary) -> Iterator[str]:
    for key, what, bound in (("speedup_drift", "the speedup", SPEEDUP_DRIFT), ("drift", "the speed", MACHINE_DRIFT)):
        found = {
            row.label: change
            for row in summary.measured
            if abs(change := row.number(key) or 0.0) > bound and not (key == "speedup_drift" and _contains(row, change))
        }
        if found:
            label = max(found, key=lambda each: abs(found[each]))
            yield f"{what} of {label} changed by {CHANGE.number(found[label])} from the first repeat to the last"
            return


def _contains(row: MethodSummary, change: float) -> bool:
    """Return whether the interval of a speedup is wide enough for a change of the speedup between repeats."""
    speedup = row.speedup
    if speedup is None or speedup.low is None or speedup.high is None:
        return False
    return max(1.0 + change, 1.0 / (1.0 + change)) <= speedup.high / speedup.low


def _spread(summary: RunSummary) -> str:
    """Return the sentence on a baseline whose time for the same tokens varies."""
    base = next((row for row in summary.measured if row.method == summary.baseline), None)
    spread = base.number("repeat_spread") if base else None
    if base is None or spread is None or spread <= REPEAT_SPREAD:
        return ""
    return f"the time of {base.label} for the same tokens varied by {PERCENT.number(spread)} between repeats"


def _single(summary: RunSummary) -> str:
    return "one repeat does not show drift" if summary.decoding.repeats == 1 else ""
