"""Columns that distinguish the rows of merged runs: differences of their pairs, data, settings, methods and machines."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import NamedTuple

from specbench.analysis.number_format import NONE
from specbench.analysis.run_summary import MethodSummary, RunSummary
from specbench.machine.hardware import Environment
from specbench.runs.run_spec import HeadSource, ModelSource, Synthetic

HEADINGS = {"temperature": "T"}
HASH_DIGITS = 8
BY_TASK = ("max_new_tokens",)  # settings whose default depends on the task
OF_METHOD = "method "  # start of the scope of properties that are compared within one method
RUN = "run"


class MergedRow(NamedTuple):
    """A row of merged runs: a run and one of its methods."""

    summary: RunSummary
    method: MethodSummary


class Property(NamedTuple):
    """One property of a row: its column heading, its text, and its scope. It is compared among the rows of equal scope.

    For example, every task has its own number of samples, so this is compared among the rows of one task. Runs of two tasks
    get no column for it, but two runs of one task with 32 and 100 samples do. The empty scope covers all rows.
    """

    heading: str
    text: str
    scope: str = ""


def lines_of(summaries: Sequence[RunSummary]) -> list[MergedRow]:
    """Return a row for every method of every run."""
    return [MergedRow(summary, method) for summary in summaries for method in summary.methods]


def differences(lines: Sequence[MergedRow]) -> dict[str, list[str]]:
    """Return a column, by heading, for each property in which rows differ.

    The column `run` is added if two rows would be equal without it.
    """
    return _columns([_properties(*line) for line in lines], lines)


def distinct_titles(summaries: Sequence[RunSummary]) -> list[str]:
    """Return a title for each run, different from all others: pair, task, changed options, and properties that differ.

    A property of a method follows the method's label. If titles are still equal, the run's folder is added.
    """
    lines = lines_of(summaries)
    properties = [_properties(*line) for line in lines]
    columns = _columns(properties, lines)
    words: dict[int, list[str]] = {
        id(summary): [summary.pair, summary.task, *summary.spec.changes] for summary in summaries
    }
    for i, (summary, row) in enumerate(lines):
        of_method = {prop.heading for prop in properties[i] if prop.scope.startswith(OF_METHOD)}
        words[id(summary)] += [
            f"{row.method} {heading} = {texts[i]}" if heading in of_method else f"{heading} = {texts[i]}"
            for heading, texts in columns.items()
            if heading not in ("pair", RUN) and texts[i] != NONE
        ]
    titles = [", ".join(dict.fromkeys(words[id(summary)])) for summary in summaries]
    return [
        f"{title}, {folder}" if titles.count(title) > 1 else title
        for title, folder in zip(titles, folders(summaries), strict=True)
    ]


def folders(summaries: Sequence[RunSummary]) -> list[str]:
    """Return the name of each run's folder, or its path if two folders have the same name."""
    paths: dict[str, set[str]] = defaultdict(set)
    for summary in summaries:
        paths[summary.run].add(summary.folder)
    return [s.folder if len(paths[s.run]) > 1 else s.run for s in summaries]


def _columns(properties: Sequence[Sequence[Property]], lines: Sequence[MergedRow]) -> dict[str, list[str]]:
    seen: dict[tuple[str, str], set[str]] = defaultdict(set)
    for of_line in properties:
        for prop in of_line:
            seen[prop.heading, prop.scope].add(prop.text)
    differ = {heading for (heading, _), texts in seen.items() if len(texts) > 1}
    headings = dict.fromkeys(prop.heading for of_line in properties for prop in of_line if prop.heading in differ)
    # Of several properties with one heading, such as data, the first is shown. Reversed, it is the last to be stored.
    texts = [{prop.heading: prop.text for prop in reversed(of_line)} for of_line in properties]
    columns = {heading: [by_heading.get(heading, NONE) for by_heading in texts] for heading in headings}
    rows = [
        (line.summary.task, line.method.label, *(column[i] for column in columns.values()))
        for i, line in enumerate(lines)
    ]
    if len(set(rows)) < len(rows):
        columns[RUN] = folders([line.summary for line in lines])
    return columns


def _properties(summary: RunSummary, row: MethodSummary) -> list[Property]:
    """Return all properties that may distinguish a row, in the order of columns."""
    task, pair, data = f"task {summary.task}", f"pair {summary.pair}", summary.data
    synthetic = summary.spec.pair.synthetic or Synthetic(spreads={})
    return [
        Property("pair", summary.pair),
        Property("simulated", summary.simulated or NONE),
        *(Property(f"spread of {role}", f"{spread:.4g}") for role, spread in synthetic.spreads.items()),
        *(Property(f"acceptance of {role}", f"{rate.acceptance:g}") for role, rate in synthetic.rates.items()),
        Property("data", data.source, task),
        Property("data", "synthetic" if data.source == "synthetic" else "real"),  # compared across tasks
        Property("samples", str(data.samples), task),
        *_task_options(summary, task),
        Property("prompts' hash", data.prompts_sha256[:HASH_DIGITS], f"{task}, {data.source}, {data.samples}"),
        *(
            Property(HEADINGS.get(key, key), _text(value), task if key in BY_TASK else "")
            for key, value in asdict(summary.decoding).items()
        ),
        Property("baseline", summary.baseline),
        *_method(summary, row),
        *(prop for role, model in summary.models.items() for prop in _weights(role, model, pair)),
        *(prop for name, head in summary.heads.items() for prop in _weights(f"head {name}", head, pair)),
        Property("engine", summary.spec.engine),
        Property("device", summary.spec.device),
        Property("placement", summary.placement or NONE),
        Property("dtype", " ".join(sorted({model.dtype for model in summary.models.values()}))),
        *_machine(summary.environment),
    ]


def _task_options(summary: RunSummary, scope: str) -> Iterator[Property]:
    """Yield the task's options except the length limit, which is a decoding setting, and then the data revision."""
    for key, value in summary.spec.task.options.items():
        if key not in ("name", "max_new_tokens", "revision"):
            yield Property(f"task.{key}", _text(value), scope)
    yield Property("data revision", (summary.data.revision or NONE)[:HASH_DIGITS], scope)


def _method(summary: RunSummary, row: MethodSummary) -> Iterator[Property]:
    """Yield the method's parameters, compared among rows with the same method."""
    scope = f"{OF_METHOD}{row.method}"
    yield Property("draft lengths", summary.traits(row).draft_length or NONE, scope)
    for path, value in _leaves(summary.spec.methods[row.method].options):
        if path.rpartition(".")[2] != "gamma":
            yield Property(path, _text(value), scope)


def _weights(name: str, origin: ModelSource | HeadSource, scope: str) -> Iterator[Property]:
    """Yield the source of a model or head, and its hash, which is compared among rows with the same source."""
    yield Property(name, origin.source, scope)
    yield Property(f"{name}'s hash", (origin.checksum or NONE)[:HASH_DIGITS], f"{scope}, {origin.source}")


def _machine(environment: Environment) -> Iterator[Property]:
    git = environment["git"]
    revision = f"{git.get('revision', NONE)[:HASH_DIGITS]}{'+' if git.get('dirty') else ''}"
    yield Property("machine", environment.get("gpu", {}).get("name") or environment["cpu"])
    yield Property("threads", str(environment["threads"]))
    yield Property("revision", revision)
    yield Property("code's hash", environment.get("code", NONE)[:HASH_DIGITS], f"revision {revision}")
    for package, version in environment["packages"].items():
        yield Property(package, version)


def _leaves(table: Mapping[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _text(value: object) -> str:
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
