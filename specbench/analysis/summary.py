"""Summaries of run folders: read from summary.json, or computed from the records."""

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from specbench.analysis import metric
from specbench.analysis.acceptance import (
    acceptance_by_model,
    acceptance_by_position,
    acceptance_by_rank,
    counters,
    length_counts,
    survival,
    window_cuts,
)
from specbench.analysis.forwards import forwards_per_token, round_milliseconds
from specbench.analysis.intervals import Estimate
from specbench.analysis.length_predictions import predict as predict_lengths
from specbench.analysis.method_metrics import levels
from specbench.analysis.method_records import Records, complete, paired, token_count
from specbench.analysis.metric import Context, Values
from specbench.analysis.predictions import best_tree, break_even, predictions
from specbench.analysis.quality import groups_of, quality, score_change, scores_by_prompt, scores_of
from specbench.analysis.ranking import ranks
from specbench.analysis.run_summary import (
    SCHEMA,
    CapturedGraphs,
    MethodSummary,
    RunSummary,
    from_table,
    speedup_steps,
    to_table,
)
from specbench.analysis.speed import end_to_end_tokens_per_second, speedup
from specbench.errors import ConfigError
from specbench.files import read_with_checksum, write_with_checksum
from specbench.machine.hardware import Bandwidth, Environment, bandwidth_of
from specbench.runs.run_folder import (
    CONFIG,
    ENVIRONMENT,
    MANIFEST,
    SAMPLES,
    SCORES,
    SUMMARY,
    Scores,
    imported_of,
    load,
    spec_of,
)
from specbench.runs.run_spec import Clock, MethodSpec, RunSpec

PARALLEL_BYTES = 32 << 20  # of records, at which summaries are computed in several processes
PREFILL = 0.1  # share of the time at which the headline includes prefill
HASHED_ENDS = 1 << 16  # bytes at the start and end of a file that its stamp covers


def summary_of(folder: Path) -> RunSummary:
    """Return the summary of a run folder: the one in summary.json if it is up to date, else a new one.

    Raises ConfigError if the folder contains no run.
    """
    return _stored(folder) or summarize(folder)


def save_summary(folder: Path, summary: RunSummary) -> None:
    """Write a summary into its run folder."""
    write_with_checksum(folder / SUMMARY, to_table(summary), indent=1)


def _stored(folder: Path) -> RunSummary | None:
    """Return the summary in summary.json. None if it is missing, damaged or outdated, since it can be computed again."""
    path = folder / SUMMARY
    if not path.exists():
        return None
    try:
        table = read_with_checksum(path, dict[str, Any])
        if (table.get("schema"), table.get("stamp")) != (SCHEMA, stamp(folder)):
            return None
        return from_table({**table, "folder": str(folder), "run": folder.name}, str(path))
    except ConfigError:
        return None


def summaries_of(folders: Sequence[Path]) -> list[RunSummary]:
    """Return the summaries of run folders, computed in several processes if there are many records."""
    size = sum((folder / SAMPLES).stat().st_size for folder in folders if (folder / SAMPLES).exists())
    if len(folders) < 2 or size < PARALLEL_BYTES:
        return [summary_of(folder) for folder in folders]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:  # torch's state cannot be forked
        return list(pool.map(summary_of, folders))


def stamp(folder: Path) -> str:
    """Return a hash of the inputs of a summary: sizes, times and ends of the run's files."""
    digest = hashlib.sha256()
    for path in (folder / name for name in (SAMPLES, SCORES, CONFIG, ENVIRONMENT, MANIFEST)):
        if path.exists():
            size = path.stat().st_size
            digest.update(str(path.stat().st_mtime_ns).encode())
            with path.open("rb") as file:
                digest.update(f"{path.name}:{size}".encode() + file.read(HASHED_ENDS))
                file.seek(max(size - HASHED_ENDS, 0))
                digest.update(file.read())
    return digest.hexdigest()[:16]


def summarize(folder: Path) -> RunSummary:
    """Compute the summary of a run folder, complete or not. Raises ConfigError if the folder contains no run."""
    if not (folder / CONFIG).exists() or not (folder / SAMPLES).exists():
        what = "contains no run" if folder.exists() else "does not exist"
        raise ConfigError(f"{folder} {what}; help: specbench run")
    spec = spec_of(folder)
    environment = read_with_checksum(folder / ENVIRONMENT, Environment)
    recorded = load(folder)
    records = recorded.records
    scores = scores_by_prompt(scores_of(folder), {r.sample: r.prompt for r in records})
    bandwidth = bandwidth_of(environment)
    timed = not environment.get("untimed", False)
    methods = [_method(name, spec, records, scores, bandwidth, timed) for name in spec.methods]
    completed = {method.method: complete(records, method.method) for method in methods if method.is_measured and timed}
    clock = headline_clock(spec, methods)
    rank_of = ranks(completed, end_to_end=clock == "end to end")
    return RunSummary(
        spec=spec,
        stamp=stamp(folder),
        clock=clock,
        run=folder.name,
        folder=str(folder),
        imported=origin.archive if (origin := imported_of(folder)) else "",
        environment=environment,
        complete=recorded.complete,
        problems=recorded.problems,
        captured=CapturedGraphs(
            sum(record.captured for record in records), sum(record.capture_seconds for record in records)
        ),
        metrics=scores["metrics"],
        headline=scores["headline"],
        scored_by=scores["version"],
        not_executed=scores["not_executed"],
        scored=scores["records"] == len(records),
        methods=[replace(method, rank=rank_of.get(method.method)) for method in methods],
    )


