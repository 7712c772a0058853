"""The conditions of a measurement in one line, for captions: of one run, or of several runs as far as they agree."""

from collections.abc import Iterable, Sequence

from specbench.analysis.run_summary import RunSummary
from specbench.report.notes import counted, sampling_of

MOST_NAMED = 3  # different values that are listed; of more, only the number is given


def conditions(summaries: Sequence[RunSummary]) -> str:
    """Return pairs, tasks, temperature, prompts and repeats, engine, device, and the clock of the headline speedup."""
    parts = [
        _joined("pair", "pairs", (each.pair for each in summaries)),
        _joined("task", "tasks", (each.task for each in summaries)),
        _joined("", "temperatures", map(sampling_of, summaries)),
        _joined("", "sets of prompts", (_prompts(each) for each in summaries)),
        _joined("engine", "engines", (each.spec.engine for each in summaries)),
        _joined("", "machines", (_machine(each) for each in summaries)),
        _joined(
            "changed:", "sets of changes", ("; ".join(each.spec.changes) for each in summaries if each.spec.changes)
        ),
        _joined("not real:", "kinds of simulation", (each.simulated for each in summaries if each.simulated)),
        _joined("headline speedup by", "clocks", (f"{each.clock} time" for each in summaries)),
    ]
    return ", ".join(filter(None, parts))


def _joined(word: str, plural: str, values: Iterable[str]) -> str:
    """Return different values after a word, or their number if there are many."""
    found = list(dict.fromkeys(values))
    if len(found) > MOST_NAMED:
        return f"{len(found)} {plural}"
    return f"{word} {' / '.join(found)}".strip() if found else ""


def _prompts(summary: RunSummary) -> str:
    data, repeats = summary.data, summary.decoding.repeats
    prompts = counted(data.samples, "random prompt" if data.drawn else "prompt")
    return f"{prompts} ({data.source}) x {counted(repeats, 'repeat')}"


def _machine(summary: RunSummary) -> str:
    dtypes = " ".join(sorted({model.dtype for model in summary.models.values()}))
    placed = f" ({summary.placement})" if summary.placement else ""
    return f"{summary.spec.device} {dtypes}{placed} on {summary.machine}"
