"""Floor 3: from words on a command line and TOML presets to cells, the units that are measured.

A cell is one pair, one task, and the methods that share a baseline and a temperature, with that baseline: everything that
is interleaved prompt by prompt. Its resolved config names its run folder.
"""

import dataclasses
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specbench.config.construct import construct, convert
from specbench.config.options import Options, overridden
from specbench.config.pair import Pair, head_named, with_heads
from specbench.config.presets import Preset, preset
from specbench.data.task import Data, Task
from specbench.decoding.sampling import Sampler
from specbench.errors import ConfigError
from specbench.experiment.method_resolution import Arm
from specbench.models.resolve import Found, FoundHead
from specbench.models.synthetic_logits import calibrate
from specbench.runs.record import SAMPLES, SEMANTICS, config_sha256, read

MOST_TOLD = 4  # methods in a folder's name
LONGEST_WORD = 60  # characters of one of its parts
SYNTHETIC_LIMIT = 32  # samples of a source that has no end of its own


@dataclass(frozen=True)
class Cell:
    """What one run folder holds. `config` is everything that its numbers depend on, but the machine."""

    pair: str
    task: str
    arms: tuple[Arm, ...]  # the baseline first
    config: dict[str, Any] = field(repr=False)

    @property
    def key(self) -> str:
        """Eight hex digits of the resolved config."""
        return config_sha256(self.config)[:8]

    @property
    def roles(self) -> tuple[str, ...]:
        """The models that its methods need."""
        return tuple(self.config["pair"]["models"])

    @property
    def spread(self) -> float | None:
        """How far its models' synthetic laws lie apart; None where they say what they say."""
        return self.config["pair"].get("synthetic", {}).get("spread")  # type: ignore[no-any-return]  # config is TOML

    @property
    def generations(self) -> int:
        """How many there are when it is complete."""
        config = self.config
        return len(self.arms) * int(config["task"]["data"]["samples"]) * int(config["decoding"]["repeats"])

    @property
    def folder(self) -> str:
        names = [arm.name for arm in self.arms if arm.baseline] or [self.arms[0].name]
        told = list(dict.fromkeys(name.partition("(")[0] for name in names))  # variants have one name
        if len(told) > MOST_TOLD:
            told = [*told[:MOST_TOLD], f"{len(told) - MOST_TOLD}more"]
        return "_".join([*map(_word, ["+".join(told), self.pair, self.task]), self.key])


def _word(name: str) -> str:
    """A name as a part of a folder's: plain characters, and no more of them than a path can have."""
    return re.sub(r"[^A-Za-z0-9.+-]", "-", name)[:LONGEST_WORD]


def read_pair(name: str, options: Options) -> tuple[Preset, Pair]:
    """The pair that a name or a path names, with the user's overrides."""
    found = preset("pair", name)
    table = overridden(found.table, options.under("pair"), f"pair {found.name}")
    for head, _ in options.heads:
        if (key := f"pair.heads.{head_named(head, table.get('heads', {}))}.path") in dict(options.overrides):
            raise ConfigError(f"--head {head} and --set {key} conflict: give one of them")
    where = options.place("pair", found.path)
    return found, construct(Pair, with_heads(table, options.heads), where)


def read_task(name: str, pair: Pair, options: Options) -> tuple[str, Task]:
    """The task that a name or a path names, with what suits the pair and the user's overrides."""
    found = preset("task", name)
    suited = convert(pair.defaults.task.get(found.name, {}), dict[str, Any], f"defaults.task.{found.name}")
    told = {"max_new_tokens": options.max_new_tokens, "overflow": options.on_overflow, "chat": options.chat}
    table = {**found.table, **suited} | {key: value for key, value in told.items() if value}
    table = overridden(table, options.under("task"), f"task {found.name}")
    return found.name, Task.build(table, options.place("task", found.path))


def source_of(pair: Pair, options: Options) -> str:
    """Where a task's rows come from: what the user says, what suits the pair, the hub."""
    return options.data or pair.defaults.data or "hub"


def suits(pair: Pair, options: Options) -> bool:
    """Whether rows come from where the pair's defaults take them, so that its tasks and its limit are meant."""
    return source_of(pair, options) == (pair.defaults.data or "hub")


def limited(data: Data, pair: Pair, options: Options) -> Data:
    """The first rows, as many as wanted, or as many drawn at random; 0 is all, but of a synthetic source."""
    if options.sample:
        return data.drawn(options.sample)
    suited = pair.defaults.limit if suits(pair, options) else 0
    limit = suited if options.limit is None else options.limit
    if not limit:
        limit = SYNTHETIC_LIMIT if data.source == "synthetic" else len(data.samples)
    return data.first(limit)


