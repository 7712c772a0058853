"""What was measured, for captions and heads of pages: of one run, or of several runs as far as they agree."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from specbench.analysis.run_summary import RunSummary
from specbench.config.presets import preset
from specbench.errors import ConfigError
from specbench.reporting.notes import counted, sampling_of

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
        _joined("speedups by", "clocks", (f"{each.clock.replace(' ', '-')} time" for each in summaries)),
    ]
    return ", ".join(filter(None, parts))


def title(summaries: Sequence[RunSummary]) -> str:
    """Return the title of a page: pairs and tasks."""
    pairs = ", ".join(dict.fromkeys(summary.pair for summary in summaries))
    return f"{pairs}: {', '.join(dict.fromkeys(summary.spec.task.name for summary in summaries))}"


def about(summaries: Sequence[RunSummary]) -> str:
    """Return the line below a title: date, models, machine, temperature, prompts and repeats."""
    parts = [
        _joined("measured on", "dates", (each.environment.get("date", "") for each in summaries)),
        _joined("models", "sets of models", map(_models, summaries)),
        _joined(
            "", "machines", (f"{each.machine}, {counted(each.environment['threads'], 'thread')}" for each in summaries)
        ),
        _joined("", "temperatures", map(sampling_of, summaries)),
        _joined("", "sets of prompts", map(_prompts, summaries)),
    ]
    return "; ".join(filter(None, parts))


def methods(summaries: Sequence[RunSummary]) -> list[str]:
    """Return a line per method: what it is, its draft lengths, and whether it is lossless. Settings share a line."""
    found: dict[str, list[tuple[RunSummary, str]]] = defaultdict(list)
    for summary in summaries:
        for label, spec in summary.spec.methods.items():
            found[spec.preset].append((summary, label))
    return [_method(name, each) for name, each in found.items()]


def _method(name: str, found: Sequence[tuple[RunSummary, str]]) -> str:
    specs = [summary.spec.methods[label] for summary, label in found]
    baseline = all(summary.baseline == label for summary, label in found)
    declared = {True: "declared lossless", False: "not lossless", None: "baseline" if baseline else "undeclared"}
    parts = [
        _description(name),
        _joined("draft length", "draft lengths", (each.traits.draft_length for each in specs)),
        declared[specs[-1].lossless],
    ]
    return ": ".join(filter(None, (name, "; ".join(filter(None, parts)))))


def _description(name: str) -> str:
    """Return the description of a method's preset; empty if the preset no longer exists."""
    try:
        return str(preset("method", name).table.get("description", ""))
    except ConfigError:
        return ""


def _models(summary: RunSummary) -> str:
    return ", ".join(f"{role} {model.source}" for role, model in summary.models.items())


def _joined(word: str, plural: str, values: Iterable[str]) -> str:
    """Return different values after a word, or their number if there are many."""
    found = list(dict.fromkeys(filter(None, values)))
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
