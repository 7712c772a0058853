"""Suites: the grid of runs for a table or figure of a paper, with its tables, plots and expectations.

[[grid]]                              # methods x pairs x tasks, at these options of `specbench run`
methods = ["we-sd", "we-se"]
pairs = ["llama-vicuna"]
tasks = ["gsm8k:se-paper"]
over = { "we-se.gamma" = [[5, 1], [1, 1]] }

[[tables]]                            # a pivot table of the results: rows, columns and values
rows = ["pair", "method"]
columns = ["task"]
values = ["speedup"]

[[prepare]]                           # heads that `run --suite` trains first, one per pair, task and tau
kind = "sprinter"
pairs = ["gpt-neo"]
tasks = ["lm1b"]
tau = [1.0, 1.2, 1.5]

[[finetune]]                          # models that `run --suite` fine-tunes first, one per pair, task and role
pairs = ["t5-v1.1-small-large"]
tasks = ["xsum"]

[[expect]]                            # what theory or the paper claims, checked by group of runs
id = "se-over-naive"
says = "SE is at or above naive speculation"
where = "Section 4.2, Table 2"
of = { method = "we-se" }
value = "speedup"
at_least = { method = "we-sd" }
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from specbench.config.construct import construct, convert
from specbench.config.options import ALSO_SET, Options, fields_of
from specbench.config.presets import in_scope, names, override, preset, stem, sweep_of
from specbench.config.request import Access
from specbench.errors import ConfigError, hint
from specbench.features.suites.papers.expectation import NUMBERS, Expectation, require_dimensions
from specbench.features.suites.preparation import Finetune, Preparation, require_distinct, require_distinct_models
from specbench.vocabulary import SandboxKind

PROMPT = "prompt"  # as the x of a plot: a point for each prompt
Axis = Literal["linear", "log"]
BY_SCOPE = {"data", "gamma", "heads", "overrides"}  # options with one value per scope or key
TINY = "-tiny"  # suffix of suites on the bundled models
Kind = Literal["runs", "profile"]
MEASURED = (
    "kind",
    "options",
    "grid",
    "prepare",
    "finetune",
    "judge",
)  # keys of a suite that determine its measurements
NO_RESULT = {"plugins", "threads"}  # options that replace no result of a suite
JUDGE = {"name", "of", "against"}  # required keys of a judge's table, in any case


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """A table in the paper's layout: the DIMENSIONS of its rows and columns, and the values of each cell.

    `only` selects points by their dimensions. `best` adds, where the rows differ in their setting or variant alone, a row
    with the best by this value.
    """

    title: str = ""
    rows: tuple[str, ...]
    columns: tuple[str, ...] = ()
    values: tuple[str, ...]
    only: dict[str, Any] = field(default_factory=dict)
    best: str = ""

    def __post_init__(self) -> None:
        require_dimensions(*self.rows, *self.columns, *self.only)
        if self.best and not {"setting", "variant"} & set(self.rows):
            raise ValueError("best compares settings: put 'setting' or 'variant' into rows")


DEFAULT_TABLE = TableSpec(
    title="Speed and quality",
    rows=("pair", "task", "T", "method"),
    values=("speedup", "acceptance_rate", "score"),
)  # of a suite without tables


@dataclass(frozen=True, kw_only=True)
class PlotSpec:
    """A plot of `y` over `x`, which is a value, one of the dimensions NUMBERS, or PROMPT for `y = "accepted_length"`.

    There is a line per value of the dimensions `lines`, and a panel per value of `panels`. `flat` are methods drawn as
    horizontal lines. `only` selects points by their dimensions. With `best`, a line has only its best point at
    each x, and another line shows the best of all lines. `diagonal` draws points and the line y = x.
    """

    title: str = ""
    x: str
    y: str
    lines: tuple[str, ...] = ("method",)
    panels: tuple[str, ...] = ("task",)
    flat: tuple[str, ...] = ()
    only: dict[str, Any] = field(default_factory=dict)
    x_axis: Axis = "linear"
    best: bool = False
    diagonal: bool = False

    def __post_init__(self) -> None:
        require_dimensions(*self.lines, *self.panels, *self.only)
        if self.x == PROMPT and self.y != "accepted_length":
            raise ValueError(f'x = "{PROMPT}" plots accepted_length only, not {self.y}')
        if self.best and self.x not in NUMBERS:
            raise ValueError(f"best compares points at the same x: use one of {', '.join(NUMBERS)} as x")

    @property
    def is_swept(self) -> bool:
        """Whether x is a dimension, such as a swept parameter, and not a measured value."""
        return self.x in NUMBERS


@dataclass(frozen=True, kw_only=True)
class GridLine:
    """Methods x pairs x tasks, at options of `specbench run`."""

    methods: tuple[str, ...]
    pairs: tuple[str, ...]
    tasks: tuple[str, ...]
    options: Options = field(default_factory=Options)


NO_PAPER = ("", "none", "specbench")  # names of suites that reproduce nothing


@dataclass(frozen=True, kw_only=True)
class Suite:
    """The reproduction of a table or figure: the grid of runs, and the tables, plots and expectations of its results.

    `kind` is `runs` for runs, `profile` for `specbench profile`. With a `judge`, completions of the methods `of` and
    `against` are compared too. `together` are ids of expectations that the paper claims of one setting at once. `note` is
    printed below the tables. `frontier` adds the cascades paper's two summaries of quality against latency. With a `drop`
    above 0, a share of the score, it also adds the speed within that loss of quality.
    """

    name: str
    paper: str
    shows: str
    description: str
    note: str = ""
    kind: Kind = "runs"
    frontier: bool = False
    drop: float = 0.0
    judge: dict[str, Any] = field(default_factory=dict)
    prepare: tuple[Preparation, ...] = ()
    finetune: tuple[Finetune, ...] = ()
    grid: tuple[GridLine, ...]
    tables: tuple[TableSpec, ...] = ()
    plots: tuple[PlotSpec, ...] = ()
    expect: tuple[Expectation, ...] = ()
    together: tuple[tuple[str, ...], ...] = ()
    requested: str = ""  # the name or path that the user gave
    definition: str = ""  # a hash of the keys that determine what is measured; presets that they name are not in it

    def __post_init__(self) -> None:
        if self.judge and (missing := JUDGE - self.judge.keys()):
            raise ValueError(f"judge: a value for '{min(missing)}' is missing")
        require_distinct(self.prepare)
        require_distinct_models(self.finetune)
        ids = [expectation.id for expectation in self.expect if expectation.id]
        if repeated := next((each for each in ids if ids.count(each) > 1), ""):
            raise ValueError(f"expect: two have the id '{repeated}'")
        for word in (word for group in self.together for word in group):
            if word not in ids:
                raise ValueError(f"together: no expectation has the id '{word}'{hint(word, ids)}")

    def with_judge(self, judge: dict[str, Any]) -> "Suite":
        """Return the suite with another judge of the same methods. Raises ConfigError if the suite judges nothing."""
        if not judge:
            return self
        if not self.judge:
            raise ConfigError(f"--judge has no effect: suite {self.name} compares no continuations")
        return replace(self, judge={**judge, "of": self.judge["of"], "against": self.judge["against"]})

    @property
    def is_of_paper(self) -> bool:
        """Whether the suite reproduces a part of a paper."""
        return self.paper.lower() not in NO_PAPER

    @property
    def is_tiny(self) -> bool:
        return self.name.endswith(TINY)

    @property
    def of(self) -> str:
        """The name of the corresponding suite on the paper's models; the suite's own name unless it is a tiny one."""
        return self.name.removesuffix(TINY)

    def parts(self) -> Iterator[tuple[GridLine, str, str]]:
        """Yield every line of the grid with each of its pairs and tasks."""
        for line in self.grid:
            for pair in line.pairs:
                for task in line.tasks:
                    yield line, pair, task

    def measuring(self, task: str) -> tuple[Options, ...]:
        """Return the options of the lines that measure a task."""
        return tuple(line.options for line in self.grid if task in line.tasks)


def suites() -> list[str]:
    """Return the names of all bundled suites."""
    return names("suite")


def read_suite(name: str, **changes: Any) -> Suite:
    """Return the suite of a name or a path. `changes` replace its options. Raises ConfigError for mistakes in the file."""
    source = preset("suite", name)
    table, where = dict(source.table), str(source.path)
    common = convert(table.pop("options", {}), dict[str, Any], f"{where}: options")
    grid = convert(table.pop("grid", []), tuple[dict[str, Any], ...], f"{where}: grid")
    if not grid:
        raise ConfigError(f"{where}: a suite needs a [[grid]]")
    table["name"] = stem(source.name)
    keys = [key for key in MEASURED if key != "finetune" or key in source.table]  # definitions are older than this key
    measured = json.dumps({key: source.table.get(key) for key in keys}, sort_keys=True, default=str)
    table["definition"] = hashlib.sha256(measured.encode()).hexdigest()[:16]
    lines = tuple(_line(row, common, changes, f"{where}: options or grid[{i}]") for i, row in enumerate(grid))
    suite = replace(construct(Suite, {**table, "grid": []}, where), grid=lines, requested=name)
    _require_used_models(suite, where)
    return suite if suite.tables or suite.kind == "profile" else replace(suite, tables=(DEFAULT_TABLE,))


def _require_used_models(suite: Suite, where: str) -> None:
    """Raise ConfigError for a fine-tuning step without a pair and task that the suite measures."""
    measured = {(pair, task) for _, pair, task in suite.parts()}
    for i, step in enumerate(suite.finetune):
        if not any(pair in step.pairs and task in step.tasks for pair, task in measured):
            raise ConfigError(f"{where}: finetune[{i}]: no [[grid]] has one of its pairs with one of its tasks")


def _line(table: dict[str, Any], common: dict[str, Any], changes: dict[str, Any], where: str) -> GridLine:
    lists_of_names = {"methods", "pairs", "tasks"}
    words = {key: table[key] for key in lists_of_names if key in table}
    options = {**common, **{key: value for key, value in table.items() if key not in lists_of_names}}
    for key in sorted(lists_of_names):
        if not words.get(key):
            raise ConfigError(f"{where}: a value for '{key}' is missing")
    lists = {key: convert(words.get(key, []), tuple[str, ...], f"{where}: {key}") for key in lists_of_names}
    return GridLine(**lists, options=_options(options, changes, where))


def _options(table: dict[str, Any], changes: dict[str, Any], where: str) -> Options:
    """Return options from TOML. The user's `changes` replace single scopes of `data` and `gamma`, and keys of `set`."""
    values = fields_of(table, where)
    if "over" in values:
        values["over"] = tuple(_swept(name, swept) for name, swept in values["over"])
    if changes.get("limit") is not None:  # the user's choice of prompts replaces the suite's
        values.pop("sample", None)
    for option, key in ALSO_SET.items():  # the user's choice replaces the suite's, however each is written
        if f"task.{key}" in dict(changes.get("overrides", ())):
            values.pop(option, None)
        elif changes.get(option):
            values["overrides"] = tuple(
                override for override in values.get("overrides", ()) if override[0] != f"task.{key}"
            )
    values["over"] = tuple(
        sweep for sweep in values.get("over", ()) if not _is_set(sweep[0], changes.get("overrides", ()))
    )
    for key in BY_SCOPE & changes.keys():
        values[key] = _merged(values.get(key, ()), changes[key])
    values |= {key: value for key, value in changes.items() if key not in BY_SCOPE and value not in (None, "")}
    try:
        return Options(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _is_set(sweep: str, overrides: Sequence[tuple[str, Any]]) -> bool:
    """Return whether the user sets the key of a sweep `METHOD.key`, for that method or for all."""
    method, *path = sweep.split(".")
    parsed = [override(key, value) for key, value in overrides]
    return any(
        override.kind == "method" and in_scope(override.scope, method) and list(override.path) == path
        for override in parsed
    )


def _merged(values: Sequence[tuple[str, Any]], changes: Sequence[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    """Return a suite's values by key, replaced by the user's. A value for all keys replaces all of them."""
    if any(not key for key, _ in changes):
        return tuple(changes)
    return (*(entry for entry in values if entry[0] not in dict(changes)), *changes)


def _swept(name: str, values: Any) -> tuple[str, Any]:
    """Return a sweep as a key and values. `METHOD = "auto"` is the method's default sweep."""
    if values != "auto":
        return name, values
    key, grid = sweep_of(name)
    return f"{name}.{key}", grid


@dataclass(frozen=True, kw_only=True)
class SuiteRequest:
    """A suite to measure. `replaced` are the options of the suite that the user replaced, by name.

    `plugins` are the user's plugins, as files or modules.
    """

    suite: Suite
    out: Path
    access: Access
    sandbox: SandboxKind | None = None
    replaced: Mapping[str, Any] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()

    @property
    def is_changed(self) -> bool:
        """Whether the user replaced an option that results depend on."""
        return bool(self.replaced.keys() - NO_RESULT)
