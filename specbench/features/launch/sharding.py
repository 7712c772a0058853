"""Runs in shards: N runs, each of every Nth prompt, which are combined into one.

Shards can be measured one after another, or by several processes or machines that share the results folder. The methods of a
shard are interleaved as in any run, so the ratios of a combined run are as good as the ratios of an undivided run.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace

import tomli_w

from specbench.config.request import Request
from specbench.config.shard import Shard, shards_of
from specbench.errors import ConfigError, ExitCode, NotComparable
from specbench.experiment.pipeline import Results, run
from specbench.features.suites.grid import resolve_grid
from specbench.features.suites.suite import Suite, SuiteRequest
from specbench.features.suites.suite_index import Index
from specbench.features.suites.suite_runner import run_one, run_suite, write_index
from specbench.files import read_with_checksum, write, write_with_checksum
from specbench.machine.hardware import Environment, conditions, incomparable
from specbench.observer import Observer
from specbench.resolution.resolve import resolve
from specbench.resolution.run_plan import PlannedRun
from specbench.resolution.run_store import progress_of, records_of
from specbench.runs.locking import FolderLock, locked
from specbench.runs.record import line_of
from specbench.runs.run_folder import CONFIG, ENVIRONMENT, MANIFEST, SAMPLES, Manifest, spec_of


def run_in_shards(request: Request, count: int, observer: Observer) -> Results:
    """Measure the missing shards of a request's runs, combine them, and score and summarize the whole.

    Raises NotComparable if the shards were measured under different conditions, such as on different machines.
    """
    requests = [replace(request, options=replace(request.options, shard=shard)) for shard in shards_of(count)]
    for shard_request in requests:
        run(shard_request, observer)
    shards = [resolve(shard).runs for shard in requests]
    for whole, *parts in zip(resolve(request).runs, *shards, strict=True):
        with locked([whole.folder], request.access) as locks:
            combine(whole, parts, locks[whole.folder])
    return run(request, observer)


def run_suite_in_shards(request: SuiteRequest, count: int, observer: Observer) -> ExitCode:
    """Measure the missing shards of a suite's runs, and combine those whose shards are complete."""
    requests = [replace(request, suite=with_shard(request.suite, shard)) for shard in shards_of(count)]
    for shard_request in requests:
        run_suite(shard_request, observer)
    return combine_suite(request, requests, observer)


def combine_suite(request: SuiteRequest, requests: Sequence[SuiteRequest], observer: Observer) -> ExitCode:
    """Combine the runs whose shards are complete, score and index them. Nothing is measured.

    `requests` are the requests of the shards. Returns SOME_FAILED if a run is not complete.
    """
    grids = [
        resolve_grid(shard_request.suite, shard_request.out, shard_request.sandbox)
        for shard_request in (request, *requests)
    ]
    indexes = [Index.of(shard.suite.name, shard.out, shard.is_changed).runs for shard in requests]
    seconds: dict[str, float] = {}
    reasons: dict[str, str] = {}
    for whole_part, *shard_parts in zip(*(grid.parts for grid in grids), strict=True):
        plans = [part.plan.runs if part.plan else [] for part in (whole_part, *shard_parts)]
        for whole, *parts in zip(*plans, strict=False):
            entries = [index.get(part.folder.name) for part, index in zip(parts, indexes, strict=True)]
            seconds[whole.folder.name] = sum(entry.seconds for entry in entries if entry)
            reasons[whole.folder.name] = next((entry.why for entry in entries if entry and entry.why), "")
            if all(progress_of(part).is_complete for part in parts):
                with locked([whole.folder], request.access) as locks:
                    combine(whole, parts, locks[whole.folder])
                run_one(request, whole_part.number, whole.folder.name, observer)
    return write_index(request, grids[0], seconds, reasons)


def with_shard(suite: Suite, shard: Shard) -> Suite:
    """Return a suite of one shard of every run. Its index is its own, NAME-IofN."""
    grid = tuple(replace(line, options=replace(line.options, shard=shard)) for line in suite.grid)
    return replace(suite, name=f"{suite.name}-{shard.word}", grid=grid)


def combine(whole: PlannedRun, parts: Sequence[PlannedRun], lock: FolderLock) -> None:
    """Write the records of complete shards into the folder of the whole run, unless that is complete.

    Raises ConfigError if a shard is incomplete or belongs to another run, or if the whole run has records that are not from
    shards, and NotComparable if a shard was measured under other conditions than the first.
    """
    here, there = records_of(whole), [records_of(part) for part in parts]
    if here.complete:
        return
    if missing := [str(part.folder) for part, found in zip(parts, there, strict=True) if not found.complete]:
        raise ConfigError(f"{', '.join(missing)}: not complete; help: run the same command again")
    if here.records:
        raise ConfigError(f"{whole.folder} has records of an undivided run; help: complete it without --shards")
    lock.require()
    _require_alike(whole, parts)
    lines, order = [], 0
    for found in there:
        for record in sorted(found.records, key=lambda record: record.order):
            lines.append(line_of(replace(record, order=order, run=whole.spec.key)))
            order += 1
    environment = read_with_checksum(parts[0].folder / ENVIRONMENT, Environment)
    write_with_checksum(whole.folder / ENVIRONMENT, dict(environment), indent=2)
    manifest = Manifest(whole.spec.checksum, [sample.id for sample in whole.data.samples])
    write_with_checksum(whole.folder / MANIFEST, asdict(manifest))
    write(whole.folder / CONFIG, tomli_w.dumps(whole.spec.to_toml()))
    write(whole.folder / SAMPLES, b"".join(lines).decode())


def _require_alike(whole: PlannedRun, parts: Sequence[PlannedRun]) -> None:
    """Raise unless the shards are parts of one run (ConfigError), measured under the same conditions (NotComparable)."""
    conditions_of = [conditions(read_with_checksum(part.folder / ENVIRONMENT, Environment)) for part in parts]
    for part, environment in zip(parts, conditions_of, strict=True):
        if replace(spec_of(part.folder), task=whole.spec.task).sha256 != whole.spec.sha256:
            raise ConfigError(f"{part.folder} is not a shard of {whole.folder}")
        if different := incomparable(conditions_of[0], environment):
            raise NotComparable(
                f"{part.folder} was measured under other conditions than {parts[0].folder}, and their times are not pooled"
                f" ({'; '.join(different)}); help: measure it again with --fresh on the same machine"
            )
