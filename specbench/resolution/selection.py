"""The pair, the tasks and the samples that a request selects, with the user's overrides."""

import dataclasses
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from specbench.config.construct import Table, construct, convert
from specbench.config.options import ALSO_SET, GivenOption, Options
from specbench.config.pair import Pair, head_named, with_heads
from specbench.config.presets import Override, Preset, changed, in_scope, names, preset
from specbench.data.task import Data, Task
from specbench.errors import ConfigError, MissingAsset, NotOnHub, hint

SYNTHETIC_LIMIT = 32  # default number of synthetic samples


@dataclass(frozen=True)
class SelectedTask:
    """A task with its samples, under the name that the request gives it."""

    name: str
    task: Task
    data: Data


def read_pair(name: str, options: Options) -> tuple[Preset, Pair]:
    """Return the preset and the pair of a name or path, with the user's overrides and heads applied. Raises ConfigError."""
    source = preset("pair", name)
    applied = [
        override
        for override in options.overrides_for("pair", name)
        if override.scope or _pair_has(source.table, override)
    ]
    table = changed(source.table, [(override.path, override.value) for override in applied], f"pair {source.name}")
    heads = options.heads_for(name)
    for head, _ in heads:
        named = table.get("heads", {})
        key = ("heads", head_named(head, named if isinstance(named, dict) else {}), "path")
        if same := next((override for override in applied if override.path == key), None):
            raise ConfigError(f"--head {head} and --set {same.key} conflict: give one of them")
    return source, construct(Pair, with_heads(table, heads), options.location("pair", source.path, applied))


def _pair_has(table: Table, override: Override) -> bool:
    """Return whether an override without a scope applies to a pair: `Pair` has the key, and the pair the model or head."""
    first, *rest = override.path
    if first not in {field.name for field in dataclasses.fields(Pair)}:
        return False
    inner = table.get(first)
    return first not in ("models", "heads") or not rest or (isinstance(inner, dict) and rest[0] in inner)


def read_task(name: str, pair: Pair, options: Options) -> tuple[str, Task]:
    """Return a task by name or path, with the pair's defaults and the user's overrides. Raises ConfigError."""
    source = preset("task", name)
    defaults = convert(pair.defaults.task.get(source.name, {}), Table, f"defaults.task.{source.name}")
    options_of_run = {key: value for option, key in ALSO_SET.items() if (value := getattr(options, option))}
    applied = [
        override
        for override in options.overrides_for("task", name)
        if override.scope or _task_takes(source.table, override)
    ]
    base = _with_paths(source)
    table = changed({**base, **defaults, **options_of_run}, [(e.path, e.value) for e in applied], f"task {source.name}")
    return source.name, Task.build(table, options.location("task", source.path, applied))


def _with_paths(source: Preset) -> Table:
    """Return a task's table, with the paths in it relative to the working directory instead of to the file."""
    member = Task.members.get(str(source.table.get("name")))
    table = dict(source.table)
    for key in member.paths if member else ():
        if isinstance(value := table.get(key), str) and value:
            table[key] = str(source.path.parent / Path(value).expanduser())
    return table


def _task_takes(table: Table, override: Override) -> bool:
    """Return whether a task has the key of an override, with a type that accepts the value."""
    types = _task_types(table)
    if len(override.path) > 1 or override.path[0] not in {*types, *table}:
        return False
    return _value_error(override.value, types.get(override.path[0], object), "") is None


def _value_error(value: object, kind: object, option: str) -> ConfigError | None:
    """Return the error of a value that is not of a type; None if it is."""
    try:
        convert(value, kind, option)
    except ConfigError as error:
        return error
    return None


def _task_types(table: Table) -> dict[str, object]:
    """Return the fields of a task's class, with their types."""
    member = Task.members.get(str(table.get("name")))
    if member is None or not dataclasses.is_dataclass(member):
        return {}
    hints = typing.get_type_hints(member)
    return {field.name: hints[field.name] for field in dataclasses.fields(member)}