def cell(
    group: tuple[Arm, ...],
    pair_name: str,
    pair: Pair,
    found: dict[str, Found],
    task_name: str,
    task: Task,
    data: Data,
    options: Options,
    device: str,
    heads: dict[str, FoundHead] | None = None,
) -> Cell:
    """The cell of one group of methods on one task."""
    needed = {role for arm in group for role in arm.method.roles()}
    models = {role: each for role, each in found.items() if role in needed}
    reading = {name: each.identity() for name, each in (heads or {}).items() if name in _heads(group)}
    config = {
        "semantics": SEMANTICS,
        "pair": {
            "name": pair_name,
            "models": {role: _present(each.identity()) for role, each in models.items()},
            "traffic": {role: each.traffic for role, each in models.items()},
            "shapes": {role: each.shape for role, each in models.items()},
            **({"heads": {name: _present(each) for name, each in reading.items()}} if reading else {}),
            **({"made_up": pair.made_up} if pair.made_up else {}),
            **(
                {"synthetic": _synthetic(group, tuple(models), pair, task_name, options)}
                if pair.logits != "real"
                else {}
            ),
        },
        "task": {
            "name": task_name,
            "class": task.name,
            "version": task.version,
            "continues": task.continues,
            "options": {k: v for k, v in _fields(task).items() if k != "description"},
            "data": _present(
                {
                    "source": data.source,
                    "revision": data.revision,
                    "sha256": data.sha256,
                    "prompts_sha256": data.prompts_sha256,
                    "samples": len(data.samples),
                    "later_turns": sum(bool(sample.after) for sample in data.samples),
                    "total": data.total,
                }
            ),
        },
        **({"plugins": dict(options.plugins)} if options.plugins else {}),
        "baseline": group[0].name,
        "clock": "end to end" if any(arm.clock == "end to end" for arm in group) else "decoding",
        "methods": {arm.name: arm.table for arm in group},
        "decoding": {
            "temperature": group[0].temperature,
            "top_k": options.top_k,
            "top_p": options.top_p,
            "max_new_tokens": task.max_new_tokens,
            "ignore_eos": options.ignore_eos or bool(pair.made_up),  # what is made up has no end of its own
            "seed": options.seed,
            "repeats": options.repeats,
        },
        "engine": {"name": _engines({role: each.engine for role, each in models.items()}), "device": device},
    }
    return Cell(pair_name, task_name, group, config)


def _heads(group: tuple[Arm, ...]) -> set[str]:
    return {name for arm in group for name in arm.heads}


def _synthetic(
    group: tuple[Arm, ...], roles: tuple[str, ...], pair: Pair, task_name: str, options: Options
) -> dict[str, Any]:
    """The acceptance rate that the cell's first drafting method is given, and the spread that gives it."""
    for arm in group:
        if arm.heads:
            raise ConfigError(f"{arm.name} reads a trained head, which has nothing to say of synthetic logits")
    named = [(arm.name, found) for arm in group if (found := arm.method.verification())]
    drafting = [each for each in named if each[1][0] in roles]  # prompt lookup is no model
    if not drafting:
        return {"spread": 1.0}
    method, (proposer, scorers, target) = drafting[0]
    if isinstance(pair.acceptance, str):
        wanted = _measured(Path(pair.acceptance), proposer)
    else:
        wanted = pair.acceptance_on(task_name.partition(":")[0])
    sampler = Sampler(group[0].temperature, options.top_k, options.top_p)
    spread = calibrate(wanted, roles.index(proposer), [roles.index(role) for role in scorers], target, sampler)
    return {"acceptance": wanted, "spread": spread, "method": method, "proposer": proposer}


def _measured(folder: Path, proposer: str) -> float:
    """How often a run accepted what a model drafted. Raises ConfigError where the run does not tell."""
    tested = accepted = 0
    for record in read(folder) if (folder / SAMPLES).exists() else ():
        for each in record.rounds:
            tested += each["by"].count(proposer)
            accepted += each["by"][: each["accepted"]].count(proposer)
    if not tested:
        raise ConfigError(f"acceptance = {str(folder)!r}: no run there in which '{proposer}' drafted")
    return accepted / tested


def _engines(engines: dict[str, str]) -> str:
    """One word where all models run alike; else who runs how."""
    kinds = list(dict.fromkeys(engines.values()))
    return kinds[0] if len(kinds) == 1 else ", ".join(f"{role} {engine}" for role, engine in engines.items())


def _fields(thing: Any) -> dict[str, Any]:
    values = {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing)}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def _present(table: dict[str, Any]) -> dict[str, Any]:
    """Without what is None, which TOML cannot say."""
    return {k: v for k, v in table.items() if v is not None}