def headline_clock(spec: RunSpec, methods: Sequence[MethodSummary]) -> Clock:
    """Return the clock of a run's headline: end to end unless decoding time alone gives the same answer.

    It does where prefill is at most PREFILL of the time of every method, and the two speedups have overlapping intervals.
    """
    for row in methods:
        share = row.number("prefill_share")
        decoding, whole = row.value("speedup"), row.value("end_to_end_speedup")
        differ = isinstance(decoding, Estimate) and isinstance(whole, Estimate) and not decoding.overlaps(whole)
        if differ or (share or 0.0) > PREFILL:
            return "end to end"
    return spec.clock


def _method(
    name: str, spec: RunSpec, records: Records, scores: Scores, bandwidth: Bandwidth, timed: bool
) -> MethodSummary:
    """Return the summary of one method. Without a complete generation it has counts only."""
    rows, context = complete(records, name), replace(context_of(name, spec, records, bandwidth), timed=timed)
    errors = [r.error for r in records if r.method == name and r.error is not None]
    summary = MethodSummary(
        method=name,
        preset=spec.methods[name].preset,
        label=f"{name}{spec.pair.simulated.label}",
        generations=len(rows),
        failed=len(errors),
        first_error=errors[0] if errors else None,
        prompts=len({r.prompt for r in rows}),
        score_change=score_change(name, spec.baseline, scores),
        **vars(quality(name, scores)),
    )
    if not rows:
        return summary
    return replace(
        summary,
        tokens=token_count(rows),
        values=metric.compute(rows, context) | _predictions(rows, context),
        acceptance_by_position=acceptance_by_position(rows),
        survival=survival(rows),
        acceptance_by_rank=acceptance_by_rank(rows),
        acceptance_by_model=acceptance_by_model(rows),
        forwards_per_token=forwards_per_token(rows),
        round_milliseconds=round_milliseconds(rows) if timed else {},
        length_counts=length_counts(rows),
        counters=counters(rows),
        window_cuts=window_cuts(rows),
        levels=levels(rows),
        predicted_lengths=predict_lengths(context.method.traits.theory, rows, context.baseline) if timed else [],
        break_even=break_even(context.method.traits.theory, rows, context.baseline) if timed else None,
        best_tree=best_tree(context.method.traits.theory, rows, context.baseline) if timed else None,
        steps=speedup_steps(context.baseline_roles, rows, context.baseline)
        if timed and metric.is_compared(rows, context)
        else None,
        groups=_by_group(rows, context, groups_of(scores)),
    )


def context_of(name: str, spec: RunSpec, records: Records, bandwidth: Bandwidth) -> Context:
    """Return the context of one method's metrics. `records` has the records of all methods."""
    baseline_roles = spec.methods[spec.baseline].traits.roles
    return Context(
        baseline=complete(records, spec.baseline),
        sd=complete(records, spec.reference) if spec.reference not in ("", name) else [],
        lossless=[] if spec.methods[name].lossless or name == spec.baseline else _fastest_lossless(spec, records),
        sd_method=spec.methods.get(spec.reference),
        method=spec.methods[name],
        baseline_roles=baseline_roles,
        models=spec.pair.models,
        bandwidth=bandwidth,
        target=next((role for role in reversed(spec.pair.models) if role in baseline_roles), ""),
        later_turns=spec.task.data.later_turns > 0,
        predicted_distance=_predicted_distance(spec.methods[name], spec),
    )


def _fastest_lossless(spec: RunSpec, records: Records) -> Records:
    """Return the records of the lossless method besides the baseline with the most tokens per second, end to end."""
    names = (name for name, method in spec.methods.items() if method.lossless and name != spec.baseline)
    rivals = [rows for name in names if (rows := complete(records, name))]
    return max(rivals, key=end_to_end_tokens_per_second, default=[])


def _predicted_distance(method: MethodSpec, spec: RunSpec) -> float | None:
    """Return the distance from the target that Theorem 1 gives on the test texts of a verifier's head.

    None except at T = 1, unfiltered, on a task that these texts are from, for a method that the theorem is about.
    """
    if not method.traits.predicts_distance:
        return None
    head, decoding = spec.pair.heads[method.traits.heads[0]], spec.decoding
    plain = (decoding.temperature, decoding.top_k, decoding.top_p) == (1.0, 0, 1.0)
    return head.predicted_distance if plain and spec.task.name in head.tasks else None


def _predictions(rows: Records, context: Context) -> Values:
    """Return the speedups that theory predicts at the measured acceptance and costs. Empty for the baseline."""
    if not context.timed or not metric.is_compared(rows, context):
        return {}
    predicted = predictions(context.method.traits.theory, context.baseline_roles, rows, context.baseline)
    values: Values = (
        {} if predicted is None else {key: value for key, value in asdict(predicted).items() if value is not None}
    )
    if corrected := values.get("corrected"):
        assert isinstance(corrected, float)
        values["measured_over_corrected"] = speedup(rows, context.baseline).value / corrected
    return values


def _by_group(rows: Records, context: Context, groups: Mapping[str, str]) -> dict[str, Values]:
    """Return metrics by subject or category. `groups` are by sample; a sample that was not scored yet has none."""
    out: dict[str, Values] = {}
    for group in sorted(set(groups.values())):
        ours, theirs = ([r for r in side if groups.get(r.prompt) == group] for side in (rows, context.baseline))
        if paired(ours, theirs)[0]:
            out[group] = metric.compute(ours, replace(context, baseline=theirs), by_group=True)
    return out