def keys_of(name: str) -> set[str]:
    """Return the keys of a task that can be set."""
    return set(_task_types(preset("task", name).table))


def source_of(task: str, pair: Pair, options: Options) -> str:
    """Return the source of a task's rows: the user's choice, else the pair's default, else the hub."""
    return options.data_for(task) or pair.defaults.data or "hub"


def limited(data: Data, pair: Pair, options: Options) -> Data:
    """Return the first or random samples, as requested, or the requested shard of them.

    A limit of 0 means all samples, or SYNTHETIC_LIMIT of a synthetic source. Raises ConfigError for an empty shard.
    """
    chosen = _chosen(data, pair, options)
    if not options.shard:
        return chosen
    part = chosen.part(options.shard)
    if not part.samples:
        raise ConfigError(f"--shard {options.shard}: there are fewer than {options.shard.count} prompts")
    return part


def _chosen(data: Data, pair: Pair, options: Options) -> Data:
    """Return the samples that a request selects, before they are divided into shards."""
    if options.sample:
        return data.random_sample(options.sample)
    limit = pair.defaults.limit if options.limit is None else options.limit
    if not limit:
        limit = SYNTHETIC_LIMIT if data.source == "synthetic" else len(data.samples)
    return data.first(limit)


@dataclass(frozen=True)
class TaskChoice:
    """The tasks of a request: the named tasks, else the pair's tasks, else all tasks.

    If no task is named, tasks that cannot read the user's source are left out. If none of the pair's tasks can read it, all
    other tasks are tried.
    """

    requested: tuple[str, ...]
    pair: Pair
    options: Options

    @property
    def required(self) -> bool:
        """Whether every task must load: tasks that are named, or the pair's tasks on the pair's own source."""
        is_default_source = source_of("", self.pair, self.options) == (self.pair.defaults.data or "hub")
        return bool(self.requested) or (bool(self.pair.defaults.tasks) and is_default_source)

    @property
    def names(self) -> list[str]:
        """The names of the tasks that run. Reads their data unless all tasks are required. Raises as `by_name` does."""
        return self._first if self.required else list(self.by_name)

    def likely_names(self, offline: bool) -> list[str]:
        """Return `names`, or the tasks that are tried first if data are missing. With `offline`, the hub is not read."""
        if offline and not self.required and source_of("", self.pair, self.options) == "hub":
            return self._published(self._first) or self._published(self._others)
        try:
            return self.names
        except MissingAsset:
            return self._first

    @cached_property
    def by_name(self) -> dict[str, SelectedTask]:
        """The tasks with their samples, under the names that the request or the pair uses.

        Raises ConfigError and MissingAsset.
        """
        selected, unsuited = self._read(self._first)
        if not selected and self.pair.defaults.tasks:
            selected, _ = self._read(self._others)
        if not selected:
            raise unsuited[0]
        return selected

    def _published(self, tasks: Iterable[str]) -> list[str]:
        """Return the tasks whose data are on the hub."""
        return [name for name in tasks if read_task(name, self.pair, self.options)[1].is_published]

    @property
    def _others(self) -> list[str]:
        """The tasks that are tried if none of the pair's tasks can read the source."""
        return [name for name in _every_task() if name not in self._first] if not self.requested else []

    @property
    def _first(self) -> list[str]:
        """The tasks that are tried first."""
        return list(self.requested) or list(self.pair.defaults.tasks) or _every_task()

    def _read(self, tried: Sequence[str]) -> tuple[dict[str, SelectedTask], list[ConfigError | NotOnHub]]:
        """Return the tasks that load, and the errors of the others. Raises the first error if every task must load."""
        selected: dict[str, SelectedTask] = {}
        unsuited: list[ConfigError | NotOnHub] = []
        for name in tried:
            try:
                task_name, task = read_task(name, self.pair, self.options)
                source = source_of(name, self.pair, self.options)
                require_source(task_name, task, source)
                data = task.data(source)
                selected[name] = SelectedTask(task_name, task, limited(data, self.pair, self.options))
            except (ConfigError, NotOnHub) as error:
                if self.required:
                    raise
                unsuited.append(error)
        return selected, unsuited


