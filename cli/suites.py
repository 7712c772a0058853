"""A suite's cells, one by one: measured, and what became of each kept in an index that plan, report and reproduce read."""

import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.cli.choices import SandboxKind
from specbench.cli.measuring import SOME_FAILED, decode, prepared, score, summarised
from specbench.cli.progress import status
from specbench.errors import ConfigError, MissingAsset

if TYPE_CHECKING:
    from specbench.bench import Bench, Job
    from specbench.sandbox import Sandbox
    from specbench.suite import Line, Suite

NOTHING_THERE = 4


@dataclass
class Part:
    """A line of the grid on one pair and task: its bench, or why there is none."""

    line: "Line"
    pair: str
    task: str
    bench: "Bench | None" = None
    box: "Sandbox | None" = None
    missing: str = ""

    @property
    def key(self) -> str:
        """What a part without cells is noted under."""
        return f"{self.pair} {self.task} {'+'.join(self.line.methods)} T={self.line.options.temperature}"


def parts(suite: "Suite", out: Path, kind: SandboxKind | None) -> list[Part]:
    """The suite's grid, resolved part by part; models, data and settings that are not there are told, not raised.

    Raises ConfigError where no part can be resolved for what is wrong with the suite.
    """
    grid: list[Part] = []
    refused: list[ConfigError] = []
    for line, pair, task in suite.parts():
        part = Part(line, pair, task)
        try:
            names = _methods(suite, line, pair)
            part.bench, part.box, without = prepared(names, pair, [task], line.options, out, kind)
            part.missing = str(without) if without else ""
        except MissingAsset as error:
            part.missing = "\n".join(dict.fromkeys([str(error), *_missing_models(line, pair)]))
        except ConfigError as error:
            refused.append(error)
            part.missing = str(error)
        grid.append(part)
    if len(refused) == len(grid):
        raise refused[0]
    return grid


def _missing_models(line: "Line", pair: str) -> list[str]:
    """What is missing of a pair's models, where the data's absence would hide it."""
    from specbench import arms, cells
    from specbench.found import device_of, find

    preset, found = cells.read_pair(pair, line.options)
    told = []
    for role in arms.roles_of(list(line.methods), found, line.options):
        try:
            find(found, (role,), preset.path.parent, device_of(line.options.device), line.options.dtype)
        except MissingAsset as error:
            told.append(str(error))
    return told


def _methods(suite: "Suite", line: "Line", pair: str) -> list[str]:
    """The methods of a line; of a profile, those that measure every pair of its chain's levels."""
    if suite.kind != "profile":
        return list(line.methods)
    from specbench.cells import read_pair
    from specbench.cli.profile import levels_of, pairings

    (gamma,) = line.options.gamma
    return pairings(levels_of(line.methods[0]), read_pair(pair, line.options)[1], gamma)


def run_suite(suite: "Suite", out: Path, fresh: bool, kind: SandboxKind | None) -> int:
    """Measure every cell that is not there yet. A cell that fails never stops the rest. Returns the exit code."""
    from specbench.report.index import FAILED, MISSING, Index

    index, keep, last = Index.of(suite.name, out), [], None
    with status(f"reading {suite.name}'s pairs and tasks"):
        grid = parts(suite, out, kind)  # whatever is wrong with the suite shows before anything is measured
    for part in grid:
        if part.bench is None:
            keep.append(part.key)
            index.note(part.key, pair=part.pair, task=part.task, state=MISSING, why=part.missing)
            print(f"{part.key}: {part.missing}", file=sys.stderr)
            continue
        if last is not None:
            part.bench.borrow(last)
        for job in part.bench.jobs:
            begin = time.perf_counter()
            state, why = _state(suite, part, job, fresh)
            if why:
                print(f"{job.folder.name}: {state}: {why}", file=sys.stderr)
            told = _told(suite, part, job) | {"state": state, "why": why}
            index.note(job.folder.name, **told, seconds=time.perf_counter() - begin)
            keep.append(job.folder.name)
            index.keep(keep + [each for each in index.cells if each not in keep])
        last = part.bench if part.bench.is_loaded else last
    index.keep(keep)
    states = [index.cells[key]["state"] for key in keep]
    if FAILED in states:
        return SOME_FAILED
    return NOTHING_THERE if set(states) == {MISSING} else SOME_FAILED if MISSING in states else 0


def _state(suite: "Suite", part: Part, job: "Job", fresh: bool) -> tuple[str, str]:
    """Measure, score and judge a cell, as far as it is not; what became of it, and why it is not done."""
    from specbench.judging import judge_run
    from specbench.records import JUDGED
    from specbench.report.index import DONE, FAILED, MISSING

    assert part.bench is not None
    try:
        decode(part.bench, job, fresh)
        score(job, part.box)
        if suite.judge and not (job.folder / JUDGED).exists():
            judge_run(job.folder, job.data, suite.judge)
        summarised(job)
    except MissingAsset as error:
        return MISSING, str(error)
    except Exception as error:
        job.folder.mkdir(parents=True, exist_ok=True)
        (job.folder / "error.log").write_text(traceback.format_exc(), encoding="utf-8")
        return FAILED, f"{type(error).__name__}: {error}"
    return DONE, ""


def _told(suite: "Suite", part: Part, job: "Job") -> dict[str, Any]:
    """What the index says of a cell besides its state."""
    from specbench.cli.profile import levels_of

    cell = job.cell
    told = {"pair": cell.pair, "task": cell.task, "made_up": cell.config["pair"].get("made_up", "")}
    told |= {"folder": cell.folder, "generations": cell.generations}
    return told | ({"levels": levels_of(part.line.methods[0])} if suite.kind == "profile" else {})
