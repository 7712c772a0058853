"""What was measured, in sentences: conditions, models, methods, machine."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from specbench.analysis.run_summary import RunSummary
from specbench.config.presets import preset
from specbench.errors import ConfigError
from specbench.runs.run_spec import ModelSource

MOST_VALUES = 3  # different values that are listed; of more, only the number is given


def conditions(summaries: Sequence[RunSummary]) -> str:
    """Return pairs, tasks, temperature, prompts and repeats, engine, device, and the clock of the headline speedup."""
    parts = [
        _joined("pair", "pairs", (summary.pair for summary in summaries)),
        _joined("task", "tasks", (summary.task for summary in summaries)),
        _joined("", "temperatures", map(sampling_of, summaries)),
        _joined("", "sets of prompts", (_prompts(summary) for summary in summaries)),
        _joined("engine", "engines", (summary.spec.engine for summary in summaries)),
        _joined("", "machines", (_machine(summary) for summary in summaries)),
        _joined(
            "changed:",
            "sets of changes",
            ("; ".join(summary.spec.changes) for summary in summaries if summary.spec.changes),
        ),
        _joined("costs:", "sets of costs", map(costs_of, summaries)),
        _joined("not real:", "kinds of simulation", (summary.simulated for summary in summaries if summary.simulated)),
        _joined("speedups by", "clocks", (f"{summary.clock.replace(' ', '-')} time" for summary in summaries)),
    ]
    return ", ".join(filter(None, parts))


def page_title(summaries: Sequence[RunSummary]) -> str:
    """Return the title of a page: pairs and tasks."""
    pairs = ", ".join(dict.fromkeys(summary.pair for summary in summaries))
    return f"{pairs}: {', '.join(dict.fromkeys(summary.spec.task.name for summary in summaries))}"


def setup_line(summaries: Sequence[RunSummary]) -> str:
    """Return the line below a title: date, models, machine, temperature, prompts and repeats."""
    parts = [
        _joined("measured on", "dates", (summary.environment.get("date", "") for summary in summaries)),
        _joined("models", "sets of models", map(_sources, summaries)),
        _joined(
            "",
            "machines",
            (f"{summary.machine}, {counted(summary.environment['threads'], 'thread')}" for summary in summaries),
        ),
        _joined("", "temperatures", map(sampling_of, summaries)),
        _joined("", "sets of prompts", map(_prompts, summaries)),
    ]
    return "; ".join(filter(None, parts))


def method_lines(summaries: Sequence[RunSummary]) -> list[str]:
    """Return a line per method: what it is, its draft lengths, and whether it is lossless. Settings share a line."""
    uses: dict[str, list[tuple[RunSummary, str]]] = defaultdict(list)
    for summary in summaries:
        for label, spec in summary.spec.methods.items():
            uses[spec.preset].append((summary, label))
    return [_method_line(name, used) for name, used in uses.items()]


def _method_line(name: str, uses: Sequence[tuple[RunSummary, str]]) -> str:
    specs = [summary.spec.methods[label] for summary, label in uses]
    baseline = all(summary.baseline == label for summary, label in uses)
    declared = {True: "declared lossless", False: "not lossless", None: "baseline" if baseline else "undeclared"}
    parts = [
        _description(name),
        _joined("draft length", "draft lengths", (spec.traits.draft_length for spec in specs)),
        declared[specs[-1].lossless],
    ]
    return ": ".join(filter(None, (name, "; ".join(filter(None, parts)))))


def _description(name: str) -> str:
    """Return the description of a method's preset; empty if the preset no longer exists."""
    try:
        return str(preset("method", name).table.get("description", ""))
    except ConfigError:
        return ""


def _sources(summary: RunSummary) -> str:
    return ", ".join(_described(role, model) for role, model in summary.models.items())


def _described(role: str, model: ModelSource) -> str:
    """Return a model's role and source, how it was quantized, and whose cost it has."""
    cost = f"costs as much as {model.cost.label}" if model.cost else ""
    changes = ", ".join(filter(None, (model.quantization, cost)))
    return f"{role} {model.source}{f' ({changes})' if changes else ''}"


def costs_of(summary: RunSummary) -> str:
    """Return which models have the cost of a larger one, in words; empty if none has."""
    labels = {role: model.cost.label for role, model in summary.models.items() if model.cost}
    return ", ".join(f"{role} costs as much as {label}" for role, label in labels.items())


def _joined(word: str, plural: str, values: Iterable[str]) -> str:
    """Return different values after a word, or their number if there are many."""
    distinct = list(dict.fromkeys(filter(None, values)))
    if len(distinct) > MOST_VALUES:
        return f"{len(distinct)} {plural}"
    return f"{word} {' / '.join(distinct)}".strip() if distinct else ""


def _prompts(summary: RunSummary) -> str:
    data, repeats = summary.data, summary.decoding.repeats
    prompts = counted(data.samples, "random prompt" if data.drawn else "prompt")
    return f"{prompts} ({data.source}) x {counted(repeats, 'repeat')}"


def _machine(summary: RunSummary) -> str:
    dtypes = " ".join(sorted({model.dtype for model in summary.models.values()}))
    placed = f" ({summary.placement})" if summary.placement else ""
    return f"{summary.spec.device} {dtypes}{placed} on {summary.machine}"


def sampling_of(summary: RunSummary) -> str:
    """Return the temperature and the filters of sampling."""
    decoding = summary.decoding
    filters = [f"top-k {decoding.top_k}"] * bool(decoding.top_k) + [f"top-p {decoding.top_p:g}"] * (
        decoding.top_p != 1.0
    )
    return ", ".join([f"T = {decoding.temperature:g}", *filters])


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