def _every_task() -> list[str]:
    """Return the bundled tasks that a request without a task may run: not those that are templates over other data sets."""
    return [name for name in names("task", variants=False) if preset("task", name).table["name"] != "custom"]


def select_tasks(names: Sequence[str], pair: Pair, options: Options) -> list[SelectedTask]:
    """Return the tasks of a `TaskChoice` with their samples. Raises ConfigError and MissingAsset."""
    return list(TaskChoice(tuple(names), pair, options).by_name.values())


def prompt_count(name: str, task: Task, pair: Pair, options: Options) -> int | None:
    """Return how many prompts a request selects, without data from the hub: from the size of the published test set.

    If that size is not known, returns the limit, or None without one. Raises ConfigError for a task without synthetic data or
    a mistake in a local file, and MissingAsset for a missing file.
    """
    source = source_of(name, pair, options)
    if source not in ("hub", "synthetic") or (task.local and not task.published_rows):
        return len(select_tasks([name], pair, options)[0].data.samples)
    limit = options.sample or (pair.defaults.limit if options.limit is None else options.limit)
    if source == "synthetic":
        require_source(name, task, source)
        return limit or SYNTHETIC_LIMIT
    rows = task.published_rows
    return min(limit or rows, rows) if rows else limit or None


def require_source(name: str, task: Task, source: str) -> None:
    """Raise ConfigError or NotOnHub if a task has no data at its source, `synthetic` or `hub`."""
    if task.local:  # it names its rows itself
        return
    file = f"help: --data {name}=FILE.jsonl"
    if source == "synthetic" and task.synthetic is None:
        others = ", or --data hub" if task.is_published else ""
        raise ConfigError(f"task {name} has no synthetic data; {file}{others}")
    if source == "hub" and not task.is_published:
        others = ", or --data synthetic" if task.synthetic is not None else ""
        raise NotOnHub(f"the rows of task {name} are not on the hub; {file}{others}")


def unused_options(
    source: Preset, pair_name: str, tasks: Sequence[str], options: Options
) -> dict[GivenOption, ConfigError]:
    """Return errors for the options that neither the pair nor any of the tasks reads."""
    unused: dict[GivenOption, ConfigError] = {}
    for override in options.all_overrides("pair", [pair_name]):
        if not in_scope(override.scope, pair_name) or not (override.scope or _pair_has(source.table, override)):
            keys = {field.name for field in dataclasses.fields(Pair)}
            nearest = hint(override.path[0], keys) if override.path[0] not in keys else ""
            why = f"pair {source.name} has no such key{nearest}"
            if not in_scope(override.scope, pair_name):
                why = f"this run has no pair '{override.scope}'"
            option = GivenOption("set", override.key)
            unused[option] = ConfigError(f"{option}: {why}")
    tables = {name: preset("task", name).table for name in tasks}
    for override in options.all_overrides("task", list(tasks)):
        covered = [table for name, table in tables.items() if in_scope(override.scope, name)]
        if not any(override.scope or _task_takes(table, override) for table in covered):
            keys = {key for table in tables.values() for key in _task_types(table)}
            nearest = hint(override.path[0], keys) if override.path[0] not in keys else ""
            option, key = GivenOption("set", override.key), override.path[0]
            why = f"none of {', '.join(tasks)} has this key{nearest}"
            if override.scope and not covered:
                why = f"this run has no task '{override.scope}'"
            unused[option] = ConfigError(f"{option}: {why}")
            if types := next((kinds for table in covered if key in (kinds := _task_types(table))), None):
                unused[option] = _value_error(override.value, types[key], str(option)) or unused[option]
    for scope, rows in options.data:
        if scope and not any(in_scope(scope, name) for name in tasks):
            option = GivenOption("data", scope, rows)
            unused[option] = ConfigError(f"{option}: this run has no task '{scope}'")
    return unused
