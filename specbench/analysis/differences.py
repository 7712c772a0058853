"""Columns that distinguish the rows of merged runs: what differs between their pairs, data, settings and machines."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from specbench.analysis.chains import NONE

Summary = dict[str, Any]
Line = tuple[Summary, dict[str, Any]]  # a run, and one of its methods
HEADS = {"temperature": "T"}
SHORT = 8  # characters of a hash
BY_TASK = ("max_new_tokens",)  # settings that every task has its own default of
OF_METHOD = "method "  # lines of one method, by its name
RUN = "run"


class Fact(NamedTuple):
    """One thing about a line: under which head it stands, its text, and among which lines it is compared.

    Every task has its own rows, for example, so that the data are compared among lines of one task.
    """

    head: str
    text: str
    among: str = ""


def differences(lines: Sequence[Line]) -> dict[str, list[str]]:
    """A column, by its head, for each thing in which the lines differ; the run's folder only where nothing else differs."""
    return _columns([_facts(*line) for line in lines], lines)


def places(summaries: Sequence[Summary]) -> list[str]:
    """A title for each run that no other has: pair, task, and in what it differs from the others."""
    lines = [(summary, row) for summary in summaries for row in summary["methods"]]
    facts = [_facts(*line) for line in lines]
    columns = _columns(facts, lines)
    words: dict[int, list[str]] = {id(summary): [summary["pair"], summary["task"]] for summary in summaries}
    for i, (summary, row) in enumerate(lines):
        of_method = {fact.head for fact in facts[i] if fact.among.startswith(OF_METHOD)}
        words[id(summary)] += [
            f"{row['method']} {head} = {cells[i]}" if head in of_method else f"{head} = {cells[i]}"
            for head, cells in columns.items()
            if head not in ("pair", RUN) and cells[i] != NONE
        ]
    titles = [", ".join(dict.fromkeys(words[id(summary)])) for summary in summaries]
    return [
        f"{title}, {folder}" if titles.count(title) > 1 else title
        for title, folder in zip(titles, folders(summaries), strict=True)
    ]


def folders(summaries: Sequence[Summary]) -> list[str]:
    """The name of each run's folder; its path where two have one name."""
    paths = {summary["run"]: set[str]() for summary in summaries}
    for summary in summaries:
        paths[summary["run"]].add(summary["folder"])
    return [s["folder"] if len(paths[s["run"]]) > 1 else s["run"] for s in summaries]


def _columns(facts: Sequence[Sequence[Fact]], lines: Sequence[Line]) -> dict[str, list[str]]:
    seen: dict[tuple[str, str], set[str]] = defaultdict(set)
    for known in facts:
        for fact in known:
            seen[fact.head, fact.among].add(fact.text)
    differ = {head for (head, _), texts in seen.items() if len(texts) > 1}
    heads = dict.fromkeys(fact.head for known in facts for fact in known if fact.head in differ)
    cells = [{fact.head: fact.text for fact in reversed(known)} for known in facts]  # of several under a head the first
    columns = {head: [each.get(head, NONE) for each in cells] for head in heads}
    rows = [
        (summary["task"], row["label"], *(column[i] for column in columns.values()))
        for i, (summary, row) in enumerate(lines)
    ]
    if len(set(rows)) < len(rows):
        columns[RUN] = folders([summary for summary, _ in lines])
    return columns


def _facts(summary: Summary, row: dict[str, Any]) -> list[Fact]:
    """Everything that may tell a line from others, in the order of columns."""
    task, pair = f"task {summary['task']}", f"pair {summary['pair']}"
    data, engine = summary["data"], summary["engine"]
    dtypes = sorted({model["dtype"] for model in summary["models"].values()})
    return [
        Fact("pair", summary["pair"]),
        Fact("made up", summary["made_up"] or NONE),
        *(Fact(f"synthetic {key}", str(value)) for key, value in (summary["synthetic"] or {}).items()),
        Fact("data", data["source"], task),
        Fact("data", "synthetic" if data["source"] == "synthetic" else "real"),  # for any two tasks
        Fact("samples", str(data["samples"]), task),
        *_task_options(summary, task),
        Fact("prompts' hash", data["prompts_sha256"][:SHORT], f"{task}, {data['source']}, {data['samples']}"),
        *(
            Fact(HEADS.get(key, key), _text(value), task if key in BY_TASK else "")
            for key, value in summary["decoding"].items()
        ),
        Fact("baseline", summary["baseline"]),
        *_method(row),
        *(fact for role, model in summary["models"].items() for fact in _weights(role, model, pair)),
        *(fact for name, head in summary["heads"].items() for fact in _weights(f"head {name}", head, pair)),
        Fact("engine", engine["name"]),
        Fact("device", engine["device"]),
        Fact("dtype", " ".join(dtypes)),
        *_machine(summary["environment"]),
    ]


def _task_options(summary: Summary, among: str) -> Iterator[Fact]:
    """How the task was set. The length limit is among the settings of decoding, and prompts of data."""
    for key, value in summary["task_options"].items():
        if key not in ("max_new_tokens", "revision"):
            yield Fact(f"task.{key}", _text(value), among)
    yield Fact("data revision", (summary["data"].get("revision") or NONE)[:SHORT], among)


def _method(row: dict[str, Any]) -> Iterator[Fact]:
    """How a method was set, compared among lines of the same name."""
    among = f"{OF_METHOD}{row['method']}"
    yield Fact("draft lengths", row["draft_length"] or NONE, among)
    for path, value in _leaves(row["config"]):
        if path.rpartition(".")[2] != "gamma":
            yield Fact(path, _text(value), among)


def _weights(name: str, told: dict[str, Any], among: str) -> Iterator[Fact]:
    """Where a model or head of a pair comes from, and a hash of it where two come from one place."""
    yield Fact(name, told["source"], among)
    yield Fact(f"{name}'s hash", str(told.get("checksum", NONE))[:SHORT], f"{among}, {told['source']}")


def _machine(environment: dict[str, Any]) -> Iterator[Fact]:
    git = environment["git"]
    revision = f"{git.get('revision', NONE)[:SHORT]}{'+' if git.get('dirty') else ''}"
    yield Fact("machine", environment.get("gpu", {}).get("name") or environment["cpu"])
    yield Fact("threads", str(environment["threads"]))
    yield Fact("revision", revision)
    yield Fact("code's hash", str(environment.get("code", NONE))[:SHORT], f"revision {revision}")
    for package, version in environment["packages"].items():
        yield Fact(package, version)


def _leaves(table: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
