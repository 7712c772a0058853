"""Floor 1: the grid of a paper's table or figure, as configs/suites/ holds it, and what it should look like.

[[grid]]                              # methods x pairs x tasks, at these options of `specbench run`
methods = ["we-sd", "we-se"]
pairs = ["llama-vicuna"]
tasks = ["gsm8k:se-paper"]
over = { "we-se.gamma" = [[5, 1], [1, 1]] }

[[tables]]                            # a pivot of what was measured: what makes a row, a column, and what stands there
rows = ["pair", "method"]
columns = ["task"]
values = ["speedup"]

[[expect]]                            # what theory or the paper leads one to expect, checked cell by cell
says = "SE is at or above naive speculation"
of = { method = "we-se" }
value = "speedup"
at_least = { method = "we-sd" }
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

from specbench.config.construct import construct, convert
from specbench.config.options import ALSO_SET, Options, draft_lengths, scoped_values
from specbench.config.presets import names, preset, sweep_of
from specbench.errors import ConfigError, hint

INNER = {"overrides", "over", "heads", "plugins"}  # options that a suite writes otherwise, or not at all
BY_SCOPE = {"data", "gamma", "heads", "overrides"}  # options with one value per scope or key
TINY = "-tiny"  # how the twin of a suite that runs on bundled models is called
DIMENSIONS = (
    "pair",
    "task",
    "group",
    "T",
    "method",
    "setting",
    "x",
    "variant",
)  # what a measured point is told apart by
Kind = Literal["cells", "profile"]
JUDGE = {"name", "path", "of", "against"}  # what a judge's table needs
Axis = Literal["linear", "log"]


def require_dimensions(*words: str) -> None:
    """Raises ValueError for a word that is none of DIMENSIONS."""
    for word in words:
        if word not in DIMENSIONS:
            raise ValueError(f"'{word}' is no dimension{hint(word, DIMENSIONS)}")


@dataclass(frozen=True, kw_only=True)
class Line:
    """Methods x pairs x tasks, at options of `specbench run`."""

    methods: tuple[str, ...]
    pairs: tuple[str, ...]
    tasks: tuple[str, ...]
    options: Options = field(default_factory=Options)


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """A table as the paper has it: DIMENSIONS that make its rows and columns, and the values of each place.

    `only` keeps the points whose dimensions are so; `best` adds, to methods that were measured at several settings, a row
    with the best of them by this value.
    """

    title: str = ""
    rows: tuple[str, ...]
    columns: tuple[str, ...] = ()
    values: tuple[str, ...]
    only: dict[str, Any] = field(default_factory=dict)
    best: str = ""

    def __post_init__(self) -> None:
        require_dimensions(*self.rows, *self.columns, *self.only)
        if self.best and "setting" not in self.rows:
            raise ValueError("best compares settings: put 'setting' into rows")


@dataclass(frozen=True, kw_only=True)
class PlotSpec:
    """A plot: values `y` over `x` (a value, or the dimension x: what was swept), a line for each of `lines`, a panel for
    each of `panels`. `flat` are methods drawn as horizontal lines."""

    title: str = ""
    x: str
    y: str
    lines: tuple[str, ...] = ("method",)
    panels: tuple[str, ...] = ("task",)
    flat: tuple[str, ...] = ()
    x_axis: Axis = "linear"

    def __post_init__(self) -> None:
        require_dimensions(*self.lines, *self.panels)


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """What theory or the paper leads one to expect of a value: `of` some points, `at_least` (or `at_most`) a number, or the
    value of other points of the same cell. `best` compares the best settings. `because` explains a departure."""

    says: str
    of: dict[str, Any]
    value: str
    at_least: float | dict[str, Any] | None = None
    at_most: float | dict[str, Any] | None = None
    best: bool = False
    because: str = ""

    def __post_init__(self) -> None:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError("give one of at_least and at_most")
        bound = self.at_most if self.at_least is None else self.at_least
        require_dimensions(*self.of, *(bound if isinstance(bound, dict) else ()))


@dataclass(frozen=True, kw_only=True)
class Suite:
    """What reproduces one table or figure: the grid to measure, and the tables, plots and expectations of what came.

    `kind`: `cells` are runs, a `profile` is `specbench profile`. With a `judge`, completions of the methods `of` and
    `against` are judged as well. `frontier` asks for the cascades paper's two summaries of quality against latency.
    """

    name: str
    paper: str
    shows: str
    description: str
    kind: Kind = "cells"
    frontier: bool = False
    judge: dict[str, Any] = field(default_factory=dict)
    grid: tuple[Line, ...]
    tables: tuple[TableSpec, ...] = ()
    plots: tuple[PlotSpec, ...] = ()
    expect: tuple[Expectation, ...] = ()
    asked: str = ""  # by which word; a path for a file of the user's own

    def __post_init__(self) -> None:
        if self.judge and (missing := JUDGE - self.judge.keys()):
            raise ValueError(f"judge: a value for '{min(missing)}' is missing")

    @property
    def is_tiny(self) -> bool:
        return self.name.endswith(TINY)

    @property
    def of(self) -> str:
        """The suite of the paper's own models that this one is the twin of; itself."""
        return self.name.removesuffix(TINY)

    def parts(self) -> Iterator[tuple[Line, str, str]]:
        """Every line with each of its pairs and tasks."""
        for line in self.grid:
            for pair in line.pairs:
                for task in line.tasks:
                    yield line, pair, task


def suites() -> list[str]:
    """The names of all bundled suites."""
    return names("suite")


def read_suite(name: str, **changes: Any) -> Suite:
    """The suite that a name or a path names; `changes` overrule its options. Raises ConfigError for what is wrong with it."""
    found = preset("suite", name)
    table, where = dict(found.table), str(found.path)
    common = convert(table.pop("options", {}), dict[str, Any], f"{where}: options")
    grid = convert(table.pop("grid", []), tuple[dict[str, Any], ...], f"{where}: grid")
    if not grid:
        raise ConfigError(f"{where}: a suite needs a [[grid]]")
    table["name"] = Path(found.name).stem
    lines = tuple(_line(each, common, changes, f"{where}: options or grid[{i}]") for i, each in enumerate(grid))
    return replace(construct(Suite, {**table, "grid": []}, where), grid=lines, asked=name)


def _line(table: dict[str, Any], common: dict[str, Any], changes: dict[str, Any], where: str) -> Line:
    own = {"methods", "pairs", "tasks"}
    words = {key: table[key] for key in own if key in table}
    told = {**common, **{key: value for key, value in table.items() if key not in own}}
    for key in sorted(own):
        if not words.get(key):
            raise ConfigError(f"{where}: a value for '{key}' is missing")
    lists = {key: convert(words.get(key, []), tuple[str, ...], f"{where}: {key}") for key in own}
    return Line(**lists, options=_options(told, changes, where))


def _options(table: dict[str, Any], changes: dict[str, Any], where: str) -> Options:
    """Options from TOML: those of `specbench run` by their names, `set`, `over` and `head` as tables.

    `data` and `gamma` are one value for all, or a table by task or method. The user's `changes` overrule each scope of them,
    and each key of `set`, on its own.
    """
    known, types = {each.name for each in fields(Options)}, get_type_hints(Options)
    tables = {"set": "overrides", "head": "heads", "over": "over"}
    made: dict[str, Any] = {}
    for key, value in table.items():
        if key == "over":
            made[key] = tuple(_swept(name, values) for name, values in convert(value, dict[str, Any], where).items())
        elif key in tables:
            made[tables[key]] = tuple(convert(value, dict[str, Any], f"{where}: {key}").items())
        elif key == "data":
            made[key] = convert(scoped_values(value, f"{where}: data"), tuple[Any, ...], where)
        elif key == "gamma":
            lengths = scoped_values(value, f"{where}: gamma")
            made[key] = tuple((scope, draft_lengths(each, f"{where}: gamma")) for scope, each in lengths)
        elif key in known - INNER:
            made[key] = convert(value, types[key], f"{where}: {key}")
        else:
            raise ConfigError(f"{where}: unknown key '{key}'{hint(key, [*sorted(known - INNER), *tables])}")
    if changes.get("limit") is not None:  # the user's own choice of prompts overrules the suite's
        made.pop("sample", None)
    for option, key in ALSO_SET.items():  # the user's choice replaces the suite's, however each is written
        if f"task.{key}" in dict(changes.get("overrides", ())):
            made.pop(option, None)
        elif changes.get(option):
            made["overrides"] = tuple(each for each in made.get("overrides", ()) if each[0] != f"task.{key}")
    for key in BY_SCOPE & changes.keys():
        made[key] = _merged(made.get(key, ()), changes[key])
    made |= {key: value for key, value in changes.items() if key not in BY_SCOPE and value not in (None, "")}
    try:
        return Options(**made)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _merged(own: Sequence[tuple[str, Any]], changes: Sequence[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    """A suite's values by key, with the user's in their place; one for all keys replaces them all."""
    if any(not key for key, _ in changes):
        return tuple(changes)
    return (*(each for each in own if each[0] not in dict(changes)), *changes)


def _swept(name: str, values: Any) -> tuple[str, Any]:
    """A sweep as options have it; `METHOD = "auto"` is the method's own."""
    if values != "auto":
        return name, values
    key, own = sweep_of(name)
    return f"{name}.{key}", own
